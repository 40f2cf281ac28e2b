"""Which cases a tool on a GPU runs: few, but they launch every kernel."""

import importlib

import pytest
from checked_findings import kernels_in_case

from common.compiling.load import load
from common.compiling.places import places_of
from common.compiling.request import BuildRequest
from common.compiling.variant import Variant
from common.inspect.profile.ncu import kernels_in
from common.inspect.worth_it import apart, kernels_of, worth_it
from common.testing.case import ERROR, FAIL, PASS, Verdict
from common.testing.case_choice import full_name

TASKS = ["task1", "task2", "task3", "task4", "task5", "task6", "task7"]


def cases_of(task: str):
    return importlib.import_module(f"{task}.cases").cases()


@pytest.mark.parametrize("task", TASKS)
def test_each_kernel_has_a_case_and_the_runs_are_few(task):
    places = places_of(task, Variant.SOLUTION)
    cases, reach = cases_of(task), kernels_of(places)
    chosen = worth_it(cases, [Verdict(case, PASS) for case in cases], reach, 0)
    groups = apart(chosen, reach, 0)
    kernels = {name for place in places for name in kernels_in(place.kernels)}
    assert set().union(*(names for group in groups for _, names in group)) == kernels
    assert len(chosen) <= max(4, len(kernels)), [full_name(case) for case in chosen]
    assert len(groups) <= 3, groups  # task 2's attention launches its parts' kernels again
    for group in groups:
        assert sum(len(names) for _, names in group) == len(set().union(*(names for _, names in group)))


@pytest.mark.slow
def test_the_chosen_cases_launch_every_kernel_of_task_2():
    """The sources' launches compared with the actual ones, which the simulator's checked build counts."""
    cases, places = cases_of("task2"), places_of("task2", Variant.SOLUTION)
    chosen = worth_it(cases, [Verdict(case, PASS) for case in cases], kernels_of(places), 0)
    ops = load(BuildRequest("task2", "solution", backend="simulator", checked=True))
    launched = [kernel for case in chosen for kernel in kernels_in_case(ops, case)]
    assert {one.kernel.split("<")[0] for one in launched} == set(kernels_in(places[0].kernels))
    assert sum(one.launches for one in launched) <= 8


def test_where_cases_fail_the_smallest_of_each_part_are_chosen():
    cases = cases_of("task2")
    wrong = {"softmax: 113 x 203": FAIL, "softmax: 1023 x 1024": FAIL, "gemm: A B, K = 1": ERROR}
    verdicts = [Verdict(case, wrong.get(full_name(case), PASS)) for case in cases]
    chosen = worth_it(cases, verdicts, {}, 0)
    assert sorted(map(full_name, chosen)) == ["gemm: A B, K = 1", "softmax: 113 x 203"]
    for one in verdicts:
        one.is_endless = True
    assert worth_it(cases, verdicts, {}, 0) == []
