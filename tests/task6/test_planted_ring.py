"""Mistakes planted in task 6's ring.py: each is detected and named; right code written another way passes."""

import functools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from planted import assert_all_pass, assert_error, assert_named, plant_python

import task6.solution.ring
from common.testing.case import NOT_IMPLEMENTED
from common.testing.judging import judge
from task6.cases.ring import ring_cases

CASES = {case.name: case for case in ring_cases()}
SOLUTION = Path(task6.solution.ring.__file__)
ORDER = "return rank, «2 * ranks - 1 - rank»"
BOTH = "(old * inverse).unsqueeze(-1) * out + (new * inverse).unsqueeze(-1) * part"
RETURNED = "return merged, «shift + torch.log(total)»"
GUARD = "largest«.masked_fill(largest == -torch.inf, 0.0)»"
FOUR, OUT, LSE, EMPTY, EMPTY_LSE = (
    "order: 4 ranks", "merge: out", "merge: lse", "merge: out, rows without keys", "merge: lse, rows without keys",
)  # fmt: skip
WITHOUT_MAXIMUM = (
    "largest = torch.maximum(lse, part_lse)",
    "old, new = torch.exp(lse), torch.exp(part_lse)\n"
    "    merged = (old.unsqueeze(-1) * out + new.unsqueeze(-1) * part) / (old + new).unsqueeze(-1)\n"
    "    return merged, torch.log(old + new)\n"
    "    largest = torch.maximum(lse, part_lse)",
)
# mistake -> (replacements, case, the mistake's name, words of the diagnosis)
NAMED = {
    "contiguous": ([("return «rank, 2 * ranks - 1 - rank»", "2 * rank, 2 * rank + 1")], "order: 7 ranks",
     "contiguous order", "they wait for the last one"),
    "one too far": ([(ORDER, "2 * ranks - rank")], FOUR, "mirrored piece one too far", "number 2 . ranks - 1"),
    "mirrored among the ranks": ([(ORDER, "ranks - 1 - rank")], FOUR, "mirrored among the ranks",
     "half as many as pieces"),
    "not mirrored": ([(ORDER, "ranks + rank")], FOUR, "second piece not mirrored", "counts from the end"),
    "in reverse": ([("return «rank, 2 * ranks - 1 - rank»", "ranks - 1 - rank, ranks + rank")], "order: 2 ranks",
     "ranks in reverse", "rank 0 holds the two pieces in the middle"),
    "sums without weights": ([(BOTH, "out + part")], OUT, "plain sum", "added up without weights"),
    "averaged": ([(BOTH, "(out + part) / 2")], OUT, "plain average", "what its scores weigh"),
    "weights exchanged":
     ([("(«old» * inverse).unsqueeze(-1) * out", "new"), ("(«new» * inverse).unsqueeze(-1) * part", "old")], OUT,
     "weights exchanged", "Each counts by its own"),
    "weights not normalized": ([("«inverse» = 1 / total.clamp(min=1.0)", "inverse = torch.ones_like(total); _")], OUT,
     "weights not normalized", "not divided by their sum"),
    "part whole": ([("«(new * inverse).unsqueeze(-1) * part»", "part")], OUT, "only out is weighted",
     "the two weights add up to 1"),
    "not weighed anew": ([("«(old * inverse).unsqueeze(-1) * out»", "out")], OUT, "only the part is weighted",
     "What was there is not weighed anew"),
    "base 2": ([("torch.exp(lse - shift), torch.exp(part_lse", "torch.exp2(lse - shift), torch.exp2(part_lse")], OUT,
     "weights in base 2", "exp, not exp2"),
    "part ignored": ([(BOTH, "out")], OUT, "first part only", "that of the first part"),
    "overwritten": ([(BOTH, "part.float()")], OUT, "last part only", "overwrites the one before"),
    "maximum not subtracted": ([WITHOUT_MAXIMUM], "merge: out, lse beyond 88", "no max subtraction",
     "overflows float32"),
    "maximum not subtracted, lse": ([WITHOUT_MAXIMUM], "merge: lse beyond 88", "no max subtraction",
     "overflows float32"),
    "maximum not subtracted, far below 0": ([WITHOUT_MAXIMUM], "merge: out, lse below -104", "no max subtraction",
     "without the maximum subtracted"),
    "-inf minus -inf": ([(GUARD, "")], EMPTY, "row without keys is NaN", "-inf - .-inf. is NaN"),
    "-inf minus -inf, lse": ([(GUARD, "")], EMPTY_LSE, "row without keys is NaN", "their lse is -inf"),
    "0 / 0": ([("total«.clamp(min=1.0)»", "")], EMPTY, "row without keys is NaN", "so is 0 / 0"),
    "lse not merged": ([(RETURNED, "lse")], LSE, "lse not merged", "the old one"),
    "lse of the part": ([(RETURNED, "part_lse")], LSE, "lse of the part", "that of both sides"),
    "only the maximum": ([(RETURNED, "shift")], LSE, "only the maximum", "m . log.l."),
    "maximum left out": ([(RETURNED, "torch.log(total)")], LSE, "maximum left out", "m . log.l."),
    "logarithm left out": ([(RETURNED, "shift + total")], LSE, "logarithm left out", "m . log.l."),
    "lse in base 2": ([(RETURNED, "shift + torch.log2(total)")], LSE, "lse in base 2", "lse is to base e"),
    "lse added up": ([(RETURNED, "lse + part_lse")], LSE, "plain sum", "the sum of the parts' lse"),
    "0 for -inf": ([(RETURNED, "torch.where(total == 0, 0.0, shift + torch.log(total))")], EMPTY_LSE,
     "row without keys is 0", "the logarithm of 0"),
}  # fmt: skip
# malformed results: replacements, case, words; the verdict names the student's line or the function
REFUSED = {
    "three pieces": ([("return «rank», 2", "rank, rank")], FOUR, r"pieces_of\(0, 4\) gave \(0, 0, 7\); it must be"),
    "half a piece": ([(ORDER, "(2 * ranks - 1) / 2")], FOUR, "it must be two whole numbers"),
    "no lse": ([(", shift + torch.log(total)", "")], OUT, r"merge gave float32 \[2, 2, 9, 8\]; it must be \(out"),
    "lse with a column": ([(RETURNED, "(shift + torch.log(total)).unsqueeze(-1)")], LSE,
     r"merge gave as lse float32 \[2, 2, 9, 1\]; it must be float32 \[2, 2, 9\]"),
    "16 bits": ([("return «merged»", "merged.bfloat16()")], OUT, r"as out bfloat16 .*; it must be float32"),
    "shapes do not fit": ([("(old * inverse)«.unsqueeze(-1)»", "")], OUT, r"task6/solution/ring.py:\d+ in merge"),
}  # fmt: skip
OTHERWISE = {
    "logaddexp": [("largest = torch.maximum(lse, part_lse)", "both = torch.logaddexp(lse, part_lse)\n"
     "    none = both == -torch.inf\n"
     "    a, b = (torch.exp(x - both).masked_fill(none, 0.0).unsqueeze(-1) for x in (lse, part_lse))\n"
     "    return a * out + b * part.float(), both\n" "    largest = torch.maximum(lse, part_lse)")],
    "a softmax over two": [("largest = torch.maximum(lse, part_lse)", "both = torch.stack((lse, part_lse))\n"
     "    weights = torch.softmax(both, 0).nan_to_num().unsqueeze(-1)\n"
     "    return weights[0] * out + weights[1] * part, torch.logsumexp(both, 0)\n"
     "    largest = torch.maximum(lse, part_lse)")],
    "in place": [("return merged, shift + torch.log(total)", "return merged, largest.copy_(shift + torch.log(total))")],
    "the late piece first": [("return «rank, 2 * ranks - 1 - rank»", "2 * ranks - 1 - rank, rank")],
}  # fmt: skip


def python_side(variant: str = "solution") -> SimpleNamespace:
    """A stand-in for the operators where only Python is called."""
    return SimpleNamespace(variant=variant, task="task6", backend="simulator", device=torch.device("cpu"))


@pytest.fixture
def python_with(monkeypatch):
    """python_with(replacements) plants these mistakes in task6.solution.ring until the test ends."""
    return functools.partial(plant_python, monkeypatch, "task6.solution.ring", SOLUTION)


@pytest.mark.parametrize("planted", NAMED)
def test_a_mistake_is_named(python_with, planted):
    replacements, case, name, words = NAMED[planted]
    python_with(replacements)
    assert_named(judge(CASES[case], python_side()), name, words)


@pytest.mark.parametrize("planted", REFUSED)
def test_a_wrong_form_is_told(python_with, planted):
    replacements, case, words = REFUSED[planted]
    python_with(replacements)
    assert_error(judge(CASES[case], python_side()), words)


@pytest.mark.parametrize("how", OTHERWISE)
def test_right_code_written_otherwise_passes(python_with, how):
    python_with(OTHERWISE[how])
    assert_all_pass(CASES.values(), python_side())


def test_the_solution_passes():
    assert_all_pass(CASES.values(), python_side())


def test_the_gaps_are_told_with_their_lines():
    for case, function in ((FOUR, "pieces_of"), (OUT, "merge")):
        verdict = judge(CASES[case], python_side("student"))
        assert verdict.status == NOT_IMPLEMENTED and verdict.file_line.startswith("task6/ring.py:")
        assert f"{function} is not implemented yet" in verdict.diagnosis[0]
