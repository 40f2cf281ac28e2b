"""Mistakes planted in strided attention: each is detected and, where possible, named."""

import pytest
from planted import (
    Planted,
    all_pass,
    clean_in_the_checked_build,
    found_by_the_checked_build,
    named,
    told_in_the_simulator,
)

from task5.cases import causal_cases, full_cases

COMPARES = "ahead > r"
RESCALE_O = ("#pragma unroll\n        for (int c = 0; c < T::COLS; ++c) state.o[r][c] *= rescale;", "")
COUNT = "ceil_div(seen - offset, stride)"
SEEN = "causal && q_start + T::B_r < S_k ? q_start + T::B_r : S_k"

TASK5 = Planted(
    "task5",
    {
        # hidden_rows
        "not_causal": [(COMPARES, "false")],
        "diagonal_hidden": [(COMPARES, "ahead >= r")],
        "sees_one_ahead": [(COMPARES, "ahead > r + 1")],
        "every_row_is_the_first": [(COMPARES, "ahead > 0")],
        "end_of_keys_not_masked": [("key_position >= S_k", "false")],
        # strided_attention_kernel
        "row_step_ignored": [("count - n, «stride»,", "1")],
        "every_tile_full": [("«count - n», stride,", "T::B_c")],
        "offset_forgotten": [("position = «offset + n * stride»;", "n * stride")],
        "offset_left_out_of_the_loads": [
            ("key + position * head_dim", "key + n * stride * head_dim"),
            ("value + position * head_dim", "value + n * stride * head_dim"),
        ],
        "n_taken_for_the_position": [("«position + lane * stride», q_start", "n + lane")],
        "lanes_are_neighbors": [("«position + lane * stride», q_start", "position + lane")],
        "offset_left_out_of_the_mask": [("«position + lane * stride», q_start", "(n + lane) * stride")],
        "mask_within_the_tile": [("lane * stride, «q_start + first_row», S_k", "first_row")],
        "V_without_offset": [("value + position * head_dim", "value + n * stride * head_dim")],
        "count_rounded_down": [(COUNT, "(seen - offset) / stride")],
        "every_key_counted": [(COUNT, "seen")],
        "last_tile_dropped": [("«n < count»; n += T::B_c", "n + T::B_c <= count")],
        "loop_ends_at_q_start": [(SEEN, "causal && q_start < S_k ? q_start : S_k")],
        # custom_strided_attention, and mistakes a student's own kernel can make: planted in the given functions
        "scale_forgotten": [("«scale * LOG2_E»", "LOG2_E")],
        "stride_ignored": [("S_k, head_dim, «stride», offset, causal, scale * LOG2_E", "1")],
        "causal_not_passed_on": [("stride, offset, «causal», scale * LOG2_E", "false")],
        "masked_with_0": [("s[r] = «-INFINITY»;", "0.0f")],
        "no_key_yet": [("m_new == -INFINITY ? 0.0f : m_new", "m_new")],
        "O_not_rescaled": [RESCALE_O],
        "V_not_strided": [("v_tile, value, rows_left, «row_step»", "1")],
    },
    file="strided_attention.cu",
)

CASES = {f"{case.part}: {case.name}": case for case in full_cases() + causal_cases()}
EVEN, RAGGED = "full: 64 tokens, stride 2", "full: 113 queries, 403 keys, 2 + 3n"
SMALL = "full: 31 keys, 3 + 4n, head_dim 5"
CAUSAL_EVEN, CAUSAL, LONGER = (
    "causal: 64 tokens, stride 2",
    "causal: 203 tokens, 2 + 3n",
    "causal: 113 queries, 203 keys, 1 + 2n",
)
BLIND = "causal: 60 + 64n: rows that see no key"

# (mistake, case, the mistake's name or None, words of the diagnosis)
PLANTED = [
    ("row_step_ignored", RAGGED, "rows of a tile are neighbors", "row_step is the stride"),
    ("row_step_ignored", CAUSAL, "rows of a tile are neighbors", "row_step is the stride"),
    ("not_causal", CAUSAL, "causal mask missing", "positions after their own"),
    ("causal_not_passed_on", LONGER, "causal mask missing", "positions after their own"),
    ("diagonal_hidden", CAUSAL, "mask off by one", "own position must be seen"),
    ("sees_one_ahead", CAUSAL, "mask off by one", "query i sees position i \\+ 1"),
    ("every_row_is_the_first", CAUSAL, "mask of the warp's first row", "is that of the warp's first row for all"),
    ("end_of_keys_not_masked", RAGGED, "padding counts", r"only \d+ of 32 keys"),
    ("masked_with_0", CAUSAL, "masked scores are 0", r"exp\(0\) is 1"),
    ("O_not_rescaled", RAGGED, "no rescale in the online softmax", r"multiply O by .* \(seen with tiles of 32 keys\)"),
    ("O_not_rescaled", CAUSAL, "no rescale in the online softmax", r"multiply O by .* \(seen with tiles of 32 keys\)"),
    ("no_key_yet", BLIND, "masked row is NaN", "Such a row must subtract 0"),
    ("offset_forgotten", RAGGED, "offset ignored", "must be offset = 2"),
    ("offset_forgotten", CAUSAL, "offset ignored", "must be offset = 2"),
    ("offset_left_out_of_the_loads", CAUSAL, "offset ignored", "K and V are read from 0, stride"),
    ("n_taken_for_the_position", CAUSAL, "mask counts strided keys", r"offset \+ n \* stride"),
    ("lanes_are_neighbors", CAUSAL, "key_position = position + lane", r"it should be `key_position = .* \* stride`"),
    ("offset_left_out_of_the_mask", CAUSAL, "offset left out of the mask", r"it is offset \+ n \* stride"),
    ("mask_within_the_tile", CAUSAL, "mask counted within the tile", r"q_start \+ its row"),
    ("V_not_strided", RAGGED, "V not strided", "V without it"),
    ("V_not_strided", CAUSAL, "V not strided", "V without it"),
    ("V_without_offset", RAGGED, "V without offset", "which begin at offset"),
    ("stride_ignored", EVEN, "stride ignored", "as if stride were 1; it is 2"),
    ("stride_ignored", CAUSAL_EVEN, "stride ignored", "as if stride were 1; it is 2"),
    ("count_rounded_down", RAGGED, "number of strided keys rounded down", "must be rounded up"),
    ("count_rounded_down", CAUSAL, "number of strided keys rounded down", "must be rounded up"),
    ("last_tile_dropped", RAGGED, "last tile dropped", "last, partial tile"),
    ("last_tile_dropped", CAUSAL, "last tile dropped", "last, partial tile"),
    ("loop_ends_at_q_start", CAUSAL, "tiles on the diagonal left out", "its last query sees keys up to"),
    ("scale_forgotten", RAGGED, "scale forgotten", r"must be multiplied by 1 / sqrt\(head_dim\)"),
    ("scale_forgotten", CAUSAL, "scale forgotten", r"must be multiplied by 1 / sqrt\(head_dim\)"),
]
RACES = [
    ("every_key_counted", RAGGED, "elements are wrong"),
    ("every_tile_full", "full: infinity between strided keys", "elements are wrong"),
]
# mistake, case, kind and variable of the finding in the checked build
CHECKED = [
    ("every_key_counted", RAGGED, "out_of_bounds", "key|value"),
    ("every_tile_full", SMALL, "out_of_bounds", "key|value"),
]

test_a_mistake_is_caught = named(TASK5, CASES, PLANTED)
test_a_race_is_caught_in_the_simulator = told_in_the_simulator(TASK5, CASES, RACES)
test_the_solution_passes_everything = all_pass("task5", CASES.values())
test_the_checked_build_finds_it = pytest.mark.slow(found_by_the_checked_build(TASK5, CASES, CHECKED))
test_the_checked_build_finds_nothing_in_the_solution = pytest.mark.slow(
    clean_in_the_checked_build(TASK5, CASES, (RAGGED, SMALL, CAUSAL, BLIND))
)


def test_every_mistake_is_planted_somewhere():
    assert set(TASK5.mistakes) == {one[0] for one in PLANTED + RACES}
