"""One new token per sequence over its KV cache, on the device of the tensors: float32, float16 and bfloat16.

    update_cache(k_cache, v_cache, key, value, positions)               new keys and values -> their slots, in place
    out = decode_attention(query, k_cache, v_cache, lengths)            attention of one query to all that is cached
    update_cache_paged, decode_attention_paged                          the same on pages, which a table finds
    rotated = update_cache_rotary(query, k_cache, v_cache, key, value, positions, cos, sin)
                                    update_cache with rotary embedding and left padding, on caches or pages

cache.py and paged_cache.py keep the buffers, and know on the host how full they are. Here nothing is known but the
tensors, and no call waits for the device: what lies there, positions, lengths and page numbers, is not looked at, and
whatever it is, no kernel leaves its memory. (update_cache and decode_attention of cache.py do look.) So all of it can
be captured in a CUDA graph once and replayed with other lengths. The first call on a device builds the kernels. There
are no gradients.

Shapes: caches [batch, kv_heads, max_seq_len, head_dim]; pages [pages, kv_heads, page_size, head_dim]. Query head h
reads K/V head h // (heads // kv_heads).

Sources: T. Dao, D. Haziza, F. Massa, G. Sizov, "Flash-Decoding for long-context inference", 2023 (several blocks to a
sequence); W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
arXiv:2309.06180 (pages); J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
arXiv:2104.09864.
"""

from __future__ import annotations

from torch import Tensor

from common.kernels.loaded import loaded


def update_cache(k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> None:
    """Writes the new tokens of sequence b into the slots positions[b], positions[b] + 1, ... of its caches, in place.

    A sequence whose tokens do not all fit, since positions[b] is outside 0 .. max_seq_len - new_tokens, stays as it is.

    Args:
        k_cache, v_cache: [batch, kv_heads, max_seq_len, head_dim], float32, float16 or bfloat16, contiguous, on the CPU
            (the simulator) or a GPU; head_dim is 1 .. 128.
        key, value: [batch, kv_heads, new_tokens, head_dim], of the caches' dtype; any strides with contiguous rows.
        positions: int32 [batch], in tokens.

    Raises:
        ValueError: a shape, dtype, layout or device that the kernels do not take; the message names the argument, its
            value and what is allowed. Nothing has been written then.
        BuildError, ToolchainError: the kernels cannot be built here; see common.compiling.load.build.
    """
    loaded("decode", k_cache.device).update_cache(k_cache, v_cache, key, value, positions)


def decode_attention(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, scale: float | None = None
) -> Tensor:
    """softmax(scale * query @ K^T) @ V over the first lengths[b] slots of each sequence's cache.

    Args:
        query: [batch, heads, 1, head_dim], of the caches' dtype, any strides with contiguous rows; heads is a multiple
            of kv_heads.
        k_cache, v_cache: as update_cache takes them.
        lengths: int32 [batch], in tokens; one outside 0 .. max_seq_len counts as the nearer of the two.
        scale: what the scores are multiplied by, without unit; 1 / sqrt(head_dim) when None.

    Returns:
        [batch, heads, 1, head_dim] of query's dtype, contiguous; zeros where the length is 0.

    Raises:
        As update_cache.
    """
    return loaded("decode", query.device).decode_attention(query, k_cache, v_cache, lengths, scale)


def update_cache_paged(
    k_pages: Tensor, v_pages: Tensor, key: Tensor, value: Tensor, positions: Tensor, block_table: Tensor
) -> None:
    """As update_cache, with the cache in pages.

    Slot s of sequence b is row s % page_size of page block_table[b, s // page_size].

    A token whose number in the table is no page is not written. Two sequences must not write to the same page.

    Args:
        k_pages, v_pages: [pages, kv_heads, page_size, head_dim], otherwise as the caches of update_cache; page_size is
            16, 32, 64, 128 or 256.
        key, value, positions: as of update_cache, with page_size * max_pages in place of max_seq_len.
        block_table: int32 [batch, max_pages], contiguous: numbers of pages; those outside 0 .. pages - 1 are no page.

    Raises:
        As update_cache.
    """
    operators = loaded("decode", k_pages.device)
    operators.update_cache_paged(k_pages, v_pages, key, value, positions, block_table)


def decode_attention_paged(
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    lengths: Tensor,
    block_table: Tensor,
    scale: float | None = None,
) -> Tensor:
    """As decode_attention, with the cache in pages; tokens whose number in the table is no page are left out.

    Args:
        query, scale: as of decode_attention.
        k_pages, v_pages, block_table: as of update_cache_paged.
        lengths: int32 [batch], in tokens; one outside 0 .. page_size * max_pages counts as the nearer of the two.

    Returns:
        [batch, heads, 1, head_dim] of query's dtype, contiguous; zeros where nothing is attended to.

    Raises:
        As update_cache.
    """
    operators = loaded("decode", query.device)
    return operators.decode_attention_paged(query, k_pages, v_pages, lengths, block_table, scale)


def update_cache_rotary(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    left_padding: Tensor | None = None,
    block_table: Tensor | None = None,
) -> Tensor:
    """update_cache with rotary embedding on the way, in one kernel: keys in the cache and queries come out rotated.

    Token t of sequence b goes to slot s = positions[b] + t - left_padding[b]; its key and query are rotated by row s of
    cos and sin, in float32, its value is copied. Tokens with t < left_padding[b] are padding: nothing of them is
    written, and their rows of the result are zeros. Both hold for a whole sequence if the slots of its tokens are not
    all among 0 .. min(max_seq_len, longest) - 1.

    Args:
        query: [batch, heads, new_tokens, head_dim], of the caches' dtype; any strides with contiguous rows.
        k_cache, v_cache: as of update_cache; with a block_table as k_pages and v_pages of update_cache_paged.
        key, value, positions: as of update_cache.
        cos, sin: float32 [longest, rotary_dim / 2], contiguous: of the angle of each position and pair of elements;
            2 <= rotary_dim <= head_dim. The elements from rotary_dim on are copied.
        interleaved: False: elements i and i + rotary_dim / 2 are a pair (Llama, GPT-NeoX). True: 2 i and 2 i + 1
            (GPT-J).
        left_padding: int32 [batch], in tokens; one outside 0 .. new_tokens counts as the nearer of the two. None: none.
        block_table: as of update_cache_paged; None: the caches are contiguous.

    Returns:
        The rotated queries, [batch, heads, new_tokens, head_dim], contiguous.

    Raises:
        As update_cache.
    """
    operators = loaded("decode", k_cache.device)
    tables = (cos, sin, interleaved, left_padding, block_table)
    return operators.update_cache_rotary(query, k_cache, v_cache, key, value, positions, *tables)
