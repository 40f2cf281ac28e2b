"""Who holds which tokens: a sequence is cut into 2 * ranks pieces; rank r holds piece r, and piece r from the end.

    pieces      0  1  2  3  4  5  6  7          four ranks
    rank        0  1  2  3  3  2  1  0          the zigzag

Under a causal mask a late token sees many keys and an early one few; so every rank gets some of both, and the same
work. Without a mask the order does not matter, and is the same.

    local = shard(whole, group)                 [batch, heads, S / ranks, head_dim]
    whole = unshard(local, group)               on every rank
    positions(seq_len, rank, ranks)             of the local tokens in the whole sequence: for rotary embeddings, labels

Source: the balanced order of context parallelism in Llama 3 (Dubey et al. 2024, arXiv:2407.21783, section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


def piece_size(seq_len: int, ranks: int) -> int:
    """The number of tokens in a piece.

    Raises:
        ValueError: the sequence length is not divisible.
    """
    if seq_len < 1 or seq_len % (2 * ranks):
        raise ValueError(
            f"the sequence has {seq_len} tokens; with {ranks} rank{'s' if ranks > 1 else ''} it must be a multiple of "
            f"2 * ranks = {2 * ranks}: pad it"
        )
    return seq_len // (2 * ranks)


def zigzag(rank: int, ranks: int) -> tuple[int, int]:
    """The indices of a rank's two pieces, ascending."""
    return rank, 2 * ranks - 1 - rank


def tokens_of(pieces: Iterable[int], size: int) -> Tensor:
    """The positions in the whole sequence of the tokens of these pieces of `size` tokens -> int64 [pieces * size]."""
    return torch.cat([torch.arange(piece * size, (piece + 1) * size, device="cpu") for piece in pieces])


def positions(seq_len: int, rank: int, ranks: int) -> Tensor:
    """The positions in the whole sequence of a rank's tokens -> int64 [seq_len / ranks], ascending.

    Raises:
        ValueError: the sequence does not divide into 2 * ranks pieces; no such rank.
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank is {rank}; it must be 0 .. ranks - 1 = {ranks - 1}")
    return tokens_of(zigzag(rank, ranks), piece_size(seq_len, ranks))


def shard(x: Tensor, group: dist.ProcessGroup | None = None, dim: int = 2) -> Tensor:
    """This rank's tokens of a tensor that every rank has in full: dimension dim becomes size / ranks. Contiguous.

    Raises:
        ValueError: the dimension does not divide into 2 * ranks pieces.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    size = piece_size(x.size(dim), ranks)
    return torch.cat([x.narrow(dim, piece * size, size) for piece in zigzag(rank, ranks)], dim)


def unshard(x: Tensor, group: dist.ProcessGroup | None = None, dim: int = 2) -> Tensor:
    """Gathers the whole tensor from every rank's shard; the same on every rank. It carries no gradient.

    Raises:
        ValueError: the shard has an odd number of tokens.
    """
    ranks = dist.get_world_size(group)
    piece_size(x.size(dim) * ranks, ranks)
    shards = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(ranks)]
    dist.all_gather(shards, x.detach().contiguous(), group=group)
    return in_order(shards, dim)


def in_order(shards: list[Tensor], dim: int) -> Tensor:
    """Assembles the shards of all ranks, by rank, into one tensor in sequence order."""
    halves = [one.chunk(2, dim) for one in shards]
    return torch.cat([first for first, _ in halves] + [last for _, last in reversed(halves)], dim)


def by_rank(x: Tensor, ranks: int, dim: int) -> list[Tensor]:
    """The inverse of in_order: splits the whole sequence into the shards of all ranks, by rank."""
    pieces = x.chunk(2 * ranks, dim)
    return [torch.cat([pieces[piece] for piece in zigzag(rank, ranks)], dim) for rank in range(ranks)]
