"""Sequences of different lengths that stand one behind the other, without padding: the front door's varlen attention.

    packed_attention(query, key, value, cu_seqlens, is_causal=True)

What other libraries call varlen attention; the kernels are those of common/kernels/flash_options.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from common.kernels.flash_options import flash_options
from common.reference.oracle import scale_or_default
from task7.front_door.sdpa import as_autocast, check_dtypes, check_flags, check_places, check_sinks


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    window_size: tuple[int, int] = flash_options.NO_WINDOW,
) -> Tensor:
    """softmax(query @ key^T * scale) @ value within each sequence, by the tuned kernels.

    Where the sequences begin is read on the device, so nothing waits for it, and no longest length is asked for. A mask
    tensor it does not take; nested tensors neither: pass their values() and offsets(). The gradients have the same bits
    every time under torch.use_deterministic_algorithms(True). Under torch.autocast the inputs are cast as PyTorch casts
    them.

    Args:
        query: [total_q, heads, head_dim], float32, float16 or bfloat16, on the CPU or a GPU, of any strides; head_dim
            is 1 .. 256.
        key: [total_k, kv_heads, head_dim], of query's dtype and on its device, like value; heads is a multiple of
            kv_heads.
        value: [total_k, kv_heads, value_head_dim].
        cu_seqlens_q: [batch + 1], integers: sequence b has the rows cu_seqlens_q[b] ... cu_seqlens_q[b + 1] - 1. 0 in
            front, total_q at the end; a sequence may be empty. int32 is taken as it is, others are converted. On a GPU
            the numbers are not looked at: other ones give wrong results, but nothing outside the tensors is touched.
        cu_seqlens_k: the same of key and value; None: cu_seqlens_q.
        is_causal: query i of a sequence sees its keys j <= i + its keys - its rows: from the lower right, as
            FlashAttention has it. Where a sequence has as many keys as rows it is scaled_dot_product_attention's.
        dropout_p, scale, softcap, sinks: as of scaled_dot_product_attention.
        window_size: (left, right), as of scaled_dot_product_attention with lower_right.

    Returns:
        [total_q, heads, value_head_dim] of query's dtype; zeros for a query that may see no key. Gradients flow to
        query, key, value and sinks.

    Raises:
        ValueError: an argument that is not supported; the message names it, its value and what is allowed.
        TypeError: what must be a tensor is none.
        common.compiling.result.BuildError, common.compiling.toolchain.ToolchainError: the kernels cannot be built.
    """
    check_flags(dropout_p, is_causal, softcap)
    cu_seqlens_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    boundaries = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    for name, x in boundaries.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is {x!r}; it must be a tensor")
    check_places(query=query, key=key, value=value, sinks=sinks, **boundaries)
    for name, x in boundaries.items():
        if x.is_floating_point() or x.is_complex():
            raise ValueError(f"{name} has dtype {x.dtype}; it must be an integer one")
    query, key, value = as_autocast(query, key, value)
    check_dtypes(query, key, value)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 3:
            raise ValueError(f"{name} has shape {list(x.shape)}; it must be [total, heads, head_dim]")
    check_sinks(sinks, query.size(1))
    value_head_dim, scale = value.size(-1), scale_or_default(scale, max(query.size(-1), 1))
    width = max(query.size(-1), value_head_dim)
    rows = [F.pad(x, (0, width - x.size(-1))) if x.size(-1) < width else x for x in (query, key, value)]
    rows = [x if x.stride(-1) == 1 else x.contiguous() for x in rows]
    numbers = [x.int().contiguous() for x in boundaries.values()]
    options = {"softcap": softcap, "sinks": sinks, "dropout_p": dropout_p, "window_size": window_size}
    out = flash_options.packed_attention(*rows, *numbers, is_causal, scale, **options)
    return out[..., :value_head_dim].contiguous()
