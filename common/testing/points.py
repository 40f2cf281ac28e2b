"""The points of a test run: per part, and their sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from common.console.terminal import say, wide
from common.testing.case import Verdict


def points_of(verdicts: Sequence[Verdict]) -> tuple[float, float]:
    """(earned, possible) for the verdicts of one part; it earns nothing until every required case passes."""
    possible = sum(one.case.points for one in verdicts)
    if not all(one.ok for one in verdicts if one.case.required):
        return 0.0, possible
    return sum(one.case.points for one in verdicts if one.ok), possible


MOST_NAMES = 3  # listed required cases per part


@dataclass(frozen=True)
class PartPoints:
    """The points of one part, and why points are missing."""

    part: str
    earned: float
    possible: float
    why: str = ""


def print_points(console: Console, verdicts: Sequence[Verdict], others: Sequence[PartPoints] = ()) -> None:
    """Prints the points of each part that has any, and their sum: first the verdicts' parts, then the others."""
    lines = []
    for part in dict.fromkeys(one.case.part for one in verdicts):
        of_part = [one for one in verdicts if one.case.part == part]
        missing = [one.case.name for one in of_part if one.case.required and not one.ok]
        more = f"; and {len(missing) - MOST_NAMES} more" if len(missing) > MOST_NAMES else ""
        all_of = f"no points until all cases marked * pass; missing: {'; '.join(missing[:MOST_NAMES])}{more}"
        why = all_of if missing else ""
        lines.append(PartPoints(part, *points_of(of_part), why))
    lines += others
    lines = [one for one in lines if one.possible]
    if not lines:
        return
    console = wide(console)
    console.print()
    for one in lines:
        why = f"   {one.why}" if one.why else ""
        say(console, f"{one.part:<12} {_points(one.earned)} of {_points(one.possible)}{why}", indent=2)
    earned, possible = sum(one.earned for one in lines), sum(one.possible for one in lines)
    say(console, f"Points: {_points(earned)} of {_points(possible)}")


def _points(value: float) -> str:
    return f"{round(value, 2):g}"
