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


def operators_of(ops):
    """The operators themselves, as torch.ops has them."""
    return getattr(torch.ops, ops.library.stem)
