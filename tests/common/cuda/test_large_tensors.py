"""Tensors of more than 2^31 elements: offsets must not overflow. Compares the last slice, where overflow would show."""

from __future__ import annotations

import pytest
import torch

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.reference import oracle as reference

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("much_memory")]
LIMIT = 2**31


def assert_last_slice(out: torch.Tensor, expected: torch.Tensor) -> None:
    assert out.numel() > LIMIT
    torch.testing.assert_close(out[-1].double(), expected, rtol=1e-4, atol=1e-4)


def test_softmax():
    x = torch.randn(33_000, 65_536, device="cuda")
    out = load(BuildRequest("task2", "solution")).softmax(x)
    assert_last_slice(out, reference.softmax(x[-1].double()))


def test_matrix_product():
    ops = load(BuildRequest("task2", "solution"))
    a, b = torch.randn(2100, 1024, 8, device="cuda"), torch.randn(2100, 8, 1024, device="cuda")
    assert_last_slice(ops.gemm_nn(a, b), a[-1].double() @ b[-1].double())
    b = b.mT.contiguous()
    assert_last_slice(ops.gemm_nt(a, b), a[-1].double() @ b[-1].mT.double())


def test_flash_attention():
    query, key, value = (torch.randn(2100, 8, 1024, 128, device="cuda") for _ in range(3))
    out = load(BuildRequest("task4", "solution")).flash_attention(query, key, value, True)
    assert_last_slice(out, reference.attention(query[-1].double(), key[-1].double(), value[-1].double(), causal=True))


def test_decode_over_a_large_cache():
    ops = load(BuildRequest("task6", "solution"))
    k_cache, v_cache = (torch.randn(260, 8, 8192, 128, device="cuda") for _ in range(2))
    assert k_cache.numel() > LIMIT
    query = torch.randn(260, 8, 1, 128, device="cuda")
    lengths = torch.full((260,), 8191, dtype=torch.int32, device="cuda")
    new = torch.randn(260, 8, 1, 128, device="cuda")
    ops.update_cache(k_cache, v_cache, new, new, lengths)
    assert torch.equal(k_cache[-1, -1, -1], new[-1, -1, 0]) and torch.equal(v_cache[-1, -1, -1], new[-1, -1, 0])
    out = ops.decode_attention(query, k_cache, v_cache, lengths + 1)
    expected = reference.attention(query[-1].double(), k_cache[-1].double(), v_cache[-1].double())
    torch.testing.assert_close(out[-1].double(), expected, rtol=1e-4, atol=1e-4)
