"""Softmax rows that are wrong by a factor. Missing barriers, and sums that lack something, are planted in real kernels:
tests/task2, tests/task3."""

import math

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


def test_a_sum_that_counts_twice_is_told() -> None:
    verdict = judge(CASES["113 x 203"], fake_operators(softmax=lambda x: reference.softmax(x) / 2))
    assert verdict.mistakes == ["wrong row sum"]
    assert "2 times the right one, larger than the row's. Are parts counted twice" in verdict.diagnosis[0]
    assert BARRIER in verdict.found.unless_clean


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
