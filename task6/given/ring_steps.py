"""Ring attention except for the two functions of ring.py: the steps, and what each rank computes in each.

    step        rank 0 has the keys of      rank 1      rank 2
    0           rank 0                      rank 1      rank 2
    1           rank 2                      rank 0      rank 1      every rank has passed its keys to the next
    2           rank 1                      rank 2      rank 0

A rank keeps its queries. In each step it computes their attention over the keys that it currently has, piece by piece,
while sending those keys to the next rank. Under a causal mask, a pair of pieces is

    the keys' piece is the earlier one      full: every query sees every key
    both are the same piece                 causal
    the keys' piece is the later one        skipped

so the result is correct for any order of the pieces; the order only affects the load balance.

Source: Liu, Zaharia, Abbeel 2023, arXiv:2310.01889 (the ring); Brandon et al. 2023, arXiv:2311.09431 (the balance).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from common.kernels.distributed.transfers import Travel

Pieces = tuple[int, int]
Merge = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Pair(NamedTuple):
    """A piece of queries and one of keys, 0 or 1 for a rank's first or second, and whether a causal mask applies."""

    queries: int
    keys: int
    causal: bool


def contiguous(rank: int, ranks: int) -> Pieces:
    """The obvious order: adjacent pieces."""
    return 2 * rank, 2 * rank + 1


def two_numbers(pieces: object, rank: int, ranks: int) -> Pieces:
    """What pieces_of(rank, ranks) returned, as two numbers.

    Raises:
        ValueError: it is not two numbers.
    """
    try:
        first, second = pieces
        return operator.index(first), operator.index(second)
    except (TypeError, ValueError):
        said = f"pieces_of({rank}, {ranks}) gave {pieces!r}; it must be two whole numbers, the pieces of rank {rank}"
        raise ValueError(said) from None


def order_of(pieces_of: Callable[[int, int], object], ranks: int) -> list[Pieces]:
    """The pieces of every rank.

    Raises:
        ValueError: a piece does not exist, is held by no rank, or is held twice.
    """
    order = [two_numbers(pieces_of(rank, ranks), rank, ranks) for rank in range(ranks)]
    holders: dict[int, list[int]] = {piece: [] for piece in range(2 * ranks)}
    wrong = []
    for rank, pieces in enumerate(order):
        for piece in pieces:
            if piece in holders:
                holders[piece].append(rank)
            else:
                wrong.append(f"rank {rank} holds piece {piece}, and there are 0 .. {2 * ranks - 1}")
    for piece, held_by in holders.items():
        if len(held_by) > 1:
            wrong.append(f"piece {piece} is held {len(held_by)} times, by rank {' and '.join(map(str, held_by))}")
        elif not held_by:
            wrong.append(f"no rank holds piece {piece}")
    if wrong:
        raise ValueError(f"pieces_of with {ranks} ranks: {'; '.join(wrong)}")
    return order


def pairs(mine: Pieces, theirs: Pieces, causal: bool) -> list[Pair]:
    """The pairs that a rank holding `mine` computes with the keys of a rank holding `theirs`."""
    every = [(i, j) for i in range(2) for j in range(2)]
    return [Pair(i, j, causal and mine[i] == theirs[j]) for i, j in every if not causal or theirs[j] <= mine[i]]


def work(mine: Pieces, theirs: Pieces, size: int, causal: bool) -> int:
    """The number of scores computed for these pairs. A piece has `size` tokens."""
    whole, half = size * size, size * (size + 1) // 2
    return sum(half if pair.causal else whole for pair in pairs(mine, theirs, causal))


def ring_attention(
    ops,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Sequence[Pieces],
    merge: Merge,
    causal: bool,
) -> Tensor:
    """Attention of this rank's queries over the keys of all ranks.

    Args:
        ops: the operators of common/kernels/flash.
        query, key, value: [batch, heads, 2 pieces of tokens, head_dim], float32: this rank's, its pieces in the order
            of `order`.
        order: the pieces of every rank.
        merge: ring.py's function.
        causal: a query sees no later key.

    Returns:
        [batch, heads, 2 pieces of tokens, head_dim], float32.

    Raises:
        ValueError: merge returned something other than (out, lse).
        RankLost: another rank exited.
    """
    rank, ranks, size = dist.get_rank(), dist.get_world_size(), query.size(2) // 2
    places = [slice(0, size), slice(size, 2 * size)]
    out = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
    lse = torch.full(query.shape[:3], -torch.inf, device=query.device)  # no key seen yet
    here = key.contiguous(), value.contiguous()
    for step in range(ranks):
        on_its_way = Travel(here, None, "keys and values") if step + 1 < ranks else None
        for pair in pairs(order[rank], order[(rank - step) % ranks], causal):
            rows, cols = places[pair.queries], places[pair.keys]
            part, part_lse = ops.flash_attention_forward(
                query[:, :, rows], *(x[:, :, cols] for x in here), pair.causal, query.size(3) ** -0.5
            )
            out[:, :, rows], lse[:, :, rows] = merged(merge, out[:, :, rows], lse[:, :, rows], part, part_lse)
        here = on_its_way.arrived() if on_its_way else here
    return out


def merged(merge: Merge, out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
    """merge(out, lse, part, part_lse).

    Raises:
        ValueError: it returned something other than (out, lse), float32, of these shapes.
    """
    found = merge(out, lse, part, part_lse)
    wanted = [("out", out), ("lse", lse)]
    if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(one, Tensor) for one in found):
        raise ValueError(f"merge gave {_words(found)}; it must be (out, lse), two tensors")
    for (name, like), one in zip(wanted, found, strict=True):
        if one.shape != like.shape or one.dtype != torch.float32:
            raise ValueError(f"merge gave as {name} {_words(one)}; it must be float32 {list(like.shape)}")
    return found


def _words(found: object) -> str:
    if isinstance(found, Tensor):
        return f"{str(found.dtype).removeprefix('torch.')} {list(found.shape)}"
    if isinstance(found, tuple | list):
        return f"({', '.join(map(_words, found))})"
    return repr(found) if found is None else type(found).__name__
