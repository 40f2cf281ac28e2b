"""Mistakes planted in task 1's layer (Python) and kernels (CUDA): each gets the expected verdict.

A mistake is a set of exact replacements in task1/solution/attention.py or task1/solution/naive_attention.cu.
"""

import re
from types import SimpleNamespace

import pytest
import torch
from planted import (
    Planted,
    all_pass,
    assert_error,
    assert_named,
    clean_in_the_checked_build,
    found_by_the_checked_build,
    named,
    plant_python,
)

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.console.paths import ROOT
from common.testing.calling import poisoned_memory
from common.testing.judging import judge
from task1.cases import cases

CASES = {case.name: case for case in cases()}
LAYER_FILE = ROOT / "task1" / "solution" / "attention.py"

FULL, CAUSAL = "as MultiheadAttention", "as MultiheadAttention, causal"
HEADS = ".view(split).transpose(1, 2)"
FUTURE = "dtype=torch.bool, device=x.device).triu(diagonal=1)"
HIDE = "scores = scores.masked_fill(future, -torch.inf)"
SOFTMAX = "weights = torch.softmax(scores, dim=-1)"
SCORES = "scores = query @ key.transpose(-2, -1) / self.head_dim**0.5"

# name -> (replacements, the case, the mistake's name, words of the diagnosis)
LAYER = {
    "heads viewed in one go": ([(HEADS, ".reshape(batch, self.num_heads, seq_len, self.head_dim)", 3)], FULL,
     "heads not transposed", r"transpose\(1, 2\)"),
    "heads interleaved": ([("split = (batch, seq_len, self.num_heads, self.head_dim)",
     "split = (batch, seq_len, self.head_dim, -1)"), (HEADS, ".view(split).permute(0, 3, 1, 2)", 3)], FULL,
     "heads interleaved", r"Split it into \(num_heads, head_dim\)"),
    "scale forgotten": ([(" / self.head_dim**0.5", "")], CAUSAL, "scale forgotten", "The scores are not scaled"),
    "square root forgotten": ([("head_dim**0.5", "head_dim")], FULL, "scale applied twice", "square root is missing"),
    "scale of all heads": ([("head_dim**0.5", "hidden_dim**0.5")], FULL, "scaled by the hidden size", "of one head"),
    "diagonal hidden": ([(FUTURE, FUTURE.replace("1)", "0)"))], CAUSAL, "mask off by one", "the diagonal is masked"),
    "one ahead": ([(FUTURE, FUTURE.replace("1)", "2)"))], CAUSAL, "mask off by one", r"sees key i \+ 1"),
    "past hidden": ([(FUTURE, FUTURE.replace("triu(diagonal=1)", "tril(diagonal=-1)"))], CAUSAL, "mask transposed",
     "must see j <= i"),
    "never masked": ([(HIDE, "pass")], CAUSAL, "causal mask missing", "queries see keys of the future"),
    "always masked": ([("if self.causal:", "if True:")], FULL, "causal mask not asked for", "although causal is false"),
    "masked with 0": ([(HIDE, HIDE.replace("-torch.inf", "0.0"))], CAUSAL, "masked scores are 0", r"exp\(0\) is 1"),
    "masked too late": ([(HIDE, "pass"), (SOFTMAX,
     f"{SOFTMAX}\n        weights = weights.masked_fill(future, 0.0) if self.causal else weights")], CAUSAL,
     "masked after the softmax", "no longer sum to 1"),
    "softmax over the queries": ([(SOFTMAX, SOFTMAX.replace("-1", "-2"))], FULL, "softmax over the wrong axis",
     "along each row of S"),
    "softmax over the heads": ([(SOFTMAX, SOFTMAX.replace("-1", "1"))], FULL, "softmax over the heads",
     "runs over the heads"),
    "no softmax": ([(SOFTMAX, "weights = scores")], FULL, "softmax missing", "multiplied by the scores S themselves"),
    "keys and values swapped":
     ([("query @ key.transpose", "query @ value.transpose"), ("weights @ value", "weights @ key")], FULL,
     "K and V swapped", "the scores come from V"),
    "key not transposed": ([("key.transpose(-2, -1)", "key.reshape(batch, self.num_heads, self.head_dim, seq_len)")],
     FULL, "K not transposed", "K is read as if"),
    "no output projection": ([("self.out_projection(self.merge_heads(heads))", "self.merge_heads(heads)")], FULL,
     "output projection missing", "returned as they are"),
}  # fmt: skip
# Rejected by PyTorch itself or the shape check; the verdict must name the student's line
LAYER_ERRORS = {
    "transpose forgotten": ([(HEADS, ".view(split)", 3)],
     r"attention.py:\d+ in forward: ValueError: query has shape \[2, 21, 3, 8\]; it must be"),
    "keys not turned over": ([("key.transpose(-2, -1)", "key")], r"attention.py:\d+ in forward: RuntimeError: "),
    "heads not merged": ([("self.merge_heads(heads)", "heads")], r"attention.py:\d+ in forward: RuntimeError: "),
}  # fmt: skip

MASKED = "masked_score(sum * scale, mask, batch_head, q, k)"
VISIBLE = "masked_score(0.0f, mask, batch_head, q, k) == 0.0f"
PRODUCT = "static_cast<float>(query_row[d]) * static_cast<float>(key_row[d])"

GUARD = "index >= batch_heads * S_q * head_dim"
KERNELS = Planted(
    "task1",
    {
        "number_without_block_size": [
            ("static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x", "int64_t(blockIdx.x) + threadIdx.x")
        ],
        "number_in_32_bits": [("static_cast<int64_t>(blockIdx.x) * blockDim.x", "blockIdx.x * blockDim.x")],
        "rounded_down": [("ceil_div(threads, THREADS)", "threads / THREADS")],
        # scores_kernel
        "no_guard_for_scores": [("if (index >= batch_heads * S_q * S_k) return;", "")],
        "query_and_key_exchanged": [
            ("k = index % S_k;\n    q = index / S_k % S_q;", "q = index % S_q;\n    k = index / S_q % S_k;")
        ],
        "query_of_all_heads": [("q = «index / S_k % S_q»;\n    batch_head", "index / S_k")],
        "K_of_the_first_matrix": [("«key + (batch_head * S_k + k) * head_dim»", "key + k * head_dim")],
        "K_counted_in_queries": [
            ("«key + (batch_head * S_k + k) * head_dim»", "key + (batch_head * S_q + k) * head_dim")
        ],
        "last_column_left_out": [("«d < head_dim»; ++d", "d + 1 < head_dim")],
        "products_in_16_bits": [(PRODUCT, "static_cast<float>(query_row[d] * key_row[d])")],
        "diagonal_hidden": [("causal && k > q", "causal && k >= q")],
        "never_causal": [("causal && k > q", "false")],
        "counted_from_the_end": [("causal && k > q", "causal && k > q + S_k - S_q")],
        "scale_forgotten": [(MASKED, MASKED.replace(" * scale", ""))],
        "bool_inverted": [(MASKED, f"{VISIBLE} ? -INFINITY : sum * scale")],
        "mask_before_the_scale": [(MASKED, "masked_score(sum, mask, batch_head, q, k) * scale")],
        "mask_of_the_first_query": [(MASKED, MASKED.replace("q, k", "0, k"))],
        "mask_ignored": [(MASKED, "sum * scale")],
        "mask_of_the_first_head": [(MASKED, MASKED.replace("batch_head", "0"))],
        "masked_with_a_large_number": [(MASKED, f"{VISIBLE} ? sum * scale : -1e9f")],
        # softmax_kernel
        "no_guard_for_rows": [("if (index >= rows) return;", "")],
        "first_row_for_all": [("«scores + index * cols»;", "scores")],
        "no_max": [("row_max == -INFINITY ? 0.0f : row_max", "0.0f")],
        "infinity_minus_infinity": [("row_max == -INFINITY ? 0.0f : row_max", "row_max")],
        "max_without_the_last_column": [("«k < cols»; ++k) row_max", "k + 1 < cols")],
        "max_without_the_first_column": [("for (int64_t k = «0»; k < cols; ++k) row_max", "1")],
        "blocks_and_threads_exchanged": [
            ("scores_kernel<<<«blocks_for(batch_heads * S_q * S_k)»", "THREADS"),
            ("S_q * S_k), «THREADS»", "blocks_for(batch_heads * S_q * S_k)"),
        ],
        "grid_of_the_scores": [("output_kernel<<<blocks_for(batch_heads * S_q * «head_dim»)", "S_k")],
        "not_normalized": [("weights_row[k] *= «inverse_sum»;", "1.0f")],
        "zero_over_zero": [("sum == 0.0f ? 0.0f : 1.0f / sum", "1.0f / sum")],
        "softmax_forgotten": [("launch_softmax(scores, scores, batch_heads * S_q, S_k, stream);", "")],
        "rows_of_one_head": [("launch_softmax(scores, scores, «batch_heads * S_q»,", "S_q")],
        # output_kernel
        "guard_off_by_one": [(GUARD, GUARD.replace(">=", ">"))],
        "V_of_the_first_matrix": [("value + row / S_q * S_k * head_dim + d", "value + d")],
        "V_transposed": [
            ("value + row / S_q * S_k * head_dim + «d»", "d * S_k"),
            ("value_column[«k * head_dim»]", "k"),
        ],
        "last_key_left_out": [("«k < S_k»; ++k) sum +=", "k + 1 < S_k")],
        "sum_overwritten": [
            (
                "sum += weights_row[k] * static_cast<float>(value_column[k * head_dim]);",
                "sum = weights_row[k] * static_cast<float>(value_column[k * head_dim]);",
            )
        ],
    },
)
SQUARE, CROSS, PV = "Q K^T, 40 tokens", "Q K^T, 13 queries, 47 keys", "P V, 13 queries, 47 keys"
BOOL_S, FLOAT_S = "Q K^T, bool mask [heads, 1, S_k]", "Q K^T, float mask, scale 0.5"
BOOL, PADDING, EMPTY = (
    "bool mask [batch, heads, S_q, S_k]",
    "padding [batch, 1, 1, S_k]",
    "queries that may see nothing",
)
BIAS, BIAS_PER_HEAD = "float mask [1, 1, S_q, S_k]", "float mask [heads, S_q, S_k], causal"
WIDE_PV = "P V, 513 queries, 40 keys, head_dim 521"
MASKED_ROW = "masked entries, a masked row"

# (planted, case, the mistake's name, words of the diagnosis)
KERNEL = [
    ("number_without_block_size", SQUARE, "unwritten outputs", "never written"),
    ("query_and_key_exchanged", SQUARE, "output transposed", "Each output matrix comes out transposed"),
    ("not_normalized", "7 x 31", "not normalized", "nothing divides them"),
    ("V_of_the_first_matrix", PV, "V of the first matrix", "the matrix's offset is missing"),
    ("query_of_all_heads", SQUARE, "query counted through all heads", "leaves the query's number within its head"),
    ("K_of_the_first_matrix", CROSS, "K of the first matrix", "the matrix's offset is missing"),
    ("K_counted_in_queries", CROSS, "K counted in queries", "S_k rows times the number of heads"),
    ("no_max", "large offsets", "no max subtraction", "exp.x. overflows float32"),
    ("max_without_the_last_column", "large offsets", None, "the maximum leaves out a much larger entry"),
    ("max_without_the_first_column", "large offsets", None, "the maximum leaves out a much larger entry"),
    ("grid_of_the_scores", WIDE_PV, "unwritten outputs", "Does the grid cover the whole output"),
    ("V_transposed", PV, "V transposed", "V is read as if"),
    ("scale_forgotten", SQUARE, "scale forgotten", "must be multiplied by"),
    ("infinity_minus_infinity", MASKED_ROW, "masked row is NaN", "so is 0 / 0"),
    ("last_key_left_out", PV, "last key left out", "runs while k < S_k"),
    ("last_column_left_out", CROSS, "last column left out", "runs while d < head_dim"),
    ("sum_overwritten", PV, "sum overwritten", r"added up \(\+=\)"),
    ("first_row_for_all", "7 x 31", "slices moved", "Row 1 holds what belongs in row 0"),
    ("diagonal_hidden", "Q K^T, causal", "mask off by one", "the diagonal is masked"),
    ("diagonal_hidden", "causal", "mask off by one", "the diagonal is masked"),
    ("bool_inverted", BOOL_S, "mask inverted", "true means that the query may attend"),
    ("bool_inverted", BOOL, "mask inverted", "true means that the query may attend"),
    ("products_in_16_bits", "float16, products beyond 65,504", None, "elements are wrong"),
    ("never_causal", "Q K^T, 31 queries, 7 keys, causal", "causal mask missing", "keys of the future"),
    ("mask_before_the_scale", FLOAT_S, "mask added before the scale", "it belongs to the scaled scores"),
    ("mask_before_the_scale", BIAS, "mask added before the scale", "it belongs to the scaled scores"),
    ("counted_from_the_end", "7 queries, 31 keys, causal", "causal mask counted from the end",
     "both count from the start"),
    ("mask_of_the_first_query", BOOL, "mask broadcast wrong", "The mask of the first query is used for every query"),
    ("mask_ignored", FLOAT_S, "mask ignored", "The float mask that was given is not applied"),
    ("mask_ignored", BOOL, "mask ignored", "The bool mask that was given is not applied"),
    ("mask_of_the_first_head", BOOL_S, "mask broadcast wrong", "The mask of the first head is used"),
    ("mask_of_the_first_head", BIAS_PER_HEAD, "mask broadcast wrong", "The mask of the first head is used"),
    ("masked_with_a_large_number", PADDING, "masked row is uniform", "gives the mean of V"),
    ("zero_over_zero", MASKED_ROW, "masked row is NaN", "so is 0 / 0"),
    ("zero_over_zero", PADDING, "masked row is NaN", "so is 0 / 0"),
    ("softmax_forgotten", "full", "softmax missing", "multiplied by the scores S themselves"),
    ("rows_of_one_head", "full", None, r"the first is at batch 0, head 1, row 0.* The row's weights sum to"),
]  # fmt: skip
# Found by the checked build: (planted, case, the kind, the tensor accessed out of bounds)
OUT_OF_BOUNDS = [
    ("no_guard_for_scores", CROSS, "out_of_bounds", "query"),
    ("no_guard_for_rows", "7 x 31", "out_of_bounds", "x"),
    ("guard_off_by_one", PV, "out_of_bounds", "weights"),
]


def planted_layer(monkeypatch, replacements) -> SimpleNamespace:
    """Operators whose Python side is the solution's attention.py with the replacements made."""
    plant_python(monkeypatch, "task1.attention", LAYER_FILE, replacements)
    return SimpleNamespace(task="task1", variant="student", device=torch.device("cpu"))


@pytest.mark.parametrize("planted", LAYER)
def test_a_mistake_in_the_layer_is_named(monkeypatch, planted: str) -> None:
    replacements, case, name, words = LAYER[planted]
    assert_named(judge(CASES[case], planted_layer(monkeypatch, replacements)), name, words)


@pytest.mark.parametrize("planted", LAYER_ERRORS)
def test_what_pytorch_refuses_names_the_line(monkeypatch, planted: str) -> None:
    replacements, words = LAYER_ERRORS[planted]
    verdict = judge(CASES[FULL], planted_layer(monkeypatch, replacements))
    assert_error(verdict, words)
    assert re.fullmatch(r"task1/solution/attention.py:\d+", verdict.file_line)


test_a_mistake_in_the_kernels_is_named = named(KERNELS, CASES, KERNEL)


def test_a_grid_without_blocks_is_reported(backend: str) -> None:
    """With fewer than 256 threads, rounding down gives a grid of 0 blocks: CUDA rejects the launch."""
    verdict = judge(CASES["1 x 1"], KERNELS.operators("rounded_down", backend))
    assert_error(verdict, r"naive_attention.cu:\d+: kernel launch: invalid")
    why = (
        "with grid (0, 1, 1), block (256, 1, 1): a grid of 0 blocks"
        if backend == "simulator"
        else "a GPU rejects a grid of 0 blocks"
    )
    assert why in verdict.diagnosis[0]


def test_blocks_and_threads_exchanged_need_many_blocks_to_show(backend: str) -> None:
    """With up to 1024 blocks, the swapped launch configuration computes the same."""
    ops = KERNELS.operators("blocks_and_threads_exchanged", backend)
    assert judge(CASES[SQUARE], ops).ok
    verdict = judge(CASES["Q K^T, 521 queries, 519 keys"], ops)
    assert_error(verdict, "kernel launch: invalid")


test_a_missing_guard_is_found_by_the_checked_build = pytest.mark.slow(
    found_by_the_checked_build(KERNELS, CASES, OUT_OF_BOUNDS)
)
test_the_checked_build_finds_nothing_in_the_solution = pytest.mark.slow(
    clean_in_the_checked_build(KERNELS, CASES, [case for _, case, *_ in OUT_OF_BOUNDS])
)
test_the_solution_passes_everything = all_pass("task1", CASES.values())


@pytest.mark.gpu
def test_32_bit_thread_numbers_are_wrong_beyond_2_to_the_32() -> None:
    """The solution is right for more than 2^32 scores; a kernel with 32-bit thread indices skips some."""
    if torch.cuda.mem_get_info()[0] < 30 * 2**30:
        pytest.skip("needs 30 GiB of free GPU memory")
    query, key, value = (torch.randn(1, 1, 66_000, 1, device="cuda") for _ in range(3))
    expected = torch.softmax(query[0, 0, -1].double() * key[0, 0, :, 0].double(), 0) @ value[0, 0].double()
    with poisoned_memory():
        right = load(BuildRequest("task1", "solution")).naive_attention(query, key, value, False)
        wrong = KERNELS.operators("number_in_32_bits", "cuda").naive_attention(query, key, value, False)
    torch.testing.assert_close(right[0, 0, -1].double(), expected, rtol=1e-4, atol=1e-4)
    assert bool(wrong[0, 0, -1].isnan().all())
