"""Mistakes planted in the real kernels of task 2, compiled and run: each is named or located in words.

A mistake is an exact replacement in task2/solution/attention_kernel.cu. One build can hold several, as long as they are
in different operators: every planted mistake is asserted on through an operator that holds no other.
"""

import re

import pytest
from planted import planted_operators

from common import build
from common.checking import FAIL, check
from task2.test import cases

CASES = {case.name: case for case in cases()}

SOFTMAX_NO_MAX = [("const float shift = row_max == -INFINITY ? 0.0f : row_max;", "const float shift = 0.0f;", 1)]
SOFTMAX_NO_BARRIER_BETWEEN_REDUCTIONS = [
    ("row_max = partial[0];\n    __syncthreads();", "row_max = partial[0];", 1),
]
SOFTMAX_NO_BARRIER_IN_TREE = [
    (
        "combine(partial[threadIdx.x], partial[threadIdx.x + active]);\n        }\n        __syncthreads();",
        "combine(partial[threadIdx.x], partial[threadIdx.x + active]);\n        }",
        1,
    ),
]
SOFTMAX_OF_COLUMNS = [
    ("row_x = x + static_cast<size_t>(blockIdx.x) * cols;", "row_x = x + blockIdx.x;", 1),
    ("row_y = y + static_cast<size_t>(blockIdx.x) * cols;", "row_y = y + blockIdx.x;", 1),
    ("row_x[i]", "row_x[static_cast<size_t>(i) * gridDim.x]", 3),
    ("row_y[i]", "row_y[static_cast<size_t>(i) * gridDim.x]", 1),
    (
        "softmax_kernel<<<static_cast<unsigned>(rows), ROW_THREADS, 0, stream>>>(x, y, cols);",
        "softmax_kernel<<<static_cast<unsigned>(cols), ROW_THREADS, 0, stream>>>(x, y, static_cast<int>(rows));",
        1,
    ),
]
SOFTMAX_WRITES_ONE_PER_THREAD = [
    (
        "for (int i = threadIdx.x; i < cols; i += ROW_THREADS) {\n        row_y[i]",
        "if (int i = threadIdx.x; i < cols) {\n        row_y[i]",
        1,
    )
]
SOFTMAX_ZEROS = [("expf(row_x[i] - shift) * inverse_sum", "0.0f", 1)]
NT_B_NOT_TRANSPOSED = [
    (
        "load_tile_transposed(b_tile, b_matrix, N, K, first_col, k0);",
        "load_tile(b_tile, b_matrix, K, N, k0, first_col);",
        1,
    ),
]
GEMM_LAST_TILE_DROPPED = [("k0 < K; k0 += TILE", "k0 + TILE <= K; k0 += TILE", 2)]
GEMM_ZEROS = [("a_tile[threadIdx.y + i * TILE_ROWS][k] * b", "0.0f", 1)]
GEMM_ROWS_UNWRITTEN = [("if (row < M && col < N) c[", "if (row + 1 < M && col < N) c[", 1)]
GEMM_NO_BARRIER_AFTER_MULTIPLY = [
    ("multiply_tiles(a_tile, b_tile, sums);\n            __syncthreads();", "multiply_tiles(a_tile, b_tile, sums);", 2),
]
MASKED = "masked_score(row[k] * scale, mask, batch_head, q, k)"
HIDDEN = "masked_score(0.0f, mask, batch_head, q, k) == -INFINITY"
ATTENTION_SCALE_FORGOTTEN = [(MASKED, MASKED.replace(" * scale", ""), 1)]
ATTENTION_DIAGONAL_MASKED = [("causal && k > q ?", "causal && k >= q ?", 1)]
ATTENTION_SEES_ONE_AHEAD = [("causal && k > q ?", "causal && k > q + 1 ?", 1)]
ATTENTION_UNWRITTEN = [("gemm_nn(scores, value, out, batch_heads, S_q, head_dim, S_k, stream);", "(void)out;", 1)]
# Masks: a bool mask and a float mask go wrong in different ways, which no case shows at once
BOOL_INVERTED_FLOAT_IGNORED = [
    (MASKED, f"mask.kind == MaskKind::BOOL && !({HIDDEN}) ? -INFINITY : row[k] * scale", 1),
]
BOOL_OF_THE_FIRST_BATCH_ENTRY_FLOAT_BEFORE_SCALE = [
    (
        MASKED,
        "mask.kind == MaskKind::BOOL ? masked_score(row[k] * scale, mask, batch_head % mask.heads, q, k)"
        " : masked_score(row[k], mask, batch_head, q, k) * scale",
        1,
    ),
]
BOOL_IGNORED_FLOAT_OF_THE_FIRST_HEAD = [
    (
        MASKED,
        "mask.kind == MaskKind::BOOL ? row[k] * scale"
        " : masked_score(row[k] * scale, mask, batch_head / mask.heads * mask.heads, q, k)",
        1,
    ),
]
BOOL_BY_A_LARGE_NUMBER_FLOAT_AS_BOOL = [
    (
        MASKED,
        f"mask.kind == MaskKind::BOOL && {HIDDEN} ? -1e9f : mask.kind == MaskKind::FLOAT && "
        "masked_score(0.0f, mask, batch_head, q, k) == 0.0f ? -INFINITY : row[k] * scale",
        1,
    ),
]
MASK_NOT_PASSED_ON = [
    ("S_q, S_k, scale, causal, mask, stream);", "S_q, S_k, scale, causal, AttentionMask(), stream);", 1)
]
CAUSAL_COUNTED_FROM_THE_END = [("causal && k > q ?", "causal && k > q + S_k - S_q ?", 1)]
SOFTMAX_INFINITY_MINUS_INFINITY = [("row_max == -INFINITY ? 0.0f : row_max;", "row_max;", 1)]
SOFTMAX_ZERO_OVER_ZERO = [("row_sum == 0.0f ? 0.0f : 1.0f / row_sum", "1.0f / row_sum", 1)]

BUILDS = {
    "no_max": SOFTMAX_NO_MAX + NT_B_NOT_TRANSPOSED + ATTENTION_UNWRITTEN,
    "no_barrier_between": SOFTMAX_NO_BARRIER_BETWEEN_REDUCTIONS + GEMM_LAST_TILE_DROPPED,
    "no_barrier_in_tree": SOFTMAX_NO_BARRIER_IN_TREE + GEMM_NO_BARRIER_AFTER_MULTIPLY,
    "wrong_axis": SOFTMAX_OF_COLUMNS,
    "unwritten": SOFTMAX_WRITES_ONE_PER_THREAD + GEMM_ROWS_UNWRITTEN,
    "zeros": SOFTMAX_ZEROS + GEMM_ZEROS,
    "scale_forgotten": ATTENTION_SCALE_FORGOTTEN,
    "diagonal_masked": ATTENTION_DIAGONAL_MASKED,
    "one_ahead": ATTENTION_SEES_ONE_AHEAD,
    "bool_inverted": BOOL_INVERTED_FLOAT_IGNORED + CAUSAL_COUNTED_FROM_THE_END,
    "float_before_scale": BOOL_OF_THE_FIRST_BATCH_ENTRY_FLOAT_BEFORE_SCALE,
    "float_of_the_first_head": BOOL_IGNORED_FLOAT_OF_THE_FIRST_HEAD,
    "float_as_bool": BOOL_BY_A_LARGE_NUMBER_FLOAT_AS_BOOL,
    "mask_not_passed_on": MASK_NOT_PASSED_ON,
    "infinity_minus_infinity": SOFTMAX_INFINITY_MINUS_INFINITY,
    "zero_over_zero": SOFTMAX_ZERO_OVER_ZERO,
}
BOOL, PADDING = "bool mask [S_q, S_k], causal", "padding [batch, 1, 1, S_k]"
FLOAT, BIAS = "float mask [batch, heads, S_q, S_k]", "float mask [1, heads, 1, S_k]"
SOFTMAX_MASKS = "masked entries, a masked row"

# (build, case, the mistake's name, words of the diagnosis)
PLANTED = [
    ("no_max", "large offsets", "no max subtraction", "The maximum of the row is not subtracted before exp"),
    ("no_max", "A B^T, 64 x 64 x 64", "B not transposed", r"element \(k, n\) of B\^T is b\[n \* K \+ k\]"),
    ("no_max", "A B^T, 63 x 65 x 64", "B not transposed", "B is read as if it lay in memory as"),
    ("no_max", "causal", "unwritten outputs", "All elements still hold the NaN .* never written"),
    ("no_barrier_between", "A B, 32 x 31 x 33", "last tile dropped", "Only the first 32 of the K = 33 products"),
    ("no_barrier_between", "A B^T, 113 x 7 x 203", "last tile dropped", "Only the first 192 of the K = 203 products"),
    ("no_barrier_between", "A B^T, batch 3, 37 x 50 x 41", "last tile dropped", "partial tile along K is left out"),
    ("wrong_axis", "113 x 203", "softmax over the wrong axis", "the columns sum to 1 where the rows should"),
    ("wrong_axis", "1023 x 1024", "softmax over the wrong axis", "wrong axis"),
    ("unwritten", "1025 columns", "unwritten outputs", "1538 of 2050 elements .* Only col >= 256 is wrong"),
    ("unwritten", "A B, 64 x 64 x 64", "unwritten outputs", r"64 of 4096 elements still hold .* Only row 63 \(of 64\)"),
    ("zeros", "one warp wide", "all zeros", "Every output is 0"),
    ("zeros", "A B^T, K = 1", "all zeros", "Every output is 0"),
    ("zeros", "A B, 64 x 64 x 64", "all zeros", "Every output is 0"),
    ("zeros", "full", "all zeros", "Every output is 0"),
    ("scale_forgotten", "full", "scale forgotten", r"must be multiplied by 1 / sqrt\(head_dim\) = 0.25"),
    ("scale_forgotten", "causal", "scale forgotten", "The scores are not scaled"),
    ("scale_forgotten", "CustomAttention module", "scale forgotten", "The scores are not scaled"),
    ("diagonal_masked", "causal", "mask off by one", "the diagonal is masked too"),
    ("diagonal_masked", "CustomAttention module", "mask off by one", "the diagonal is masked too"),
    ("one_ahead", "causal", "mask off by one", r"query i sees key i \+ 1"),
    ("one_ahead", "7 tokens, head_dim 5", "mask off by one", r"query i sees key i \+ 1"),
    ("bool_inverted", PADDING, "mask inverted", "true means that the query may attend"),
    ("bool_inverted", FLOAT, "mask ignored", "The float mask that was given is not applied"),
    ("bool_inverted", "40 queries, 23 keys, causal", "causal mask counted from the end", "count from the start"),
    ("float_before_scale", PADDING, "mask broadcast wrong", "The mask of the first batch entry is used for every"),
    ("float_before_scale", BIAS, "mask added before the scale", "it belongs to the scaled scores"),
    ("float_of_the_first_head", BOOL, "mask ignored", "The bool mask that was given is not applied"),
    ("float_of_the_first_head", FLOAT, "mask broadcast wrong", "The mask of the first head is used for every head"),
    ("float_of_the_first_head", BIAS, "mask broadcast wrong", "its stride must not be 0"),
    ("float_as_bool", PADDING, "masked row is uniform", "gives the mean of V"),
    ("float_as_bool", FLOAT, "float mask read as bool", "It must be added to the scores"),
    ("mask_not_passed_on", BOOL, "mask ignored", "The bool mask that was given is not applied"),
    ("mask_not_passed_on", BIAS, "mask ignored", "The float mask that was given is not applied"),
    ("infinity_minus_infinity", SOFTMAX_MASKS, "masked row is NaN", "In this course such a row is all zeros"),
    ("infinity_minus_infinity", PADDING, "masked row is NaN", "A query that may see no key gives NaN"),
    ("zero_over_zero", SOFTMAX_MASKS, "masked row is NaN", "In this course such a row is all zeros"),
    ("zero_over_zero", FLOAT, "masked row is NaN", "A query that may see no key gives NaN"),
]

# Races. In the simulator their outcome is always the same; a GPU may happen to give the right result.
RACES = [
    ("no_barrier_between", "one warp wide", "threads disagree"),
    ("no_barrier_between", "113 x 203", "threads disagree"),
    ("no_barrier_between", "1023 x 1024", "threads disagree"),
    ("no_barrier_between", "1025 columns", "threads disagree"),
    ("no_barrier_in_tree", "1023 x 1024", "threads disagree"),
    ("no_barrier_in_tree", "1025 columns", "threads disagree"),
]


def operators(name: str, backend: str) -> build.Operators:
    """Task 2's operators with BUILDS[name] planted."""
    return planted_operators("task2", name, tuple(BUILDS[name]), backend)


@pytest.mark.parametrize(("planted", "case", "name", "words"), PLANTED)
def test_a_planted_mistake_is_named(backend: str, planted: str, case: str, name: str, words: str) -> None:
    verdict = check(CASES[case], operators(planted, backend))
    told = " ".join(verdict.diagnosis)
    assert verdict.status == FAIL
    assert verdict.mistakes[:1] == [name], told
    assert re.search(words, told), told


@pytest.mark.parametrize(("planted", "case", "name"), RACES)
def test_a_missing_barrier_in_the_softmax_is_told(planted: str, case: str, name: str) -> None:
    verdict = check(CASES[case], operators(planted, "simulator"))
    told = " ".join(verdict.diagnosis)
    assert verdict.status == FAIL
    assert verdict.mistakes == [name], told
    assert "__syncthreads() between writing the shared partial results and reading them" in told


def test_a_missing_barrier_in_the_matrix_product_is_located() -> None:
    verdict = check(CASES["A B, 32 x 31 x 33"], operators("no_barrier_in_tree", "simulator"))
    assert verdict.status == FAIL
    assert verdict.mistakes == []
    told = " ".join(verdict.diagnosis)
    assert "elements are wrong" in told
    assert "one __syncthreads() between loading the tiles and using them" in told


def test_the_solution_itself_passes_where_the_mistakes_fail(backend: str, solution) -> None:
    for name in sorted({case for _, case, *_ in PLANTED + RACES}):
        assert check(CASES[name], solution("task2")).ok, name
