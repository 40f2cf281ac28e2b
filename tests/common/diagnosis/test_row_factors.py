"""Softmax rows that are wrong by a factor: wrong sums, and what missing barriers leave behind."""

import math

import pytest
import torch
from fake_operators import fake_operators

from common.diagnosis.row_factors import BARRIER, row_factors
from common.reference import oracle as reference
from common.testing.judging import judge
from task2.cases import cases

CASES = {case.name: case for case in cases()}


def owner(cols: int, threads: int) -> torch.Tensor:
    """Which thread owns each column when thread t takes t, t + threads, ..."""
    return torch.arange(cols) % threads


def without_barrier_between_reductions(x: torch.Tensor, threads: int, group: int) -> torch.Tensor:
    """Softmax whose partial results are reused too early.

    The first `group` threads read the row's maximum, go on, and overwrite it with their sum before the others read it.
    """
    first = owner(x.size(-1), threads) < group
    right_max = x.amax(-1, keepdim=True)
    early_sum = torch.where(first, torch.exp(x - right_max), 0.0).sum(-1, keepdim=True)
    e = torch.exp(x - torch.where(first, right_max, early_sum))
    return e / e.sum(-1, keepdim=True)


@pytest.mark.parametrize(("threads", "group"), [(256, 1), (128, 32), (64, 32), (1024, 128)])
@pytest.mark.parametrize("case", ["1025 columns", "113 x 203", "1023 x 1024"])
def test_a_missing_barrier_between_the_reductions_is_told(case: str, threads: int, group: int) -> None:
    wrong = fake_operators(softmax=lambda x: without_barrier_between_reductions(x, threads, group))
    verdict = judge(CASES[case], wrong)
    assert verdict.mistakes == ["threads disagree"]
    assert "did not all use the same maximum and the same sum" in verdict.diagnosis[0]
    assert BARRIER in verdict.found.unless_clean


def test_a_sum_that_misses_some_warps_is_told() -> None:
    def softmax_of_some_warps(x):
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / torch.where(owner(x.size(-1), 128) < 96, e, 0.0).sum(-1, keepdim=True)

    verdict = judge(CASES["1025 columns"], fake_operators(softmax=softmax_of_some_warps))
    assert verdict.mistakes == ["wrong row sum"]
    assert "smaller than the row's. Is part of the row missing from it" in verdict.diagnosis[0]
    assert BARRIER in verdict.found.unless_clean


def test_a_sum_that_counts_twice_is_told() -> None:
    verdict = judge(CASES["113 x 203"], fake_operators(softmax=lambda x: reference.softmax(x) / 2))
    assert verdict.mistakes == ["wrong row sum"]
    assert "2 times the right one, larger than the row's. Are parts counted twice" in verdict.diagnosis[0]


def test_warps_that_read_shared_memory_before_it_was_written_are_told() -> None:
    def all_but_the_last_warp_nan(x):
        late = owner(x.size(-1), 128) >= 96
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
