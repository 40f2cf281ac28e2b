"""Writes a command's measurements into Results.md, between two markers. The rest of the file is unchanged.

    <!-- BEGIN task4 speedups -->            report(console, "task4 speedups", Block(...))
    ... output of an earlier run ...
    <!-- END task4 speedups -->

A block states the command, date and machine, followed by its table.
"""

from __future__ import annotations

import datetime
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from common.console.files import keep_old, write_whole
from common.console.paths import ROOT, build_root
from common.console.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

RESULTS = ROOT / "Results.md"


class ResultsError(ValueError):
    """Results.md is malformed; nothing was written."""


@dataclass(frozen=True)
class Block:
    """The measurements of one run.

    Attributes:
        command: as typed, "python -m task4.test --report".
        machine: {"gpu": "NVIDIA H200", "torch": "2.11.0", ...}, see common.measure.report.machine.
        columns: the table's columns.
        rows: the table's rows, one cell per column.
        notes: sentences below the table.
        date: date of the run; default: today.
        how: "Measured", or "Predicted" without a GPU.
    """

    command: str
    machine: Mapping[str, str]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    date: datetime.date | None = None
    how: str = "Measured"

    def __post_init__(self) -> None:
        if uneven := [list(row) for row in self.rows if len(row) != len(self.columns)]:
            raise ValueError(f"rows holds {uneven[0]}; each row must have {len(self.columns)} cells")

    def lines(self) -> list[str]:
        """The block in Markdown."""
        on = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        return [
            f"{self.how} by `{self.command}` on {self.date or datetime.date.today()}; {on}.",
            "",
            _row(self.columns),
            _row(["---"] * len(self.columns)),
            *(_row(row) for row in self.rows),
            *([""] if self.notes else []),
            *self.notes,
        ]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def markers(name: str) -> tuple[str, str]:
    """The lines around a block."""
    return f"<!-- BEGIN {name} -->", f"<!-- END {name} -->"


def replaced(text: str, name: str, lines: Sequence[str]) -> str:
    """The text with these lines between the markers of `name`; line endings are preserved.

    Raises:
        ResultsError: a marker is missing or duplicated, they are in the wrong order, or another block begins or ends
            between them.
    """
    found = text.splitlines(keepends=True)
    at = []
    for marker in markers(name):
        places = [number for number, line in enumerate(found) if line.strip() == marker]
        if not places:
            begin, end = markers(name)
            raise ResultsError(
                f"it has no line {marker}; put these two lines where the table should go:\n{begin}\n{end}"
            )
        if len(places) > 1:
            numbers = ", ".join(str(number + 1) for number in places)
            raise ResultsError(
                f"it has the line {marker} {len(places)} times, in lines {numbers}; it must be there once"
            )
        at += places
    begin, end = at
    if end < begin:
        raise ResultsError(f"{markers(name)[1]} in line {end + 1} comes before its BEGIN in line {begin + 1}")
    for number in range(begin + 1, end):
        if found[number].strip().startswith(("<!-- BEGIN ", "<!-- END ")):
            raise ResultsError(
                f"line {number + 1}, {found[number].strip()}, is between the markers of {name!r}, in lines "
                f"{begin + 1} and {end + 1}: another block would be lost"
            )
    newline = "\r\n" if found[begin].endswith("\r\n") else "\n"
    return "".join([*found[: begin + 1], *(line + newline for line in lines), *found[end:]])


def write_block(path: Path, name: str, block: Block) -> Path | None:
    """Replaces the text between the markers of `name`.

    The file is replaced atomically, so that a half-written file is never visible. If the block was not empty, a backup
    of the old file is kept next to it.

    Args:
        path: path of Results.md.
        name: name of the block, "task4 speedups".
        block: what to write.

    Returns:
        The backup's path, Results.md.bak or .bak2; None if there was nothing to lose.

    Raises:
        ResultsError: the file is missing, is not UTF-8, or its markers are wrong; see `replaced`.
        OSError: it cannot be written.
    """
    path = path.resolve()  # write through a symbolic link
    build_root().mkdir(parents=True, exist_ok=True)
    with FileLock(build_root() / "results.lock"):  # concurrent runs keep each other's blocks
        return _write_block(path, name, block)


def _write_block(path: Path, name: str, block: Block) -> Path | None:
    try:
        if path.exists() and not path.stat().st_mode & stat.S_IWUSR:
            raise ResultsError(f"{path} is read-only; nothing was written")
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise ResultsError(f"{path} is missing; nothing was written") from None
    except UnicodeDecodeError:
        raise ResultsError(f"{path} is not UTF-8; nothing was written") from None
    try:
        new = replaced(text, name, block.lines())
        was_empty = replaced(text, name, []) == text
    except ResultsError as error:
        raise ResultsError(f"{path}: nothing was written: {error}") from None
    kept = None
    if not was_empty and new != text:
        kept = keep_old(path)
    write_whole(path, new)
    return kept


def report(console: Console, name: str, block: Block) -> None:
    """Writes a block into the project's Results.md and prints that it did.

    Args:
        console: where to print.
        name, block: see write_block, whose errors it raises.
    """
    kept = write_block(RESULTS, name, block)
    before = f"; the previous text is in {kept.name}" if kept else ""
    say(console, f"written to {RESULTS.name}{before}")


def try_report(console: Console, name: str, block: Block) -> list[str]:
    """Like report, but returns errors as sentences; [] if there were none."""
    try:
        report(console, name, block)
    except (ResultsError, OSError) as error:
        return [str(error)]
    return []
