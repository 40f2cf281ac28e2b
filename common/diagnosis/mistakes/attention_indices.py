"""Wrong indices of attention that keeps its scores in memory, step by step (formulas.misread).

score_indices(query, key, scores_of)      where Q or K is read for S = Q K^T
output_indices(weights, value)            where P or V is read for O = P V
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import misread
from common.diagnosis.mistakes.known import Mistake, Words

known = Words(__file__)

MOST_ELEMENTS = 1 << 15  # of an operand, and of what comes out: more would take too long


def _places(rows: Tensor, row: str, count: str, col: str, width: str) -> dict[str, Tensor | int]:
    """The values of the names in an index into rows [batch, heads, R, W]: batch_head, those of R and of W."""
    batch, heads, size, wide = rows.shape
    number = torch.arange(batch * heads, device=rows.device).view(batch, heads, 1, 1)
    row_at, col_at = (torch.arange(n, device=rows.device) for n in (size, wide))
    return {"batch_head": number, row: row_at[:, None], col: col_at, count: size, width: wide}


def score_indices(query: Tensor, key: Tensor, scores_of: Callable[[Tensor, Tensor], Tensor]) -> list[Mistake]:
    """Wrong scores; scores_of(query, key) gives the right ones, query [batch, heads, S_q, d], key [..., S_k, d]."""
    if max(query.numel(), key.numel(), query[..., 0].numel() * key.size(2)) > MOST_ELEMENTS:
        return []
    sizes = {"S_q": query.size(2), "S_k": key.size(2)}
    of_query = sizes | _places(query, "q", "S_q", "d", "head_dim")
    of_key = sizes | _places(key, "k", "S_k", "d", "head_dim")
    index = "(batch_head * {count} + {row}) * head_dim + d"
    return [
        _all_heads("query", query, lambda read: scores_of(read, key)),
        *misread("query", index.format(count="S_q", row="q"), query, of_query, lambda read: scores_of(read, key)),
        *misread("key", index.format(count="S_k", row="k"), key, of_key, lambda read: scores_of(query, read)),
    ]


def output_indices(weights: Tensor, value: Tensor) -> list[Mistake]:
    """Wrong outputs; weights [batch, heads, S_q, S_k], value [batch, heads, S_k, head_dim]."""
    out = weights[..., 0].numel() * value.size(-1)
    if weights.dim() != 4 or value.dim() != 4 or max(weights.numel(), value.numel(), out) > MOST_ELEMENTS:
        return []
    of_weights = _places(weights, "q", "S_q", "k", "S_k") | {"head_dim": value.size(3)}
    of_value = _places(value, "k", "S_k", "d", "head_dim") | {"S_q": weights.size(2)}
    return [
        _all_heads("weights", weights, lambda read: read @ value),
        *misread("weights", "(batch_head * S_q + q) * S_k + k", weights, of_weights, lambda read: read @ value),
        *misread("value", "(batch_head * S_k + k) * head_dim + d", value, of_value, lambda read: weights @ read),
    ]


def _all_heads(name: str, rows: Tensor, use: Callable[[Tensor], Tensor]) -> Mistake:
    """A row's number among those of all heads, taken for its number within its head: rows [batch, heads, R, W]."""
    size = rows.size(2)

    def answer() -> Tensor:
        flat = rows.flatten(0, 2)
        number = torch.arange(len(flat), device=rows.device)
        at = number // size * size + number
        read = torch.where((at < len(flat))[:, None], flat[at.clamp(max=len(flat) - 1)], math.nan)
        return use(read.view(rows.shape))

    return known("query counted through all heads", answer, name=name)
