"""Prints verdicts: the table of cases, what each failure is, and the points. Used by common.testing.run.run."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from rich.box import HEAVY_HEAD, SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from common.console.terminal import say, wide
from common.console.words import counted
from common.diagnosis.diagnose import UNKNOWN
from common.testing.case import FAIL, NOT_RUN, PASS, SKIPPED, Verdict
from common.testing.case_choice import full_name
from common.testing.points import print_points

COLOURS = {"pass": "green", "FAIL": "red", "error": "red", "not implemented": "yellow"}
ROOMY = 100  # columns of a terminal, from which on the table shows everything
MOST_ROWS = 20  # of a table with failures
MOST_BRIEF = 3  # failures of a part that are told in a line, beside the one that is told in full
MOST_NAMES = 6  # of cases that share a failure


def print_report(console: Console, title: str, verdicts: Sequence[Verdict], points: bool = True) -> None:
    """Everything that is said after cases have run; no points for a run that earns none."""
    print_table(console, title, verdicts, points)
    print_failures(console, verdicts)
    if points:
        print_points(console, verdicts)


def print_table(
    console: Console, title: str, verdicts: Sequence[Verdict], with_points: bool = True, everything: bool = False
) -> None:
    """A row per case. Where some fail, the many that pass are one row for each part, unless everything is wanted."""
    console = wide(console)
    passed: dict[str, int] = {}
    shown = list(verdicts)
    if not everything and len(shown) > MOST_ROWS and any(_failed(one) for one in shown):
        for one in verdicts:
            passed[one.case.part] = passed.get(one.case.part, 0) + one.ok
        shown = [one for one in verdicts if _failed(one)][:MOST_ROWS]
    console.print(_table(title, shown, with_points, console.width))
    failed = [one for one in verdicts if _failed(one)]
    if passed:
        rest = f"; {len(failed) - len(shown)} more fail" if len(failed) > len(shown) else ""
        counts = ", ".join(f"{part} {number}" for part, number in passed.items())
        say(console, f"that pass: {counts}{rest} (--all shows every case)")


def _failed(one: Verdict) -> bool:
    return one.status not in (PASS, SKIPPED)


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


def print_failures(
    console: Console, verdicts: Sequence[Verdict], found: Collection[str] = (), everything: bool = False
) -> None:
    """What the failures are. Of each part the cause that most cases share is told in full, of the others a line.

    Args:
        console: where to print.
        verdicts: all of them.
        found: parts in which the checked build found a mistake, which is told already: of these what is certain.
        everything: tell every failure in full.
    """
    console = wide(console)
    parts: dict[str, dict[tuple, list[Verdict]]] = {}
    for one in verdicts:
        if _failed(one):
            parts.setdefault(one.case.part, {}).setdefault(_cause(one), []).append(one)
    for part, causes in parts.items():
        ordered = sorted(causes.values(), key=lambda alike: (alike[0].status == NOT_RUN, -len(alike)))
        for number, alike in enumerate(ordered):
            if everything or (not number and part not in found):
                _print_whole(console, alike)
        if everything:
            continue
        rest = ordered[part not in found :]
        for alike in rest[:MOST_BRIEF]:
            _print_brief(console, alike, part in found)
        if left := sum(map(len, rest[MOST_BRIEF:])):
            say(console, f"{part}: {counted(left, 'more case')} like these; --all tells of every one")


def _print_whole(console: Console, alike: Sequence[Verdict]) -> None:
    first = alike[0]
    console.print(f"\n[bold]{escape(full_name(first.case))}[/]  {first.status}", highlight=False)
    for sentence in first.diagnosis:
        console.print(Padding(escape(sentence), (0, 0, 0, 2)), highlight=False)
    if len(alike) > 1:
        _print_same(console, alike[1:])


def _print_brief(console: Console, alike: Sequence[Verdict], with_finding: bool) -> None:
    """The first line of a failure; beside a finding of the checked build what is measured or equal, and no guess."""
    first = alike[0]
    lines = [*first.exact[:1], first.where] if with_finding and first.where else first.diagnosis[:1]
    if not with_finding and first.where and first.diagnosis[:1] == [UNKNOWN]:
        lines = [first.where]
    said = f"{full_name(first.case)}  {first.status}: " + " ".join(line for line in lines if line)
    console.print(Padding(escape(said), (0, 0, 0, 0)), highlight=False)
    if len(alike) > 1:
        _print_same(console, alike[1:])


def _print_same(console: Console, others: Sequence[Verdict]) -> None:
    names = "; ".join(other.case.name for other in others[:MOST_NAMES])
    more = f"; and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
    console.print(Padding(f"The same holds for: {escape(names)}{more}", (0, 0, 0, 2)), highlight=False)


def _cause(one: Verdict) -> tuple:
    """Verdicts with equal causes are told together."""
    if one.mistakes:
        return one.status, one.mistakes[0]
    if one.ended:
        return one.status, "ended"
    if one.status != FAIL:
        return one.status, *one.diagnosis
    return one.status, UNKNOWN
