"""Attention to some of the keys, on the device of the tensors: float16 and bfloat16, blocks in float32 as well.

    out = strided_attention(query, key, value, stride=8)                every 8th key
    out = sliding_window_attention(query, key, value, window=256)       the last 256 keys
    counts, columns = compress_block_mask(block_mask)                   which blocks of keys, as lists
    out = block_sparse_attention(query, key, value, counts, columns, block=64)

What is not attended to is not computed, and neither copied nor gathered. The first call on a device builds the kernels.
block_sparse_attention is differentiable; of strided keys and of windows the gradients are elsewhere (flash_attention of
common/kernels/flash, options_attention of common/kernels/flash_options). The operators ..._forward of loaded("sparse",
device) give the logsumexp as well.

Shapes: query and out [batch, heads, S_q, head_dim], key and value [batch, kv_heads, S_k, head_dim]. Query head h reads
key head h // (heads // kv_heads).

Sources: R. Child et al., "Generating Long Sequences with Sparse Transformers", 2019, arXiv:1904.10509 (strided);
I. Beltagy et al., "Longformer", 2020, arXiv:2004.05150 (windows); M. Zaheer et al., "Big Bird", 2020, arXiv:2007.14062
(blocks). The kernels: T. Dao, "FlashAttention-2", 2023, arXiv:2307.08691; J. Shah et al., "FlashAttention-3", 2024,
arXiv:2407.08608.
"""

from __future__ import annotations

import torch
from torch import Tensor

from common.kernels.flash.transforms import transforming
from common.kernels.flash_options.flash_options import block_attention
from common.kernels.loaded import loaded


def strided_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    stride: int,
    offset: int = 0,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale * query @ K^T) @ V with K and V the keys and values at offset, offset + stride, ... < S_k.

    Args:
        query: [batch, heads, S_q, head_dim], float16 or bfloat16, on the CPU (the simulator) or a GPU; head_dim is
            1 .. 128. Any strides whose rows are contiguous.
        key, value: [batch, kv_heads, S_k, head_dim], of query's dtype, likewise; heads is a multiple of kv_heads.
        stride: in positions, 1 .. S_k. 1 is dense attention.
        offset: the position of the first key that counts, 0 .. stride - 1.
        causal: query i sees of these keys those at positions j <= i, also where S_q != S_k.
        scale: what the scores are multiplied by, without unit; 1 / sqrt(head_dim) when None.

    Returns:
        [batch, heads, S_q, head_dim] of query's dtype, contiguous; zeros for a query that sees no key.

    Raises:
        ValueError: an argument that the kernels do not take; the message names it, its value and what is allowed.
        BuildError, ToolchainError: the kernels cannot be built here; see common.compiling.load.build.
    """
    return loaded("sparse", query.device).strided_attention(query, key, value, stride, offset, causal, scale)


def sliding_window_attention(
    query: Tensor, key: Tensor, value: Tensor, window: int, causal: bool = True, scale: float | None = None
) -> Tensor:
    """softmax(scale * query @ K^T) @ V where query i sees the keys at positions i - window < j <= i.

    Args:
        query, key, value, scale: as of strided_attention.
        window: in positions, 1 or more: a query sees so many keys, itself included.
        causal: if false, the window has two sides: |i - j| < window.

    Returns, Raises:
        As strided_attention.
    """
    return loaded("sparse", query.device).sliding_window_attention(query, key, value, window, causal, scale)


def compress_block_mask(block_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The true blocks of every row of a mask as lists, which block_sparse_attention takes.

    A list serves every batch entry and every call with the same mask. It is made on the device of the mask.

    Args:
        block_mask: [heads, q_blocks, k_blocks], bool, contiguous: true where a block of queries sees a block of keys.

    Returns:
        counts: int32 [heads, q_blocks], how many blocks of keys each block of queries sees.
        columns: int32 [heads, q_blocks, k_blocks], their numbers in ascending order, then -1.

    Raises:
        ValueError: another shape, dtype, layout or kind of device.
        BuildError, ToolchainError: as strided_attention.
    """
    return loaded("sparse", block_mask.device).compress_block_mask(block_mask)


def block_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    counts: Tensor,
    columns: Tensor,
    block: int,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale * query @ K^T) @ V where a block of queries sees the blocks of keys in its list.

    What the lists hold is not looked at on the host, for that would take waiting for the device: numbers that are no
    block of keys hide keys at will, but nothing outside the tensors is read.

    float32 and the gradients run on kernels of common/kernels/flash_options, without wgmma; the gradients have the same
    bits every time.

    Args:
        query, key, value, scale: as of strided_attention, or float32; S_q and S_k are multiples of block.
        counts, columns: of compress_block_mask, with S_q / block rows and S_k / block columns for each head of query.
        block: rows and keys of a block, 32, 64, 96 or 128.
        causal: query i sees of these keys those at positions j <= i as well.

    Returns, Raises:
        As strided_attention.
    """
    arguments = query, key, value, counts, columns, block, causal, scale
    asked = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if query.dtype == torch.float32 or (asked and torch.compiler.is_compiling()):
        return block_attention(*arguments)
    operators = loaded("sparse", query.device)
    if asked or transforming():
        return block_attention(*arguments, forward=operators.block_sparse_attention_forward)
    return operators.block_sparse_attention(*arguments)
