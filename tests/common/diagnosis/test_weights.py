"""What weights tell that were read off an output: made wrong in PyTorch, in one way each."""

import math

import pytest
import torch
from torch import Tensor

from common.diagnosis.mistakes.weights import weights_told

torch.manual_seed(0)
SCORES = 2 * torch.randn(2, 40, 40, dtype=torch.float64)
HIDDEN = ~torch.ones(40, 40, dtype=torch.bool).tril()
FULL = torch.softmax(SCORES, -1)
CAUSAL = torch.softmax(SCORES.masked_fill(HIDDEN, -math.inf), -1)
FIRST_TILE = torch.arange(40) < 32
FACTORS = 1 + torch.rand(2, 40, 1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("got", "right", "name", "words"),
    [
        (FULL * FIRST_TILE, FULL, "keys left out", "keys 32 to 39. The others have the right shares"),
        (torch.softmax(SCORES.masked_fill(~FIRST_TILE, -math.inf), -1), FULL, "keys left out", "keys 32 to 39"),
        (FULL, CAUSAL, "hidden keys count", "that their query must not see"),
        (2 * FULL, FULL, "all weights times one factor", "All weights are 2 times"),
        (FACTORS * FULL, FULL, "rows not normalised", "the sum that divides the row is smaller"),
        (torch.where(FIRST_TILE, FACTORS * FULL, FULL), FULL, "tiles do not fit together", "different maxima"),
        (
            torch.where(FIRST_TILE, 2 * FULL, FULL) / (1 + (FULL * FIRST_TILE).sum(-1, keepdim=True)),
            FULL,
            "keys counted several times",
            "such as keys 0 to 31 twice",
        ),
        (torch.softmax(SCORES / 4, -1), FULL, "scores times a factor", "0.25 times the right ones"),
        (torch.softmax(-SCORES, -1), FULL, "sign of the exponent", "score minus maximum"),
        (FULL.roll(1, -1), FULL, "weights on other keys", "but on other keys"),
        (torch.full_like(FULL, 1 / 40), FULL, "equal weights", "equal weights"),
        (torch.zeros_like(FULL), FULL, "no key counts", "nothing of V reaches the output"),
    ],
)
def test_weights_tell_what_is_wrong(got: Tensor, right: Tensor, name: str, words: str) -> None:
    told = weights_told(got.float().double(), right)
    assert told is not None and told[0] == name and words in told[1], told


def test_nothing_is_said_of_weights_that_fit_nothing() -> None:
    assert weights_told(torch.rand_like(FULL), FULL) is None


def test_rows_that_could_not_be_read_and_rows_that_are_right_are_passed_over() -> None:
    got = torch.where(FIRST_TILE, FULL, 0.0)
    got[0] = math.nan
    got[1, :20] = FULL[1, :20]
    assert weights_told(got, FULL)[0] == "keys left out"
    assert weights_told(FULL, FULL) is None
    assert weights_told(FULL, None) is None


def test_the_rounding_of_bfloat16_is_no_mistake() -> None:
    """P itself was rounded, and then the output that its weights were read off."""
    assert weights_told(FULL.bfloat16().double(), FULL) is None
    assert weights_told((2 * FULL).bfloat16().double(), FULL) is not None


def test_keys_that_do_not_exist_are_told_by_what_they_add() -> None:
    """Zeros behind the last key have the score 0, and the weight exp(-m): how many they are can be told."""
    for count, words in ((1, "what 1 key with the score 0"), (5, "what 5 keys with the score 0")):
        padded = torch.nn.functional.pad(SCORES, (0, count))
        told = weights_told(torch.softmax(padded, -1)[..., :40], FULL, scores=SCORES)
        assert told is not None and told[0] == "keys that do not exist" and words in told[1]
    assert weights_told(FACTORS.reciprocal() * FULL, FULL, scores=SCORES)[0] == "rows not normalised"


def test_one_row_alone_has_no_factor_in_common() -> None:
    told = weights_told(0.98 * FULL[:1, :1], FULL[:1, :1])
    assert told is None or told[0] != "all weights times one factor"
