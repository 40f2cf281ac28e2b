"""The FlashAttention-2 forward pass in PyTorch: attention tile by tile, never materializing all the scores.

    RowState           what a tile of rows carries from one tile of keys to the next: m, l and O
    nothing_seen       m, l and O before the first tile
    tile_scores        S of one tile, masked                                                     (gap 1)
    add_tile           the online softmax: updates m, l and O with one more tile of scores       (gap 2)
    attend             the loop over the keys for one tile of queries                            (gap 3)
    output_of          O / l                                                                     (gap 4)
    logsumexp_of       m + log(l)
    flash_attention    all tiles of queries                                                      (gap 5)

Source: T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023,
arXiv:2307.08691, section 3.1.1, Algorithm 1. Line numbers in the comments refer to that algorithm; the names m, l
(the paper's script l), O, S, P, B_r and B_c are the paper's. Line 10 of the paper has a misprint; see the handout.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from task3.given.arguments import check_arguments


class RowState(NamedTuple):
    """The state of one tile's query rows after some tiles of keys.

    Attributes:
        m: [batch, heads, rows, 1], the largest score so far; -inf before the first.
        l: [batch, heads, rows, 1], the sum of exp(score - m) so far.
        O: [batch, heads, rows, head_dim], the sum of exp(score - m) * value so far: the output times l.
    """

    m: Tensor
    l: Tensor
    O: Tensor


def nothing_seen(query_tile: Tensor) -> RowState:
    """The state of the rows of query_tile [batch, heads, rows, head_dim] before the first tile of keys (line 5)."""
    column = query_tile.new_zeros(*query_tile.shape[:-1], 1)
    return RowState(m=column - torch.inf, l=column, O=torch.zeros_like(query_tile))


def tile_scores(query_tile: Tensor, key_tile: Tensor, q_start: int, k_start: int, scale: float, causal: bool) -> Tensor:
    """The masked scores of one tile (line 8).

    Args:
        query_tile: [batch, heads, rows, head_dim]; its first row is query q_start of the sequence.
        key_tile: [batch, heads, keys, head_dim]; its first row is key k_start.
        scale: factor applied to the scores.
        causal: query i sees key j only if j <= i; i and j count from the beginning of the sequence.

    Returns:
        S [batch, heads, rows, keys], -inf where a query does not see a key.
    """
    # BEGIN SOLUTION 1 (6 lines): the dot product of every row with every key of the tile, times `scale`. If causal,
    #     compare positions: torch.arange gives those of the tile's queries and those of its keys (on S.device), and
    #     masked_fill puts -inf where the key comes after the query.
    S = query_tile @ key_tile.transpose(-2, -1) * scale
    if causal:
        queries = torch.arange(q_start, q_start + S.size(-2), device=S.device)
        keys = torch.arange(k_start, k_start + S.size(-1), device=S.device)
        S = S.masked_fill(keys > queries[:, None], -torch.inf)
    return S
    # END SOLUTION


def add_tile(state: RowState, S: Tensor, value_tile: Tensor) -> RowState:
    """One step of the online softmax (lines 9 and 10).

    A row that has not seen any key yet has m = -inf, and -inf - (-inf) is NaN. Such a row subtracts 0 instead of
    its maximum: then every exp() in it is exp(-inf) = 0, and m, l and O do not change.

    Args:
        state: the rows after the tiles before this one.
        S: [batch, heads, rows, keys], the masked scores of this tile.
        value_tile: [batch, heads, keys, head_dim].

    Returns:
        The rows after this tile.
    """
    # BEGIN SOLUTION 2 (7 lines): the new maximum of each row (amax with keepdim, torch.maximum); what to subtract,
    #     which is the new maximum or 0 (torch.where); the factor that rescales sums from the old maximum to the new
    #     one; P, the exponentials of this tile; then l and O: the old value times the factor, plus what this tile
    #     adds.
    m = torch.maximum(state.m, S.amax(-1, keepdim=True))
    shift = torch.where(m == -torch.inf, 0.0, m)
    rescale = torch.exp(state.m - shift)
    P = torch.exp(S - shift)
    l = rescale * state.l + P.sum(-1, keepdim=True)
    O = rescale * state.O + P @ value_tile
    return RowState(m, l, O)
    # END SOLUTION


def attend(
    query_tile: Tensor, key: Tensor, value: Tensor, q_start: int, scale: float, causal: bool, B_c: int
) -> RowState:
    """One tile of queries over all the keys that it may see (lines 5 to 11).

    Args:
        query_tile: [batch, heads, rows, head_dim]; its first row is query q_start of the sequence.
        key, value: [batch, heads, S_k, head_dim].
        B_c: the number of keys per tile; the last tile may have fewer.

    Returns:
        The rows after the last tile of keys.
    """
    # BEGIN SOLUTION 3 (7 lines): start from nothing_seen, then loop over k_start. Per tile: slice key and value (a
    #     slice that reaches past the end stops there, so the last tile needs no special case), tile_scores, add_tile.
    #     If causal, end the loop where the last query of this tile sees no further key: tiles above the diagonal are
    #     not computed at all.
    state = nothing_seen(query_tile)
    seen = min(q_start + query_tile.size(-2), key.size(-2)) if causal else key.size(-2)
    for k_start in range(0, seen, B_c):
        tile = slice(k_start, k_start + B_c)
        S = tile_scores(query_tile, key[:, :, tile], q_start, k_start, scale, causal)
        state = add_tile(state, S, value[:, :, tile])
    return state
    # END SOLUTION


def output_of(state: RowState) -> Tensor:
    """The output of a tile of queries, [batch, heads, rows, head_dim] (line 12); zeros for a row that saw no key."""
    # BEGIN SOLUTION 4 (1 line): the only division of the algorithm. Where l is 0 the result is 0, not 0 / 0.
    return torch.where(state.l == 0, 0.0, state.O / state.l)
    # END SOLUTION


def logsumexp_of(state: RowState) -> Tensor:
    """log(sum of exp(score)) of each row, [batch, heads, rows] (line 13); -inf for a row that saw no key.

    It combines m and l in one number, enough to merge this output with that of other keys later; see online_softmax.cu.
    """
    return (state.m + torch.log(state.l)).squeeze(-1)


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
    B_r: int = 64,
    B_c: int = 64,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale * query @ key^T) @ value, with no intermediate tensor of size S_q * S_k.

    Args:
        query: [batch, heads, S_q, head_dim], float32 or float64.
        key, value: [batch, heads, S_k, head_dim], dtype and device of query.
        causal: query i sees the keys j <= i, both counted from the beginning, whether or not S_q equals S_k.
        scale: factor applied to the scores; default 1 / sqrt(head_dim).
        B_r, B_c: queries and keys per tile, at least 1 each. The last tiles may have fewer.
        return_lse: also return the logsumexp of the scores of each row.

    Returns:
        out [batch, heads, S_q, head_dim], or (out, lse) with lse [batch, heads, S_q]. A row whose scores are all
        -inf has zeros in out and -inf in lse.

    Raises:
        ValueError: an unsupported shape, dtype, device or tile size; the message names the argument.
    """
    scale = check_arguments(query, key, value, scale, B_r, B_c)
    out = query.new_empty(query.shape)
    lse = query.new_empty(query.shape[:-1])
    # BEGIN SOLUTION 5 (5 lines): a loop over q_start, the tiles of queries (lines 3, 4, 14 and 15). Per tile: attend,
    #     then output_of and logsumexp_of into the rows of out and lse that belong to it.
    for q_start in range(0, query.size(-2), B_r):
        rows = slice(q_start, q_start + B_r)
        state = attend(query[:, :, rows], key, value, q_start, scale, causal, B_c)
        out[:, :, rows] = output_of(state)
        lse[:, :, rows] = logsumexp_of(state)
    # END SOLUTION
    return (out, lse) if return_lse else out
