"""The unmodified Hopper kernel of sparse attention in the simulator, against attention in float64: small problems.

test_hopper.py does the same, and much more, on a Hopper GPU.
"""

from __future__ import annotations

import flash_inputs
import pytest
import torch
from attention_oracle import seen_of
from flash_inputs import assert_near
from hopper_sources import SPARSE
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.reference.bounds import max_error_of

DTYPES = [torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def ops():
    return load(BuildRequest("sparse", backend="simulator", arch="sm_90a", sources=SPARSE, label="hopper"))


def inputs(ops, dtype: torch.dtype, seq_q: int, seq_k: int, head_dim: int) -> list[Tensor]:
    return flash_inputs.tensors(ops, dtype, seq_q, seq_k, head_dim, batch=1, heads=2, kv_heads=1)[:3]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("sizes", "stride", "causal"), [((1, 1), 1, False), ((150, 333), 2, False), ((130, 300), 3, True)]
)
def test_strided(ops, dtype, head_dim, sizes, stride, causal):
    query, key, value = inputs(ops, dtype, *sizes, head_dim)
    out, lse = ops.strided_attention_forward(query, key, value, stride, 0, causal)
    assert_near(out, lse, query, key, value, mask=seen_of(*sizes, causal, stride=stride))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_window(ops, dtype, causal):
    query, key, value = inputs(ops, dtype, 300, 300, 64)
    out, lse = ops.sliding_window_attention_forward(query, key, value, 50, causal)
    assert_near(out, lse, query, key, value, mask=seen_of(300, 300, causal, (49, 49)))


def test_what_hidden_keys_hold_reaches_nobody(ops):
    """NaN in one value: rows that do not see it are unchanged."""
    query, key, value = inputs(ops, torch.bfloat16, 256, 256, 128)
    spoiled = value.clone()
    spoiled[0, 0, 120, 3] = torch.nan
    i = torch.arange(256)
    counts, columns = ops.compress_block_mask(torch.ones(2, 2, 2, dtype=torch.bool))
    calls = [
        (lambda v: ops.sliding_window_attention(query, key, v, 50, True), (i >= 120) & (i < 170)),
        (lambda v: ops.sliding_window_attention(query, key, v, 50, False), (i - 120).abs() < 50),
        (lambda v: ops.strided_attention(query, key, v, 3, 0, True), i >= 120),
        (lambda v: ops.block_sparse_attention(query, key, v, counts, columns, 128, True), i >= 120),
    ]
    for call, seeing in calls:
        clean, out = call(value), call(spoiled)
        assert not bool(out[:, :, seeing, 3].isfinite().any())
        error = max_error_of(out[:, :, ~seeing], clean[:, :, ~seeing].double())
        assert error <= 4 * torch.finfo(torch.bfloat16).eps * float(clean.abs().max())


def test_blocks(ops):
    query, key, value = inputs(ops, torch.bfloat16, 256, 256, 128)
    blocks = torch.tensor([[[True, False], [True, True]], [[False, True], [False, False]]])
    counts, columns = ops.compress_block_mask(blocks)
    out, lse = ops.block_sparse_attention_forward(query, key, value, counts, columns, 128)
    assert_near(out, lse, query, key, value, mask=blocks.repeat_interleave(128, 1).repeat_interleave(128, 2))
