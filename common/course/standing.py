"""A student's progress in a task: its gaps, the last test results, and the next step. Nothing runs.

standing_of("task2").next_gap      the first unfilled gap in working order
standing_of("task2").failing       the parts whose last run failed and is still current
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.compiling.manifest import read_manifest
from common.compiling.student_gaps import StudentGap, gaps_of
from common.course.hints import TaskHints, hints_of
from common.testing.kept import KeptPart, digests, kept


@dataclass(frozen=True)
class Standing:
    """The current state of a task.

    Attributes:
        task: "task2".
        gaps: all, in working order.
        optional: names of the gaps that earn no points.
        hints: the task's hints.
        parts: the last test result of each part.
        files: current digests of the student's files.
    """

    task: str
    gaps: Sequence[StudentGap]
    optional: frozenset[str]
    hints: TaskHints
    parts: dict[str, KeptPart]
    files: dict[str, str]

    @property
    def needed(self) -> list[StudentGap]:
        """The required gaps; these are what every gap count counts."""
        return [gap for gap in self.gaps if gap.name not in self.optional]

    @property
    def unfilled(self) -> list[StudentGap]:
        """The required gaps that are still unfilled."""
        return [gap for gap in self.needed if not gap.filled]

    @property
    def next_gap(self) -> StudentGap | None:
        """The first unfilled gap; an optional one only if no required gap is left."""
        left = self.unfilled or [gap for gap in self.gaps if not gap.filled]
        return left[0] if left else None

    def holds(self, part: KeptPart) -> bool:
        """Whether the part's result is for the current files."""
        return part.still_holds(self.files)

    @property
    def failing(self) -> dict[str, KeptPart]:
        """Parts with a failed case in a run that is still current."""
        return {
            name: part
            for name, part in self.parts.items()
            if self.holds(part) and any(not one.is_unfilled for one in part.failures)
        }


def standing_of(task: str) -> Standing:
    """Reads the student's files and the saved test results.

    Raises:
        ValueError: no such task, or a file cannot be parsed.
        OSError: a file cannot be read.
    """
    manifest, hints = read_manifest(task), hints_of(task)
    order = list(hints.gaps)
    gaps = sorted(gaps_of(task), key=lambda gap: order.index(gap.name) if gap.name in order else len(order))
    optional = frozenset(name for name, one in hints.gaps.items() if one.optional)
    files = digests([manifest.folder / name for name in manifest.files])
    return Standing(task, gaps, optional, hints, kept(task), files)
