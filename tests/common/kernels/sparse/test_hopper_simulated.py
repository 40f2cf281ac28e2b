"""The Hopper kernel of sparse attention in the simulator, as it is, beside attention in float64: small problems.

test_hopper.py does the same, and much more, on the GPU that it is for.
"""

from __future__ import annotations

import pytest
import torch
from flash_inputs import attention
from hopper_sources import SPARSE
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.reference.bounds import max_error_of

DTYPES = [torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def ops():
    library = load(BuildRequest("sparse", backend="simulator", arch="sm_90a", sources=SPARSE, label="hopper"))
    return getattr(torch.ops, library.libraries[0].name)


def inputs(dtype: torch.dtype, seq_q: int, seq_k: int, head_dim: int, heads: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seq_q + seq_k + head_dim)
    sizes = [(heads, seq_q), (1, seq_k), (1, seq_k)]
    return [torch.randn(1, h, s, head_dim, generator=generator).to(dtype) for h, s in sizes]


def assert_right(out: Tensor, query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> None:
    """seen: bool [S_q, S_k]"""
    ref64 = attention(torch.float64, query, key, value, mask=seen)
    noise = max_error_of(attention(query.dtype, query, key, value, mask=seen), ref64)
    assert max_error_of(out, ref64) <= 2 * noise + torch.finfo(query.dtype).eps * float(ref64.abs().max()) + 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("sizes", "stride", "causal"), [((1, 1), 1, False), ((150, 333), 2, False), ((130, 300), 3, True)]
)
def test_strided(ops, dtype, head_dim, sizes, stride, causal):
    query, key, value = inputs(dtype, *sizes, head_dim)
    out = ops.strided_attention(query, key, value, stride, 0, causal)
    j = torch.arange(sizes[1])
    seen = (j % stride == 0)[None].expand(sizes[0], -1)
    if causal:
        seen = seen & (j[None] <= torch.arange(sizes[0])[:, None])
    assert_right(out, query, key, value, seen)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_window(ops, dtype, causal):
    query, key, value = inputs(dtype, 300, 300, 64)
    out = ops.sliding_window_attention(query, key, value, 50, causal)
    i, j = torch.arange(300)[:, None], torch.arange(300)[None]
    assert_right(out, query, key, value, ((i - j).abs() < 50) & ((j <= i) | (not causal)))


def test_what_hidden_keys_hold_reaches_nobody(ops):
    """NaN in one value: of the rows that do not see it none is another than before."""
    query, key, value = inputs(torch.bfloat16, 256, 256, 128)
    spoilt = value.clone()
    spoilt[0, 0, 120, 3] = torch.nan
    i = torch.arange(256)
    counts, columns = ops.compress_block_mask(torch.ones(2, 2, 2, dtype=torch.bool))
    calls = [
        (lambda v: ops.sliding_window_attention(query, key, v, 50, True), (i >= 120) & (i < 170)),
        (lambda v: ops.sliding_window_attention(query, key, v, 50, False), (i - 120).abs() < 50),
        (lambda v: ops.strided_attention(query, key, v, 3, 0, True), i >= 120),
        (lambda v: ops.block_sparse_attention(query, key, v, counts, columns, 128, True), i >= 120),
    ]
    for call, seeing in calls:
        clean, out = call(value), call(spoilt)
        assert not bool(out[:, :, seeing, 3].isfinite().any())
        error = max_error_of(out[:, :, ~seeing], clean[:, :, ~seeing].double())
        assert error <= 4 * torch.finfo(torch.bfloat16).eps * float(clean.abs().max())


def test_blocks(ops):
    query, key, value = inputs(torch.bfloat16, 256, 256, 128)
    blocks = torch.tensor([[[True, False], [True, True]], [[False, True], [False, False]]])
    counts, columns = ops.compress_block_mask(blocks)
    out = ops.block_sparse_attention(query, key, value, counts, columns, 128)
    for head in range(2):
        seen = blocks[head].repeat_interleave(128, 0).repeat_interleave(128, 1)
        assert_right(out[:, [head]], query[:, [head]], key, value, seen)
