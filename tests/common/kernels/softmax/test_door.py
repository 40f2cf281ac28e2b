"""softmax of common/kernels/softmax/softmax.py beside torch in float64."""

import math

import pytest
import torch

from common.kernels.softmax.softmax import softmax


def test_rows(device):
    x = 4 * torch.randn(3, 37, generator=torch.Generator().manual_seed(0))
    x[1, 5:] = -math.inf
    y = softmax(x.to(device))
    assert y.device.type == device and y.dtype == torch.float32
    torch.testing.assert_close(y.double().cpu(), torch.softmax(x.double(), -1), rtol=0, atol=1e-6)


def test_a_row_of_nothing_but_minus_infinity_gives_zeros(device):
    assert (softmax(torch.full((2, 9), -math.inf, device=device)) == 0).all()


def test_a_bad_argument_is_named(device):
    with pytest.raises(ValueError, match=r"x has 1 dimensions, .* it must be \[rows, cols\]"):
        softmax(torch.zeros(5, device=device))
    with pytest.raises(ValueError, match=r"x of shape .* is not contiguous"):
        softmax(torch.zeros(5, 3, device=device).T)
