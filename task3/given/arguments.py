"""Checks the arguments of attention.py's flash_attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from common.reference.scale import scale_or_default


def check_arguments(query: Tensor, key: Tensor, value: Tensor, scale: float | None, B_r: int, B_c: int) -> float:
    """The scale to use. Raises ValueError for arguments that flash_attention does not support."""
    if query.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"query has dtype {query.dtype}; it must be torch.float32 or torch.float64")
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 4 or 0 in x.shape:
            raise ValueError(
                f"{name} has shape {list(x.shape)}; it must be [batch, heads, tokens, head_dim], all at least 1"
            )
        if x.dtype != query.dtype or x.device != query.device:
            raise ValueError(f"{name} is {x.dtype} on {x.device}; it must be as query, {query.dtype} on {query.device}")
    batch, heads, _, head_dim = query.shape
    for name, x in (("key", key), ("value", value)):
        if x.shape != (batch, heads, key.size(2), head_dim):
            raise ValueError(
                f"{name} has shape {list(x.shape)}; with query {list(query.shape)} and key {list(key.shape)} it must "
                f"be {[batch, heads, key.size(2), head_dim]}"
            )
    for name, size in (("B_r", B_r), ("B_c", B_c)):
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"scale is {scale}; it must be finite")
    return scale_or_default(scale, head_dim)
