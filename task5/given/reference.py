"""Sparse attention: plain PyTorch references. Given.

    naive_strided_attention(query, key, value, stride=4, causal=True)
    naive_sliding_window_attention(query, key, value, window=256)
    naive_block_sparse_attention(query, key, value, block_mask, block=64), naive_compress_block_mask(block_mask)

Strided: query i attends to the keys at positions offset, offset + stride, offset + 2 * stride, ... < S_k; with causal,
only to those at positions j <= i. Query 0 and key 0 are the same position even if S_q != S_k (the mask is aligned to
the top left, as in PyTorch). Source of the pattern: Child et al., "Generating Long Sequences with Sparse Transformers",
2019, arXiv:1904.10509: the second head of their "fixed" pattern with c = 1 (there offset = stride - 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from common.reference import oracle as reference


def strided_positions(seq_k: int, stride: int, offset: int = 0, device=None) -> Tensor:
    """The attended positions: offset, offset + stride, ... < seq_k, int64 [strided keys].

    Raises:
        ValueError: stride outside 1 .. seq_k or offset outside 0 .. stride - 1.
    """
    if not 1 <= stride <= seq_k:
        raise ValueError(f"stride is {stride}; it must be 1 .. S_k = {seq_k}")
    if not 0 <= offset < stride:
        raise ValueError(f"offset is {offset}; it must be 0 .. stride - 1 = {stride - 1}")
    return torch.arange(offset, seq_k, stride, device=device)


def strided_mask(seq_q: int, seq_k: int, stride: int, offset: int = 0, causal: bool = False, device=None) -> Tensor:
    """bool [seq_q, strided keys], True where query i may see the strided key: all of them, or with causal those at
    positions j <= i.

    Raises:
        ValueError: see strided_positions.
    """
    positions = strided_positions(seq_k, stride, offset, device)
    queries = torch.arange(seq_q, device=device)[:, None]
    return positions <= (queries if causal else seq_k)


def strided_stages(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    stride: int,
    offset: int = 0,
    causal: bool = False,
    scale: float | None = None,
) -> dict[str, Tensor]:
    """{"S", "P", "O"}: S and P [..., S_q, strided keys] over the strided keys alone; see naive_strided_attention."""
    seq_q, seq_k = query.size(-2), key.size(-2)
    mask = strided_mask(seq_q, seq_k, stride, offset, causal, query.device).expand(seq_q, -1)
    strided = slice(offset, None, stride)
    return reference.stages(query, key[..., strided, :], value[..., strided, :], scale=scale, mask=mask)


def naive_strided_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    stride: int,
    offset: int = 0,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale * query @ K^T) @ V in plain PyTorch, where K and V are every stride-th row of key and value.

    Args:
        query: [..., S_q, head_dim], any floating-point type and device.
        key, value: [..., S_k, head_dim], likewise.
        stride: 1 .. S_k.
        offset: the first attended key, 0 .. stride - 1.
        causal: query i sees only the keys at positions j <= i, counted from the first key even if S_q != S_k.
        scale: what the scores are multiplied by; 1 / sqrt(head_dim) when None.

    Returns:
        [..., S_q, head_dim]; zeros for a query that sees no key (i < offset under a causal mask).

    Raises:
        ValueError: stride or offset out of range.
    """
    return strided_stages(query, key, value, stride, offset, causal, scale)["O"]


def sliding_window_mask(seq_q: int, seq_k: int, window: int, causal: bool = True, device=None) -> Tensor:
    """bool [seq_q, seq_k], True where query i may see key j: |i - j| < window, and with causal only j <= i.

    Raises:
        ValueError: window is below 1.
    """
    if window < 1:
        raise ValueError(f"window is {window}; it must be at least 1")
    ahead = torch.arange(seq_k, device=device) - torch.arange(seq_q, device=device)[:, None]
    return (ahead > -window) & (ahead < (1 if causal else window))


def block_sparse_mask(block_mask: Tensor, block: int, causal: bool = False) -> Tensor:
    """bool [heads, S_q, S_k], True where query i may see key j: where block_mask[head, i // block, j // block] is.

    Args:
        block_mask: bool (or other numbers, 0 for False) [heads, S_q / block, S_k / block].
        block: rows and columns of a block.
        causal: also require j <= i.

    Raises:
        ValueError: block_mask does not have three dimensions, or block is below 1.
    """
    if block_mask.dim() != 3:
        raise ValueError(f"block_mask has shape {list(block_mask.shape)}; it must be [heads, S_q / block, S_k / block]")
    if block < 1:
        raise ValueError(f"block is {block}; it must be at least 1")
    mask = block_mask.bool().repeat_interleave(block, -2).repeat_interleave(block, -1)
    return mask.tril() if causal else mask


def masked_stages(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None = None
) -> dict[str, Tensor]:
    """{"S", "P", "O"} of dense attention under a bool mask that broadcasts to [..., S_q, S_k].

    Values that no query sees are replaced by 0, so that they may be infinite: 0 * infinity would be NaN.
    """
    read = mask.any(-2)[..., None]  # [..., S_k, 1]
    return reference.stages(query, key, value.masked_fill(~read, 0.0), scale=scale, mask=mask)


def naive_sliding_window_attention(
    query: Tensor, key: Tensor, value: Tensor, window: int, causal: bool = True, scale: float | None = None
) -> Tensor:
    """Attention to the keys with |i - j| < window and, with causal, j <= i, in plain PyTorch.

    Source of the pattern: Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer", 2020, arXiv:2004.05150.

    Args:
        query: [..., S_q, head_dim], any floating-point type and device.
        key, value: [..., S_k, head_dim], likewise. Query 0 and key 0 are the same position even if S_q != S_k.
        window: at least 1; a causal query sees that many keys, including its own position.
        causal: whether keys after the query's position are hidden.
        scale: what the scores are multiplied by; 1 / sqrt(head_dim) when None.

    Returns:
        [..., S_q, head_dim]; zeros for a query that sees no key (far past the last key).

    Raises:
        ValueError: window is below 1.
    """
    mask = sliding_window_mask(query.size(-2), key.size(-2), window, causal, query.device)
    return masked_stages(query, key, value, mask, scale)["O"]


def naive_block_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_mask: Tensor,
    block: int,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention to the blocks of keys that a block mask selects, in plain PyTorch.

    Args:
        query: [..., heads, S_q, head_dim], any floating-point type and device.
        key, value: [..., heads, S_k, head_dim], likewise.
        block_mask: bool [heads, S_q / block, S_k / block].
        block: rows and columns of a block.
        causal: query i sees only the keys j <= i of those blocks.
        scale: what the scores are multiplied by; 1 / sqrt(head_dim) when None.

    Returns:
        [..., heads, S_q, head_dim]; zeros for a query that sees no key.

    Raises:
        ValueError: block_mask's shape and block do not match S_q and S_k.
    """
    mask = block_sparse_mask(block_mask, block, causal)
    if mask.shape != (query.size(-3), query.size(-2), key.size(-2)):
        raise ValueError(
            f"block_mask has shape {list(block_mask.shape)}; with block = {block} it must be [heads, S_q / block, "
            f"S_k / block], and heads = {query.size(-3)}, S_q = {query.size(-2)}, S_k = {key.size(-2)}"
        )
    return masked_stages(query, key, value, mask, scale)["O"]


def naive_compress_block_mask(block_mask: Tensor) -> tuple[Tensor, Tensor]:
    """bool [heads, q_blocks, k_blocks] -> (counts int32 [heads, q_blocks], columns int32 [heads, q_blocks, k_blocks]).

    counts is the number of true blocks in each row; columns holds their indices in ascending order, then -1.
    """
    numbers = torch.arange(block_mask.size(-1), device=block_mask.device)
    columns = torch.where(block_mask.bool(), numbers, block_mask.size(-1)).sort(-1).values
    columns = columns.masked_fill(columns == block_mask.size(-1), -1)
    return (columns >= 0).sum(-1).int(), columns.int()
