"""Writing new tokens into a KV cache, on the tensors' device: float32, float16 and bfloat16.

    update_cache(k_cache, v_cache, key, value, positions)               writes new keys and values to their slots
    rotated = update_cache_rotary(query, k_cache, v_cache, key, value, positions, cos, sin)
                                    the same with rotary embedding and left padding

Both also support pages, given a block_table. Attention over the cache is attention_with_kvcache of
common/kernels/attention.py. cache.py and paged_cache.py own the buffers and track on the host how full they are. The
functions here only see the tensors, and no call synchronizes with the device: positions and page numbers are not
checked, and no kernel accesses memory out of bounds whatever their values. (update_cache of cache.py does check.) So
everything can be captured in a CUDA graph once and replayed with other lengths. The first call on a device builds the
kernels. There are no gradients.

Sources: W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
arXiv:2309.06180 (pages); J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
arXiv:2104.09864.
"""

from __future__ import annotations

from torch import Tensor

from common.kernels.loaded import loaded


def update_cache(
    k_cache: Tensor,
    v_cache: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    block_table: Tensor | None = None,
) -> None:
    """Writes the new tokens of sequence b into slots positions[b], positions[b] + 1, ... of its caches, in place.

    A sequence whose tokens do not all fit, because positions[b] is outside 0 .. max_seq_len - new_tokens, is unchanged.
    Two sequences must not write to the same page.

    Args:
        k_cache, v_cache: [batch, kv_heads, max_seq_len, head_dim], float32, float16 or bfloat16, contiguous, on the CPU
            (the simulator) or a GPU; head_dim is 1 .. 128. With a block_table: pages [pages, kv_heads, page_size,
            head_dim], page_size 16, 32, 64, 128 or 256; then max_seq_len is page_size * max_pages.
        key, value: [batch, kv_heads, new_tokens, head_dim], of the caches' dtype; any strides with contiguous rows.
        positions: int32 [batch], in tokens.
        block_table: int32 [batch, max_pages], contiguous: slot s of sequence b is row s % page_size of page
            block_table[b, s // page_size]. Tokens of pages outside 0 .. pages - 1 are not written.

    Raises:
        ValueError: an unsupported shape, dtype, layout or device; the message names the argument, its value and what is
            allowed. Then nothing has been written.
        BuildError, ToolchainError: the kernels cannot be built here; see common.compiling.load.build.
    """
    operators = loaded("decode", k_cache.device)
    if block_table is None:
        operators.update_cache(k_cache, v_cache, key, value, positions)
    else:
        operators.update_cache_paged(k_cache, v_cache, key, value, positions, block_table)


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
    """update_cache with rotary embedding, in one kernel: keys are rotated into the cache, and rotated queries returned.

    Token t of sequence b goes to slot s = positions[b] + t - left_padding[b]; its key and query are rotated by row s of
    cos and sin, in float32; its value is copied. Tokens with t < left_padding[b] are padding: nothing of them is
    written, and their rows of the result are zeros. Both also apply to a whole sequence if the slots of its tokens are
    not all in 0 .. min(max_seq_len, longest) - 1.

    Args:
        query: [batch, heads, new_tokens, head_dim], of the caches' dtype; any strides with contiguous rows.
        k_cache, v_cache: as in update_cache.
        key, value, positions: as in update_cache.
        cos, sin: float32 [longest, rotary_dim / 2], contiguous: of the angle of each position and pair of elements;
            2 <= rotary_dim <= head_dim. Elements from rotary_dim on are copied.
        interleaved: False: elements i and i + rotary_dim / 2 are a pair (Llama, GPT-NeoX). True: 2 i and 2 i + 1
            (GPT-J).
        left_padding: int32 [batch], in tokens, clamped to 0 .. new_tokens. None: no padding.
        block_table: as in update_cache; None: the caches are contiguous.

    Returns:
        The rotated queries, [batch, heads, new_tokens, head_dim], contiguous.

    Raises:
        As in update_cache.
    """
    operators = loaded("decode", k_cache.device)
    tables = (cos, sin, interleaved, left_padding, block_table)
    return operators.update_cache_rotary(query, k_cache, v_cache, key, value, positions, *tables)
