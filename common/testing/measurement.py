"""Parts of a test that do not consist of cases: a kernel's speed, a model's text.

Measurement({"speed": "only measure the speed (on a GPU)"}, run, points={"speed": 2}, needs_gpu=True)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console

from common.console.terminal import say
from common.testing.points import PartPoints

if TYPE_CHECKING:
    from common.compiling.operators import Operators


@dataclass(frozen=True)
class TestRun:
    """The arguments of a measurement.

    Attributes:
        console: where to print.
        ops: the task's operators, of the variant and backend that were requested.
        options: the whole command line.
        parts: the measurement's parts to run, in order.
        command: the command as typed, for Results.md: "python -m task4.test --speed --report".
    """

    __test__ = False  # keeps pytest from collecting it as a test

    console: Console
    ops: Operators
    options: argparse.Namespace
    parts: Sequence[str]
    command: str


@dataclass(frozen=True)
class Earned:
    """The result of one part.

    Attributes:
        part: its name.
        points: points earned.
        problems: what could not be measured or is wrong; a sentence each.
        why: a brief summary of the problems, printed after the points.
    """

    part: str
    points: float = 0.0
    problems: list[str] = field(default_factory=list)
    why: str = "see above"


@dataclass(frozen=True)
class Measurement:
    """Parts of a test that one function measures.

    Attributes:
        parts: name -> help text of its flag; the flag selects the part.
        run: run(test_run) prints its measurements and returns an Earned for each of test_run.parts.
        points: part -> points possible; a part without points has no line in the points table.
        needs_gpu: does not run in the simulator.
        without_gpu: message printed there instead.
        by_default: runs when no part is named; otherwise only if its flag is given.
        reports: --report writes its measurements into Results.md.
        arguments: additional options, name -> arguments for argparse's add_argument; each defaults to None.
    """

    parts: Mapping[str, str]
    run: Callable[[TestRun], list[Earned]]
    points: Mapping[str, float] = field(default_factory=dict)
    needs_gpu: bool = False
    without_gpu: str = ""
    by_default: bool = True
    reports: bool = False
    arguments: Mapping[str, dict] = field(default_factory=dict)

    def outcome(self, test_run: TestRun) -> tuple[list[PartPoints], bool]:
        """Runs it if possible: (its lines of the points table, whether all went well and no points were lost)."""
        if self.needs_gpu and test_run.ops.backend != "cuda":
            if self.without_gpu:
                say(test_run.console, self.without_gpu)
            if self.reports and getattr(test_run.options, "report", False):
                say(
                    test_run.console,
                    f"--report: nothing is written to Results.md: {', '.join(test_run.parts)} cannot be measured "
                    "in the simulator. The same command on a machine with a GPU writes it.",
                    "yellow",
                )
            why = "not run in the simulator: these points need a GPU"
            return [PartPoints(name, 0.0, most, why) for name, most in self._possible(test_run)], True
        earned: dict[str, Earned] = {}
        try:
            earned = {one.part: one for one in self.run(test_run)}
        except (RuntimeError, ValueError, NotImplementedError) as error:
            say(test_run.console, f"{', '.join(test_run.parts)}: not measured: {error}", "red")
        for one in earned.values():
            for problem in one.problems:
                say(test_run.console, problem, "red")
        lines = []
        for name, most in self._possible(test_run):
            one = earned.get(name, Earned(name, problems=["not measured"]))
            lines.append(PartPoints(name, one.points, most, one.why if one.problems else ""))
        fine = all(name in earned and not earned[name].problems for name in test_run.parts)
        return lines, fine and all(line.earned >= line.possible for line in lines)

    def _possible(self, test_run: TestRun) -> list[tuple[str, float]]:
        return [(name, self.points[name]) for name in test_run.parts if name in self.points]
