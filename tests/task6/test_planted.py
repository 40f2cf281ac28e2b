"""Mistakes planted in task 6's kernels, layer and cache: each is detected and, where possible, named."""

import functools
import re
from pathlib import Path

import pytest
from kernel_mistakes import TASK6
from planted import all_pass, assert_error, assert_named, assert_told, plant_python

import task6.solution.attention
from common.kernels.decode.cache import KVCache
from common.testing.judging import judge
from task6.cases import cases

CASES = {case.name: case for case in cases()}
SOLUTION = Path(task6.solution.attention.__file__)
ONE_EACH, OUTSIDE = "one token each", "positions outside are skipped"
RAGGED, GROUPED, EMPTY = "lengths 1, 7, 31, 203", "grouped-query: 6 heads on 2", "an empty sequence, scale 0.5"
STEPS, LONG = "9 tokens, then 20", "1 token, then 70"
PARTS, LSE, LSE_EMPTY, MERGED = "outputs of 3 parts", "lse of 3 parts", "lse of 7 parts", "merged: 3 parts"
PROMPT, ONE_BY_ONE = "a prompt of 21", "a prompt of 9, then 12"
PEAKS = "a peak in the keys of each warp"
UNWEIGHTED = "warps merged without weights"

# (mistake, case, the mistake's name or None, words of the diagnosis)
PLANTED = [
    ("new_tokens_not_counted", OUTSIDE, None, "written to|elements are wrong"),
    ("one_slot_late", ONE_EACH, "one slot late", "Memory before or after"),
    ("one_slot_late", "a prompt of 37 tokens", "one slot late", r"belongs in slot positions\[b\]"),
    ("row_taken_for_the_slot", "head_dim 80", "row number taken for the slot", "There a head has max_seq_len rows"),
    ("position_of_the_first_sequence", "head_dim 80", "position of the first sequence", "each has its own position"),
    ("heads_not_divided_away", ONE_EACH, None, "elements are wrong"),
    ("key_and_value_exchanged", ONE_EACH, "key and value exchanged", "the values in that of the keys"),
    ("no_key_yet", "the first 20 keys masked", None, "-infinity was subtracted from -infinity"),
    ("hidden_keys_score_0", GROUPED, None, "elements are wrong"),
    ("l_not_rescaled", RAGGED, "state not rescaled", "l must be multiplied by exp2f"),
    ("o_not_rescaled", RAGGED, "state not rescaled", "o must be multiplied by exp2f"),
    ("o_not_rescaled", LONG, "state not rescaled", "o must be multiplied by exp2f"),
    ("unused_values_read", "a length beyond the cache", "unused slots read", "the weight 0 is not enough"),
    ("unused_values_read", GROUPED, None, "a slot from lengths.b. on was read"),
    ("expf_for_exp2f", RAGGED, "expf instead of exp2f", "too peaked"),
    ("maximum_from_warp_1", PEAKS, None, "large scores cause them"),
    ("maximum_without_the_last_warp", PEAKS, None, "large scores cause them"),
    ("cache_of_tokens_and_heads", "a length beyond the cache", "axes of k_cache, v_cache exchanged",
     r"as if stored as \[3, 16, 2, 8\], with axes 1 and 2 exchanged; they are \[3, 2, 16, 8\]"),
    ("merged_without_weights", RAGGED, UNWEIGHTED, "The warps' states are added up as if every weight were 1"),
    (r"merged_without_weights", GROUPED, UNWEIGHTED, r"m\[w\] must be the maximum that they are relative to"),
    ("merged_without_weights", STEPS, UNWEIGHTED, "The warps' states are added up as if every weight were 1"),
    ("merged_without_weights", "outputs of 7 parts", UNWEIGHTED,
     "The warps' states are added up as if every weight were 1"),
    ("merged_without_weights", MERGED, UNWEIGHTED, "The warps' states are added up as if every weight were 1"),
    ("merged_without_weights", ONE_BY_ONE, UNWEIGHTED, "The warps' states are added up as if every weight were 1"),
    ("sums_without_weights", "a full cache", UNWEIGHTED, "The sums l of the warps are added up without weights"),
    ("outputs_without_weights", "head_dim 128", UNWEIGHTED, "The outputs of the warps are added up without weights"),
    ("no_warp_has_seen_a_key", EMPTY, "nothing seen is NaN", "Its output is zeros"),
    ("first_group_only", RAGGED, "first group only", "must go on in steps of 64"),
    ("K_V_heads_interleaved", GROUPED, "K/V heads interleaved", "neighboring query heads share a K/V head"),
    ("newest_key_left_out", "40 keys", "newest key left out", "a token attends to itself too"),
    ("newest_key_left_out", STEPS, "newest key left out", "a token attends to itself too"),
    ("length_of_the_first_sequence", EMPTY, "length of the first sequence|all zeros",
     "has its own length|Every output is 0"),
    ("keys_rounded_down", PARTS, "keys per part rounded down", "The last keys belong to no part"),
    ("keys_rounded_down", MERGED, "keys per part rounded down", "The last keys belong to no part"),
    ("every_part_has_all_keys", PARTS, "every part has all keys", r"only the c keys from p c on"),
    ("every_part_has_all_keys", LSE, "every part has all keys", r"only the c keys from p c on"),
    ("end_of_the_last_part", PARTS, "part reads beyond the length", "Parts go on past the end of the sequence"),
    ("end_of_the_last_part", LSE, "part reads beyond the length", "Parts go on past the end of the sequence"),
    ("begin_in_splits", PARTS, r"begin = part \* splits", "it should be `begin = part"),
    ("end_is_seen_as_well", PARTS, r"end = minimum\(begin \+ keys - 1, length\)", "it should be `end = minimum"),
    ("first_column_of_each_lane", "40 keys", "first column of each lane", "the columns of a lane are lane . 32 . c"),
    ("last_slot_refused", "one token each", "last slot refused", "position max_seq_len - new_tokens is allowed"),
    ("lse_in_base_2", LSE, "lse in base 2", r"must be divided by it"),
    ("lse_in_base_2", MERGED, "lse in base 2", r"must be divided by log2\(e\)"),
    ("empty_part_is_nan", LSE_EMPTY, None, "got nan, expected -inf"),
]  # fmt: skip
IN_THE_CHECKED_BUILD = {"position_not_checked", "length_not_limited", "no_barrier_before_merge", "warps_share_keys"}

MERGE = "out, _ = merge_ops.merge_states(outs, lse)"
ATTENDS = "self.cache.append(key, value)\n            heads = self.cache.attend(query)"
# name -> (replacements in attention.py, case, the mistake's name or None, words of the diagnosis)
LAYER = {
    "prefill path taken for decode":
     ([("self.cache.attend(query)", "self.flash_ops.flash_attention(query, key, value, True)")], ONE_BY_ONE,
     "a token attends to itself only", "Decode attends to the cache"),
    "prefill not causal": ([("values, «True»)", "False")], PROMPT, "prefill not causal", "see those after them"),
    "attends before it appends":
     ([(ATTENDS, "heads = self.cache.attend(query)\n            self.cache.append(key, value)")], ONE_BY_ONE,
     "attends before it is appended", "a token sees itself"),
    "K/V heads repeated in the wrong order": ([("rows.repeat_interleave(group, dim=1)", "rows.repeat(1, group, 1, 1)")],
     "a layer of 6 heads on 2", "K/V heads interleaved", "0, 0, 1, 1"),
    "key and value exchanged": ([("query, «key, value» = self.project", "value, key")], ONE_BY_ONE, "K and V swapped",
     "the scores come from V"),
    "parts averaged": ([(MERGE, "out = outs.mean(0)")], MERGED, "plain average", "what its scores weigh"),
    "parts added up": ([(MERGE, "out = outs.sum(0)")], MERGED, "plain sum", "without weights"),
}  # fmt: skip
# rejected by check_call, the cache or PyTorch: (replacements, case, words); the verdict names the student's line
LAYER_ERRORS = {
    "cache not reset": ([("self.cache.reset()", "pass")], "three prompts in turn",
     r"position is 5, but the cache holds 20 tokens.* begins with an empty cache"),
    "prompt not appended": ([("self.cache.append(key, value)\n            «group»", "group"),
     ("self.cache.reset()\n            «self.cache.append(key, value)»", "pass")], ONE_BY_ONE,
     "position is 9, but the cache holds 0 tokens"),
    "token not appended": ([("else:\n            «self.cache.append(key, value)»", "pass")], ONE_BY_ONE,
     "position is 10, but the cache holds 9 tokens"),
    "K/V heads not repeated": ([("rows.repeat_interleave(group, dim=1)", "rows")], "a layer of 6 heads on 2",
     r"key has shape \[2, 2, 10, 16\] and query has shape \[2, 6, 10, 16\]"),
    "merge forgotten": ([("return self.merge(heads)", "return heads")], PROMPT,
     r"customAttention.forward gave \[2, 2, 21, 16\] for x \[2, 21, 32\]"),
}  # fmt: skip


@pytest.fixture
def python_with(monkeypatch):
    """python_with(replacements) plants these mistakes in task6.solution.attention until the test ends."""
    return functools.partial(plant_python, monkeypatch, "task6.solution.attention", SOLUTION)


@pytest.mark.parametrize(("planted", "case", "name", "words"), PLANTED)
def test_a_mistake_in_a_kernel_is_caught(backend, python_with, planted, case, name, words):
    python_with([])
    verdict = judge(CASES[case], TASK6.operators(planted, backend))
    assert_told(verdict, words)
    assert re.fullmatch(name or "", "".join(verdict.mistakes[:1])), verdict.diagnosis


@pytest.mark.parametrize("planted", LAYER)
def test_a_mistake_in_python_is_named(backend, python_with, planted):
    replacements, case, name, words = LAYER[planted]
    python_with(replacements)
    assert_named(judge(CASES[case], TASK6.operators(None, backend)), name, words)


@pytest.mark.parametrize("planted", LAYER_ERRORS)
def test_what_is_refused_names_the_line(backend, python_with, planted):
    replacements, case, words = LAYER_ERRORS[planted]
    python_with(replacements)
    verdict = judge(CASES[case], TASK6.operators(None, backend))
    assert_error(verdict, words)
    if planted != "merge forgotten":
        assert_error(verdict, r"task6/solution/attention.py:\d+ in forward")


def test_a_length_that_does_not_grow_is_named(backend, monkeypatch):
    def append(cache, key, value):
        cache.ops.update_cache(cache.k, cache.v, key, value, cache.lengths)
        if cache.seq_len == 0:
            cache.lengths += key.size(2)
            cache._host_lengths = cache.lengths.tolist()

    monkeypatch.setattr(KVCache, "append", append)
    verdict = judge(CASES[STEPS], TASK6.operators(None, backend))
    assert_named(verdict, "length not advanced", "the length does not grow")


def test_every_mistake_is_planted_somewhere():
    assert set(TASK6.mistakes) - {one[0] for one in PLANTED} == IN_THE_CHECKED_BUILD


test_the_solution_passes_everything = all_pass("task6", CASES.values())
