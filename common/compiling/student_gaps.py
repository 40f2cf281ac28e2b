"""The gaps of a task in the student's files: where each is, whether it is filled, and how to make it a TODO again.

    gaps_of("task2")          all gaps of the task, in the order in which students fill them
    gap.filled, gap.line      in the student's current file
    reset(gap)                the file's text with this gap in its original state
    filled_with(gap, code)    the file's text with this code in the gap

The original is the skeleton of solution/NAME, or given/start/NAME in a checkout without solutions. A gap is named after
its function ("softmax_kernel 2" is the second gap of that function), so its name survives a rewording of its TODO.
Standard library only.
"""

from __future__ import annotations

import ast
import difflib
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.compiling.gaps import MARKER, functions_of
from common.compiling.manifest import read_manifest
from common.compiling.skeletons import skeleton_of
from common.console.files import read_source
from common.console.paths import shown_path

_TODO = re.compile(r"^\s*(?://|#) TODO\b")
_NUMBER = re.compile(r"TODO (?:gap )?(\d+(?:\.\d+)*)\b")
_END = re.compile(r"^\s*(?://|#) END TODO\s*$")
_UNFILLED = re.compile(rf"^\s*(?:{MARKER}\s*\(\s*\)|raise NotImplementedError)")
START = "given/start"  # in a task's folder: the original files, if there is no solution/


class GapError(ValueError):
    """A gap cannot be found, or cannot be distinguished from its neighbors; the message says what to do."""


@dataclass(frozen=True)
class StudentGap:
    """One gap of a student's file.

    Attributes:
        number: the number in its TODO, or else its position within the task, counted from 1.
        name: "block_reduce", or "softmax_kernel 2" if a function has several.
        file: the student's.
        todo: the gap's original lines, TODO to END TODO.
        first, last: its lines in the student's file, from 1, inclusive; None if it cannot be found there.
        filled: whether the marker has been replaced.
    """

    number: str
    name: str
    file: Path
    todo: tuple[str, ...]
    first: int | None
    last: int | None
    filled: bool

    @property
    def place(self) -> str:
        """ "task2/attention_kernel.cu:88 in softmax_kernel" """
        line = f":{self.first}" if self.first else ""
        return f"{shown_path(self.file)}{line} in {self.name.split()[0]}"


def given_out(file: Path) -> str:
    """The original text of a student's file.

    Raises:
        GapError: both its solution and its copy under given/start are missing.
    """
    solution, start = file.parent / "solution" / file.name, file.parent / START / file.name
    if solution.is_file():
        return skeleton_of(read_source(solution), shown_path(solution))
    if start.is_file():
        return read_source(start)
    raise GapError(f"{shown_path(file)}: the file as it was given out is missing; it would be {shown_path(start)}")


def files_with_gaps(task: str) -> list[Path]:
    """The student's files that have gaps: Python first, and headers before the kernels that include them.

    Raises:
        ValueError: no such task.
    """
    manifest = read_manifest(task)
    found = []
    for name in manifest.files:
        file = manifest.folder / name
        if any((file.parent / folder / name).is_file() for folder in ("solution", START)):
            found.append(file)
    return sorted(found, key=lambda file: ([".py", ".cuh", ".cu"].index(file.suffix), manifest.files.index(file.name)))


def gaps_of(task: str) -> list[StudentGap]:
    """All gaps of a task.

    Raises:
        ValueError: no such task, or a file is not UTF-8.
        GapError: the task's original files are missing.
    """
    found: list[StudentGap] = []
    for file in files_with_gaps(task):
        original = given_out(file).split("\n")
        places = _todos(original)
        names = _names(file, original, places)
        now = read_source(file).split("\n") if file.is_file() else []
        for (begin, end), name, place in zip(places, names, _in(now, original, places), strict=True):
            first, last = place or (None, None)
            inside = now[first : last + 1] if place else []
            code = [line for line in inside if line.strip() and not line.strip().startswith(("//", "#"))]
            filled = bool(code) and not any(_UNFILLED.match(line) for line in code)
            lines = (first + 1, last + 1) if place else (None, None)
            said = _NUMBER.search(original[begin])
            number = said[1] if said else str(len(found) + 1)
            found.append(StudentGap(number, name, file, tuple(original[begin : end + 1]), *lines, filled))
    return found


def chosen_gap(gaps: list[StudentGap], wanted: str) -> StudentGap:
    """The gap with this number or name, ignoring case; a function's name alone means its first gap.

    Raises:
        GapError: there is none; the message lists them.
    """
    key = " ".join(wanted.lower().replace(":", " ").split())
    for gap in gaps:
        if key in (gap.number, gap.name.lower()) or key == gap.name.lower().removesuffix(" 1"):
            return gap
    names = ", ".join(f"{gap.number} {gap.name}" for gap in gaps)
    raise GapError(f"no gap is called {wanted!r}; there are {names}")


def reset(gap: StudentGap) -> str:
    """The text of the gap's file with this gap reset and everything else unchanged.

    Raises:
        GapError: the gap cannot be distinguished from what is around it.
    """
    return _with(gap, gap.todo)


def filled_with(gap: StudentGap, code: str) -> str:
    """The text of the gap's file with this code, indented, in the gap and everything else unchanged.

    Raises:
        GapError: the gap cannot be distinguished from what is around it.
    """
    first, *_, last = gap.todo
    indent = first[: len(first) - len(first.lstrip())]
    hint = [line for line in gap.todo[:-1] if not _UNFILLED.match(line)]
    lines = textwrap.indent(textwrap.dedent(code.strip("\n")), indent).split("\n")
    return _with(gap, (*hint, *(line.rstrip() for line in lines), last))


def _with(gap: StudentGap, new: Sequence[str]) -> str:
    if gap.first is None:
        raise GapError(
            f"{shown_path(gap.file)}: where {gap.name} was can no longer be found: its lines and those around it have "
            "changed. Reset the whole file"
        )
    lines = read_source(gap.file).split("\n")
    return "\n".join([*lines[: gap.first - 1], *new, *lines[gap.last :]])


def _todos(lines: list[str]) -> list[tuple[int, int]]:
    """First and last line of every TODO, from 0."""
    found, begin = [], None
    for number, line in enumerate(lines):
        if _TODO.match(line) and begin is None:
            begin = number
        elif _END.match(line) and begin is not None:
            found.append((begin, number))
            begin = None
    return found


def _names(file: Path, lines: list[str], places: list[tuple[int, int]]) -> list[str]:
    """Each gap's function, with a number if the function has several."""
    if file.suffix == ".py":
        every = [one for one in ast.walk(ast.parse("\n".join(lines))) if isinstance(one, ast.FunctionDef)]
        functions = []
        for begin, _ in places:
            around = [one for one in every if one.lineno <= begin + 1 <= one.end_lineno]
            functions.append(max(around, key=lambda one: one.lineno).name)
    else:
        functions = [gap.function for one in functions_of("\n".join(lines), file) for gap in one.gaps]
    return [
        f"{name} {functions[: number + 1].count(name)}" if functions.count(name) > 1 else name
        for number, name in enumerate(functions)
    ]


def _in(now: list[str], original: list[str], places: list[tuple[int, int]]) -> list[tuple[int, int] | None]:
    """First and last line of each gap in the student's lines, from 0.

    Found by the TODO markers if all are still there, else by the lines around a gap, which the student need not change.
    """
    here = _todos(now)
    if [now[begin] for begin, _ in here] == [original[begin] for begin, _ in places]:
        return list(here)
    outside = set(range(len(original))) - {line for begin, end in places for line in range(begin, end + 1)}
    image = {}
    for block in difflib.SequenceMatcher(None, original, now, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            if block.a + offset in outside:
                image[block.a + offset] = block.b + offset
    found: list[tuple[int, int] | None] = []
    for begin, end in places:
        before, after = image.get(begin - 1), image.get(end + 1)
        found.append((before + 1, after - 1) if before is not None and after is not None and after > before else None)
    return found
