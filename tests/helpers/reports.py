"""The full report on a planted mistake, as `python -m taskN.test` prints it below its table: reported(...)."""

from __future__ import annotations

import io
from collections.abc import Sequence

from planted import Planted
from rich.console import Console

from common.cli.failing_cases import at_failures, at_passes, print_diagnosis
from common.cli.test import TaskTest
from common.inspect.checked_library import CHECK, CheckedCaller
from common.testing.case import ERROR, FAIL, Case
from common.testing.judging import judge, make_inputs

WIDTH = 120
MOST_ELEMENTS = 40_000  # in a case's inputs: larger ones are slow
MOST_CASES = 4  # per part


class _Loaded(CheckedCaller):
    """An existing checked build."""

    def load(self) -> None:
        """Nothing left to do."""


def small_cases(cases: Sequence[Case], parts: Sequence[str]) -> list[Case]:
    """A few cases from each of these parts, those that earn points on their own first."""
    found = []
    for part in parts:
        of_part = [case for case in cases if case.part == part and not case.gpu_only]
        small = [case for case in of_part if sum(x.numel() for x in make_inputs(case, 0).values()) <= MOST_ELEMENTS]
        found += sorted(small, key=lambda case: not case.required)[:MOST_CASES]
    return found


def reported(solution: Planted, mistake: str, test: TaskTest, cases: Sequence[Case]) -> str:
    """What is printed for these cases of a task with a mistake in its kernels, in the simulator."""
    plain = solution.operators(mistake, "simulator")
    verdicts = [judge(case, plain) for case in cases]
    wrong = [one for one in verdicts if one.status in (FAIL, ERROR)]
    assert wrong, mistake
    checked = _Loaded(solution.operators(mistake, "simulator", checked=True), CHECK)
    page, quiet = io.StringIO(), Console(file=io.StringIO(), width=WIDTH)
    inside = at_failures(quiet, wrong, checked, 0, test.built_of)
    print_diagnosis(Console(file=page, width=WIDTH), verdicts, inside, built_of=test.built_of)
    return page.getvalue()


def found_where_all_pass(solution: Planted, mistake: str, cases: Sequence[Case]) -> list[str]:
    """The checked build's findings for a mistake with which all these cases pass, each as "out_of_bounds: the case"."""
    plain = solution.operators(mistake, "simulator")
    verdicts = [judge(case, plain) for case in cases if not case.gpu_only]
    assert all(one.ok for one in verdicts), mistake
    checked = _Loaded(solution.operators(mistake, "simulator", checked=True), CHECK)
    found = at_passes(Console(file=io.StringIO()), verdicts, checked, 0)
    return [f"{group.kind}: {case}" for groups in found.values() for group in groups for case in group.cases]


def lines_of(report: str) -> list[str]:
    """Its lines, without empty ones."""
    return [line for line in report.splitlines() if line.strip()]
