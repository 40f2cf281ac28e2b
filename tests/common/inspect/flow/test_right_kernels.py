"""Nothing is reported for a right kernel, even if all of its output is declared wrong: its data flow is right."""

import importlib

import pytest
import torch

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.inspect.checked_library import CHECK, CheckedCaller, Collected
from common.inspect.checked_run import small_size
from common.inspect.flow.concluded import concluded
from common.testing.calling import Around, CallFailed
from common.testing.case_choice import full_name
from common.testing.judging import make_inputs, oracle

pytestmark = pytest.mark.slow
MOST_CASES = 4  # per part
LARGEST = 12_000  # elements in a case's inputs


def cases_of(task: str) -> list:
    """Some small cases from every part."""
    found = []
    cases = [case for case in importlib.import_module(f"{task}.cases").cases() if not case.gpu_only]
    for part in dict.fromkeys(case.part for case in cases):
        small = [case for case in cases if case.part == part and (small_size(case) or LARGEST) < LARGEST]
        found += sorted(small, key=small_size, reverse=True)[:MOST_CASES]
    return found


@pytest.mark.parametrize("variant", ["solution", pytest.param("tuned", marks=pytest.mark.long)])
@pytest.mark.parametrize("task", ["task1", "task2", "task3", "task4", "task5", "task6", "task7"])
def test_nothing_is_said_of_what_is_right(task, variant):
    if task == "task1" and variant == "tuned":
        pytest.skip("task 1 has none")
    caller = CheckedCaller(load(BuildRequest(task, variant, backend="simulator", checked=True)), CHECK)
    collected, followed = Collected(caller), 0
    for case in cases_of(task):
        inputs = make_inputs(case, 0)
        ref, bound = oracle(case, inputs)
        if not ref.is_floating_point() or case.in_place:  # kept elements would count as not stored
            continue
        try:
            called = caller.call(case, inputs, Around(recorded=True))
        except CallFailed:  # the fast kernels lack some operators
            continue
        launches, whole = collected.launches()
        if not whole or called.out is None or called.out.shape != ref.shape:
            continue
        followed += len(launches)
        held = torch.where(torch.isfinite(ref), 7 - 3 * ref, 1.0)  # every number in it is wrong
        found = concluded(case, inputs, called.out, held, bound, launches)
        # it was told that a number is wrong; it must report no cause
        claims = [one for one in found if one.kind != "wrong_value"]
        assert not claims, f"{full_name(case)}: {claims[0].kind}: {claims[0].detail}"
    assert followed
