"""Scores in hidden cases don't depend on how an honest program rounds, and exp() can't take them without a maximum."""

from __future__ import annotations

import pytest
import torch

from common.course.grading.hidden import attention_inputs

SCORES = {
    "times the scale": lambda q, k, scale: q @ k.mT * scale,
    "scaled queries": lambda q, k, scale: (q * scale) @ k.mT,
    "scaled keys": lambda q, k, scale: q @ (k * scale).mT,
    "both scaled": lambda q, k, scale: (q * scale**0.5) @ (k * scale**0.5).mT,
    "alpha": lambda q, k, scale: torch.baddbmm(torch.zeros(1), q, k.mT, beta=0, alpha=scale),
    "element by element": lambda q, k, scale: (q[:, :, None] * scale * k[:, None]).sum(-1),
}


@pytest.mark.parametrize("name", SCORES)
def test_equal_scores_that_decide_stay_equal(name: str) -> None:
    """In every tile, also one at the edge, for which a BLAS has other code."""
    for seed in range(20):
        made = attention_inputs(1, 3, 144, 263, 17 + seed)(torch.Generator().manual_seed(seed))
        query, key, scale = made["query"][0], made["key"][0], (17 + seed) ** -0.5
        right = query.double() @ key.double().mT * scale
        tiles = [[SCORES[name](q, k, scale) for k in key.split(64, 1)] for q in query.split(32, 1)]
        got = torch.cat([torch.cat(row, 2) for row in tiles], 1)
        top = (right == right.amax(-1, keepdim=True)) & (right.amax(-1, keepdim=True).abs() > 2000)
        assert (top.sum(-1) > 4).sum() > 200
        largest, smallest = (torch.where(top, got, end).flatten(0, 1) for end in (-torch.inf, torch.inf))
        assert torch.equal(*(one[top.any(-1).flatten()] for one in (largest.amax(-1, True), smallest.amin(-1, True))))


@pytest.mark.parametrize("largest", [1e4, 1e5])
def test_without_the_maximum_exp_fails_even_in_float64(largest: float) -> None:
    made = attention_inputs(2, 2, 100, 300, 24, largest)(torch.Generator().manual_seed(0))
    scores = made["query"].double() @ made["key"].double().mT * 24**-0.5
    for shift in (0 * scores[..., 0], scores[..., 0], scores[..., -1], scores.mean(-1), 0 * scores[..., 0] + 1100):
        sums = torch.exp(scores - shift[..., None]).sum(-1)
        assert (~sums.isfinite() | (sums == 0)).double().mean() > 0.4
