"""What weights recovered from an output reveal: computed wrong in PyTorch, in one way each."""

import math

import pytest
import torch
from torch import Tensor

from common.diagnosis.mistakes.weights import explain_sums, explain_weights

torch.manual_seed(0)
SCORES = 2 * torch.randn(2, 40, 40, dtype=torch.float64)
HIDDEN = ~torch.ones(40, 40, dtype=torch.bool).tril()
FULL = torch.softmax(SCORES, -1)
CAUSAL = torch.softmax(SCORES.masked_fill(HIDDEN, -math.inf), -1)
FIRST_TILE = torch.arange(40) < 32
TWICE = torch.where(FIRST_TILE, 1.0, 2.0).double()
FACTORS = 1 + torch.rand(2, 40, 1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("got", "right", "name", "words"),
    [
        (FULL * FIRST_TILE, FULL, "keys left out", "keys 32 to 39. The others have the right shares"),
        (torch.softmax(SCORES.masked_fill(~FIRST_TILE, -math.inf), -1), FULL, "keys left out", "keys 32 to 39"),
        (FULL, CAUSAL, "hidden keys count", "that their query must not see"),
        (2 * FULL, FULL, "all weights times one factor", "the sum that divides them is 0.5 times"),
        (FACTORS * FULL, FULL, "rows not normalized", "the sum that divides the row is smaller"),
        (
            FULL * TWICE / (FULL * TWICE).sum(-1, keepdim=True),
            FULL,
            "keys count several times",
            "twice, numerator and sum alike: in every row that sees them keys 32 to 39",
        ),
        (torch.softmax(SCORES / 4, -1), FULL, "scores times a factor", "0.25 times the right ones"),
        (torch.softmax(-SCORES, -1), FULL, "sign of the exponent", "Is the exponent score minus maximum"),
        (torch.full_like(FULL, 1 / 40), FULL, "equal weights", "equal weights"),
        (torch.zeros_like(FULL), FULL, "no key counts", "nothing of V reaches the output"),
    ],
)
def test_weights_tell_what_is_wrong(got: Tensor, right: Tensor, name: str, words: str) -> None:
    told = explain_weights(got.float().double(), right)
    assert told is not None and told[0] == name and words in told[1], told


def test_nothing_is_said_of_weights_that_fit_nothing() -> None:
    assert explain_weights(torch.rand_like(FULL), FULL) is None


def test_rows_that_could_not_be_read_and_rows_that_are_right_are_passed_over() -> None:
    got = torch.where(FIRST_TILE, FULL, 0.0)
    got[0] = math.nan
    got[1, :20] = FULL[1, :20]
    assert explain_weights(got, FULL)[0] == "keys left out"
    assert explain_weights(FULL, FULL) is None
    assert explain_weights(FULL, None) is None


def test_the_rounding_of_bfloat16_is_no_mistake() -> None:
    """P itself was rounded, then the output from which its weights are recovered."""
    assert explain_weights(FULL.bfloat16().double(), FULL) is None
    assert explain_weights((2 * FULL).bfloat16().double(), FULL) is not None


def test_one_row_alone_has_no_factor_in_common() -> None:
    told = explain_weights(0.98 * FULL[:1, :1], FULL[:1, :1])
    assert told is None or told[0] != "all weights times one factor"


def test_keys_that_only_the_sum_holds_are_counted() -> None:
    more = 3.0 * (torch.arange(40) % 4 == 1).double()[:, None]  # keys with score 0 whose rows of V are zeros
    hidden = SCORES.masked_fill(HIDDEN, -math.inf)
    padded = hidden.exp() / (hidden.exp().sum(-1, keepdim=True) + more)
    name, says = explain_sums(padded.float().double(), hidden)
    assert name == "keys with score 0" and "in the first such row by 3:" in says
    for other in (CAUSAL, 0.9 * CAUSAL, FACTORS * CAUSAL, FULL):
        assert explain_sums(other, hidden) is None
