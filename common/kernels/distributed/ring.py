"""Ring attention: every rank keeps its queries, and the keys and values travel once around.

    step        rank 0's keys       rank 1's keys       rank 2's keys       where they are
    0           at rank 0           at rank 1           at rank 2
    1           at rank 1           at rank 2           at rank 0           and so on: `ranks` steps, ranks - 1 journeys

In a step a rank asks for the next keys, computes attention over those it has, with the logsumexp, and merges that into
what it has so far, some rows at a time. So it never holds more than two shards of keys beside its own and the sums in
float32, and memory grows with S / ranks.

Under a causal mask the zigzag of shards.py makes every step either whole or half, and never needs a mask but in step 0:

    keys of this rank           all queries x all keys, causal      (both are ascending: a causal mask of their own)
    of an earlier one           all queries x the first half of the keys: its second half is later than all of them
    of a later one              the second half of the queries x all keys: the first half is earlier than all of them

Backward, the keys travel once more, and their gradients with them: whoever has used them adds its share and passes it
on, and the last step brings them home.

Source: Liu, Zaharia, Abbeel 2023, arXiv:2310.01889 (ring attention); Brandon et al. 2023, arXiv:2311.09431 (causal work
balanced).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from common.kernels.distributed.merge import merge_into
from common.kernels.distributed.transfers import Travel

ALL = slice(None)
MOST_ROWS = 2**17  # of which a partial result is held at a time: enough to keep a GPU busy


@dataclass(frozen=True)
class Step:
    """What a rank computes with one rank's keys: which of its queries, which of the keys, and with which mask."""

    queries: slice
    keys: slice
    causal: bool


def step_of(rank: int, owner: int, half: int, causal: bool) -> Step:
    """The step of `rank` with the keys of `owner`; half a shard is `half` tokens."""
    if not causal or rank == owner:
        return Step(ALL, ALL, causal)
    if owner < rank:
        return Step(ALL, slice(0, half), False)
    return Step(slice(half, None), ALL, False)


def ring_attention(
    ops, query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup | None, causal: bool, scale: float
) -> Tensor:
    """Attention of this rank's queries over the keys of all ranks. Differentiable.

    Args:
        ops: the operators of the room flash.
        query: [batch, heads, S_q / ranks, head_dim]. key, value: [batch, kv_heads, S_k / ranks, head_dim].
        scale: what the scores are multiplied by.

    Returns:
        [batch, heads, S_q / ranks, head_dim] of query's dtype.

    Raises:
        RankLost: a rank went away.
    """
    return _Ring.apply(query, key, value, ops, group, causal, scale)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, ops, group, causal, scale) -> Tensor:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        key, value = key.contiguous(), value.contiguous()
        here = key, value
        out, lse = (
            query.new_empty(query.shape, dtype=torch.float32),
            query.new_empty(query.shape[:3], dtype=torch.float32),
        )
        for number in range(ranks):
            on_its_way = Travel(here, group, "keys and values") if number + 1 < ranks else None
            step = step_of(rank, (rank - number) % ranks, query.size(2) // 2, causal)
            _attend(ops, query, here, step, scale, out, lse, number == 0)
            here = on_its_way.arrived() if on_its_way else ()
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.options = ops, group, causal, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out: Tensor) -> tuple:
        query, *here, out, lse = ctx.saved_tensors
        ops, group, causal, scale = ctx.options
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        half, grad_out = query.size(2) // 2, grad_out.contiguous()
        grad_query = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
        grads = None  # of the keys and values that are here, float32, what other ranks have added so far
        for number in range(ranks):
            on_its_way = Travel(here, group, "keys and values") if number + 1 < ranks else None
            step = step_of(rank, (rank - number) % ranks, half, causal)
            rows = (x[:, :, step.queries] for x in (grad_out, query))
            ended = (x[:, :, step.queries].contiguous() for x in (out, lse))
            of_queries, *of_keys = ops.flash_attention_backward(
                *rows, *(x[:, :, step.keys] for x in here), *ended, step.causal, scale
            )
            grad_query[:, :, step.queries] += of_queries
            if number == 0:
                total = [x.float() for x in of_keys]
            else:
                total = grads.arrived()
                for one, more in zip(total, of_keys, strict=True):
                    one[:, :, step.keys] += more
            grads = Travel(total, group, "gradients of keys") if ranks > 1 else None
            here = on_its_way.arrived() if on_its_way else here
        total = grads.arrived() if grads else total
        return grad_query.to(query.dtype), *(x.to(query.dtype) for x in total), None, None, None, None


def _attend(
    ops, query: Tensor, here: Sequence[Tensor], step: Step, scale: float, out: Tensor, lse: Tensor, first: bool
):
    """The step's results over the keys and values that are here, written to out and lse, or merged into them."""
    key, value = (x[:, :, step.keys] for x in here)
    for rows in _in_parts(step.queries, query.size(2)):
        # under the mask of step 0 the part's last row sees the keys up to its own
        seen = slice(rows.stop if step.causal else None)
        part, part_lse = ops.flash_attention_forward(
            query[:, :, rows], key[:, :, seen], value[:, :, seen], step.causal, scale, lower_right=step.causal
        )
        if first:
            out[:, :, rows], lse[:, :, rows] = part, part_lse
        else:
            merge_into(out[:, :, rows], lse[:, :, rows], part, part_lse)


def _in_parts(rows: slice, count: int) -> list[slice]:
    """The rows of `count` that the slice names, at most MOST_ROWS at a time."""
    first, behind, _ = rows.indices(count)
    return [slice(at, min(at + MOST_ROWS, behind)) for at in range(first, behind, MOST_ROWS)]
