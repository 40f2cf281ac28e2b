"""A part of a task's test that is timed: it earns points on a GPU and is not run in the simulator.

TimedPart("speed", "measure the speed only (on a GPU)", points=2, run=run)        given to common.cli.test_main
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console

from common import check_report, checking
from common.check_report import PartPoints

if TYPE_CHECKING:
    from common.build import Operators


NOTHING_RUN = 2  # exit status


@dataclass(frozen=True)
class Earned:
    """What a timed part gave.

    Attributes:
        points: earned.
        problems: why something could not be timed or reported, a sentence each.
    """

    points: float
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TimedPart:
    """A part that measures speed.

    Attributes:
        name: "speed"; the flag --speed chooses it alone.
        help: of the flag.
        points: what it can earn.
        run: run(console, ops, options) prints what it measured and returns Earned.
        add_arguments: adds options of its own to the test's command line.
    """

    name: str
    help: str
    points: float
    run: Callable[[Console, Operators, argparse.Namespace], Earned]
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None

    def points_on(self, console: Console, ops: Operators, options: argparse.Namespace) -> tuple[PartPoints, bool]:
        """Runs the part if the operators are on a GPU: (its line among the points, whether all went well)."""
        if ops.backend != "cuda":
            return PartPoints(self.name, 0.0, self.points, "not run in the simulator: these are given on a GPU"), True
        try:
            earned = self.run(console, ops, options)
        except (RuntimeError, NotImplementedError) as error:
            earned = Earned(0.0, [str(error)])
        for problem in earned.problems:
            console.print(f"  {problem}", markup=False, highlight=False)
        line = PartPoints(self.name, earned.points, self.points, "see above" if earned.problems else "")
        return line, earned.points >= self.points and not earned.problems


def run(
    title: str,
    cases: Sequence[checking.Case],
    timed: TimedPart,
    ops: Operators,
    console: Console,
    options: argparse.Namespace,
) -> int:
    """Runs the cases, then the timed part; prints the points of both.

    Returns:
        The exit status: 0 if every case passed and the timed part lost no points, 1 if not; 2 if nothing was run, since
        there are no cases and no GPU.
    """
    verdicts = []
    if cases:
        verdicts = checking.run_cases(cases, ops, console, lambda case: checking.check(case, ops, options.seed))
        check_report.print_cases(console, title, verdicts)
    line, ok = timed.points_on(check_report.wide(console), ops, options)
    check_report.print_points(console, verdicts, [line])
    if not cases and ops.backend != "cuda":
        return NOTHING_RUN
    return 0 if ok and all(verdict.status in (checking.PASS, checking.SKIPPED) for verdict in verdicts) else 1
