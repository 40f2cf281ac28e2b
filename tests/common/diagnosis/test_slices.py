"""Whole slices of a wrong output: never computed, taken from elsewhere, or softmax rows off by a factor.

Missing barriers, and incomplete sums, are planted in real kernels: tests/task2, tests/task3.
"""

import math

import torch
from fake_operators import fake_operators

from common.diagnosis.diagnose import diagnose
from common.diagnosis.slices import BARRIER, explain_slices, moved_slices, row_factors
from common.reference import oracle as reference
from common.testing.judging import judge
from task2.cases import cases

CASES = {case.name: case for case in cases()}

AXES = ("row", "col")
REF = torch.randn(12, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def told(out: torch.Tensor, **more) -> tuple[str, str] | None:
    return explain_slices(out.float(), REF, 1e-5, AXES, **more)


def test_rows_of_zeros_are_told_with_their_numbers() -> None:
    out = REF.clone()
    out[2::3] = 0
    name, says = told(out)
    assert name == "slices never computed"
    assert says.startswith("0 is in row 2, 5, 8, 11 (of 12) and nowhere else")


def test_the_narrowest_axis_is_told() -> None:
    out = REF.clone()
    out[:, 32:] = 0
    assert "col 32 to 63 (of 64)" in told(out)[1]


def test_zeros_among_wrong_numbers_are_no_slices() -> None:
    out = REF.clone()
    out[3] = 0
    out[5, 5] += 1
    assert told(out) is None
    out = REF.clone()
    out[3, :40] = 0  # neither the whole row nor whole columns
    assert told(out) is None


def test_rows_of_attention_may_be_empty_and_its_columns_not() -> None:
    out = REF.clone()
    out[4:] = 0
    assert told(out, of_keys=True) is None
    out = REF.clone()
    out[:, 32:] = 0
    assert told(out, of_keys=True)[0] == "slices never computed"


def test_what_rows_hold_of_others_tells_of_an_index() -> None:
    first = moved_slices(REF[:1].expand_as(REF).float(), REF, 1e-5, AXES)
    assert first[0] == "slices moved" and "Does the number of the row have a part in every index" in first[1]
    late = moved_slices(REF.roll(-1, 0)[:11].float(), REF[:11], 1e-5, AXES)
    assert late[0] == "" and "Row 0 holds what belongs in row 1" in late[1]  # the last row is different


def test_rows_of_zeros_belong_nowhere() -> None:
    """A row that is 0 by mistake equals every row that is 0 rightly: that says nothing about an index."""
    ref, out = REF.clone(), REF.clone()
    ref[0], out[0], out[3] = 0, 0, 0
    assert moved_slices(out.float(), ref, 1e-5, AXES) is None


def test_moved_rows_lead_a_diagnosis() -> None:
    found = diagnose(REF[:1].expand_as(REF).float(), REF, 1e-5, AXES)
    assert found.names == ["slices moved"] and found.sentences[0].startswith("Row 1 holds what belongs in row 0")


def test_a_sum_that_counts_twice_is_told() -> None:
    verdict = judge(CASES["113 x 203"], fake_operators(softmax=lambda x: reference.softmax(x) / 2))
    assert verdict.mistakes == ["wrong row sum"]
    assert "2 times the right one, larger than the row's. Are parts counted twice" in verdict.diagnosis[0]
    assert BARRIER in verdict.found.unless_clean


def test_warps_that_read_shared_memory_before_it_was_written_are_told() -> None:
    def all_but_the_last_warp_nan(x):
        late = torch.arange(x.size(-1)) % 128 >= 96  # thread t handles t, t + 128, ...
        return torch.where(late, reference.softmax(x), -math.nan)

    verdict = judge(CASES["1025 columns"], fake_operators(softmax=all_but_the_last_warp_nan))
    assert verdict.mistakes == ["threads disagree"]
    assert "whole warps' columns" in verdict.diagnosis[0]


def test_other_wrong_rows_are_not_blamed_on_barriers() -> None:
    x = 4 * torch.randn(6, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ref = reference.softmax(x)
    shuffled = ref[:, torch.randperm(300, generator=torch.Generator().manual_seed(1))]
    one_column = ref.clone()
    one_column[:, 17] = 0.5
    assert row_factors(ref, ref) is None
    assert row_factors(shuffled, ref) is None
    assert row_factors(one_column, ref) is None
    assert row_factors(reference.softmax(0.9 * x), ref) is None
