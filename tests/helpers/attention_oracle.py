"""Reference attention with every option, in float64 or in a kernel's precision, written out explicitly."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor


@functools.cache
def seen_of(seq_q: int, seq_k: int, is_causal=False, window_size=(-1, -1), lower_right=False, stride=1, offset=0):
    """bool [seq_q, seq_k], element by element, as the head of common/kernels/attention.py defines it."""
    left, right = (10**6 if x < 0 else x for x in window_size)
    shift = seq_k - seq_q if lower_right else 0
    rows = (
        [
            (j <= i + shift or not is_causal) and i + shift - left <= j <= i + shift + right and j % stride == offset
            for j in range(seq_k)
        ]
        for i in range(seq_q)
    )
    return torch.tensor(list(rows), dtype=torch.bool).view(seq_q, seq_k)


def exact(*given, **options) -> tuple[Tensor, Tensor]:
    """(out, lse); same arguments as pieces."""
    return pieces(*given, **options)[:2]


def pieces(
    query, key, value, seen, softcap=0.0, sinks=None, scale=None, kept=1.0, dtype=torch.float64, bias=None
) -> tuple[Tensor, ...]:
    """(out, lse, the weights, the weights after dropout), written out; rows with no visible key are zeros.

    bias is added to the capped scores. For dtypes other than float64, scores and softmax are at least float32; the
    weights used in the product and the output are in dtype.
    """
    work = torch.promote_types(dtype, torch.float32)
    query, key, value = query.to(work), key.to(work), value.to(dtype)
    key, value = (x.repeat_interleave(query.size(-3) // x.size(-3), -3) for x in (key, value))
    scores = query @ key.mT * (query.size(-1) ** -0.5 if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores if bias is None else scores + bias.to(work)
    scores = scores.masked_fill(~seen.to(query.device), -math.inf)
    sinks = torch.full((query.size(-3),), -math.inf) if sinks is None else sinks
    column = sinks.to(query.device, work)[:, None, None].expand(*scores.shape[:-1], 1)
    lse = torch.cat([scores, column], -1).logsumexp(-1)
    weights = torch.exp(scores - lse.masked_fill(lse == -math.inf, math.inf)[..., None])
    return (weights * kept).to(dtype) @ value, lse, weights, weights * kept
