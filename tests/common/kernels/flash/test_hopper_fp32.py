"""float32 on Hopper's tensor cores by 3xFP16, against attention in float64: sizes, layouts, limits, and under load.

For GPUs of compute capability 9.0; test_flash.py runs the tests common to all kernels.
"""

from __future__ import annotations

import math

import flash_room as flash
import pytest
import torch
from flash_inputs import (
    ALIGNMENTS,
    assert_near,
    attention,
    gaps,
    hopper_only,
    lse_bound_3xfp16,
    operators_of,
    packed,
    rows_first,
    tensors,
)
from torch import Tensor

from common.reference.bounds import max_error_of, running_sum_floor

KERNEL = "wgmma 3xfp16"
SHARPNESS = 1.5  # of the inputs: the standard deviation of query and key
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def ops():
    """The flash operators on a Hopper GPU."""
    hopper_only()
    return flash.load("cuda")


def bound_of(query: Tensor, key: Tensor, value: Tensor, ref64: Tensor, **options) -> float:
    """Twice PyTorch's own error in float32 plus the floor in common/testing/cases/attention.py, as in test_flash.py."""
    noise = max_error_of(attention(torch.float32, query, key, value, **options), ref64)
    return 2 * noise + 1e-5 * SHARPNESS**2 + running_sum_floor(key.size(2), 4)


def assert_right(ops, query: Tensor, key: Tensor, value: Tensor, kernel: str = KERNEL, **options) -> Tensor:
    """The named kernel runs, out is close to float64, and lse is within its bound."""
    arguments = {"causal": False, **options}
    assert flash.kernel_of(ops, query, key, value, **arguments) == kernel
    out, lse = operators_of(ops).flash_attention_forward(query, key, value, **arguments)
    assert_near(out, lse, query, key, value, lse_bound=lse_bound_3xfp16(query, key, options.get("scale")), **options)
    return out


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("head_dim", [4, 20, 40, 64, 68, 96, 124, 128])
@pytest.mark.parametrize("sizes", [(256, 256), (257, 1023), (1023, 300), (700, 640), (640, 1281)], ids=str)
def test_any_number_of_queries_and_keys(ops, sizes, head_dim, alignment):
    query, key, value = tensors(ops, torch.float32, *sizes, head_dim, heads=4, kv_heads=2)[:3]
    assert_right(ops, query, key, value, **ALIGNMENTS[alignment])


@pytest.mark.parametrize("head_dim", [40, 64, 128])
def test_layouts(ops, head_dim):
    query, key, value = tensors(ops, torch.float32, 300, 300, head_dim)[:3]
    expected = assert_right(ops, query, key, value, causal=True)
    for views in (packed(query, key, value), rows_first(query, key, value), gaps(query, key, value, behind=4)):
        assert torch.equal(assert_right(ops, *views, causal=True), expected)
    assert_right(ops, query, key, value, scale=-0.1)
    assert_right(ops, query, key, value, scale=0.0)


def test_the_border(ops):
    query, key, value = tensors(ops, torch.float32, 256, 256, 64)[:3]
    assert_right(ops, query, key, value, "3xfp16", mask=torch.rand(256, 256, device="cuda") < 0.7)
    assert_right(ops, query[:, :, 1:], key, value, "3xfp16")
    assert_right(ops, query, key[:, :, 1:], value[:, :, 1:], "3xfp16")
    assert_right(ops, *gaps(query, key, value, behind=1), "3xfp16")
    assert_right(ops, *(x[..., :62] for x in (query, key, value)), "3xfp16")
    assert flash.kernel_of(ops, query, key, value, tensor_cores=False) == "fp32"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_what_hidden_keys_hold_reaches_nobody(ops, head_dim, bad):
    query, key, value = tensors(ops, torch.float32, 300, 300, head_dim)[:3]
    call = operators_of(ops).flash_attention
    clean = call(query, key, value, True)
    value[0, 0, 200, 3] = bad
    out = call(query, key, value, True)
    assert max_error_of(out[0, :1, :200], clean[0, :1, :200].double()) <= 4e-6 * float(clean.abs().max())
    assert not bool(out[0, 0, 200:, 3].isfinite().any()) and bool(out[0, 0, 200:, 4:].isfinite().all())


@pytest.mark.parametrize("alignment", ["full", "upper left"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("seq", [1024, 1500, 2048, 4096])
def test_the_same_bits_under_load(ops, seq, head_dim, alignment):
    """Many heads, so that every SM processes one work tile after another, twenty times."""
    options = ALIGNMENTS[alignment]
    query, key, value = tensors(ops, torch.float32, seq, seq, head_dim, batch=4, heads=24)[:3]
    call = lambda: operators_of(ops).flash_attention(query, key, value, options.get("causal", False))  # noqa: E731
    out = call()
    for _ in range(20):
        assert torch.equal(call(), out)
    for batch, head in ((0, 0), (3, 23)):
        one = [x[batch : batch + 1, head : head + 1] for x in (query, key, value)]
        ref64 = attention(torch.float64, *one, **options)
        assert max_error_of(out[batch : batch + 1, head : head + 1], ref64) <= bound_of(*one, ref64, **options)


@pytest.mark.parametrize("alignment", ["full", "upper left"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("seq", [300, 2048])
def test_relative_errors_of_values_around_zero(ops, seq, head_dim, alignment):
    """Below 1e-6 over all elements, as for the mma.sync kernel. (For values of one sign the tensor cores lose more:
    they truncate sums toward zero.)"""
    query, key, value = tensors(ops, torch.float32, seq, seq, head_dim, heads=4, sharpness=1.0, mean_value=0)[:3]
    out = operators_of(ops).flash_attention(query, key, value, ALIGNMENTS[alignment].get("causal", False))
    ref64 = attention(torch.float64, query, key, value, **ALIGNMENTS[alignment])
    assert float((out - ref64).norm() / ref64.norm()) < 1e-6
