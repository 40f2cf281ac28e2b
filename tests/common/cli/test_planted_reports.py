"""Reports on mistakes planted in real kernels: what comes first, what follows, and how long they are."""

import re

import pytest
from kernel_mistakes import TASK2, TASK6
from reports import lines_of, reported, small_cases

import task2.test
import task6.test

TESTS = {"task2": (TASK2, task2.test.TEST), "task6": (TASK6, task6.test.TEST)}
ONE_CAUSE, TWO_CAUSES = 25, 40  # maximum number of lines
# task, mistake, part, how the report starts, and what it must not contain
LEADING = [
    ("task2", "last_tile_dropped", "gemm", r"gemm: .*FAIL\n\s+Only the first 32 of the K = ", "checked build"),
    ("task2", "sum_of_row_0", "row-sums", r"row-sums: .*FAIL\n\s+Every row has the sum of row 0", "checked build"),
    ("task2", "softmax_of_columns", "softmax", r"softmax: .*FAIL\n\s+The softmax runs over the wrong axis", "race in"),
    ("task2", "no_barrier_in_the_tree", "softmax", r"1\. race in softmax_kernel: partial.*\n\s+-> .*:\d+:", "This"),
    ("task2", "row_too_long", "softmax", r"1\. out of bounds in softmax_kernel: x\[.*\n\s+-> .*:\d+:", "What should"),
    ("task6", "o_not_rescaled", "decode", r"decode: .*FAIL\n\s+When the running maximum of a warp grows, o", "access"),
    ("task6", "K_V_heads_interleaved", "decode", r"decode: .*FAIL\n\s+Query head h reads K/V head", "What should"),
    ("task6", "maximum_from_warp_1", "decode", r"decode: .*FAIL\n\s+With Q = 0, .* large scores cause them", r"1\. "),
    ("task6", "no_barrier_before_merge", "decode", r"1\. race in decode_kernel", "What should"),
]  # fmt: skip


def report_of(task: str, mistake: str, *parts: str) -> str:
    solution, test = TESTS[task]
    return reported(solution, mistake, test, small_cases(test.cases("solution"), parts)).lstrip()


@pytest.mark.parametrize(("task", "mistake", "part", "begins", "without"), LEADING)
def test_what_leads_a_report(task: str, mistake: str, part: str, begins: str, without: str) -> None:
    report = report_of(task, mistake, part)
    lead = re.sub(r"\AThe checked build.*\n+", "", report)
    assert re.match(begins, lead), report
    assert not re.search(without, report), report
    assert len(lines_of(report)) <= ONE_CAUSE, report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "mistake"),
    [
        (task, one)
        for task, (solution, _) in TESTS.items()
        for one in solution.mistakes
        if one not in ("host_reads_the_input", "one_slot_late")  # these corrupt the process that runs them
    ],
)
def test_no_report_is_longer_than_a_screen(task: str, mistake: str) -> None:
    _, test = TESTS[task]
    try:
        report = report_of(task, mistake, *(part for part in test.parts if part not in test.in_python))
    except AssertionError:
        pytest.skip("it shows in larger cases alone")
    assert len(lines_of(report)) <= TWO_CAUSES, report
