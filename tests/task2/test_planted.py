"""Mistakes planted in the real kernels of task 2, compiled and run: each is named or located in the report.

The mistakes are in kernel_mistakes.py.
"""

from dataclasses import replace

import pytest
from checked_findings import findings_of
from kernel_mistakes import TASK2
from planted import assert_named, assert_told, named

from common.testing.case import FAIL
from common.testing.judging import judge
from task2.cases import cases

CASES = {case.name: case for case in cases()}

BOOL, PADDING = "bool mask [S_q, S_k], causal", "padding [batch, 1, 1, S_k]"
FLOAT, BIAS = "float mask [batch, heads, S_q, S_k]", "float mask [1, heads, 1, S_k]"
SOFTMAX_MASKS = "masked entries, a masked row"

# (mistake, case, its name, words of the diagnosis)
PLANTED = [
    ("sum_without_the_loop", "sums of 113 x 1023", "first columns only",
     "the first 256 of 1023 columns .* continue through the row"),
    ("sum_assigned", "sums of 113 x 1023", "last entry of each thread", r"\(= for \+=\)"),
    ("sum_of_row_0", "sums of 7 x 31", "every row is the first", r"begins at blockIdx.x \* cols"),
    ("sum_without_the_tree", "sums of 5 x 256", "part of thread 0 only", r"adds nothing to partial\[0\]"),
    ("tree_starts_late", "sums of 5 x 256", "first step of the tree missing", "ROW_THREADS / 2 active threads"),
    ("tree_stops_early", "sums of 113 x 1023", "last step of the tree missing", "with one active thread, nothing"),
    ("maximum_starts_at_0", "large offsets", "maximum starts at 0", "combined with 0, or is another row's"),
    ("no_max", "large offsets", "no max subtraction", "The maximum of the row is not subtracted before exp"),
    ("B_not_transposed", "A B^T, 64 x 64 x 64", "B not transposed", r"element \(k, n\) of B\^T is b\[n \* K \+ k\]"),
    ("B_not_transposed", "A B^T, 63 x 65 x 64", "B not transposed", "B is read as if it lay in memory as"),
    ("nothing_written", "causal", "unwritten outputs", "All elements still hold the NaN .* never written"),
    ("last_tile_dropped", "A B, 32 x 31 x 33", "last tile dropped", "Only the first 32 of the K = 33 products"),
    ("last_tile_dropped", "A B^T, 113 x 7 x 203", "last tile dropped", "Only the first 192 of the K = 203 products"),
    ("last_tile_dropped", "A B^T, batch 3, 37 x 50 x 41", "last tile dropped", "partial tile along K is left out"),
    ("B_read_as_N_by_K", "A B, 33 x 32 x 31", "B read as [N, K]", "look at the row length in its index"),
    ("B_read_as_N_by_K", "A B, K = 1", "B read as [N, K]", r"it is \[K, N\]"),
    ("A_read_as_K_by_M", "A B^T, 63 x 65 x 64", "A read as [K, M]", "A is read as a matrix of K rows and M columns"),
    ("b_tile_from_k0_first_col", "A B^T, 64 x 64 x 64", "tiles of B from exchanged places",
     "its first row and its first column are exchanged"),
    ("b_tile_from_k0_first_col", "A B^T, 63 x 65 x 64", "tiles of B from exchanged places", "The tiles of B"),
    ("a_tile_transposed", "A B, 64 x 64 x 64", "tiles of A transposed", "Each 32 x 32 tile of A is used transposed"),
    ("a_tile_transposed", "A B^T, batch 3, 37 x 50 x 41", "tiles of A transposed", "where it is read"),
    ("assigned_not_added", "A B, 64 x 64 x 64", "last product only", r"\(= for \+=\)"),
    ("maximum_of_half_the_threads", "a peak in the columns of each thread", None, "NaN"),
    ("softmax_of_columns", "113 x 203", "softmax over the wrong axis", "the columns sum to 1 where the rows should"),
    ("softmax_of_columns", "1023 x 1024", "softmax over the wrong axis", "wrong axis"),
    ("one_column_per_thread", "1025 columns", "unwritten outputs", "1538 of 2050 elements .* Only col >= 256 is wrong"),
    ("last_row_unwritten", "A B, 64 x 64 x 64", "unwritten outputs",
     r"64 of 4096 elements still hold .* Only row 63 \(of 64\)"),
    ("softmax_zeros", "one warp wide", "all zeros", "Every output is 0"),
    ("gemm_zeros", "A B^T, K = 1", "all zeros", "Every output is 0"),
    ("gemm_zeros", "full", "all zeros", "Every output is 0"),
    ("scale_forgotten", "full", "scale forgotten", r"must be multiplied by 1 / sqrt\(head_dim\) = 0.25"),
    ("scale_forgotten", "CustomAttention module", "scale forgotten", "The scores are not scaled"),
    ("diagonal_hidden", "causal", "mask off by one", "the diagonal is masked too"),
    ("diagonal_hidden", "CustomAttention module", "mask off by one", "the diagonal is masked too"),
    ("sees_one_ahead", "causal", "mask off by one", r"query i sees key i \+ 1"),
    ("sees_one_ahead", "7 tokens, head_dim 5", "mask off by one", r"query i sees key i \+ 1"),
    ("bool_inverted", PADDING, "mask inverted", "true means that the query may attend"),
    ("mask_not_passed_on", FLOAT, "mask ignored", "The float mask that was given is not applied"),
    ("counted_from_the_end", "40 queries, 23 keys, causal", "causal mask counted from the end", "count from the start"),
    ("mask_of_the_first_batch_entry", PADDING, "mask broadcast wrong",
     "The mask of the first batch entry is used for every"),
    ("mask_before_the_scale", BIAS, "mask added before the scale", "it belongs to the scaled scores"),
    ("mask_not_passed_on", BOOL, "mask ignored", "The bool mask that was given is not applied"),
    ("mask_of_the_first_head", FLOAT, "mask broadcast wrong", "The mask of the first head is used for every head"),
    ("mask_of_the_first_head", BIAS, "mask broadcast wrong", "its stride must not be 0"),
    ("masked_with_a_large_number", PADDING, "masked row is uniform", "gives the mean of V"),
    ("float_as_bool", FLOAT, "float mask read as bool", "It must be added to the scores"),
    ("infinity_minus_infinity", SOFTMAX_MASKS, "masked row is NaN", "In this course such a row is all zeros"),
    ("infinity_minus_infinity", PADDING, "masked row is NaN", "A query that may see no key gives NaN"),
    ("zero_over_zero", SOFTMAX_MASKS, "masked row is NaN", "In this course such a row is all zeros"),
    ("zero_over_zero", FLOAT, "masked row is NaN", "A query that may see no key gives NaN"),
]  # fmt: skip

# Races. Their outcome in the simulator is deterministic; a GPU may happen to give the right result.
RACES = [
    ("no_barrier_between_reductions", "one warp wide", "threads disagree"),
    ("no_barrier_between_reductions", "1025 columns", "threads disagree"),
    ("no_barrier_in_the_tree", "1025 columns", "threads disagree"),
]
SUM_RACES = ["sum_no_barrier_before_the_tree", "sum_no_barrier_in_the_tree"]


test_a_planted_mistake_is_named = named(TASK2, CASES, PLANTED)


@pytest.mark.parametrize(("planted", "case", "name"), RACES)
def test_a_missing_barrier_in_the_softmax_is_told(planted: str, case: str, name: str) -> None:
    verdict = judge(CASES[case], TASK2.operators(planted, "simulator"))
    assert_named(verdict, name, r"is there a __syncthreads\(\) between writing and reading them")


@pytest.mark.parametrize("planted", SUM_RACES)
def test_a_missing_barrier_in_the_row_sums_is_told_and_found(planted: str) -> None:
    case = CASES["sums of 5 x 256"]
    verdict = judge(case, TASK2.operators(planted, "simulator"))
    assert_told(verdict, r"there must be a __syncthreads\(\), in every step of the tree")
    findings = findings_of(TASK2.operators(planted, "simulator", checked=True), case)
    assert findings and {one.kind for one in findings} == {"race"}


def test_a_row_shorter_than_the_block_needs_zeros() -> None:
    case = CASES["sums of 7 x 31"]
    assert judge(case, TASK2.operators("sum_not_filled", "simulator")).status == FAIL
    findings = findings_of(TASK2.operators("sum_not_filled", "simulator", checked=True), case)
    assert {(one.kind, one.variable) for one in findings} == {("uninitialized", "partial")}


def test_a_maximum_over_shared_memory_that_nobody_wrote() -> None:
    """fmaxf swallows the NaN of fresh memory; with the second inputs the memory holds large numbers."""
    ops = TASK2.operators("partial_not_filled", "simulator")
    assert judge(replace(CASES["7 x 31"], draws=1), ops).ok
    assert judge(CASES["7 x 31"], ops).status == FAIL


def test_a_thread_that_reads_what_earlier_ones_wrote_without_a_barrier() -> None:
    """In the first call threads run in ascending order, in the second in descending order."""
    ops, case = TASK2.operators("sum_by_the_last_thread", "simulator"), CASES["sums of 5 x 256"]
    assert judge(replace(case, draws=1), ops).ok
    assert judge(case, ops).status == FAIL


def test_a_missing_barrier_in_the_matrix_product_is_located() -> None:
    verdict = judge(CASES["A B, 32 x 31 x 33"], TASK2.operators("no_barrier_after_multiply", "simulator"))
    assert_named(verdict, None, "elements are wrong")
    assert_told(verdict, "where each tile begins, and what is kept")


def test_the_solution_itself_passes_where_the_mistakes_fail(backend: str, solution) -> None:
    for name in sorted({case for _, case, *_ in PLANTED + RACES}):
        assert judge(CASES[name], solution("task2")).ok, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["A B^T, batch 70,000", "A B, batch 70,000"])
def test_blocks_take_a_further_matrix_in_the_simulator_too(name: str, solution) -> None:
    assert judge(replace(CASES[name], gpu_only=False), solution("task2")).ok
