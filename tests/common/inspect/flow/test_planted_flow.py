"""Wrong indices, bounds and arguments planted in real kernels: which element is told, and at which line."""

import re

import pytest
from kernel_mistakes import TASK2, TASK6

import task2.cases
import task6.cases
from common.inspect.checked_library import CHECK, CheckedCaller, Collected
from common.inspect.findings.report import made_in
from common.inspect.flow.looked import followed

CASES = {
    task: {f"{case.part}: {case.name}": case for case in cases()}
    for task, cases in (("task2", task2.cases.cases), ("task6", task6.cases.cases))
}
SOLUTIONS = {"task2": TASK2, "task6": TASK6}

# task, mistake, case, kind, what the detail says, and what stands in a line among those that are shown
PLANTED = [
    (
        "task2",
        "sum_of_row_0",
        "row-sums: sums of 5 x 256",
        "other_element",
        r"This thread stores sums\[1\], which depends on x\[1, :\]; it uses .*x\[0, ",
        r"row_x\[i\]",
    ),
    (
        "task2",
        "one_column_per_thread",
        "softmax: 1025 columns",
        "not_stored",
        r"elements of the result are never stored, the first is y\[0, 256\]",
        r"row_y\[",
    ),
    (
        "task2",
        "tree_stops_early",
        "row-sums: sums of 5 x 256",
        "not_read",
        r"sums\[0\] depends on x\[0, :\]\. Nothing that reaches the thread .* made of 128 elements of x\[0, 1:256\]\. "
        r"Another thread reads x\[0, 1\] and stores it where it is shown\.",
        r"partial\[threadIdx\.x\] \+=|partial\[threadIdx\.x \+ active\]",
    ),
    (
        "task6",
        "l_not_rescaled",
        "decode: lengths 1, 7, 31, 203",
        "wrong_value",
        r"The largest score of the keys that a warp read is among .* the sum of exponentials relative to it is not",
        r"state\.l \+= p;",
    ),
    (
        "task6",
        "o_not_rescaled",
        "decode: lengths 1, 7, 31, 203",
        "wrong_value",
        r"The sum of the exponentials of the keys that a warp read is among .* weighted with these, are not",
        r"state\.o\[c\] \*= rescale",
    ),
    (
        "task6",
        "outputs_without_weights",
        "decode: lengths 1, 7, 31, 203",
        "wrong_value",
        r"What each warp stores of the keys that it read is right",
        r"o_all \+= o\[w \* D \+ col\];",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("task", "mistake", "case", "kind", "says", "line"), PLANTED)
def test_what_flowed_wrong_is_told(task, mistake, case, kind, says, line):
    caller = CheckedCaller(SOLUTIONS[task].operators(mistake, "simulator", checked=True), CHECK)
    (finding,) = followed(CASES[task][case], caller, Collected(caller), 0)
    assert finding.kind == kind
    assert re.search(says, finding.detail), finding.detail
    shown = [access.place.text for access in finding.accesses]
    shown += [text for _, places in made_in(finding) for _, text in places]
    assert any(re.search(line, text) for text in shown), shown


def test_a_case_that_passes_is_not_followed():
    caller = CheckedCaller(TASK2.operators(None, "simulator", checked=True), CHECK)
    assert followed(CASES["task2"]["softmax: 7 x 31"], caller, Collected(caller), 0) == []
