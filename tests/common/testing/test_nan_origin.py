"""What the same call with Q = 0 tells of NaN."""

import math

import torch
from fake_operators import fake_operators

from common.reference import oracle as reference
from common.testing.cases.attention_cases import attention_case
from common.testing.judging import judge


def told(operator) -> str:
    case = attention_case("attention", "attention", "small", 1, 2, 5, 11, 4, causal=False)
    verdict = judge(case, fake_operators(attention=operator))
    assert verdict.status == "FAIL"
    return "\n".join(verdict.diagnosis)


def quotient_of_infinities(query, key, value, causal, scale=None):
    """exp overflows: the scores are taken for a thousand times as large."""
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
