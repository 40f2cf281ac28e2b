"""Parses the gaps of a solution and generates the student's text, in which every gap is a TODO.

A gap in a solution file is

    // BEGIN SOLUTION 3 (8 lines): the hint; further comment lines, indented by four spaces or more, belong to it
    ... code ...
    // END SOLUTION

with # instead of // in Python. 3 is the gap's number within its task, also used in its handout: 1, 2, ... in the order
in which the gaps are filled. Standard library only.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from common.compiling.manifest import read_manifest, tasks
from common.console.paths import ROOT

_BEGIN = re.compile(r"^(\s*)(//|#) BEGIN SOLUTION(?: (\d+))? \((\d+) lines?\): (\S.*)$")
_END = re.compile(r"^\s*(//|#) END SOLUTION$")
_MENTION = re.compile(r"(BEGIN|END) SOLUTION")


class SkeletonError(ValueError):
    """A solution file whose gap markers are malformed; the message names file and line."""


@dataclass(frozen=True)
class Part:
    """A section of a solution file: text outside the gaps, or one gap with its hint, its code and its number."""

    lines: list[str]
    is_gap: bool = False
    indent: str = ""
    comment: str = "//"
    line_count: int = 0
    hint: tuple[str, ...] = ()
    number: int | None = None

    def skeleton(self) -> list[str]:
        """The student's version: the text itself, or the TODO."""
        if not self.is_gap:
            return self.lines
        first, *more = self.hint
        size = f"about {self.line_count} line{'s' if self.line_count > 1 else ''}"
        marker = "NOT_IMPLEMENTED();" if self.comment == "//" else 'raise NotImplementedError("TODO")'
        name = "TODO" if self.number is None else f"TODO {self.number}"
        todo = [f"{self.comment} {name} ({size}): {first}", *more, marker, f"{self.comment} END TODO"]
        return [self.indent + line for line in todo]


def parse(text: str, name: str) -> list[Part]:
    """Splits a solution's text into parts.

    Raises:
        SkeletonError: an unmatched, nested or misspelled marker, or an empty gap.
    """
    parts: list[Part] = [Part([])]
    gap: Part | None = None
    in_hint = False
    for number, line in enumerate(text.split("\n"), 1):
        if begin := _BEGIN.match(line):
            if gap:
                raise SkeletonError(f"{name}:{number}: BEGIN SOLUTION inside another gap")
            indent, comment, which, size, hint = begin.groups()
            gap = Part([], True, indent, comment, int(size), (hint,), int(which) if which else None)
            in_hint = True
        elif _END.match(line):
            if not gap or not any(code.strip() for code in gap.lines):
                raise SkeletonError(f"{name}:{number}: END SOLUTION " + ("of an empty gap" if gap else "without BEGIN"))
            parts += [gap, Part([])]
            gap = None
        elif _MENTION.search(line):
            raise SkeletonError(f"{name}:{number}: write '// BEGIN SOLUTION 3 (8 lines): hint' and '// END SOLUTION'")
        elif gap and in_hint and re.match(rf"\s*{re.escape(gap.comment)}\s{{4,}}\S", line):
            gap = replace(gap, hint=(*gap.hint, line.strip()))
        elif gap:
            in_hint = False
            gap.lines.append(line)
        else:
            parts[-1].lines.append(line)
    if gap:
        raise SkeletonError(f"{name}: BEGIN SOLUTION without END SOLUTION")
    return parts


def skeleton_of(text: str, name: str) -> str:
    """The student's text for a solution's text."""
    return "\n".join(line for part in parse(text, name) for line in part.skeleton())


def solution_files(task: str | None = None) -> list[Path]:
    """The filled files of a task, or of all tasks: those listed in task.json and present under solution/.

    Raises:
        ValueError: no such task.
    """
    manifests = [read_manifest(name) for name in ([task] if task else tasks())]
    return [manifest.folder / "solution" / name for manifest in manifests for name in manifest.with_gaps]


def student_file(solution: Path) -> Path:
    """task2/solution/attention_kernel.cu -> task2/attention_kernel.cu"""
    return solution.parent.parent / solution.name


def fill_gaps(folder: Path, task: str | None = None) -> None:
    """In `folder`, a copy of the checkout, overwrites the files with gaps of a task, or of all tasks, by filled ones.

    Raises:
        ValueError: no such task.
        OSError: a file cannot be written.
    """
    for solution in solution_files(task):
        shutil.copy(solution, folder / student_file(solution).relative_to(ROOT))
