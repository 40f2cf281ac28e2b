"""Known wrong scores of students' attention, scaled and masked as they would be with the mistake.

    score_mistakes(query, key, causal, scale, mask, lower_right)    the scale, operands, omissions, the masks
    score_indices(query, key, scores_of)                            Q or K read at a wrong index for S = Q K^T

attention.py propagates them to the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import misread
from common.diagnosis.mistakes.known import Mistake, Words
from common.reference import oracle as right
from common.reference.scale import scale_or_default

known = Words(__file__)

MOST_ELEMENTS = 1 << 15  # in a misread operand and in the output: more would take too long


def score_mistakes(
    query: Tensor,
    key: Tensor,
    causal: bool = False,
    scale: float | None = None,
    mask: Tensor | None = None,
    lower_right: bool = False,
) -> list[Mistake]:
    """Wrong S [..., S_q, S_k]; query [..., S_q, head_dim], key [..., S_k, head_dim]."""
    seq_q, seq_k, head_dim = query.size(-2), key.size(-2), query.size(-1)
    factor = scale_or_default(scale, head_dim)
    called = "1 / sqrt(head_dim)" if scale is None else "the scale"
    raw = right.gemm_nt(query, key)
    masked = partial(right.masked, causal=causal, mask=mask, lower_right=lower_right)

    found = [
        known("scale forgotten", lambda: masked(raw), called=called, factor=factor),
        known("scale applied twice", lambda: masked(raw * factor**2), squared=factor**2, called=called),
        known("K not transposed", lambda: masked(query @ key.reshape(*key.shape[:-2], head_dim, seq_k) * factor)),
        known("last column left out", lambda: masked(right.gemm_nt(query[..., :-1], key[..., :-1]) * factor)),
    ]
    found += _causal_mistakes(right.masked(raw * factor, mask=mask), causal, lower_right)
    if mask is not None:
        found += _mask_mistakes(raw, factor, causal, mask, lower_right)
    if query.dim() == 4 and query.size(1) > 1:
        found.append(known("scaled by the hidden size", lambda: masked(raw * factor * query.size(1) ** -0.5)))
    if key.dim() == 4 and key.size(0) * key.size(1) > 1:
        found.append(known("K of the first matrix", lambda: masked(right.gemm_nt(query, key[:1, :1]) * factor)))
        if seq_q < seq_k:  # with more queries than keys, the last rows would be out of bounds
            found.append(
                known("K counted in queries", lambda: masked(right.gemm_nt(query, _counted_in(seq_q, key)) * factor))
            )
    return found


def _counted_in(rows: int, x: Tensor) -> Tensor:
    """x [batch, heads, S, D] read as if a head had `rows` <= S rows: head h gets the S rows from h * rows on."""
    batch, heads, seq, head_dim = x.shape
    first = rows * torch.arange(batch * heads, device=x.device)
    return x.reshape(-1, head_dim)[first[:, None] + torch.arange(seq, device=x.device)].reshape(x.shape)


def _causal_mistakes(s: Tensor, causal: bool, lower_right: bool) -> list[Mistake]:
    """Mistakes in the causal mask; s [..., S_q, S_k] is scaled, and masked by the mask argument only."""
    see = right.causal_mask(*s.shape[-2:], s.device, lower_right)
    if not causal:
        if s.size(-2) == 1:  # the output is V of key 0, which has other causes
            return []
        return [known("causal mask not asked for", lambda: s.masked_fill(~see, -math.inf))]
    lag = s.size(-1) - s.size(-2)
    diagonal = lag if lower_right else 0
    last = "i" if diagonal == 0 else f"i {'+' if diagonal > 0 else '-'} {abs(diagonal)}"  # the last key of query i
    included = "its own position" if diagonal == 0 else "the last one"

    def below(number: int) -> Tensor:
        """The scores of the keys j <= i + number only."""
        return s.masked_fill(~torch.ones_like(see).tril(number), -math.inf)

    found = [
        known("causal mask missing", lambda: s, last=last),
        known("mask off by one (diagonal hidden)", lambda: below(diagonal - 1), last=last, included=included),
        known("mask off by one", lambda: below(diagonal + 1), last=last),
        known("mask transposed", lambda: s.masked_fill(torch.ones_like(see).tril(diagonal - 1), -math.inf), last=last),
        known("masked scores are 0", lambda: s.masked_fill(~see, 0.0)),
    ]
    if lag and lower_right:
        found.append(known("causal mask counted from the start", lambda: below(0), last=last))
        found.append(known("causal mask shifted the wrong way", lambda: below(-lag), last=last))
    elif lag:
        by = f"{'+' if lag > 0 else '-'} {abs(lag)}"
        found.append(known("causal mask counted from the end", lambda: below(lag), lag=by))
    return found


def _mask_mistakes(raw: Tensor, factor: float, causal: bool, mask: Tensor, lower_right: bool) -> list[Mistake]:
    """Mistakes in using the mask argument; raw [..., S_q, S_k] is neither scaled nor masked."""
    s = raw * factor
    hide_future = partial(right.masked, causal=causal, lower_right=lower_right)
    kind = "bool" if mask.dtype == torch.bool else "float"
    found = [known("mask ignored", lambda: hide_future(s), kind=kind)]
    if kind == "bool":
        found.append(known("mask inverted", lambda: hide_future(s, mask=~mask)))
    else:
        found.append(known("mask added before the scale", lambda: hide_future((raw + mask) * factor)))
        found.append(known("float mask read as bool", lambda: hide_future(s, mask=mask != 0)))
    # read with a stride missing or swapped
    whole = mask.reshape((1,) * (raw.dim() - mask.dim()) + mask.shape)
    names = dict(enumerate(("batch entry", "head", "query", "key")[-raw.dim() :], -raw.dim()))
    for axis, name in names.items():
        if whole.size(axis) > 1:
            first = whole.narrow(axis, 0, 1)
            answer = partial(hide_future, s, mask=first)
            found.append(known("mask broadcast wrong", answer, name=name, size=whole.size(axis)))
    for a, b in ((-2, -1), (-4, -3)) if raw.dim() == 4 else ((-2, -1),):
        turned = whole.transpose(a, b)
        fits = all(size in (1, wanted) for size, wanted in zip(turned.shape, raw.shape, strict=True))
        if fits and whole.size(a) * whole.size(b) > 1:
            both = {"name_a": names[a], "name_b": names[b]}
            answer = partial(hide_future, s, mask=turned)
            found.append(known("mask broadcast wrong (dimensions exchanged)", answer, **both))
    return found


# ---- indices


def score_indices(query: Tensor, key: Tensor, scores_of: Callable[[Tensor, Tensor], Tensor]) -> list[Mistake]:
    """Wrong scores; scores_of(query, key) gives the correct ones; query [batch, heads, S_q, d], key [..., S_k, d]."""
    if max(query.numel(), key.numel(), query[..., 0].numel() * key.size(2)) > MOST_ELEMENTS:
        return []
    sizes = {"S_q": query.size(2), "S_k": key.size(2)}
    of_query = sizes | places_in(query, "q", "S_q", "d", "head_dim")
    of_key = sizes | places_in(key, "k", "S_k", "d", "head_dim")
    index = "(batch_head * {count} + {row}) * head_dim + d"
    return [
        all_heads("query", query, lambda read: scores_of(read, key)),
        *misread("query", index.format(count="S_q", row="q"), query, of_query, lambda read: scores_of(read, key)),
        *misread("key", index.format(count="S_k", row="k"), key, of_key, lambda read: scores_of(query, read)),
    ]


def places_in(rows: Tensor, row: str, count: str, col: str, width: str) -> dict[str, Tensor | int]:
    """Values of the names in an index into rows [batch, heads, R, W]: batch_head, and the names for R and W."""
    batch, heads, size, wide = rows.shape
    number = torch.arange(batch * heads, device=rows.device).view(batch, heads, 1, 1)
    row_at, col_at = (torch.arange(n, device=rows.device) for n in (size, wide))
    return {"batch_head": number, row: row_at[:, None], col: col_at, count: size, width: wide}


def all_heads(name: str, rows: Tensor, use: Callable[[Tensor], Tensor]) -> Mistake:
    """A row's index across all heads used as its index within the head: rows [batch, heads, R, W]."""
    size = rows.size(2)

    def answer() -> Tensor:
        flat = rows.flatten(0, 2)
        number = torch.arange(len(flat), device=rows.device)
        at = number // size * size + number
        read = torch.where((at < len(flat))[:, None], flat[at.clamp(max=len(flat) - 1)], math.nan)
        return use(read.view(rows.shape))

    return known("query counted through all heads", answer, name=name)
