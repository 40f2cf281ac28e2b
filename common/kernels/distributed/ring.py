"""Ring attention: every rank keeps its queries, and the keys and values go around once.

    step        rank 0's keys       rank 1's keys       rank 2's keys       where they are
    0           at rank 0           at rank 1           at rank 2
    1           at rank 1           at rank 2           at rank 0           and so on: ranks - 1 transfers

In a step a rank starts receiving the next keys, computes attention over those it has, with the logsumexp, and merges
that into its result so far, some rows at a time. So beyond its own keys and the sums it holds at most two shards of
keys, and memory is linear in S / ranks. Between the GPUs of one host every rank sends its keys to all others at once
(copies.py), if memory allows; the steps are the same.

Under a causal mask the zigzag of shards.py makes every step either whole or half, and only step 0 needs a mask:

    keys of this rank           all queries x all keys, causal      (both are ascending: a causal mask of their own)
    of an earlier rank          all queries x the first half of the keys: its second half is later than all of them
    of a later rank             the second half of the queries x all keys: the first half is earlier than all of them

Backward, the keys go around again together with their gradients: each rank adds its share and passes them on, and the
last step returns them home.

Source: Liu, Zaharia, Abbeel 2023, arXiv:2310.01889 (ring attention); Brandon et al. 2023, arXiv:2311.09431 (causal work
balanced).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from common.kernels.distributed.copies import copies_of
from common.kernels.distributed.transfers import Travel

ALL = slice(None)
MOST_ROWS = 2**17  # rows per partial result: enough to keep a GPU busy


@dataclass(frozen=True)
class Step:
    """What a rank computes with one rank's keys: which of its queries, which keys, and which mask."""

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
        ops: the operators of the folder flash.
        query: [batch, heads, S_q / ranks, head_dim]. key, value: [batch, kv_heads, S_k / ranks, head_dim].
        scale: the factor on the scores.

    Returns:
        [batch, heads, S_q / ranks, head_dim] of query's dtype.

    Raises:
        RankLost: a rank exited.
    """
    return _Ring.apply(query, key, value, ops, group, causal, scale)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, ops, group, causal, scale) -> Tensor:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        key, value = key.contiguous(), value.contiguous()
        keys = _Keys(key, value, group)
        # with a single merge the result is the output itself; with more, the sum is float32 in between
        total = _Sum(ops, query, query.dtype if ranks == 2 else torch.float32)
        for number in range(ranks):
            keys.ask()
            step = step_of(rank, (rank - number) % ranks, query.size(2) // 2, causal)
            for rows, *part in _attended(ops, query, keys.here, step, scale):
                total.put(rows, *part) if number == 0 else total.merge(rows, *part)
            keys.go_on()
        out, lse = total.out.to(query.dtype), total.lse
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.options = ops, group, causal, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out: Tensor) -> tuple:
        query, key, value, out, lse = ctx.saved_tensors
        ops, group, causal, scale = ctx.options
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        half, grad_out = query.size(2) // 2, grad_out.contiguous()
        keys = _Keys(key, value, group)
        grad_query = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
        grads = None  # of the current keys and values, float32, accumulated by other ranks so far
        for number in range(ranks):
            keys.ask()
            step = step_of(rank, (rank - number) % ranks, half, causal)
            rows = (x[:, :, step.queries] for x in (grad_out, query))
            ended = (x[:, :, step.queries].contiguous() for x in (out, lse))
            of_queries, *of_keys, _ = ops.flash_attention_backward(
                *rows, *(x[:, :, step.keys] for x in keys.here), *ended, step.causal, scale
            )
            grad_query[:, :, step.queries] += of_queries
            if number == 0:
                total = [x.float() for x in of_keys]
            else:
                total = grads.arrived()
                for one, more in zip(total, of_keys, strict=True):
                    one[:, :, step.keys] += more
            grads = Travel(total, group, "gradients of keys") if ranks > 1 else None
            keys.go_on()
        total = grads.arrived() if grads else total
        return grad_query.to(query.dtype), *(x.to(query.dtype) for x in total), None, None, None, None


class _Keys:
    """The keys and values of all ranks, in the order of the steps.

    Attributes:
        here: key and value of the next step.
    """

    def __init__(self, key: Tensor, value: Tensor, group: dist.ProcessGroup | None) -> None:
        self.here: tuple[Tensor, ...] = key, value
        self._group, self._number = group, 0
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._copies = copies_of(group, self.here)
        if self._copies:
            self._copies.offer(self.here)

    def ask(self) -> None:
        """Called before a step: starts transferring the next keys."""
        if not self._copies and self._number + 1 < self._ranks:
            self._travel = Travel(self.here, self._group, "keys and values")

    def go_on(self) -> None:
        """Called after launching the step: makes the stream wait for the next keys."""
        self._number += 1
        if self._number < self._ranks:
            owner = (self._rank - self._number) % self._ranks
            self.here = self._copies.received(owner) if self._copies else self._travel.arrived()
        elif self._copies:
            self._copies.done()


class _Sum:
    """Output and logsumexp over the keys so far.

    Attributes:
        out: [batch, heads, S_q / ranks, head_dim] of `dtype`. lse: [batch, heads, S_q / ranks], float32.
    """

    def __init__(self, ops, query: Tensor, dtype: torch.dtype) -> None:
        self._ops, self._query, self._dtype, self.out, self.lse = ops, query, dtype, None, None

    def put(self, rows: slice, part: Tensor, lse: Tensor) -> None:
        """Stores the first results of these rows."""
        if part.shape == self._query.shape:
            self.out, self.lse = part.to(self._dtype), lse
            return
        if self.out is None:
            self.out = part.new_empty(self._query.shape, dtype=self._dtype)
            self.lse = lse.new_empty(self._query.shape[:3])
        self.out[:, :, rows], self.lse[:, :, rows] = part, lse

    def merge(self, rows: slice, part: Tensor, lse: Tensor) -> None:
        """Merges results of these rows over other keys."""
        self._ops.flash_merge(self.out[:, :, rows], self.lse[:, :, rows], part, lse)


def _attended(
    ops, query: Tensor, here: Sequence[Tensor], step: Step, scale: float
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yields rows, their output and their logsumexp over the current keys and values, some rows at a time."""
    key, value = (x[:, :, step.keys] for x in here)
    for rows in _in_parts(step.queries, query.size(2)):
        # under the mask of step 0 the part's last row sees keys up to its own position
        seen = slice(rows.stop if step.causal else None)
        yield (
            rows,
            *ops.flash_attention_forward(
                query[:, :, rows], key[:, :, seen], value[:, :, seen], step.causal, scale, lower_right=step.causal
            ),
        )


def _in_parts(rows: slice, count: int) -> list[slice]:
    """Splits the slice of `count` rows into parts of at most MOST_ROWS."""
    first, behind, _ = rows.indices(count)
    return [slice(at, min(at + MOST_ROWS, behind)) for at in range(first, behind, MOST_ROWS)]
