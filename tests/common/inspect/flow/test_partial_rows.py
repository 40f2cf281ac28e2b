"""A softmax whose row is shared out: how far what threads and warps store is right, and which lines that leaves."""

import re

import pytest
from planted import Planted

from common.inspect.checked_library import CHECK, CheckedCaller, Collected
from common.inspect.flow.looked import followed
from task3.cases import cases

pytestmark = pytest.mark.slow
CASE = next(one for one in cases() if one.name == "large offsets")
SOFTMAX = Planted(
    "task3",
    {
        "last_score": [("m = «fmaxf(m, scores[i])»;", "scores[i]", 1)],
        "sum_of_signs": [("«l += expf(scores[i] - shift)»;", "l -= expf(scores[i] - shift)", 1)],
        "sum_of_the_warps_twice": [("inverse_l = state.l == 0.0f ? 0.0f : «1.0f / state.l»", "2.0f / state.l", 2)],
        "first_score_left_out": [("for (int i = «0»; i < COUNT; ++i) l +=", "1", 1)],
        "padding": [("row_x[col] : «-INFINITY»", "INFINITY", 1)],
    },
)
TOLD = [
    (
        "last_score",
        "No number that a warp stores is the largest",
        r"fmaxf\(m, scores\[i\]\)",
        r"l \+= expf",
    ),
    ("sum_of_signs", "but not the sum of their exponentials", r"l \+= expf|l -= expf", r"m = fmaxf"),
    # every sum is 0, and every maximum equals an entry: neither is nothing, or a copy of that entry alone
    ("first_score_left_out", "but not the sum of their exponentials", r"l \+= expf", r"no such line"),
    ("padding", "No number that a warp stores is the largest", r"scores\[i\] = ", r"l \+= expf"),
]


@pytest.mark.parametrize(("mistake", "says", "line", "other"), TOLD)
def test_the_lines_of_what_goes_wrong_first_are_told(mistake, says, line, other):
    caller = CheckedCaller(SOFTMAX.operators(mistake, "simulator", checked=True), CHECK)
    (finding,) = followed(CASE, caller, Collected(caller), 0)
    assert finding.kind == "wrong_value" and says in finding.detail, finding.detail
    shown = [one.text for one in finding.lines]
    assert any(re.search(line, text) for text in shown), shown
    assert not any(re.search(other, text) for text in shown), shown


def test_where_all_that_warps_store_is_right_it_goes_wrong_behind_that():
    caller = CheckedCaller(SOFTMAX.operators("sum_of_the_warps_twice", "simulator", checked=True), CHECK)
    (finding,) = followed(CASE, caller, Collected(caller), 0)
    assert "What each warp stores of the entries that it reads is right" in finding.detail
    assert not any("scores[i]" in one.text for one in finding.lines)
