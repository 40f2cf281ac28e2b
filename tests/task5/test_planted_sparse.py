"""Mistakes planted in sliding window and block-sparse attention: each is detected and, where possible, named."""

import pytest
from checked_findings import findings_of
from planted import (
    Planted,
    all_pass,
    clean_in_the_checked_build,
    found_by_the_checked_build,
    named,
    told_in_the_simulator,
)

from task5.cases.sparse import block_cases, window_cases

LEFT, RIGHT, HIDDEN = "ahead - r <= -window", "ahead - r >= right", "ahead - r >= right || ahead - r <= -window"
EDGE = "causal ? 1 : window"
FIRST, BEGIN = "q_start - window + 1", "first > 0 ? first / tile_keys * tile_keys : 0"
END = "q_start + rows + (causal ? 0 : window - 1)"
PLACE = "count + __popc(lanes & ((1u << lane) - 1))"
ROW = "int64_t{head % heads} * q_blocks + static_cast<int>(q_start) / block"
LISTED = "n < count && n < k_blocks"
LEFT_OUT = "if (causal && k_start >= q_start + T::B_r) break;"
RESCALE_O = ("#pragma unroll\n        for (int c = 0; c < T::COLS; ++c) state.o[r][c] *= rescale;", "")

SPARSE = Planted(
    "task5",
    {
        # hidden_rows
        "diagonal_not_masked": [("causal && ahead > r", "false")],
        # mistakes a student's own kernel can make: planted in the given functions
        "masked_with_0": [("s[r] = «-INFINITY»;", "0.0f")],
        "O_not_rescaled": [RESCALE_O],
        "no_key_yet": [("m_new == -INFINITY ? 0.0f : m_new", "m_new")],
        # window_keys
        "first_tile_rounded_up": [(BEGIN, "(first > 0 ? first + tile_keys - 1 : 0) / tile_keys * tile_keys")],
        "begins_with_the_last_row": [(FIRST, "q_start + rows - window")],
        "begins_at_q_start": [(FIRST, "q_start")],
        "begins_before_the_first_key": [(BEGIN, "first")],
        "ends_at_q_start": [(END, "q_start")],
        "ends_as_with_causal": [(END, "q_start + rows")],
        "ends_behind_the_last_key": [("end < S_k ? end : S_k", "end")],
        # rows_outside_window
        "window_too_large": [(LEFT, "ahead - r < -window")],
        "window_too_small": [(LEFT, "ahead - r <= 1 - window")],
        "no_left_edge": [(LEFT, "false")],
        "no_right_edge": [(RIGHT, "false")],
        "window_ahead": [(HIDDEN, "ahead - r < 0 || ahead - r >= window")],
        "every_row_is_the_first": [(HIDDEN, "ahead >= right || ahead <= -window")],
        "own_key_hidden": [(EDGE, "causal ? 0 : window")],
        "one_key_ahead": [(EDGE, "causal ? 2 : window")],
        "always_causal": [(EDGE, "1")],
        "both_sides_always": [(EDGE, "window")],
        "end_of_keys_not_masked": [("«key_position >= S_k» || ahead - r", "false")],
        # sliding_window_kernel, custom_sliding_window_attention
        "mask_within_the_tile": [
            ("«k_start + lane», q_start + first_row, S_k, window", "lane"),
            ("k_start + lane, «q_start + first_row», S_k, window", "first_row"),
        ],
        "window_ignored": [("head_dim, «window», causal, scale * LOG2_E", "S_q + S_k")],
        "window_scale_forgotten": [("window, causal, «scale * LOG2_E»", "LOG2_E")],
        "window_counted_backward": [
            (
                "ahead = «key_position - query_position»;  // of the warp's first row\n    const int64_t right",
                "query_position - key_position",
            )
        ],
        "lane_taken_for_the_key": [("«k_start + lane», q_start + first_row, S_k, causal", "lane")],
        "row_taken_for_the_query": [("k_start + lane, «q_start + first_row», S_k, causal", "first_row")],
        "hides_one_key_late": [("causal && «ahead > r»", "ahead > r + 1")],
        # compress_block_mask_kernel
        "last_column_left_out": [("«column < k_blocks» && mask", "column < k_blocks - 1")],
        "first_32_columns": [("«start < k_blocks»; start += 32", "start < 32")],
        "lanes_leave_before_a_vote": [("«start < k_blocks»; start += 32", "start + lane < k_blocks")],
        "mask_inverted": [("column < k_blocks && mask[column]", "column < k_blocks && !mask[column]")],
        "places_begin_again": [(PLACE, "__popc(lanes & ((1u << lane) - 1))")],
        "counts_not_added_up": [("count += __popc(lanes);", "count = __popc(lanes);")],
        "own_lane_counted": [("(1u << lane) - 1", "(2u << lane) - 1")],
        "higher_lanes_counted": [("lanes & ((1u << lane) - 1)", "lanes >> lane >> 1")],
        "rest_not_filled": [("for (int n = count + lane; n < k_blocks; n += 32) columns[n] = -1;", "")],
        "count_not_written": [("if (lane == 0) counts[row] = count;", "")],
        # block_sparse_kernel, custom_block_sparse_attention
        "list_of_head_0": [(ROW, "static_cast<int>(q_start) / block")],
        "list_of_the_batch_entry": [("«head % heads»} * q_blocks", "head / heads")],
        "row_mixed_up": [(ROW, "static_cast<int>(q_start) / block * heads + head % heads")],
        "row_of_the_tile": [("static_cast<int>(q_start) / «block»;", "T::B_r")],
        "first_row_of_the_mask": [(ROW, "int64_t{head % heads} * q_blocks")],
        "last_block_dropped": [(LISTED, "n + 1 < count && n < k_blocks")],
        "only_the_first_block": [(LISTED, "n < count && n < 1")],
        "count_ignored": [(LISTED, "n < k_blocks")],
        "n_for_the_block": [("columns[row * k_blocks + n]", "n")],
        "only_the_first_tile": [("«k_start < end»; k_start += T::B_c", "k_start < end - block + T::B_c")],
        "last_tile_dropped": [("«k_start < end»; k_start += T::B_c", "k_start + T::B_c < end")],
        "blocks_taken_for_tiles": [
            ("k_start = «int64_t{column} * block»;", "int64_t{column} * T::B_c"),
            ("(column + int64_t{1}) * block", "int64_t{column} * T::B_c + block"),
        ],
        "blocks_not_causal": [("causal && ahead > r", "false"), (LEFT_OUT, "")],
        "diagonal_left_out": [("«k_start >= q_start + T::B_r») break;", "k_start >= q_start")],
        "block_mask_within_the_tile": [
            ("«k_start + lane», q_start + first_row, S_k, causal", "lane"),
            ("k_start + lane, «q_start + first_row», S_k, causal", "first_row"),
        ],
        "number_not_checked": [("column < 0 || column >= k_blocks", "column < 0")],
    },
    label="sparse",
    file="sparse_attention.cu",
)

CASES = {f"{case.part}: {case.name}": case for case in window_cases() + block_cases()}
EVEN, RAGGED = "window: 64 tokens, window 16", "window: 203 tokens, window 37"
BLIND, BOTH = "window: 203 x 60, window 30: blind rows", "window: both sides: 150 x 113"
LISTS, LONG_LISTS, ALL = "blocks: lists: 3 x 4 x 5", "blocks: lists: 2 x 3 x 100", "blocks: lists: 1 x 7 x 65, all true"
BY_32, BY_64, CAUSAL = "blocks: 96 x 128 by 32", "blocks: 256 x 256 by 64", "blocks: causal, 256 x 256 by 64"

# (mistake, case, the mistake's name or None, words of the diagnosis)
PLANTED = [
    ("first_tile_rounded_up", RAGGED, "first tile left out", "by rounding down, not up"),
    ("begins_with_the_last_row", RAGGED, "first tile left out", "not the one that the last row sees"),
    ("begins_at_q_start", RAGGED, "first tile left out", "not q_start"),
    ("ends_at_q_start", RAGGED, "tiles on the diagonal left out", "its last query sees keys up to"),
    ("ends_as_with_causal", BOTH, "loop ends too early", "the diagonal, as with causal"),
    ("window_too_large", RAGGED, "window off by one", r"one key too large: key i - window is seen"),
    ("window_too_small", RAGGED, "window off by one", r"one key too small"),
    ("no_left_edge", RAGGED, "left edge not masked", "no left edge"),
    ("no_left_edge", BOTH, "left edge not masked", "no left edge"),
    ("no_right_edge", RAGGED, "hidden = ahead - r <= -window", r"should be `hidden = \(ahead - r >= right\)"),
    ("no_right_edge", BOTH, "right edge not masked", "no right edge"),
    ("window_ahead", RAGGED, "window on the wrong side", "must be i - window < j <= i"),
    ("every_row_is_the_first", RAGGED, "mask of the warp's first row", r"query_position \+ r"),
    ("own_key_hidden", RAGGED, "mask off by one", "own key must be seen"),
    ("one_key_ahead", RAGGED, "mask off by one", r"query i sees key i \+ 1"),
    ("always_causal", BOTH, "window of a causal mask", "right half too"),
    ("both_sides_always", RAGGED, "causal mask missing", "the keys i < j < i"),
    ("end_of_keys_not_masked", BOTH, "padding counts", "hide keys from S_k = 113 on"),
    ("mask_within_the_tile", RAGGED, "mask counted within the tile", "add q_start and k_start"),
    ("window_ignored", RAGGED, "window ignored", "as if there were no window"),
    ("window_scale_forgotten", RAGGED, "scale forgotten", r"must be multiplied by 1 / sqrt\(head_dim\)"),
    ("masked_with_0", RAGGED, "masked scores are 0", r"exp\(0\) is 1"),
    ("O_not_rescaled", RAGGED, "no rescale in the online softmax", r"multiply O by .* \(seen with tiles of 32 keys\)"),
    ("no_key_yet", RAGGED, "masked row is NaN", "no key of the first tile"),
    ("no_key_yet", BLIND, "masked row is NaN", "no key of the first tile"),
    ("window_counted_backward", RAGGED, "ahead = query_position - key_position", "it should be `ahead = key_position"),
    ("lane_taken_for_the_key", CAUSAL, "key = lane", r"it should be `key = k_start \+ lane`"),
    ("row_taken_for_the_query", CAUSAL, "query = row", r"it should be `query = q_start \+ row`"),
    ("hides_one_key_late", CAUSAL, "hidden = key > query + 1", "it should be `hidden = key > query`"),
    ("last_column_left_out", LISTS, "last column left out", "The last column of the mask is in no list"),
    ("first_32_columns", LONG_LISTS, "only the first columns", "in steps of 32"),
    ("mask_inverted", LISTS, "mask inverted", "where the mask is false"),
    ("places_begin_again", LONG_LISTS, "unwritten outputs", "never written"),
    ("counts_not_added_up", LONG_LISTS, "counts not added up", "add up those of all"),
    ("own_lane_counted", LISTS, "unwritten outputs", "never written"),
    ("higher_lanes_counted", LISTS, None, "which lanes hold a true block"),
    ("rest_not_filled", LISTS, "unwritten outputs", "never written"),
    ("count_not_written", ALL, "unwritten outputs", r"Only entry \(0: count\) 0 "),
    ("list_of_head_0", BY_32, "list of the wrong head", "follow the mask of head 0"),
    ("list_of_the_batch_entry", BY_32, "list of the wrong head", "take head % heads"),
    ("row_mixed_up", BY_32, "row of the mask mixed up", r"head \* q_blocks \+ q_start / block"),
    ("first_row_of_the_mask", BY_64, "first row of the mask", "the row is q_start / block"),
    ("last_block_dropped", BY_32, "last block dropped", r"while n < counts\[row\]"),
    ("only_the_first_block", BY_32, "only the first block", "after one iteration"),
    ("count_ignored", "blocks: other blocks after the count", "mask ignored", r"only the first counts\[row\]"),
    ("n_for_the_block", BY_32, "n taken for the block", r"columns\[row\]\[n\]"),
    ("only_the_first_tile", BY_64, "only the first tile of a block", "a block of 64 has 2 tiles"),
    ("last_tile_dropped", "blocks: causal, 384 x 384 by 128", "last tile of a block dropped",
     r"\(column \+ 1\) \* block"),
    ("blocks_taken_for_tiles", BY_64, "blocks taken for tiles", "c \\* block = c \\* 64"),
    ("lanes_leave_before_a_vote", LONG_LISTS, "unwritten outputs", "14 of 606 elements still hold"),
    ("blocks_not_causal", CAUSAL, "causal mask missing", "keys of the future"),
    ("diagonal_not_masked", CAUSAL, "causal ignored inside diagonal blocks", "inside the tiles on the diagonal"),
    ("diagonal_left_out", CAUSAL, "diagonal left out", "begins at q_start"),
    ("block_mask_within_the_tile", CAUSAL, "mask counted within the tile", "add q_start and k_start"),
    ("masked_with_0", CAUSAL, "masked scores are 0", r"exp\(0\) is 1"),
    ("O_not_rescaled", BY_64, "no rescale in the online softmax", r"multiply O by .* \(seen with tiles of 32 keys\)"),
]  # fmt: skip
RACES = [
    ("begins_before_the_first_key", EVEN, "NaN"),
    ("ends_behind_the_last_key", BOTH, "NaN"),
]
# mistake, case, kind and variable of the finding in the checked build
CHECKED = [
    ("begins_before_the_first_key", EVEN, "out_of_bounds", "key|value"),
    ("ends_behind_the_last_key", BOTH, "out_of_bounds", "key|value"),
    ("row_of_the_tile", BY_64, "out_of_bounds", "counts|columns"),
    ("number_not_checked", "blocks: invalid block numbers", "out_of_bounds", "key|value"),
]

test_a_mistake_is_caught = named(SPARSE, CASES, PLANTED)
test_a_race_is_caught_in_the_simulator = told_in_the_simulator(SPARSE, CASES, RACES)
test_the_solution_passes_everything = all_pass("task5", CASES.values())
test_the_checked_build_finds_it = pytest.mark.slow(found_by_the_checked_build(SPARSE, CASES, CHECKED))
test_the_checked_build_finds_nothing_in_the_solution = pytest.mark.slow(
    clean_in_the_checked_build(SPARSE, CASES, (RAGGED, BOTH, LONG_LISTS, CAUSAL, "blocks: invalid block numbers"))
)


def test_every_mistake_is_planted_somewhere():
    assert set(SPARSE.mistakes) == {one[0] for one in PLANTED + RACES + CHECKED}


@pytest.mark.slow
def test_lanes_that_have_returned_before_a_vote_are_told():
    found = findings_of(SPARSE.operators("lanes_leave_before_a_vote", "simulator", checked=True), CASES[LONG_LISTS])
    (vote,) = [one for one in found if one.kind == "absent_vote"]
    assert "28 of the lanes" in vote.detail and "__ballot_sync" in vote.accesses[0].place.text
