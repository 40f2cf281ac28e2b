"""Prints verdicts: the table of cases, the diagnosis of each failure, and the points."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.box import HEAVY_HEAD, SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common.console.terminal import say, wide
from common.console.words import counted
from common.testing.case import Verdict
from common.testing.failures import failed, print_failures
from common.testing.points import print_points

COLORS = {"pass": "green", "FAIL": "red", "error": "red", "not implemented": "yellow"}
ROOMY = 100  # terminal width from which the table shows all columns
MOST_ROWS = 12  # in a table with failures


def print_report(console: Console, title: str, verdicts: Sequence[Verdict], points: bool = True) -> None:
    """Prints the whole report after cases have run; without points for a run that earns none."""
    print_table(console, title, verdicts, points)
    print_failures(console, verdicts)
    if points:
        print_points(console, verdicts)


def print_table(
    console: Console, title: str, verdicts: Sequence[Verdict], with_points: bool = True, everything: bool = False
) -> None:
    """Prints a row per case. If some fail, passing cases are condensed to a row per part, unless `everything`."""
    console = wide(console)
    failures = [one for one in verdicts if failed(one)]
    if everything or not failures or len(verdicts) <= MOST_ROWS:
        console.print(_table(title, verdicts, with_points, console.width))
        return
    console.print(_table(title, failures[:MOST_ROWS], with_points, console.width))
    shown = min(len(failures), MOST_ROWS)
    did_not = f"{len(failures)} did not" + (f", {shown} of them shown" if shown < len(failures) else "")
    say(console, f"{counted(sum(one.ok for one in verdicts), 'case')} passed, {did_not} (--all shows every one)")


def _table(title: str, verdicts: Sequence[Verdict], with_points: bool, width: int) -> Table:
    """A row per case; in a narrow terminal without shapes and bounds, so that verdicts are not truncated."""
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
    status = f"[{COLORS.get(verdict.status, 'dim')}]{verdict.status}[/]"
    return status + (f", [red]{counted(verdict.findings, 'finding')}[/]" if verdict.findings else "")


def _number(value: float | None) -> str:
    return "" if value is None else "NaN or Inf" if not math.isfinite(value) else f"{value:.1e}"
