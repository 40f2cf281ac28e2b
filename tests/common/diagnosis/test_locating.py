"""Where errors are, in words."""

import math

import pytest
import torch

from common.diagnosis.diagnose import diagnose
from common.diagnosis.locating import edge_of_a_tile, locate

AXES = ("batch", "row", "col")


def located(*where, shape=(3, 70, 100), value: float = 9.0) -> str:
    """locate()'s sentence when the elements at `where` are wrong."""
    ref = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    out = ref.float()
    out[where] = value
    return " ".join(locate(out, ref, 1e-5, AXES[-len(shape) :]))


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ((slice(None), slice(None), slice(96, None)), "Only col >= 96 is wrong (of 100)."),
        ((slice(None), slice(64, None)), "Only row >= 64 is wrong (of 70)."),
        ((slice(None), slice(0, 5)), "Only row < 5 is wrong (of 70)."),
        ((1,), "Only batch 1 (of 3) is wrong."),
        ((slice(None), slice(1, None, 2)), "Only row odd is wrong and every one of these."),
        ((slice(None), slice(None), slice(3, None, 16)), "Only col % 16 == 3 is wrong and every one of these."),
        ((2, 40, 7), "1 of 21000 elements are wrong (under 0.1%); the first is at batch 2, row 40, col 7: got 9"),
    ],
)
def test_errors_are_located(where: tuple, says: str) -> None:
    assert says in located(*where)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ((slice(None), slice(64, None)), "row 64 follows the last full 64:"),
        ((slice(None), slice(None), slice(96, None)), "col 96 follows the last full 32:"),
        ((slice(None), slice(None), slice(32, None)), "col 32 follows the first 32:"),
        ((slice(None), slice(None), slice(37, None)), ""),
        ((slice(None), slice(None), slice(64, 96)), ""),  # the last tile is right
        ((slice(None), slice(None), slice(0, 64)), ""),
        ((slice(None), slice(None), slice(80, None)), ""),  # divisible by 16, but no tile of either size ends there
    ],
)
def test_a_tile_is_named_where_the_wrong_elements_are_those_past_it(where: tuple, says: str) -> None:
    wrong = torch.zeros(3, 70, 100, dtype=torch.bool)
    wrong[where] = True
    told = edge_of_a_tile(wrong, AXES)
    assert told[0].startswith(says) if says else told == []


def test_nothing_is_said_of_a_right_output() -> None:
    ref = torch.randn(4, 5, dtype=torch.float64)
    assert locate(ref.float(), ref, 1e-5, ("row", "col")) == []


def test_unwritten_elements_are_told_from_nan_that_was_computed() -> None:
    unwritten = located(slice(None), slice(64, None), value=math.nan)
    assert "1800 of 21000 elements still hold the NaN that filled the memory before the call" in unwritten
    assert "the first at batch 0, row 64, col 0" in unwritten
    computed = located(slice(None), slice(64, None), value=-math.nan)
    assert "still hold" not in computed
    assert "1800 elements are NaN" in computed
    assert "100 elements are infinite" in located(0, 0, value=math.inf)


def test_a_factor_is_seen() -> None:
    ref = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert "Every wrong element is the right one times 0.25." in locate(0.25 * ref.float(), ref, 1e-5, ("row", "col"))


def test_swapped_heads_are_seen() -> None:
    ref = torch.randn(2, 3, 8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = diagnose(ref[:, [0, 2, 1]].float(), ref, 1e-5, ("batch", "head", "row", "col"))
    assert "Head 1 holds what belongs in head 2; head 2 holds what belongs in head 1." in found.sentences


def test_a_result_that_changes_from_run_to_run_is_a_race() -> None:
    ref = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = ref.float() ** 3, ref.float() + 2
    assert diagnose(first, ref, 1e-5, ("row", "col"), repeated=second).names == ["changes from run to run"]
    assert diagnose(first, ref, 1e-5, ("row", "col"), repeated=first.clone()).names == []
