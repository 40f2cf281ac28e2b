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
from common.diagnosis.mistakes.known import TILES, Mistake, last_tile_starts
from common.diagnosis.mistakes.scores import score_mistakes
from common.diagnosis.mistakes.tile_loop import rescale_mistakes
from common.reference import oracle as right

# What is taken for Q, K and V -> the mistake's name and what to tell
TAKEN = {
    "QVK": ("K and V swapped", "K and V are swapped: the scores come from V and the sum runs over K."),
    "QKK": ("K in place of V", "K is read where V belongs: the weights are right, and the sum runs over K."),
    "QVV": ("V in place of K", "V is read where K belongs: the scores come from V."),
    "KKV": ("K in place of Q", "K is read where Q belongs: the scores are K times K^T."),
    "QQV": ("Q in place of K", "Q is read where K belongs: the scores are Q times Q^T."),
}


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
            Mistake(
                "masked after the softmax",
                "The mask is applied after the softmax: the rows of P no longer sum to 1.",
                lambda: right.softmax(right.scores(query, key, False, scale, mask=mask)).masked_fill(~see, 0.0) @ value,
            )
        )
    found += output_mistakes(right.softmax(s), value)
    given = {"Q": query, "K": key, "V": value}
    for letters, (name, says) in TAKEN.items():
        taken = [given[letter] for letter in letters]
        if [x.shape for x in taken] == [query.shape, key.shape, value.shape]:
            found.append(Mistake(name, says, lambda taken=taken: right.attention(*taken, **options)))
    found += [
        Mistake(
            "last tile dropped",
            f"Only the first {n} of the {key.size(-2)} keys take part in the softmax. The loop over the tiles of keys "
            "ends too early (their number is rounded up, and it is that of the keys), or the last, partial tile is "
            "masked although some of its keys exist.",
            lambda n=n: right.softmax(s[..., :n]) @ value[..., :n, :] if n else torch.zeros_like(query),
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
        found.append(Mistake(one.name, one.says, lambda one=one: right.softmax(one.answer()) @ value))
        if one.name == "mask off by one":
            found.append(Mistake(one.name, one.says, lambda one=one: torch.softmax(one.answer(), -1) @ value))
    return found


def _softmax_mistakes(s: Tensor, value: Tensor) -> list[Mistake]:
    """Mistakes in the softmax of the right scores s [..., S_q, S_k]."""
    largest = s.amax(-1, keepdim=True)
    hidden = s == -math.inf
    over_heads = Mistake(
        "softmax over the heads",
        "The softmax runs over the heads; it must run over the keys, along each row of S (the last dimension).",
        lambda: right.softmax(s.transpose(1, -1)).transpose(1, -1) @ value,
    )
    return [
        *([over_heads] if s.dim() == 4 and s.size(1) > 1 else []),
        Mistake(
            "softmax over the wrong axis",
            "The softmax runs over the queries (the columns of S); it must run over the keys, along each row of S.",
            lambda: right.softmax(s.transpose(-2, -1)).transpose(-2, -1) @ value,
        ),
        Mistake(
            "softmax missing",
            "The softmax is missing: V is multiplied by the scores S themselves.",
            lambda: s.masked_fill(hidden, 0.0) @ value,
        ),
        Mistake(
            "not normalized",
            "The rows of P are not divided by their sum: V is multiplied by exp(S - max).",
            lambda: torch.exp(s - torch.where(largest == -math.inf, 0.0, largest)) @ value,
        ),
    ]


def _empty_row_mistakes(s: Tensor, value: Tensor) -> list[Mistake]:
    """What becomes of a query that may see no key: in this course it gets zeros."""
    empty = (s == -math.inf).all(-1, keepdim=True)
    if not bool(empty.any()):
        return []
    return [
        Mistake(
            "masked row is NaN",
            "A query that may see no key gives NaN: -inf - (-inf) is NaN, and so is 0 / 0. In this course its output "
            "is zeros.",
            lambda: torch.where(empty, math.nan, right.softmax(s) @ value),
        ),
        Mistake(
            "masked row is uniform",
            "A query that may see no key gives the mean of V, as if all weights were equal: the masked scores are "
            "large negative numbers instead of -inf. In this course its output is zeros.",
            lambda: torch.where(empty, value.mean(-2, keepdim=True), right.softmax(s) @ value),
        ),
    ]


def output_mistakes(weights: Tensor, value: Tensor) -> list[Mistake]:
    """Wrong answers for O = P V; weights [..., S_q, S_k], value [..., S_k, head_dim]."""
    seq_k, head_dim = value.shape[-2:]
    found = [
        Mistake(
            "V transposed",
            "V is read as if it lay in memory as [head_dim, S_k]: the output is P times V^T where P times V is "
            "meant (gemm_nn, not gemm_nt).",
            lambda: weights @ value.reshape(*value.shape[:-2], head_dim, seq_k).transpose(-2, -1),
        ),
        Mistake(
            "last key left out",
            "The sum P V leaves out the last key: a loop over S_k keys runs while k < S_k.",
            lambda: weights[..., :-1] @ value[..., :-1, :],
        ),
        Mistake(
            "sum overwritten",
            "Each output holds the product with the last key only: the products are assigned (=) where they must be "
            "added up (+=).",
            lambda: weights[..., -1:] @ value[..., -1:, :],
        ),
    ]
    if value.dim() == 4 and value.size(0) * value.size(1) > 1:
        found.append(
            Mistake(
                "V of the first matrix",
                "Every head of every batch entry reads the V of the first one: the matrix's offset is missing.",
                lambda: weights @ value[:1, :1],
            )
        )
    return found + product_inferences(weights, value, ("P", "V"))
