"""The unmodified Hopper float32 attention kernel in the simulator, compared with float64: small problems.

test_hopper_fp32.py does the same, and much more, on a Hopper GPU; 16 bits: test_options_hopper.py.
"""

from __future__ import annotations

import math

import flash_room as flash
import pytest
import torch
from flash_inputs import assert_near, attention, lse_bound_3xfp16, operators_of, tensors
from hopper_sources import flash_build

from common.compiling.load import load
from common.reference.bounds import max_error_of

pytestmark = pytest.mark.slow  # the kernels take ten seconds to compile


@pytest.fixture(scope="module")
def ops():
    return load(flash_build(dense=True))


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


@pytest.mark.parametrize("head_dim", [64, 128])
def test_an_output_by_rows_of_bfloat16(ops, head_dim):
    query, key, value = tensors(ops, torch.bfloat16, 150, 150, head_dim, batch=2, heads=4, kv_heads=2)[:3]
    value[1, 0, 90, 3] = math.nan  # the rows that see it are recomputed
    assert flash.kernel_of(ops, query, key, value, causal=True) == "wgmma"
    out = ops.flash_attention_rows(query, key, value, True)
    assert out.shape == (2, 150, 4, head_dim) and bool(out[1, 90:, :2, 3].isnan().all())
    expected = ops.flash_attention(query, key, value, True)
    torch.testing.assert_close(out.transpose(1, 2), expected, rtol=0, atol=0, equal_nan=True)
