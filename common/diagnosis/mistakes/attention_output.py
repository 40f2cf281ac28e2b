"""Wrong answers that students' attention is known to give.

    attention_mistakes(query, key, value, causal, scale, mask, lower_right)     the whole operator
    output_mistakes(weights, value)                                             O = P V alone

Wrong scores (scores.py) followed to the output, the axis of the softmax, the last tile left out, operands swapped,
queries without a key, the online softmax without its rescale. See known.py for what a Mistake is and for those of the
softmax.
"""

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.inferring import product_inferences
from common.diagnosis.mistakes.known import TILES, Mistake, Words, last_tile_starts
from common.diagnosis.mistakes.scores import score_mistakes
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
    found = [*_empty_row_mistakes(s, value), *_softmax_mistakes(s, value)]
    found += _through_the_softmax(score_mistakes(query, key, **options), value)
    if causal:
        see = right.causal_mask(*s.shape[-2:], s.device, lower_right)
        found.append(
            known(
                "masked after the softmax",
                lambda: right.softmax(right.scores(query, key, False, scale, mask=mask)).masked_fill(~see, 0.0) @ value,
            )
        )
    found += output_mistakes(right.softmax(s), value)
    if key.shape == value.shape:
        found.append(known("K and V swapped", lambda: right.attention(query, value, key, **options)))
    found += [
        known(
            "last tile dropped",
            lambda n=n: right.softmax(s[..., :n]) @ value[..., :n, :] if n else torch.zeros_like(query),
            n=n,
            size=key.size(-2),
        )
        for n in last_tile_starts(key.size(-2))
    ]
    return found + [one for tile in TILES if tile < s.size(-1) for one in rescale_mistakes(s, value, tile)]


def _through_the_softmax(wrong_scores: list[Mistake], value: Tensor) -> list[Mistake]:
    """Wrong scores, and the outputs that they lead to.

    A causal mask that is off by one leaves the first query without a key: zeros, or NaN without a guard against it.
    """
    found = []
    for one in wrong_scores:
        found.append(one.then(lambda s: right.softmax(s) @ value))
        if one.name == "mask off by one":
            found.append(one.then(lambda s: torch.softmax(s, -1) @ value))
    return found


def _softmax_mistakes(s: Tensor, value: Tensor) -> list[Mistake]:
    """Mistakes in the softmax of the right scores s [..., S_q, S_k]."""
    largest = s.amax(-1, keepdim=True)
    hidden = s == -math.inf
    over_heads = known("softmax over the heads", lambda: right.softmax(s.transpose(1, -1)).transpose(1, -1) @ value)
    return [
        *([over_heads] if s.dim() == 4 and s.size(1) > 1 else []),
        known("softmax over the wrong axis", lambda: right.softmax(s.transpose(-2, -1)).transpose(-2, -1) @ value),
        known("softmax missing", lambda: s.masked_fill(hidden, 0.0) @ value),
        known("not normalized", lambda: torch.exp(s - torch.where(largest == -math.inf, 0.0, largest)) @ value),
    ]


def _empty_row_mistakes(s: Tensor, value: Tensor) -> list[Mistake]:
    """What becomes of a query that may see no key: in this course it gets zeros."""
    empty = (s == -math.inf).all(-1, keepdim=True)
    if not bool(empty.any()):
        return []
    return [
        known("masked row is NaN", lambda: torch.where(empty, math.nan, right.softmax(s) @ value)),
        known(
            "masked row is uniform", lambda: torch.where(empty, value.mean(-2, keepdim=True), right.softmax(s) @ value)
        ),
    ]


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
    return found + product_inferences(weights, value, ("P", "V"))
