"""The functions of common/kernels/sparse/sparse.py beside dense attention in float64, on a few tokens."""

import pytest
import torch

from common.kernels.sparse.sparse import (
    block_sparse_attention,
    compress_block_mask,
    sliding_window_attention,
    strided_attention,
)
from common.reference import oracle as reference

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


def tensors(device: str, seq: int) -> list[torch.Tensor]:
    """query, key and value of one sequence, float16."""
    generator = torch.Generator().manual_seed(seq)
    shapes = [(1, heads, seq, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return [torch.randn(shape, generator=generator).half().to(device) for shape in shapes]


def assert_right(out: torch.Tensor, query, key, value, seen: torch.Tensor) -> None:
    """seen: bool, broadcasts to [1, heads, S_q, S_k]."""
    group = HEADS // KV_HEADS
    exact = [x.double().cpu().repeat_interleave(n, 1) for x, n in ((query, 1), (key, group), (value, group))]
    assert out.device == query.device and out.dtype == query.dtype
    torch.testing.assert_close(out.double().cpu(), reference.attention(*exact, mask=seen), rtol=0, atol=4e-3)


def test_every_third_key(device):
    inputs = tensors(device, 19)
    out = strided_attention(*inputs, stride=3, offset=1, causal=True)
    positions = torch.arange(19)
    assert_right(out, *inputs, (positions % 3 == 1) & (positions <= positions[:, None]))


def test_a_window(device):
    inputs = tensors(device, 21)
    ahead = torch.arange(21) - torch.arange(21)[:, None]
    assert_right(sliding_window_attention(*inputs, window=4), *inputs, (ahead <= 0) & (ahead > -4))
    assert_right(sliding_window_attention(*inputs, window=4, causal=False), *inputs, ahead.abs() < 4)


def test_blocks_of_a_mask(device):
    inputs = tensors(device, 64)
    mask = torch.tensor([[[1, 0], [1, 1]], [[0, 0], [0, 1]], [[1, 1], [1, 1]], [[0, 1], [1, 0]]]).bool()
    counts, columns = compress_block_mask(mask.to(device))
    assert counts.tolist() == mask.sum(-1).tolist() and columns[3].tolist() == [[1, -1], [0, -1]]
    out = block_sparse_attention(*inputs, counts, columns, block=32)
    assert_right(out, *inputs, mask.repeat_interleave(32, 1).repeat_interleave(32, 2))


def test_a_bad_argument_is_named(device):
    inputs = tensors(device, 19)
    with pytest.raises(ValueError, match=r"stride is 20; it must be 1 \.\. S_k = 19"):
        strided_attention(*inputs, stride=20)
    with pytest.raises(ValueError, match="window is 0; it must be at least 1"):
        sliding_window_attention(*inputs, window=0)
    with pytest.raises(ValueError, match="query has dtype Float; it must be Half or BFloat16"):
        strided_attention(*(x.float() for x in inputs), stride=2)
    with pytest.raises(ValueError, match="block_mask has dtype Float; it must be Bool"):
        compress_block_mask(torch.ones(1, 2, 2, device=device))
    lists = compress_block_mask(torch.ones(HEADS, 1, 1, dtype=torch.bool, device=device))
    with pytest.raises(ValueError, match="block is 16; it must be 32, 64, 96 or 128"):
        block_sparse_attention(*inputs, *lists, block=16)
