"""Mistakes planted in task 3's algorithm and kernels: each is detected and named or located in the report.

A mistake is an exact replacement in task3/solution/.
"""

import os
import re
from types import SimpleNamespace

import pytest
from forked_python import run_python
from planted import Planted, assert_all_pass, assert_named, assert_told, named, plant_python

from common.console.paths import ROOT
from common.testing.case import ERROR, FAIL
from common.testing.judging import judge
from task3.cases import cases

CASES = {case.name: case for case in cases()}
MISPRINT = "Line 10 of Algorithm 1 is misprinted"

# name of the set -> replacements in attention.py
ALGORITHM = {
    "misprint": [("O = rescale * state.O", "O = state.O / rescale")],
    "misprint_after_first_tile": [("O = rescale * state.O", "O = torch.where(rescale == 0, 0.0, state.O / rescale)")],
    "O_not_rescaled": [("O = rescale * state.O", "O = state.O")],
    "l_not_rescaled": [("l = rescale * state.l", "l = state.l")],
    "maximum_starts_at_0": [("m=column - torch.inf", "m=column")],
    "maximum_of_the_tile": [
        ("m = torch.maximum(state.m, S.amax(-1, keepdim=True))", "m = S.amax(-1, keepdim=True)"),
        ("rescale = torch.exp(state.m - shift)", "rescale = torch.ones_like(shift)"),
    ],
    "maximum_of_the_newest_tile": [
        ("m = torch.maximum(state.m, S.amax(-1, keepdim=True))", "m = S.amax(-1, keepdim=True)")
    ],
    "normalized_in_every_tile": [("return RowState(m, l, O)", "return RowState(m, l, O / l)")],
    "last_key_tile_dropped": [("range(0, seen, B_c)", "range(0, seen - B_c + 1, B_c)")],
    "last_query_tile_dropped": [("range(0, query.size(-2), B_r)", "range(0, query.size(-2) - B_r + 1, B_r)")],
    "diagonal_masked": [("keys > queries[:, None]", "keys >= queries[:, None]")],
    "sees_one_ahead": [("keys > queries[:, None]", "keys > queries[:, None] + 1")],
    "diagonal_tiles_not_masked": [("if causal:\n        queries", "if causal and q_start < 0:\n        queries")],
    "diagonal_tiles_left_out": [("min(q_start + query_tile.size(-2), key.size(-2))", "min(q_start, key.size(-2))")],
    "half_of_the_diagonal_tiles": [
        ("min(q_start + query_tile.size(-2), key.size(-2))", "min(q_start + 1, key.size(-2))")
    ],
    "mask_within_the_tile": [
        ("torch.arange(q_start, q_start + S.size(-2)", "torch.arange(S.size(-2)"),
        ("torch.arange(k_start, k_start + S.size(-1)", "torch.arange(S.size(-1)"),
    ],
    "no_key_yet": [("shift = torch.where(m == -torch.inf, 0.0, m)", "shift = m")],
    "divided_by_0": [("torch.where(state.l == 0, 0.0, state.O / state.l)", "state.O / state.l")],
    "scale_forgotten": [("key_tile.transpose(-2, -1) * scale", "key_tile.transpose(-2, -1)")],
    "all_scores": [
        ("for q_start in range(0,", "scores = query @ key.transpose(-2, -1) * scale\n    for q_start in range(0,")
    ],
    "scores_with_all_keys": [
        (
            "S = tile_scores(query_tile, key[:, :, tile], q_start, k_start, scale, causal)",
            "S = tile_scores(query_tile, key, q_start, 0, scale, causal)[..., tile]",
        )
    ],
    "tiles_kept": [
        ("state = nothing_seen(query_tile)", "state, kept = nothing_seen(query_tile), _KEPT"),
        ("state = add_tile(state, S,", "kept.append(S)\n        state = add_tile(state, S,"),
        ("class RowState(NamedTuple)", "_KEPT = []\n\n\nclass RowState(NamedTuple)"),
    ],
    "pytorchs_own": [
        (
            "for q_start in range(0,",
            "return torch.nn.functional.scaled_dot_product_attention(\n        query, key, value, is_causal=causal, "
            "scale=scale\n    )\n    for q_start in range(0,",
        )
    ],
}
# (set, case, status, the mistake's name or None, words of the diagnosis)
ALGORITHM_VERDICTS = [
    ("misprint", "113 queries, 203 keys", FAIL, None, MISPRINT),
    ("misprint", "one tile", FAIL, None, MISPRINT),
    ("misprint_after_first_tile", "113 queries, 203 keys", FAIL, "divides instead of rescaling", "must be multiplied"),
    ("misprint_after_first_tile", "tiles of 3 x 5", FAIL, "divides instead of rescaling", "misprinted in the paper"),
    ("O_not_rescaled", "113 queries, 203 keys", FAIL, "no rescale in the online softmax", "multiply O by"),
    ("O_not_rescaled", "rows that see nothing", FAIL, "no rescale in the online softmax", "tiles of 16 keys"),
    ("l_not_rescaled", "causal, 96 tokens", FAIL, "no rescale in the online softmax", "multiply l by"),
    ("maximum_starts_at_0", "scores far below 0", FAIL, "maximum starts at 0", "must be -inf"),
    ("maximum_of_the_tile", "113 queries, 203 keys", FAIL, "maximum of the tile", "its own maximum"),
    ("maximum_of_the_newest_tile", "scores that rise and fall", FAIL, "maximum of the tile", "overflows"),
    ("normalized_in_every_tile", "113 queries, 203 keys", FAIL, "normalized in every tile", "the one division"),
    ("last_key_tile_dropped", "113 queries, 203 keys", FAIL, "last tile dropped", "first 192 of the 203 keys"),
    ("last_key_tile_dropped", "tiles of 3 x 5", FAIL, "last tile dropped", "The keys from 30 on are left out"),
    ("last_query_tile_dropped", "113 queries, 203 keys", FAIL, "unwritten outputs", "Only row >= 96 is wrong"),
    ("diagonal_masked", "causal, 96 tokens", FAIL, "mask off by one", "the diagonal is masked too"),
    ("sees_one_ahead", "causal, 50 queries, 70 keys", FAIL, "mask off by one", r"query i sees key i \+ 1"),
    ("diagonal_tiles_not_masked", "causal, 50 queries, 70 keys", FAIL, "causal mask missing", "queries see keys of"),
    ("diagonal_tiles_left_out", "causal, 96 tokens", FAIL, "tiles on the diagonal left out", r"q_start \+ rows - 1"),
    ("half_of_the_diagonal_tiles", "causal, 96 tokens", FAIL, "tiles on the diagonal left out", "holds key q_start"),
    ("mask_within_the_tile", "causal, 70 queries, 50 keys", FAIL, "mask counted within the tile", "Add q_start"),
    ("no_key_yet", "rows that see nothing", FAIL, "masked row is NaN", r"-inf - \(-inf\) is NaN"),
    ("no_key_yet", "the first 70 keys masked", FAIL, None, "5120 elements are NaN|2560 elements are NaN"),
    ("divided_by_0", "rows that see nothing", FAIL, "masked row is NaN", "0 / 0"),
    ("scale_forgotten", "one tile", FAIL, "scale forgotten", "The scores are not scaled"),
    ("all_scores", "memory", ERROR, None,
     r"shape \[2, 512, 640\] was made in line .*attention.py:\d+ .*all 512 queries"),
    ("scores_with_all_keys", "memory", ERROR, None,
     r"\[2, 32, 640\] was made in line .*a tile of queries with all 640"),
    ("scores_with_all_keys", "memory, many keys", ERROR, None, "computed from the queries took up to"),
    ("tiles_kept", "memory", ERROR, None, "Are tiles kept that are no longer needed"),
    ("pytorchs_own", "memory", ERROR, None, "calls PyTorch's own attention"),
]  # fmt: skip


@pytest.mark.parametrize(("planted", "case", "status", "name", "words"), ALGORITHM_VERDICTS)
def test_a_mistake_in_the_algorithm_is_caught(monkeypatch, solution, planted, case, status, name, words) -> None:
    plant_python(monkeypatch, "task3.attention", ROOT / "task3" / "solution" / "attention.py", ALGORITHM[planted])
    ops = SimpleNamespace(device=solution("task3").device, task="task3", variant="student")
    verdict = judge(CASES[case], ops)
    told = " ".join(verdict.diagnosis)
    assert verdict.status == status, told
    assert verdict.mistakes[:1] == ([name] if name else []), told
    assert re.search(words, told), told


WEIGHT = "expf(lse[(start + lane) * rows + row] - shift) * inverse_l"
KERNELS = Planted(
    "task3",
    {
        # online_softmax_kernel
        "l_not_rescaled": [("float l = «state.l * expf(state.m - shift)»;", "state.l")],
        "merged_without_rescaling": [("warp_sum(«state.l * expf(state.m - shift_of(m))»)", "state.l")],
        "starts_at_0": [("of the whole row.\n    State state = {«-INFINITY», 0.0f};", "0.0f")],
        "no_score_yet": [("return «m == -INFINITY ? 0.0f : m»;", "m")],
        "padding_0": [("row_x[col] : «-INFINITY»;", "0.0f")],
        "end_not_checked": [("scores[i] = «col < cols» ? row_x[col]", "true")],
        "no_barrier": [("partial[warp] = state;\n    «__syncthreads();»", "")],
        "last_step_dropped": [("«first < cols»; first += ITEMS", "first + (ITEMS - 1) * THREADS < cols")],
        "lse_without_maximum": [("lse[blockIdx.x] = «shift + logf(state.l)»;", "logf(state.l)")],
        "one_column_per_thread": [("col < cols; «col += THREADS») {", "col = cols")],
        # merge_states_kernel
        "plain_average": [(WEIGHT, "1.0f / parts")],
        "no_maximum": [("state = add_scores(state, score);", "state = {0.0f, state.l + expf(score[0])};")],
        "not_normalized": [(WEIGHT, "expf(lse[(start + lane) * rows + row] - shift)")],
        "empty_part_read": [("«weight != 0.0f» && has_", "true", 2)],
        "one_part_per_lane": [("part < parts; «part += 32»)", "part = parts")],
        "rounded_lse": [(WEIGHT, "expf(lse[(start + lane) * rows + row] - (shift + logf(state.l)))")],
        "lse_transposed": [
            ("lse[part * rows + row]", "lse[row * parts + part]"),
            ("lse[(start + lane) * rows + row]", "lse[row * parts + start + lane]"),
        ],
        "weights_of_lane_0": [("__shfl_sync(FULL_WARP, own, «i»)", "0")],
        "lanes_past_the_last_part": [("const float own = lane < «count» ?", "parts")],
        "merged_lse_is_the_maximum": [("merged_lse[row] = «shift + logf(state.l)»;", "state.m")],
        "overwrites": [
            (
                "first_sum += weight * (weight != 0.0f && has_first ? part_out[0] : 0.0f);",
                "first_sum = has_first ? part_out[0] : 0.0f;",
            ),
            (
                "second_sum += weight * (weight != 0.0f && has_second ? part_out[32] : 0.0f);",
                "second_sum = has_second ? part_out[32] : 0.0f;",
            ),
        ],
    },
)
# (planted, case, the mistake's name or None, words of the diagnosis)
KERNEL_VERDICTS = [
    ("l_not_rescaled", "rows that rise and fall", "no rescale in the online softmax", "maximum of a thread grows"),
    ("weights_of_lane_0", "33 parts", "weight of lane 0", "has its weight in lane i"),
    ("plain_average", "2 parts", "plain average", "A part counts by what its scores weigh"),
    ("merged_without_rescaling", "113 x 203", "merged without rescaling", "merged without rescaling"),
    ("merged_without_rescaling", "lse, 113 x 203", "merged without rescaling", "merged without rescaling"),
    ("no_maximum", "lse beyond 88", "no max subtraction", "overflows float32"),
    ("starts_at_0", "large offsets", "maximum starts at 0", "must be -inf"),
    ("not_normalized", "8 parts, head_dim 64", "weights not normalized", "not divided by their sum"),
    ("no_score_yet", "masked entries, a masked row", "masked row is NaN", "a thread or a warp has seen nothing"),
    ("no_score_yet", "lse, a masked row", "masked row is NaN", "a thread or a warp has seen nothing"),
    ("no_score_yet", "empty parts", "empty part is NaN", "Such a part contributes nothing"),
    ("no_score_yet", "merged lse, empty parts", "empty part is NaN", "Such a part contributes nothing"),
    ("padding_0", "7 x 31, all below 0", "padding counts", "They must be -inf"),
    ("empty_part_read", "empty parts", "empty part read", r"0 \* NaN is NaN"),
    ("one_part_per_lane", "100 parts, 1 row", "first 32 parts only", "first 32 of 100 parts"),
    ("rounded_lse", "lse of 10,000", "weights from the rounded lse", "the weights do not sum to 1"),
    ("last_step_dropped", "4099 columns", "wrong row sum", "Is part of the row missing from it"),
    ("lse_transposed", "8 parts, head_dim 64", r"lse read as [rows, parts]", r"lse\[part \* rows \+ row\]"),
    ("lse_without_maximum", "lse, large offsets", "maximum left out", r"it is m \+ log\(l\)"),
    ("merged_lse_is_the_maximum", "merged lse", "only the maximum", r"it is m \+ log\(l\)"),
    ("one_column_per_thread", "1025 columns", "unwritten outputs", "Only col >= 256 is wrong"),
    ("overwrites", "2 parts", "last part only", "each part overwrites the one before"),
]


test_a_mistake_in_a_kernel_is_caught = named(KERNELS, CASES, KERNEL_VERDICTS)


def test_a_read_beyond_the_row_is_caught(backend) -> None:
    """What the code reads there, and so the symptom, is unpredictable."""
    assert_told(judge(CASES["113 x 203"], KERNELS.operators("end_not_checked", backend)), "elements are wrong")


def test_a_missing_barrier_is_told() -> None:
    """In the simulator, where the outcome is deterministic; a GPU may happen to give the right result."""
    verdict = judge(CASES["1023 x 1024"], KERNELS.operators("no_barrier", "simulator"))
    assert_named(verdict, "threads disagree", r"is there a __syncthreads\(\) between writing and reading them")


def test_the_solution_itself_passes_everything(solution) -> None:
    assert_all_pass(CASES.values(), solution("task3"))
    assert sum(case.points for case in CASES.values()) == pytest.approx(3)


# in a separate process, as students run it
ALL_PASS = """
from reports import found_where_all_pass
from test_planted import KERNELS, cases
merge = [case for case in cases() if case.part == "merge"]
print(found_where_all_pass(KERNELS, "lanes_past_the_last_part", merge))
"""


@pytest.mark.slow
def test_what_changes_no_output_shows_in_a_case_with_a_last_turn_that_not_all_lanes_take():
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "helpers", ROOT / "tests" / "task3")))
    done = run_python(["-c", ALL_PASS], ROOT, {**os.environ, "PYTHONPATH": paths}, 300)
    assert done.stdout.strip() == "['out_of_bounds: merge: 100 parts, 1 row']", done.stdout + done.stderr
