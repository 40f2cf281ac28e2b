"""Known wrong answers of students' attention.

    attention_mistakes(query, key, value, causal, scale, mask, lower_right)     the whole operator
    output_mistakes(weights, value), output_indices(weights, value)             O = P V alone

Wrong scores (scores.py) propagated to the output, the wrong softmax axis, the last tile skipped, operands swapped,
queries without a key, the online softmax without its rescale, and wrong indices into P or V.
"""

import math
from functools import partial

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import misread, shift_of
from common.diagnosis.mistakes.known import TILES, Mistake, Words, last_tile_starts
from common.diagnosis.mistakes.scores import MOST_ELEMENTS, all_heads, places_in, score_mistakes
from common.diagnosis.mistakes.tile_loop import rescale_mistakes
from common.reference import oracle as right

known = Words(__file__)


def attention_mistakes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
    mask: Tensor | None = None,
    lower_right: bool = False,
) -> list[Mistake]:
    """Wrong answers for attention; query [..., S_q, head_dim], key and value [..., S_k, head_dim].

    mask (bool: True attends; float: added) broadcasts to [..., S_q, S_k]; the other arguments are those of
    common.reference.oracle.
    """
    options = {"causal": causal, "scale": scale, "mask": mask, "lower_right": lower_right}
    s = right.scores(query, key, **options)
    largest = s.amax(-1, keepdim=True)
    empty = largest == -math.inf  # fully masked queries: in this course their output is zero
    found = []
    if bool(empty.any()):
        mean = value.mean(-2, keepdim=True)
        found.append(known("masked row is NaN", lambda: torch.where(empty, math.nan, right.softmax(s) @ value)))
        found.append(known("masked row is uniform", lambda: torch.where(empty, mean, right.softmax(s) @ value)))
    if s.dim() == 4 and s.size(1) > 1:
        over_heads = s.transpose(1, -1)
        found.append(known("softmax over the heads", lambda: right.softmax(over_heads).transpose(1, -1) @ value))
    found += [
        known("softmax over the wrong axis", lambda: right.softmax(s.mT).mT @ value),
        known("softmax missing", lambda: s.masked_fill(s == -math.inf, 0.0) @ value),
        known("not normalized", lambda: torch.exp(s - shift_of(largest)) @ value),
    ]
    for one in score_mistakes(query, key, **options):
        found.append(one.then(lambda s: right.softmax(s) @ value))
        if one.name == "mask off by one":  # the first query has no key left: zeros, or NaN without a guard
            found.append(one.then(lambda s: torch.softmax(s, -1) @ value))
    if causal:
        future = ~right.causal_mask(*s.shape[-2:], s.device, lower_right)
        raw = partial(right.scores, query, key, False, scale, mask)
        answer = lambda: right.softmax(raw()).masked_fill(future, 0.0) @ value  # noqa: E731
        found.append(known("masked after the softmax", answer))
    found += output_mistakes(right.softmax(s), value)
    if key.shape == value.shape:
        found.append(known("K and V swapped", lambda: right.attention(query, value, key, **options)))
    for n in last_tile_starts(key.size(-2)):
        answer = partial(lambda n: right.softmax(s[..., :n]) @ value[..., :n, :] if n else torch.zeros_like(query), n)
        found.append(known("last tile dropped", answer, n=n, size=key.size(-2)))
    return found + [one for tile in TILES if tile < s.size(-1) for one in rescale_mistakes(s, value, tile)]


def output_mistakes(weights: Tensor, value: Tensor) -> list[Mistake]:
    """Wrong answers for O = P V; weights [..., S_q, S_k], value [..., S_k, head_dim]."""
    seq_k, head_dim = value.shape[-2:]
    found = [
        known("V transposed", lambda: weights @ value.reshape(*value.shape[:-2], head_dim, seq_k).transpose(-2, -1)),
        known("last key left out", lambda: weights[..., :-1] @ value[..., :-1, :]),
        known("sum overwritten", lambda: weights[..., -1:] @ value[..., -1:, :]),
    ]
    if value.dim() == 4 and value.size(0) * value.size(1) > 1:
        found.append(known("V of the first matrix", lambda: weights @ value[:1, :1]))
    return found


def output_indices(weights: Tensor, value: Tensor) -> list[Mistake]:
    """Wrong outputs from P or V read at a wrong index; weights [batch, heads, S_q, S_k], value [..., S_k, head_dim]."""
    out = weights[..., 0].numel() * value.size(-1)
    if weights.dim() != 4 or value.dim() != 4 or max(weights.numel(), value.numel(), out) > MOST_ELEMENTS:
        return []
    of_weights = places_in(weights, "q", "S_q", "k", "S_k") | {"head_dim": value.size(3)}
    of_value = places_in(value, "k", "S_k", "d", "head_dim") | {"S_q": weights.size(2)}
    return [
        all_heads("weights", weights, lambda read: read @ value),
        *misread("weights", "(batch_head * S_q + q) * S_k + k", weights, of_weights, lambda read: read @ value),
        *misread("value", "(batch_head * S_k + k) * head_dim + d", value, of_value, lambda read: weights @ read),
    ]
