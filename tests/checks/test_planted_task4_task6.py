"""Mistakes planted in the real kernels of tasks 4 and 6: every one is caught, and where it can be, named."""

import pytest
from planted import planted_operators

import task4.test
import task6.test
from common.checking import FAIL, check

CASES = {
    "task4": {case.name if case.part == "full" else f"causal {case.name}": case for case in task4.test.cases()},
    "task6": {case.name: case for case in task6.test.cases()},
}
NO_KEY_YET = ("const float shift = m_new == -INFINITY ? 0.0f : m_new;", "const float shift = m_new;", 1)
RESCALE_O = "#pragma unroll\n        for (int c = 0; c < T::COLS; ++c) state.o[r][c] *= rescale;"

# (task, build, replacements, the case that must fail, the name of the mistake or None)
PLANTED = [
    (
        "task4",
        "no_rescale",
        [(RESCALE_O, "", 1)],
        "113 queries, 203 keys",
        "no rescale in the online softmax",
    ),
    (
        "task4",
        "maximum_of_the_tile",
        [("const float m_new = fmaxf(state.m[r], tile_max);", "const float m_new = tile_max;", 1)],
        "scores that fall",
        None,
    ),
    ("task4", "no_key_yet", [NO_KEY_YET], "the first 70 keys masked", None),
    (
        "task4",
        "mask_off_by_one",
        [("key > row + diagonal) s[r][c]", "key >= row + diagonal) s[r][c]", 1)],
        "causal 203 tokens",
        "mask off by one",
    ),
    (
        "task4",
        "last_tile_dropped",
        [("k_start < keys_end; k_start += B_c", "k_start + B_c <= keys_end; k_start += B_c", 1)],
        "113 queries, 203 keys",
        "last tile dropped",
    ),
    (
        "task6",
        "merged_without_weights",
        [("const float weight = exp2f(m[w] - shift);", "const float weight = 1.0f;", 1)],
        "lengths 1, 7, 31, 203",
        None,
    ),
    ("task6", "no_key_yet", [NO_KEY_YET], "the first 20 keys masked", None),
    (
        "task6",
        "newest_key_left_out",
        [("int64_t length = lengths[sequence];", "int64_t length = lengths[sequence] - 1;", 1)],
        "40 keys",
        "newest key left out",
    ),
    (
        "task6",
        "position_not_checked",
        [("position < 0 || position > max_seq_len - new_tokens", "position < 0 || position >= max_seq_len", 1)],
        "positions outside are skipped",
        None,
    ),
]


@pytest.mark.parametrize(("task", "name", "replacements", "case", "mistake"), PLANTED, ids=lambda x: str(x)[:40])
def test_a_planted_mistake_is_caught(backend, task, name, replacements, case, mistake):
    verdict = check(CASES[task][case], planted_operators(task, name, tuple(replacements), backend))
    assert verdict.status == FAIL and verdict.diagnosis
    if mistake:
        assert verdict.mistakes[:1] == [mistake], verdict.diagnosis


@pytest.mark.parametrize("task", CASES)
def test_the_solution_passes_everything(task, backend, solution):
    for case in CASES[task].values():
        verdict = check(case, solution(task))
        assert verdict.ok or (case.gpu_only and backend == "simulator"), (case.name, verdict.diagnosis)
