"""The Hopper kernels of dense attention in the simulator, as they are, beside attention in float64: small problems.

test_hopper.py and test_hopper_backward.py do the same, and much more, on the GPU that they are for.
"""

from __future__ import annotations

import math

import flash_room as flash
import pytest
import torch
from flash_inputs import assert_near, attention, lse_bound_3xfp16, operators_of, tensors
from hopper_sources import DENSE

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.reference.bounds import max_error_of

DTYPES = [torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def ops():
    return load(BuildRequest("flash", backend="simulator", arch="sm_90a", sources=DENSE, label="hopper"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize(
    ("sizes", "heads", "kv_heads", "options"),
    [
        ((1, 1), 1, 1, {}),
        ((70, 150), 2, 1, {}),
        ((130, 130), 2, 2, {"causal": True}),
        ((40, 200), 1, 1, {"causal": True, "lower_right": True}),
        ((200, 40), 1, 1, {"causal": True, "lower_right": True}),  # rows that see no key
    ],
    ids=str,
)
def test_forward(ops, dtype, head_dim, sizes, heads, kv_heads, options):
    query, key, value = tensors(
        ops, dtype, seq_q=sizes[0], seq_k=sizes[1], head_dim=head_dim, batch=1, heads=heads, kv_heads=kv_heads
    )[:3]
    arguments = {"causal": False, **options}
    assert flash.kernel_of(ops, query, key, value, **arguments) == "wgmma"
    out, lse = operators_of(ops).flash_attention_forward(query, key, value, **arguments)
    assert_near(out, lse, query, key, value, **options)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_what_hidden_keys_hold_reaches_nobody(ops, head_dim):
    """NaN and infinity in a value: rows before it, under the causal mask, stay as they were; also those of its tile."""
    query, key, value = tensors(
        ops, torch.bfloat16, seq_q=150, seq_k=150, head_dim=head_dim, batch=2, heads=2, kv_heads=1
    )[:3]
    assert flash.kernel_of(ops, query, key, value, True) == "wgmma"
    call = operators_of(ops).flash_attention
    clean = call(query, key, value, True)
    for bad in (math.nan, math.inf):
        spoilt = value.clone()
        spoilt[0, 0, 100, 3] = bad
        out = call(query, key, spoilt, True)
        bound = 4 * torch.finfo(torch.bfloat16).eps * float(clean.abs().max())
        assert max_error_of(out[0, :, :100], clean[0, :, :100].double()) <= bound
        assert torch.equal(out[1], clean[1])
        assert not bool(out[0, :, 100:, 3].isfinite().any()) and bool(out[0, :, 100:, 4:].isfinite().all())


@pytest.mark.parametrize("head_dim", [40, 64, 128])
@pytest.mark.parametrize(
    ("sizes", "heads", "kv_heads", "options"),
    [
        ((256, 300), 2, 1, {}),
        ((300, 300), 1, 1, {"causal": True}),
        ((400, 270), 1, 1, {"causal": True, "lower_right": True}),  # rows that see no key
    ],
    ids=str,
)
def test_forward_of_float32(ops, head_dim, sizes, heads, kv_heads, options):
    query, key, value = tensors(ops, torch.float32, *sizes, head_dim, batch=1, heads=heads, kv_heads=kv_heads)[:3]
    arguments = {"causal": False, **options}
    assert flash.kernel_of(ops, query, key, value, **arguments) == "wgmma 3xfp16"
    out, lse = operators_of(ops).flash_attention_forward(query, key, value, **arguments)
    ref64 = attention(torch.float64, query, key, value, **options)
    assert max_error_of(out, ref64) <= 1e-6 * float(ref64.abs().max())
    assert_near(out, lse, query, key, value, lse_bound=lse_bound_3xfp16(query, key), **options)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_hidden_keys_hold_reaches_nobody_in_float32(ops, head_dim, bad):
    query, key, value = tensors(ops, torch.float32, 256, 256, head_dim, batch=1, heads=2, kv_heads=1)[:3]
    call = operators_of(ops).flash_attention
    clean = call(query, key, value, True)
    value[0, 0, 200, 3] = bad
    key[0, 0, 230] = bad
    out = call(query, key, value, True)
    assert max_error_of(out[:, :, :200], clean[:, :, :200].double()) <= 4e-6 * float(clean.abs().max())
    assert not bool(out[:, :, 200:, 3].isfinite().any()) and bool(out[:, :, 200:230, 4:].isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_backward(ops, dtype, head_dim, causal, deterministic):
    query, key, value, grad = tensors(ops, dtype, seq_q=130, seq_k=130, head_dim=head_dim, batch=1, heads=1)
    operators = operators_of(ops)
    out, lse = operators.flash_attention_forward(query, key, value, causal=causal)
    found = operators.flash_attention_backward(grad, query, key, value, out, lse, causal, deterministic=deterministic)

    def gradients(of: torch.dtype):
        inputs = [x.to(of).requires_grad_() for x in (query, key, value)]
        attention(of, *inputs, causal=causal).backward(grad.double())
        return [x.grad.double() for x in inputs]

    for one, ref64, rounded in zip(found, gradients(torch.float64), gradients(dtype), strict=True):
        noise = max_error_of(rounded, ref64)
        assert max_error_of(one, ref64) <= 3 * noise + 2 * torch.finfo(dtype).eps * float(ref64.abs().max())
