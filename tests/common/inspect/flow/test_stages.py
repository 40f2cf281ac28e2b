"""Of several launches the first after which the array between them holds none of scores and weights."""

import pytest
from kernel_mistakes import TASK2

import task2.cases
from common.inspect.checked_library import CHECK, CheckedCaller, Collected
from common.inspect.flow.looked import followed

CASE = next(one for one in task2.cases.cases() if one.part == "attention" and one.name == "40 queries, 23 keys, causal")


@pytest.mark.parametrize(
    ("mistake", "kernel", "says"),
    [
        ("last_tile_dropped", "gemm_nt_kernel", "Before this launch scores had not been written; after it"),
        ("no_max", None, ""),  # the weights are right as long as nothing overflows
        ("softmax_zeros", "softmax_kernel", "Before this launch scores held the scaled and masked scores; after it"),
    ],
)
def test_the_first_launch_with_a_wrong_result_is_told(mistake, kernel, says):
    caller = CheckedCaller(TASK2.operators(mistake, "simulator", checked=True), CHECK)
    found = followed(CASE, caller, Collected(caller), 0)
    assert [one.kernel_name for one in found] == ([kernel] if kernel else [])
    assert not found or says in found[0].detail, found[0].detail
