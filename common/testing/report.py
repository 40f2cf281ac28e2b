"""Prints verdicts: the table of cases, what each failure is, and the points. Used by common.testing.run.run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.box import HEAVY_HEAD, SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from common.console.terminal import wide
from common.console.words import counted
from common.testing.case import Verdict
from common.testing.points import print_points

COLOURS = {"pass": "green", "FAIL": "red", "error": "red", "not implemented": "yellow"}
ROOMY = 100  # columns of a terminal, from which on the table shows everything
DETAILED_PER_PART = 3  # failures of one part that nobody could name are explained in full up to this many


def print_report(console: Console, title: str, verdicts: Sequence[Verdict], points: bool = True) -> None:
    """Everything that `python -m taskN.test` says after the cases have run; no points for a run that earns none."""
    print_cases(console, title, verdicts, points)
    if points:
        print_points(console, verdicts)


def print_cases(console: Console, title: str, verdicts: Sequence[Verdict], with_points: bool = True) -> None:
    """The table of cases, and what each failure is."""
    console = wide(console)
    console.print(_table(title, verdicts, with_points, console.width))
    _print_failures(console, [one for one in verdicts if one.status not in ("pass", "skipped")])


def _table(title: str, verdicts: Sequence[Verdict], with_points: bool, width: int) -> Table:
    """A row per case. In a narrow terminal without shapes and bounds, so that no verdict is cut off."""
    table = Table(title=title, title_justify="left", box=HEAVY_HEAD if width >= ROOMY else SIMPLE)
    columns = {
        "part": lambda one: one.case.part,
        "case": lambda one: escape(one.case.name) + (" *" if one.case.required else ""),
        "shapes": lambda one: escape(one.shapes),
        "verdict": _status,
        "max error": lambda one: _number(one.max_error),
        "bound": lambda one: _number(one.bound),
        "points": lambda one: f"{one.case.points if one.ok else 0:g}/{one.case.points:g}" if one.case.points else "",
    }
    left_out = ["shapes", "bound"] if width < ROOMY else []
    left_out += [] if with_points else ["points"]
    for name in left_out:
        del columns[name]
    for name in columns:
        numeric = name in ("max error", "bound", "points")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name not in ("case", "shapes"))
    for one in verdicts:
        table.add_row(*(cell(one) for cell in columns.values()))
    return table


def _status(verdict: Verdict) -> str:
    status = f"[{COLOURS.get(verdict.status, 'dim')}]{verdict.status}[/]"
    return status + (f", [red]{counted(verdict.findings, 'finding')}[/]" if verdict.findings else "")


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
