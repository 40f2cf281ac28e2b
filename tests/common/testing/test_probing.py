"""What additional calls of a fused kernel reveal: its weights, the stages shown with them, and where NaN come from."""

import math

import pytest
import torch
from fake_operators import fake_operators

from common.reference import oracle as reference
from common.testing.calling import POISONED, InProcess
from common.testing.cases.attention_cases import attention_case, bool_mask
from common.testing.judging import judge, make_inputs
from common.testing.probing import MOST_CALLS, weights_of


def without_last_key(query, key, value, causal, scale=None, mask=None):
    return reference.attention(query, key[..., :-1, :], value[..., :-1, :], causal, scale)


def squared_values(query, key, value, causal, scale=None, mask=None):
    return reference.attention(query, key, value * value, causal, scale)


def case(**options):
    return attention_case("attention", "attention", "small", 1, 2, 5, 11, 4, causal=False, **options)


def told(operator) -> str:
    verdict = judge(case(), fake_operators(attention=operator))
    assert verdict.status == "FAIL"
    return "\n".join(verdict.diagnosis)


def numbers(text: str, line: str) -> list[float]:
    """The lines after the first one that starts like this."""
    (found,) = [one for one in text.splitlines() if one.strip().startswith(line)]
    return [float(word) for word in found.strip().removeprefix(line).split() if word != "..."]


def test_what_came_for_P_stands_beside_what_should():
    text = told(without_last_key)
    inputs = make_inputs(case(), 0)
    right, came = (
        torch.softmax(reference.scores(inputs["query"].double(), key.double()), -1)[0, 0, 0]
        for key in (inputs["key"], inputs["key"][..., :-1, :])
    )
    first = next(i for i in range(10) if abs(float(right[i] - came[i])) > 1e-3)
    keys = [int(number) for number in numbers(text, "key")]
    assert first in keys and len(keys) == 5
    assert numbers(text, "P expected") == pytest.approx(right[keys].tolist(), rel=1e-3)
    assert numbers(text, "P got") == pytest.approx(came[keys].tolist(), rel=1e-2)
    assert "read off the output, with a V of ones and zeros" in text and "sum to" not in text
    assert all(len(line) <= 78 for line in text.splitlines() if line.startswith("    "))


def test_where_the_output_is_not_linear_in_V_nothing_is_read_off_it():
    text = told(squared_values)
    assert "P expected" in text and "P got" not in text and "read off" not in text
    assert "O expected" in text and "O got" in text


def test_the_columns_shown_are_those_that_are_wrong():
    def last_column(query, key, value, causal, scale=None):
        out = reference.attention(query, key, value, causal, scale)
        out[..., 5:, 9] += 1
        return out

    wide = attention_case("attention", "attention", "wide", 1, 1, 6, 6, 10, causal=False)
    text = "\n".join(judge(wide, fake_operators(attention=last_column)).diagnosis)
    assert "in batch 0, head 0, row 5" in text and numbers(text, "column") == [5, 6, 7, 8, 9]
    expected, got = numbers(text, "O expected"), numbers(text, "O got")
    assert got[-1] == pytest.approx(expected[-1] + 1, rel=1e-2) and got[:-1] == expected[:-1]


def test_the_weights_are_those_of_the_right_operator_too():
    masked = case(mask=bool_mask(5, 11))
    inputs = make_inputs(masked, 0)
    caller = InProcess(fake_operators(attention=reference.attention))
    out = caller.call(masked, inputs).out
    weights = weights_of(caller, masked, inputs, out, POISONED)
    p = masked.stages(**{name: x.double() if x.is_floating_point() else x for name, x in inputs.items()})["P"]
    torch.testing.assert_close(weights, p, rtol=0, atol=1e-6)


def test_too_many_calls_are_not_made():
    long = attention_case("attention", "attention", "long", 1, 1, 2, MOST_CALLS + 1, 1, causal=False)
    inputs = make_inputs(long, 0)
    caller = InProcess(fake_operators(attention=reference.attention))
    assert weights_of(caller, long, inputs, caller.call(long, inputs).out, POISONED) is None


# ---- what the same call with Q = 0 reveals about NaN


def quotient_of_infinities(query, key, value, causal, scale=None):
    """exp overflows: the scores appear a thousand times as large."""
    e = torch.exp(1000 * (query @ key.transpose(-2, -1)).abs())
    return e / e.sum(-1, keepdim=True) @ value


def first_factor_upside_down(query, key, value, causal, scale=None):
    s = reference.scores(query, key, scale=scale)
    factor = torch.exp(s.amax(-1, keepdim=True) + math.inf)  # m_new - m, where m is -infinity
    return 0 * factor + reference.attention(query, key, value, causal, scale)


def test_nan_that_the_size_of_the_scores_makes() -> None:
    said = told(quotient_of_infinities)
    assert "With Q = 0" in said and "large scores cause them" in said


def test_nan_that_come_with_any_scores() -> None:
    said = told(first_factor_upside_down)
    assert "gives these NaN as well: no score is too large" in said and "0 * exp(inf)" in said


def test_nan_in_a_column_whatever_the_scores_and_more_of_large_ones_are_not_told() -> None:
    def both(query, key, value, causal, scale=None):
        out = quotient_of_infinities(query, key, value, causal)
        return torch.cat((torch.full_like(out[..., :1], 0.0) / 0.0, out[..., 1:]), -1)

    assert "With Q = 0" not in told(both)
