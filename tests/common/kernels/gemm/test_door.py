"""gemm_nn and gemm_nt of common/kernels/gemm/gemm.py beside torch in float64."""

import pytest
import torch

from common.kernels.gemm.gemm import gemm_nn, gemm_nt


def test_both_products(device):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 5, 7, generator=generator), torch.randn(2, 7, 3, generator=generator)
    expected = a.double() @ b.double()
    transposed = b.mT.contiguous()
    for c in (gemm_nn(a.to(device), b.to(device)), gemm_nt(a.to(device), transposed.to(device))):
        assert c.device.type == device and c.dtype == torch.float32
        torch.testing.assert_close(c.double().cpu(), expected, rtol=0, atol=1e-5)


def test_a_bad_argument_is_named(device):
    a = torch.zeros(2, 5, 7, device=device)
    with pytest.raises(ValueError, match=r"dimension 2 of a .7. must equal dimension 1 of b .6."):
        gemm_nn(a, torch.zeros(2, 6, 3, device=device))
    with pytest.raises(ValueError, match=r"a has 2 dimensions, .* it must be \[batch, M, K\]"):
        gemm_nt(a[0], a)
    with pytest.raises(ValueError, match="a has dtype Half; it must be Float"):
        gemm_nt(a.half(), a.half())
