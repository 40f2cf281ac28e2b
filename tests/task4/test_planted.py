"""Mistakes planted in task 4's kernel: each is detected and, where possible, named."""

from kernel_mistakes import OF_STAGES, TASK4
from planted import all_pass, assert_error, named, told_in_the_simulator

from common.testing.judging import judge
from task4.cases.attention_cases import causal_cases, full_cases
from task4.given.tiles import tiles_for

T64 = tiles_for(64)
CASES = {f"{case.part}: {case.name}": case for case in full_cases() + causal_cases()}
RAGGED, FALLING, BLIND = "full: 113 queries, 203 keys", "full: scores that rise and fall", "full: rows that see nothing"
FIRST_MASKED, SMALL = "full: the first 130 keys masked", "full: 7 queries, 31 keys, head_dim 5"
CAUSAL, LONGER = "causal: 203 tokens", "causal: 113 queries, 203 keys"
LOWER_RIGHT, SHORTER = "causal: 113 queries, 203 keys, lower right", "causal: 203 queries, 113 keys, lower right"
NAN = "-inf was subtracted from -inf"  # among the suggestions of where to look

# (mistake, case, the mistake's name or None, words of the diagnosis)
PLANTED = [
    ("Q_rows_of_the_first_warp", "full: 64 tokens", "slices moved",
     f"Row {T64.B_r // T64.warps} holds what belongs in row 0"),
    ("end_of_keys_not_masked", "full: 1 query, 257 keys", "padding counts", r"only \d+ of \d+ keys"),
    ("end_of_keys_not_masked", "full: 257 queries, 1 key", "padding counts", r"exp\(0\) is not 0"),
    ("not_causal", CAUSAL, "causal mask missing", "the tiles that the diagonal crosses are not masked"),
    ("not_causal", LOWER_RIGHT, "causal mask missing", r"keys of the future \(j > i \+ 90\)"),
    ("diagonal_hidden", CAUSAL, "mask off by one", "its own position included"),
    ("diagonal_hidden", SHORTER, "mask off by one", "j <= i - 90, the last one included"),
    ("sees_one_ahead", CAUSAL, "mask off by one", r"query i sees key i \+ 1"),
    ("sees_one_ahead", LOWER_RIGHT, "mask off by one", r"query i sees key i \+ 90 \+ 1"),
    ("mask_without_k_start", CAUSAL, "hidden = key > row + q_start",
     r"it should be `hidden = key > row \+ \(q_start - k"),
    ("mask_without_q_start", CAUSAL, "hidden = key > row + -k_start",
     r"it should be `hidden = key > row \+ \(q_start - k"),
    ("mask_of_the_wrong_sign", CAUSAL, "hidden = key > row - (q_start - k_start)", r"\+ \(q_start - k_start\)`"),
    ("masked_with_0", CAUSAL, "masked scores are 0", r"exp\(0\) is 1"),
    ("O_not_rescaled", RAGGED, "no rescale in the online softmax", r"multiply O by .* \(seen with tiles of \d+ keys\)"),
    ("l_not_rescaled", FALLING, "no rescale in the online softmax", "multiply l by"),
    ("nothing_rescaled", FALLING, "no rescale in the online softmax", "multiply O and l by"),
    ("inverse_rescale", "full: 64 tokens", None, r"exp2f\(m - m_new\) is at most 1, its inverse is infinite"),
    ("maximum_of_the_tile", FALLING, "maximum of the tile", "m becomes the maximum of the newest tile"),
    ("maximum_not_kept", RAGGED, "only the last tile", "Is the new maximum kept"),
    ("maximum_starts_at_0", "full: scores far below 0", "maximum starts at 0", "both must be -inf"),
    ("no_key_yet", BLIND, "masked row is NaN", "Such a row must subtract 0|A query that may see no key gives NaN"),
    ("no_key_yet", FIRST_MASKED, None, NAN),
    ("no_key_yet", SHORTER, "masked row is NaN", "Such a row must subtract 0"),
    ("expf_for_exp2f", RAGGED, "expf instead of exp2f", "too peaked"),
    ("log2_e_forgotten", CAUSAL, "log2(e) forgotten", "powers of 2"),
    ("P_rows_of_the_first_warp", "full: 64 tokens", None, "something was read that no thread had written"),
    ("V_rows_mixed_up", FALLING, None, "elements are wrong"),
    ("lanes_not_summed", RAGGED, "l of one lane", r"must be added up \(warp_sum\)"),
    ("not_normalized", FALLING, "not normalized", "not divided by their sum"),
    ("zero_over_zero", BLIND, "masked row is NaN", "so is 0 / 0"),
    ("zero_over_zero", SHORTER, "masked row is NaN", "so is 0 / 0"),
    ("K_of_the_first_head", FALLING, "K of the first matrix", "the matrix's offset is missing"),
    ("V_of_the_first_head", FALLING, "V of the first matrix", "the matrix's offset is missing"),
    ("loop_ends_at_q_start", CAUSAL, "tiles on the diagonal left out", "where the first query of the tile stops"),
    ("loop_ends_a_tile_early", CAUSAL, "tiles on the diagonal left out", "the loop over keys ends"),
    ("loop_ends_a_tile_early", LOWER_RIGHT, "tiles on the diagonal left out",
     r"one tile of B_c = \d+ keys too early|the loop over keys ends"),
    ("loop_not_aligned", LOWER_RIGHT, "alignment left out of the loop", "it must go S_k - S_q = 90 keys further"),
    ("last_tile_dropped", RAGGED, "last tile dropped", r"Only the first \d+ of the 203 keys"),
    ("mask_within_the_tile", CAUSAL, "mask counted within the tile", "Add q_start and k_start"),
    ("scale_forgotten", FALLING, "scale forgotten", r"must be multiplied by 1 / sqrt\(head_dim\)"),
    ("scale_twice", RAGGED, "scale applied twice", "is applied twice"),
    ("always_causal", RAGGED, "causal mask not asked for", "although causal is false"),
    ("aligned_to_the_start", LOWER_RIGHT, "causal mask counted from the start", r"j <= i \+ S_k - S_q \(= i \+ 90\)"),
    ("aligned_to_the_start", SHORTER, "causal mask counted from the start", r"j <= i \+ S_k - S_q \(= i - 90\)"),
    ("aligned_to_the_end", LONGER, "causal mask counted from the end", "both count from the start"),
    ("aligned_the_wrong_way", LOWER_RIGHT, "causal mask shifted the wrong way", r"it must be j <= i \+ S_k - S_q"),
]  # fmt: skip
RACES = [
    ("padding_not_written", SMALL, "a tile's padding must be set to 0"),
    ("rows_of_D_floats", SMALL, "elements are wrong"),
    ("K_not_padded", RAGGED, "something was read that no thread had written"),
    ("no_barrier_after_load", "full: 64 tokens", "a barrier must stand between writing and reading a tile"),
    ("no_barrier_at_the_end", FALLING, "elements are wrong"),
    ("no_syncwarp_after_P", "full: 64 tokens", "elements are wrong"),
]


test_a_mistake_is_caught = named(TASK4, CASES, PLANTED)
test_a_race_is_caught_in_the_simulator = told_in_the_simulator(TASK4, CASES, RACES)
test_the_solution_passes_everything = all_pass("task4", CASES.values())


def test_shared_memory_that_was_not_asked_for(backend):
    verdict = judge(CASES["full: head_dim 128"], TASK4.operators("shared_memory_not_asked_for", backend))
    assert_error(verdict, r"flash_attention.cu:\d+: kernel launch: invalid")
    assert judge(CASES["full: head_dim 128"], TASK4.operators(None, backend)).ok


def test_every_mistake_is_planted_somewhere():
    unused = set(TASK4.mistakes) - {one[0] for one in PLANTED + RACES} - OF_STAGES
    assert unused == {"rows_not_guarded", "shared_memory_not_asked_for"}  # the checked build's, and the test above
