"""Inputs for the tests of task 4's tuned kernels."""

from __future__ import annotations

import torch
from torch import Tensor

BATCH, HEADS, S_Q, S_K = 2, 3, 21, 37  # no two sizes are equal: a wrong stride shows


def tensors(
    ops,
    dtype: torch.dtype,
    seq_q: int = S_Q,
    seq_k: int = S_K,
    head_dim: int = 16,
    batch: int = BATCH,
    heads: int = HEADS,
    kv_heads: int | None = None,
    sharpness: float = 1.5,
    mean_value: float = 2,
) -> list[Tensor]:
    """query, key, value and a gradient of the output, normally distributed; the same ones for the same sizes.

    As they are, the weights are peaked and the mean of the values is far from 0, so that nothing passes by luck.

    Args:
        ops: whose device they are on.
        dtype: of all four.
        seq_q, seq_k, head_dim, batch, heads, kv_heads: their sizes; kv_heads is heads unless given.
        sharpness: standard deviation of query and key.
        mean_value: of the elements of value.
    """
    generator = torch.Generator().manual_seed(seq_q + 1000 * seq_k + head_dim)

    def normal(heads: int, seq: int) -> Tensor:
        return torch.randn(batch, heads, seq, head_dim, generator=generator)

    kv_heads = kv_heads or heads
    query, key = sharpness * normal(heads, seq_q), sharpness * normal(kv_heads, seq_k)
    value, grad_out = mean_value + normal(kv_heads, seq_k), normal(heads, seq_q)
    return [x.to(ops.device, dtype) for x in (query, key, value, grad_out)]


# (S_q, S_k, key_step, key_offset): keys that stand apart, for a causal mask. The first key at the first query, later or
# before; sizes on both sides of a tile's edge; queries that see no key, keys that no query sees
POSITIONS = [(70, 35, 2, 0), (200, 67, 3, 2), (133, 17, 8, 5), (40, 90, 2, -31), (150, 150, 3, 100), (65, 65, 8, 0)]


def position_mask(seq_q: int, seq_k: int, key_step: int, key_offset: int, device) -> Tensor:
    """bool [seq_q, seq_k]: True where key j, which stands at key_offset + j * key_step, is at or before query i."""
    return key_offset + key_step * torch.arange(seq_k, device=device) <= torch.arange(seq_q, device=device)[:, None]


def operators_of(ops):
    """The operators themselves, as torch.ops has them."""
    return getattr(torch.ops, ops.library.stem)
