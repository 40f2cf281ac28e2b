"""Prints verdicts: the table of cases, what each failure is, and the points. Used by common.checking.run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

if TYPE_CHECKING:
    from common.checking import Verdict

COLOURS = {"pass": "green", "FAIL": "red", "error": "red", "not implemented": "yellow"}
DETAILED_PER_PART = 3  # failures of one part that nobody could name are explained in full up to this many


def counted(number: int, what: str) -> str:
    """ "1 case", "12 cases"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def wide(console: Console) -> Console:
    """The same console; where it is no terminal, with room for tables."""
    return console if console.is_terminal else Console(file=console.file, width=max(console.width, 120))


def print_report(console: Console, title: str, verdicts: Sequence[Verdict], points: bool = True) -> None:
    """Everything that `python -m taskN.test` says after the cases have run; no points for a run that earns none."""
    print_cases(console, title, verdicts, points)
    if points:
        print_points(console, verdicts)


def print_cases(console: Console, title: str, verdicts: Sequence[Verdict], with_points: bool = True) -> None:
    """The table of cases, and what each failure is."""
    console = wide(console)
    console.print(_table(title, verdicts, with_points))
    _print_failures(console, [one for one in verdicts if one.status not in ("pass", "skipped")])


def _table(title: str, verdicts: Sequence[Verdict], with_points: bool) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("part", "case", "shapes", "verdict"):
        table.add_column(column)
    for column in ("max error", "bound", *(["points"] if with_points else [])):
        table.add_column(column, justify="right")
    for one in verdicts:
        colour = COLOURS.get(one.status, "dim")
        points = f"{one.case.points if one.ok else 0:g}/{one.case.points:g}" if one.case.points else ""
        name = escape(one.case.name) + (" *" if one.case.required else "")
        status = f"[{colour}]{one.status}[/]"
        if one.findings:
            status += f", [red]{counted(one.findings, 'finding')}[/]"
        table.add_row(
            one.case.part,
            name,
            escape(one.shapes),
            status,
            _number(one.max_error),
            _number(one.bound),
            *([points] if with_points else []),
        )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else "NaN or Inf" if not math.isfinite(value) else f"{value:.1e}"


def _print_failures(console: Console, failures: Sequence[Verdict]) -> None:
    """Each failure's diagnosis. Cases with the same cause are told once, and the others' names listed."""
    told: dict[tuple, list[Verdict]] = {}
    for one in failures:
        told.setdefault(_cause(one), []).append(one)
    unnamed: dict[str, int] = {}
    for (part, status, *_), alike in told.items():
        first = alike[0]
        unnamed[part] = unnamed.get(part, 0) + (status == "FAIL" and not first.mistakes)
        brief = status == "FAIL" and not first.mistakes and unnamed[part] > DETAILED_PER_PART
        console.print(f"\n[bold]{part}: {escape(first.case.name)}[/]  {status}", highlight=False)
        for sentence in first.diagnosis[: 1 if brief else None]:
            console.print(Padding(escape(sentence), (0, 0, 0, 2)), highlight=False)
        if len(alike) > 1:
            names = "; ".join(other.case.name for other in alike[1:])
            console.print(Padding(f"The same holds for: {escape(names)}", (0, 0, 0, 2)), highlight=False)


def _cause(one: Verdict) -> tuple:
    """Verdicts with equal causes are told together."""
    if one.mistakes:
        return one.case.part, one.status, one.mistakes[0]
    if one.status != "FAIL":
        return one.case.part, one.status, *one.diagnosis
    return one.case.part, one.status, one.case.name


def points_of(verdicts: Sequence[Verdict]) -> tuple[float, float]:
    """(earned, possible) for the verdicts of one part: nothing is earned until every required case passes."""
    possible = sum(one.case.points for one in verdicts)
    if not all(one.ok for one in verdicts if one.case.required):
        return 0.0, possible
    return sum(one.case.points for one in verdicts if one.ok), possible


@dataclass(frozen=True)
class PartPoints:
    """What one part earned, and why not more."""

    part: str
    earned: float
    possible: float
    why: str = ""


def print_points(console: Console, verdicts: Sequence[Verdict], others: Sequence[PartPoints] = ()) -> None:
    """The points of each part and their sum: those of the verdicts, then the others'."""
    lines = []
    for part in dict.fromkeys(one.case.part for one in verdicts):
        of_part = [one for one in verdicts if one.case.part == part]
        missing = [one.case.name for one in of_part if one.case.required and not one.ok]
        why = f"none before the case marked * passes: {'; '.join(missing)}" if missing else ""
        lines.append(PartPoints(part, *points_of(of_part), why))
    lines += others
    console = wide(console)
    console.print()
    for one in lines:
        why = f"   {one.why}" if one.why else ""
        console.print(
            f"  {one.part:<12} {_points(one.earned)} of {_points(one.possible)}{escape(why)}", highlight=False
        )
    earned, possible = sum(one.earned for one in lines), sum(one.possible for one in lines)
    console.print(f"Points: {_points(earned)} of {_points(possible)}", highlight=False)


def _points(value: float) -> str:
    return f"{round(value, 2):g}"
