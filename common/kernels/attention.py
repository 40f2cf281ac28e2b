"""Attention on the tensors' device: one API for every kernel, with torch's names, or FlashAttention's where torch has
none.

    attention(query, key, value, is_causal=True, softcap=50.0)              dense, windows, strides, every option
    attention_varlen(query, key, value, cu_seqlens, is_causal=True)         packed sequences without padding
    attention_with_kvcache(query, k_cache, v_cache, key, value, cache_seqlens=lengths)      new tokens over a KV cache
    block_sparse_attention(query, key, value, block_mask)                   the key blocks selected by a mask
    explain(query, key, value, is_causal=True)                              which kernel a call gets, and why

The causal alignment is the same in all of them: with is_causal query i sees keys j <= i, and with window_size =
(left, right) keys i - left <= j <= i + right, both aligned at the first key, as torch's is_causal. With
lower_right=True both are aligned at the last key, as in FlashAttention: i + S_k - S_q replaces i. The two differ if S_q
is not S_k. In attention_with_kvcache i is a query's position in its sequence, cached tokens included. Masks, is_causal
and windows may be combined; a query that sees no key gets zeros.

Everything except attention_with_kvcache is differentiable, and works with torch.compile without a graph break once its
kernels are loaded (call it once before), and with torch.func.grad and vmap. Forward-mode AD and second derivatives are
not supported. On the CPU the simulator runs the kernels. The first call on a device builds them, which takes minutes.

Sources: FlashAttention-2 (Dao 2023, arXiv:2307.08691), FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608); softcap:
Gemma 2 (Riviere et al. 2024, arXiv:2408.00118); sinks: OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025,
arXiv:2508.10925); dropout: Srivastava et al. 2014, on the weights after the softmax; strides: Child et al. 2019,
arXiv:1904.10509; windows: Beltagy et al. 2020, arXiv:2004.05150; blocks: Zaheer et al. 2020, arXiv:2007.14062; pages:
Kwon et al. 2023, arXiv:2309.06180.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.compiling.derivatives import refuse_forward_mode
from common.kernels.attention_call import NO_WINDOW, Options, check_dtypes, check_places, one_node
from common.kernels.attention_explain import Explanation, explained
from common.kernels.attention_gradients import operators_of, run, transforming
from common.kernels.attention_kernels import attend, attend_packed
from common.kernels.decode.decode import update_cache, update_cache_rotary
from common.kernels.loaded import loaded

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias


@one_node
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | CausalBias | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    softcap: float = 0.0,
    window_size: tuple[int, int] = NO_WINDOW,
    sinks: Tensor | None = None,
    lower_right: bool = False,
    key_stride: int = 1,
    key_offset: int = 0,
    seed: Tensor | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """dropout(softmax(scores, including a sink)) @ value, where

        scores = softcap * tanh(scale * query @ key^T / softcap) + attn_mask

    Memory is linear in S_q + S_k; scores, softmax and sums are float32. Hidden keys may hold anything, even NaN,
    without affecting the results or gradients of queries that do not see them. Under torch.autocast the inputs are cast
    as PyTorch casts them. Copied before a kernel runs: inputs whose rows are not contiguous; rows of query and key, or
    of value, if value_head_dim is not head_dim; a 16-bit mask; more than four dimensions that cannot be viewed as four.

    Args:
        query: [..., S_q, head_dim], float32, float16 or bfloat16, on the CPU or a GPU, with any strides; head_dim is
            1 .. 256. Any number of batch dimensions, possibly none; the last of them is heads. Those of query, key and
            value broadcast.
        key: [..., S_k, head_dim], of query's dtype and on its device, as is value.
        value: [..., S_k, value_head_dim].
        attn_mask: bool (True: attend), or float32 or query's dtype (added to the capped scores), broadcasts to
            [..., S_q, S_k]; it gets no gradient. Or torch's causal_lower_right(S_q, S_k) or causal_upper_left.
        dropout_p: probability of zeroing a weight, 0 <= dropout_p < 1. The kernels round it to a multiple of 1 / 256
            (quantized_dropout) and scale the remaining weights by 1 / (1 - that).
        is_causal, window_size, lower_right: which keys a query sees, see the module's docstring. -1: unbounded.
        scale: the factor on query @ key^T; 1 / sqrt(head_dim) if None.
        enable_gqa: key and value may have fewer heads than query, a divisor of its number; each serves several
            consecutive heads of query.
        softcap: bounds the scores to -softcap .. softcap; 0: no softcap.
        sinks: [heads], floating-point: one score per head that belongs to no key and joins the softmax's denominator.
        key_stride, key_offset: use only the keys at positions key_offset, key_offset + key_stride, ... < S_k.
            Not with any other option except is_causal, which compares positions.
        seed: [1], int64, on query's device: the same seed drops the same weights, see dropout_mask. None: drawn from
            PyTorch's generator for the device, so that torch.manual_seed makes it reproducible.
        deterministic: makes the gradient of query bitwise reproducible. Without it, and unless
            torch.use_deterministic_algorithms(True) is set in the backward pass, its last bits may differ, since blocks
            add to it in any order. Everything else is bitwise reproducible anyway.
        return_lse: also returns the logsumexp of each query's scores, including its sink.
        kernel: "flash" (everything), "sparse" (strides and windows in 16 bits, forward) or "flash_fp32" (like "flash",
            float32 without tensor cores, no options, head_dim up to 128). None: "sparse" if it supports the call,
            otherwise "flash", which chooses among its kernels; explain reports which.

    Returns:
        [..., S_q, value_head_dim] of query's dtype, contiguous; zeros for a query that sees no key. With return_lse
        also [..., S_q], float32, -infinity for such a query; it has no gradient. Gradients flow to query, key, value
        and sinks.

    Raises:
        ValueError: an argument that no kernel, or not the given one, supports; the message names it, its value and what
            is allowed.
        TypeError: an argument that must be a tensor is not.
        NotImplementedError: forward-mode AD (torch.func.jvp), a second derivative.
        BuildError, ToolchainError: the kernels cannot be built here; see common.compiling.load.build.
    """
    options = Options(
        attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa,
        softcap=softcap, window_size=window_size, sinks=sinks, lower_right=lower_right, key_stride=key_stride,
        key_offset=key_offset, seed=seed, deterministic=deterministic, return_lse=return_lse, kernel=kernel,
    )  # fmt: skip
    return attend(query, key, value, options)


@one_node
def attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    window_size: tuple[int, int] = NO_WINDOW,
    sinks: Tensor | None = None,
    lower_right: bool = False,
    seed: Tensor | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """attention within each of several sequences that are packed one after another, without padding.

    The boundaries are read on the device: no synchronization, and no maximum length is needed. The notes on the
    reproducibility of attention's results and gradients apply here, too.

    Args:
        query: [total_q, heads, head_dim]; head_dim is 1 .. 256.
        key: [total_k, kv_heads, head_dim]; heads is a multiple of kv_heads.
        value: [total_k, kv_heads, value_head_dim].
        cu_seqlens_q: [batch + 1], integers: sequence b has rows cu_seqlens_q[b] ... cu_seqlens_q[b + 1] - 1; starts
            with 0, ends with total_q; sequences may be empty. On a GPU the values are not checked: bad ones give wrong
            results, but nothing outside the tensors is touched, and rows that belong to no sequence get zeros.
        cu_seqlens_k: the same for key and value; None: cu_seqlens_q.
        is_causal, window_size, lower_right: within each sequence, whose rows are S_q and whose keys are S_k.
        dropout_p, scale, softcap, sinks, seed, deterministic: as in attention.
        return_lse: also returns the logsumexp.

    Returns:
        [total_q, heads, value_head_dim] of query's dtype, contiguous; with return_lse also [heads, total_q], float32.

    Raises:
        As in attention.
    """
    cu_seqlens_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    options = Options(
        dropout_p=dropout_p, is_causal=is_causal, scale=scale, softcap=softcap, window_size=window_size, sinks=sinks,
        lower_right=lower_right, seed=seed, deterministic=deterministic, return_lse=return_lse,
    )  # fmt: skip
    return attend_packed(query, key, value, cu_seqlens_q, cu_seqlens_k, options)


@one_node
def attention_with_kvcache(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    *,
    cache_seqlens: Tensor,
    block_table: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    rotary_interleaved: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    window_size: tuple[int, int] = NO_WINDOW,
    sinks: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of the newest tokens of each sequence over its KV cache, after writing their keys and values into it.

    The queries are the last S_q tokens of their sequences, new ones included, and each sees all tokens up to itself.
    There is no synchronization with the device, and no kernel leaves its memory, whatever cache_seqlens and block_table
    hold: so a call can be captured in a CUDA graph once and replayed with other lengths. There are no gradients. One
    query per sequence without softcap, window, sinks and return_lse uses dedicated kernels (common/kernels/decode);
    everything else runs with a mask over the whole cache, for which pages are gathered.

    Args:
        query: [batch, heads, S_q, head_dim], of the caches' dtype, with contiguous rows; heads is a multiple of
            kv_heads.
        k_cache, v_cache: [batch, kv_heads, max_seq_len, head_dim], float32, float16 or bfloat16, contiguous; head_dim
            is 1 .. 128. With a block_table pages [pages, kv_heads, page_size, head_dim], page_size 16, 32, 64, 128 or
            256.
        key, value: [batch, kv_heads, new_tokens, head_dim]: written after the cached tokens, in place. None: they are
            already in the cache. A sequence whose tokens do not all fit keeps its cache unchanged.
        cache_seqlens: int32 [batch]: each sequence's tokens in the cache before key and value are written; not changed.
        block_table: int32 [batch, max_pages]: slot s of sequence b is row s % page_size of page
            block_table[b, s // page_size]; tokens of pages outside 0 .. pages - 1 are left out.
        rotary_cos, rotary_sin: float32 [longest, rotary_dim / 2]: query and key are rotated by the row of their
            position; needs key and value, and S_q = new_tokens.
        rotary_interleaved: False: elements i and i + rotary_dim / 2 are a pair (Llama). True: 2 i and 2 i + 1 (GPT-J).
        scale, softcap, sinks: as in attention.
        window_size: (left, right), in keys: a query at position i sees keys i - left ... i.
        return_lse: also returns the logsumexp.

    Returns:
        [batch, heads, S_q, head_dim] of query's dtype, contiguous; zeros where nothing is attended to. With return_lse
        also [batch, heads, S_q], float32.

    Raises:
        ValueError: as in attention; key without value; rotary_cos without key. Then nothing has been written.
    """
    if (key is None) != (value is None) or (rotary_cos is None) != (rotary_sin is None):
        raise ValueError("key and value, and rotary_cos and rotary_sin, must be given together")
    if rotary_cos is not None and key is None:
        raise ValueError("rotary_cos is given and key is None; rotated are query and the new key together")
    options = Options(scale=scale, softcap=softcap, window_size=window_size, sinks=sinks, return_lse=return_lse)
    lengths = cache_seqlens
    if key is not None:
        if rotary_cos is None:
            update_cache(k_cache, v_cache, key, value, cache_seqlens, block_table)
        else:
            tables = rotary_cos, rotary_sin, rotary_interleaved, None, block_table
            query = update_cache_rotary(query, k_cache, v_cache, key, value, cache_seqlens, *tables)
        lengths = cache_seqlens + key.size(2)
    operators = loaded("decode", query.device)
    if query.dim() != 4 or (query.size(2) == 1 and not options.used and not return_lse):
        if block_table is None:
            return operators.decode_attention(query, k_cache, v_cache, lengths, scale)
        return operators.decode_attention_paged(query, k_cache, v_cache, lengths, block_table, scale)
    seen = None
    if block_table is not None:
        pages, page_size = k_cache.size(0), k_cache.size(2)
        there = (block_table >= 0) & (block_table < pages)
        numbers = block_table.where(there, 0).long()
        k_cache, v_cache = (x[numbers].transpose(1, 2).flatten(2, 3) for x in (k_cache, v_cache))
        seen = there.repeat_interleave(page_size, 1)[:, None, None]
    slots = torch.arange(k_cache.size(2), device=query.device)
    lengths = lengths.clamp(0, k_cache.size(2))
    at = lengths[:, None] - query.size(2) + torch.arange(query.size(2), device=query.device)  # each query's position
    mask = slots <= at[:, None, :, None]
    if window_size[0] >= 0:
        mask &= slots >= at[:, None, :, None] - window_size[0]
    mask = mask if seen is None else mask & seen
    return attention(
        query, k_cache, v_cache, mask, scale=scale, enable_gqa=True, softcap=softcap, sinks=sinks, return_lse=return_lse
    )


def compress_block_mask(block_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The true blocks of every row of a mask as lists, which block_sparse_attention also accepts, and processes faster.

    Args:
        block_mask: [heads, q_blocks, k_blocks], bool, contiguous: true where a query block sees a key block.

    Returns:
        counts: int32 [heads, q_blocks], how many key blocks each query block sees.
        columns: int32 [heads, q_blocks, k_blocks], their indices in ascending order, then -1.

    Raises:
        ValueError: an unsupported shape, dtype, layout or device.
    """
    return loaded("sparse", block_mask.device).compress_block_mask(block_mask)


@one_node
def block_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_mask: Tensor | tuple[Tensor, Tensor],
    *,
    is_causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    kernel: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention where each query block sees the key blocks selected by a mask; the others are not read.

    The contents of lists are not checked on the host, which would require synchronization: what invalid indices hide is
    unspecified, but nothing outside the tensors is read. Results and gradients are bitwise reproducible.

    Args:
        query: [batch, heads, S_q, head_dim], float32, float16 or bfloat16, rows contiguous; head_dim is 1 .. 128.
        key, value: [batch, kv_heads, S_k, head_dim], of query's dtype, rows contiguous; heads is a multiple of
            kv_heads.
        block_mask: bool [heads, q_blocks, k_blocks], or counts and columns of compress_block_mask. A block has
            S_q / q_blocks = S_k / k_blocks rows and keys: 32, 64, 96 or 128.
        is_causal: additionally, query i sees only keys j <= i.
        scale: as in attention.
        return_lse: also returns the logsumexp.
        kernel: "sparse" (16 bits, forward; gradients come from "flash") or "flash". None: the first of
            them that supports the call.

    Returns:
        As in attention; gradients flow to query, key and value.

    Raises:
        As in attention.
    """
    given = {"block_mask": block_mask} if isinstance(block_mask, Tensor) else {}
    check_places(query=query, key=key, value=value, **given)
    check_dtypes(query, key, value)
    refuse_forward_mode("attention", [query, key, value])
    counts, columns = compress_block_mask(block_mask) if given else block_mask
    if query.dim() != 4 or columns.dim() != 3 or not columns.size(1) or query.size(2) % columns.size(1):
        raise ValueError(
            f"query has shape {list(query.shape)} and block_mask {list(columns.shape)}; they must be [batch, heads, "
            "S_q, head_dim] and [heads, q_blocks, k_blocks], S_q a multiple of q_blocks"
        )
    gradients = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if kernel not in (None, "sparse", "flash"):
        raise ValueError(f"kernel is {kernel!r}; it must be None, 'sparse' or 'flash'")
    compiled = gradients and torch.compiler.is_compiling()  # compiled code needs an operator that has a gradient
    sparse = kernel == "sparse" or (kernel is None and query.dtype != torch.float32 and not compiled)
    arguments = query, key, value, counts, columns, query.size(2) // columns.size(1), is_causal, scale
    operators = operators_of("flash", query.device) if gradients or transforming() or not sparse else None
    if sparse:
        forward = operators_of("sparse", query.device).block_sparse_attention_forward
        if operators is None:
            out, lse = forward(*arguments)
            return (out, lse) if return_lse else out
        backward = operators.block_attention_backward
        operators = SimpleNamespace(block_attention=forward, block_attention_backward=backward)
    out, lse = run(operators, "block_attention", arguments, gradients)
    return (out, lse) if return_lse else out


def dropout_mask(seed: Tensor, dropout_p: float, batch: int, heads: int, seq_q: int, seq_k: int) -> Tensor:
    """Which weights attention and attention_varlen keep with this seed and probability.

    Element (b, h, i, j) belongs to query i and key j, both counted from the start of sequence b, regardless of the
    other sizes.

    Args:
        seed: [1], int64, on the CPU (the simulator) or a GPU.
        dropout_p: more than 0 and less than 1.
        batch, heads, seq_q, seq_k: 1 or more.

    Returns:
        bool [batch, heads, seq_q, seq_k]: False with the probability quantized_dropout(dropout_p).

    Raises:
        ValueError: an argument out of these ranges.
    """
    return operators_of("flash", seed.device).dropout_mask(seed, dropout_p, batch, heads, seq_q, seq_k)


def quantized_dropout(dropout_p: float) -> float:
    """The probability that the kernels use: the nearest multiple of 1 / 256, clamped to 1 / 256 .. 255 / 256 unless
    dropout_p is 0."""
    return 0.0 if dropout_p == 0 else min(max(math.floor(256 * dropout_p + 0.5), 1), 255) / 256


def explain(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options) -> Explanation:
    """Which kernel attention(query, key, value, attn_mask, **options) runs, why not a faster one, and what it copies.

    Raises:
        ValueError: as in attention, and for a call with empty tensors.
    """
    return explained(query, key, value, Options(attn_mask=attn_mask, **options))
