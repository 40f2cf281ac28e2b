"""Wrong indices, bounds, arguments and numbers planted in real kernels: the report, and its lines."""

import importlib
import re

import pytest
from checked_findings import followed_in
from kernel_mistakes import TASK2, TASK4, TASK6
from planted import Planted

from common.inspect.findings.model import Finding
from common.inspect.findings.report import made_in
from common.testing.case_choice import full_name

CASES = {
    task: {full_name(case): case for case in importlib.import_module(f"{task}.cases").cases()}
    for task in ("task2", "task3", "task4", "task5", "task6", "task7")
}
INSIDE = "            const int col = lane + 32 * c;\n            const bool inside = first_key + i < length"
SUM = "exp2f(m_shared[w] - shift) * l_shared[w]"
WINDOW = Planted("task5", {"window_without_an_end": [("end < S_k ? end : S_k", "S_k")]}, "flow", "sparse")
STRIDED = Planted(
    "task5",
    {"lanes_are_neighbors": [("«position + lane * stride», q_start", "position + lane")]},
    "flow_strided",
    "strided",
)
SPLIT = Planted(
    "task6",
    {
        "scores_begin_at_1": [("s[i] = «0.0f»;", "1.0f")],
        "columns_begin_at_1": [
            (f"s[i] = 0.0f;\n#pragma unroll\n        for (int c = «0»; c < COLS; ++c) {{\n{INSIDE}", "1")
        ],
        "maximum_not_stored": [("m_shared[warp] = «state.m»;", "state.l")],
        "parts_begin_at_0": [("first_key = «begin + warp * KEYS»; first_key < end", "warp * KEYS")],
        "parts_end_with_the_row": [("if (begin + keys < end) end = «begin + keys»;", "head.length")],
        "sum_added_twice": [(f"l_all += «{SUM}»;", f"2 * {SUM}")],
    },
    "flow",
)
NORM = Planted(
    "task7",
    {
        "eps_outside_the_root": [
            ("rsqrtf(«warp_sum(squares) / width + eps»)", "powf(sqrtf(warp_sum(squares) / width) + eps, 2.0f)")
        ]
    },
    "flow",
)
MERGE = Planted("task3", {"lse_of_another_row": [("{lse[«part * rows + row»]}", "row * parts + part")]}, "flow")
SOLUTIONS = {"task3": MERGE, "task7": NORM, "task2": TASK2, "task5": WINDOW, "task6": TASK6, "task6 split": SPLIT}

# task, mistake, case, kind, part of the detail, and part of a line among those shown
PLANTED = [
    ("task2", "sum_of_row_0", "row-sums: sums of 5 x 256", "other_element",
     r"This thread stores sums\[1\], which depends on x\[1, :\]; it uses .*x\[0, ", r"row_x\[i\]"),
    ("task2", "one_column_per_thread", "softmax: 1025 columns", "not_stored",
     r"elements of the result are never stored, the first is y\[0, 256\]", r"row_y\["),
    ("task2", "tree_stops_early", "row-sums: sums of 5 x 256", "not_read",
     r"sums\[0\] depends on x\[0, :\]\. Nothing that reaches the thread .* made of 128 elements of x\[0, 1:256\]\. "
     r"Another thread reads x\[0, 1\] and stores it where it is shown\.",
     r"partial\[threadIdx\.x\] \+=|partial\[threadIdx\.x \+ active\]"),
    ("task3", "lse_of_another_row", "merge: 8 parts, head_dim 64", "other_element",
     r"depends on lse\[:, \d+\]; it uses", r"score\[1\] = "),
    ("task6", "l_not_rescaled", "decode: lengths 1, 7, 31, 203", "wrong_value",
     r"Each warp stores the largest score of the keys that it read, but not the sum of exponentials",
     r"state\.l \+= p;"),
    ("task6", "o_not_rescaled", "decode: lengths 1, 7, 31, 203", "wrong_value",
     r"Each warp stores the sum of the exponentials of the keys that it read, but not their rows of V",
     r"state\.o\[c\] \*= rescale"),
    ("task6", "outputs_without_weights", "decode: lengths 1, 7, 31, 203", "wrong_value",
     r"What each warp stores of the keys that it read is right", r"o_all \+= o\[w \* D \+ col\];"),
    ("task6", "warps_share_keys", "decode: a full cache", "wrong_value",
     r"Several warps of a block read the same keys, so these count more than once", r"for \(int64_t first_key"),
    ("task7", "eps_outside_the_root", "layernorm: values of 0.001", "wrong_value", r"out\[0, 0\] is stored here as",
     r"eps"),
    ("task6 split", "maximum_not_stored", "decode: lengths 1, 7, 31, 203", "wrong_value",
     r"and that score is not among the numbers that it stores", r"m_shared\[warp\] = "),
    ("task6 split", "scores_begin_at_1", "split: lse of 2 parts, all warps", "wrong_value",
     r"the largest score itself is not\. So the same wrong number is in all scores", r"s\[i\] = \(planted"),
    ("task6 split", "sum_added_twice", "split: lse of 2 parts, all warps", "wrong_value",
     r"What each warp stores of the keys that it read is right", r"l_all \+= .*2 \* exp2f"),
    ("task6 split", "parts_begin_at_0", "split: outputs of 4 parts, 2 heads", "wrong_value",
     r"a block reads keys that its result does not depend on, and they count", r"first_key = \(planted"),
    ("task6 split", "parts_end_with_the_row", "split: lse of 2 parts, all warps", "wrong_value",
     r"a block reads keys that its result does not depend on, and they count", r"for \(int64_t first_key"),
    ("task6 split", "columns_begin_at_1", "decode: a length beyond the cache", "not_read",
     r"No thread of any launch reads k_cache at all", r"for \(int c = \(planted"),
    ("task6", "new_tokens_not_counted", "update: positions outside are skipped", "needlessly_stored",
     r"k_cache\[1, 0, 13, 0\] must keep what it held before the call", r"if \(position < 0"),
    ("task5", "window_without_an_end", "window: infinity where no query looks", "not_needed",
     r"out\[0, 0, 0, 0\] is NaN\. It depends on no element of key\[0, 0, 200:300, :\]; they are infinite",
     r"keys\.end = "),
]  # fmt: skip


def told(solution: Planted, mistake: str | None, case: str) -> list[Finding]:
    """The wrong data flow that the checked build sees in a case of the solution with this mistake."""
    return followed_in(solution.operators(mistake, "simulator", checked=True), CASES[solution.task][case])


@pytest.mark.parametrize(
    ("task", "mistake", "case", "kind", "says", "line"),
    # the checked builds of tasks 2 and 6 are shared with other tests
    [pytest.param(*one, marks=[] if one[0] in ("task2", "task6") else pytest.mark.slow) for one in PLANTED],
)
def test_what_flowed_wrong_is_told(task, mistake, case, kind, says, line):
    (finding,) = told(SOLUTIONS[task], mistake, case)
    assert finding.kind == kind
    assert re.search(says, finding.detail), finding.detail
    shown = [access.place.text for access in finding.accesses]
    shown += [one.text for _, places in made_in(finding) for one in places]
    assert any(re.search(line, text) for text in shown), shown


def test_a_case_that_passes_is_not_followed():
    assert told(TASK2, None, "softmax: 7 x 31") == []


def test_of_keys_that_warps_share_the_loop_is_told_first():
    (finding,) = told(TASK6, "warps_share_keys", "decode: a full cache")
    assert finding.lines[0].text.startswith("for (int64_t first_key"), finding.lines


# ---- several launches: the first one after which the array between them holds neither scores nor weights


@pytest.mark.parametrize(
    ("mistake", "kernel", "says"),
    [
        ("last_tile_dropped", "gemm_nt_kernel", "Before this launch scores had not been written; afterward"),
        ("no_max", None, ""),  # the weights are right unless something overflows
        ("softmax_zeros", "softmax_kernel", "Before this launch scores held the scaled and masked scores; afterward"),
    ],
)
def test_the_first_launch_with_a_wrong_result_is_told(mistake, kernel, says):
    found = told(TASK2, mistake, "attention: 40 queries, 23 keys, causal")
    assert [one.kernel_name for one in found] == ([kernel] if kernel else [])
    assert not found or says in found[0].detail, found[0].detail


# false claims: reading a masked key is right, and so is reading a query of another row in the tile; NaN and
# one-term sums are no copies of their inputs
FALSE = [
    (TASK4, "mask_without_k_start", "causal: 33 tokens, head_dim 96", "other_element"),
    (TASK4, "mask_of_the_wrong_sign", "causal: 33 tokens, head_dim 96", "other_element"),
    (TASK6, "end_of_the_last_part", "split: outputs of 4 parts, 2 heads", "other_element"),
    (TASK6, "begin_in_splits", "split: outputs of 4 parts, 2 heads", "other_element"),
    (STRIDED, "lanes_are_neighbors", "causal: rows of -inf", "not_needed"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("solution", "mistake", "case", "kind"), FALSE)
def test_no_element_is_called_wrong_that_may_be_read(solution, mistake, case, kind):
    findings = told(solution, mistake, case)
    assert kind not in [one.kind for one in findings], findings[0].detail


@pytest.mark.slow
def test_what_is_passed_for_the_bound_of_a_loop_is_among_what_decides():
    (finding,) = told(TASK6, "begin_in_splits", "split: outputs of 4 parts, 2 heads")
    decided = next(lines for what, lines in made_in(finding) if what.startswith("Whether that line runs"))
    assert any("begin = (planted" in one.text for one in decided), decided
