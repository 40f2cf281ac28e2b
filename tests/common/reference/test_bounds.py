"""The error floors of bounds, against actual float32 sums."""

import torch

from common.reference.bounds import lost_terms, running_sum_floor
from task2.cases.softmax import LOST

COLS = 65_536


def test_a_running_sum_of_peaked_terms_lacks_those_that_are_too_small_for_it() -> None:
    x = 4 * torch.randn(64, COLS, generator=torch.Generator().manual_seed(3))
    terms = torch.exp(x - x.amax(1, keepdim=True))
    running = torch.zeros(64)
    for column in terms.T.contiguous():
        running += column
    whole = terms.double().sum(1)
    off = float((running.double() / whole - 1).abs().max())
    share = lost_terms(terms.double())
    assert running_sum_floor(COLS, 1) < off < running_sum_floor(COLS, 1) + share
    assert share < LOST < 1.2 * share


def test_terms_that_count_are_not_lost() -> None:
    assert lost_terms(torch.ones(2, 100, dtype=torch.float64)) == 0
    assert 0 < lost_terms(torch.tensor([[1.0, 2.0**-25, 2.0**-25]], dtype=torch.float64)) < 2.0**-23
