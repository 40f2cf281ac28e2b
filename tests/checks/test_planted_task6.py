"""Mistakes planted in task 6's kernels: every one is caught, and where it can be, named."""

import pytest
from kernel_mistakes import TASK6
from planted import assert_all_pass

from common.checking import FAIL, check
from task6.test import cases

CASES = {case.name: case for case in cases()}

# (mistake, case, the mistake's name or None)
PLANTED = [
    ("merged_without_weights", "lengths 1, 7, 31, 203", None),
    ("no_key_yet", "the first 20 keys masked", None),
    ("newest_key_left_out", "40 keys", "newest key left out"),
    ("new_tokens_not_counted", "positions outside are skipped", None),
]


@pytest.mark.parametrize(("planted", "case", "name"), PLANTED)
def test_a_mistake_is_caught(backend, planted, case, name):
    verdict = check(CASES[case], TASK6.operators(planted, backend))
    assert verdict.status == FAIL and verdict.diagnosis
    if name:
        assert verdict.mistakes[:1] == [name], verdict.diagnosis


def test_the_solution_passes_everything(solution):
    assert_all_pass(CASES.values(), solution("task6"))
