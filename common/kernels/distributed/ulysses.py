"""Ulysses: heads are distributed; each rank computes some of them over the whole sequence, then the rows are sent back.

    [batch, heads, S / ranks, head_dim]     ->      [batch, heads / ranks, S, head_dim]     attention    and back again

One all-to-all for query, key and value, one for the result; the attention in between is the unmodified one-GPU kernel.
Memory is linear in S / ranks here, too. The number of ranks must divide heads; if it does not divide kv_heads, key and
value heads are repeated.

Source: DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv:2309.14509).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from common.kernels.attention import attention
from common.kernels.distributed.shards import by_rank, in_order
from common.kernels.distributed.transfers import exchange


def ulysses_attention(
    query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup | None, causal: bool, scale: float
) -> Tensor:
    """Like ring_attention. heads must be a multiple of ranks."""
    attend = functools.partial(attention, is_causal=causal, scale=scale, enable_gqa=True)
    return dealt_out(attend, query, key, value, group)


def dealt_out(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: dist.ProcessGroup | None,
) -> Tensor:
    """attend(query, key, value) of some heads and the whole sequence; sends the rows back to the ranks that hold them.

    Shapes as ring_attention's; heads must be a multiple of ranks.
    """
    ranks = dist.get_world_size(group)
    repeats = math.lcm(key.size(1), ranks) // key.size(1)
    if repeats > 1:
        key, value = (x.repeat_interleave(repeats, 1) for x in (key, value))
    query, key, value = (_Dealt.apply(x, group, _to_heads, _to_rows) for x in (query, key, value))
    return _Dealt.apply(attend(query, key, value), group, _to_rows, _to_heads)


def _to_heads(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """[batch, heads, S / ranks, head_dim] -> [batch, heads / ranks, S, head_dim]"""
    ranks = dist.get_world_size(group)
    return in_order(list(exchange(torch.stack(x.chunk(ranks, 1)), group)), 2)


def _to_rows(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """[batch, heads / ranks, S, head_dim] -> [batch, heads, S / ranks, head_dim]"""
    ranks = dist.get_world_size(group)
    return torch.cat(list(exchange(torch.stack(by_rank(x, ranks, 2)), group)), 1)


class _Dealt(torch.autograd.Function):
    """One of the two all-to-alls; its gradient is the other."""

    @staticmethod
    def forward(ctx, x, group, exchanged, back):
        ctx.group, ctx.back = group, back
        return exchanged(x, group)

    @staticmethod
    def backward(ctx, grad):
        return ctx.back(grad, ctx.group), None, None, None
