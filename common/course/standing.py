"""Where a student is in a task: its gaps, what its test last said, and what comes next. Nothing runs.

standing_of("task2").next_gap      the first gap in the order of work that is unfilled
standing_of("task2").failing       the parts whose last run failed and still holds
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
    """A task as it stands.

    Attributes:
        task: "task2".
        gaps: all, in the order of work.
        optional: the names of those that earn no points.
        hints: of the task.
        parts: what the test last said, part by part.
        files: digests of the student's files now.
    """

    task: str
    gaps: Sequence[StudentGap]
    optional: frozenset[str]
    hints: TaskHints
    parts: dict[str, KeptPart]
    files: dict[str, str]

    @property
    def needed(self) -> list[StudentGap]:
        """The gaps without the optional ones: what is counted wherever gaps are counted."""
        return [gap for gap in self.gaps if gap.name not in self.optional]

    @property
    def unfilled(self) -> list[StudentGap]:
        """The gaps that are left, without the optional ones."""
        return [gap for gap in self.needed if not gap.filled]

    @property
    def next_gap(self) -> StudentGap | None:
        """The first gap that is left; an optional one when no other is."""
        left = self.unfilled or [gap for gap in self.gaps if not gap.filled]
        return left[0] if left else None

    def holds(self, part: KeptPart) -> bool:
        """Whether what the test said is about the files as they are."""
        return part.still_holds(self.files)

    @property
    def failing(self) -> dict[str, KeptPart]:
        """Parts with a wrong case, by a run that still holds."""
        return {
            name: part
            for name, part in self.parts.items()
            if self.holds(part) and any(not one.is_unfilled for one in part.failures)
        }


def standing_of(task: str) -> Standing:
    """Reads the student's files and what was kept.

    Raises:
        ValueError: no such task, or a file cannot be read.
        OSError: likewise.
    """
    manifest, hints = read_manifest(task), hints_of(task)
    order = list(hints.gaps)
    gaps = sorted(gaps_of(task), key=lambda gap: order.index(gap.name) if gap.name in order else len(order))
    optional = frozenset(name for name, one in hints.gaps.items() if one.optional)
    files = digests([manifest.folder / name for name in manifest.files])
    return Standing(task, gaps, optional, hints, kept(task), files)
