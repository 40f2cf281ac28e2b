"""Wrong answers that students' attention is known to give.

    attention_mistakes(query, key, value, causal, scale, mask, lower_right)     the whole operator
    output_mistakes(weights, value)                                             O = P V alone

Wrong scores (scores.py) followed to the output, the axis of the softmax, tiles left out, operands swapped, loops that
end too early, queries without a key, the online softmax without its rescale. See known.py for what a Mistake is and for
those of the softmax and of the matrix product.
"""

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.inferring import product_inferences
from common.diagnosis.mistakes.known import TILES, Mistake, last_tile_starts, softmax_without_max
from common.diagnosis.mistakes.scores import score_mistakes
from common.diagnosis.mistakes.tile_loop import rescale_mistakes
from common.reference import oracle as right


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
    see = right.causal_mask(*s.shape[-2:], s.device, lower_right) if causal else None
    return [
        *_empty_row_mistakes(s, value),
        *_softmax_mistakes(s, value),
        *_through_the_softmax(score_mistakes(query, key, **options), value),
        *_late_mask_mistakes(right.scores(query, key, False, scale), value, see, mask),
        *output_mistakes(right.softmax(s), value),
        *_head_mistakes(query, key, value, options),
        *_dropped_keys(query, key, value, options),
        *_online_softmax_mistakes(s, value),
    ]


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
    no_max = (
        "The row maximum is not subtracted before exp: exp of a score above 88.7 overflows float32, and inf / inf "
        "is NaN."
    )
    largest = s.amax(-1, keepdim=True)
    hidden = s == -math.inf
    without_last = s[..., : max(1, s.size(-1) - 1)]
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
            "not normalised",
            "The rows of P are not divided by their sum: V is multiplied by exp(S - max).",
            lambda: torch.exp(s - torch.where(largest == -math.inf, 0.0, largest)) @ value,
        ),
        Mistake("no max subtraction", no_max, lambda: softmax_without_max(s, guarded=True) @ value),
        Mistake("no max subtraction", no_max, lambda: softmax_without_max(s, guarded=False) @ value),
        Mistake(
            "mean of V",
            "Each output is the plain mean of V: all weights are equal, as if every score were 0.",
            lambda: right.softmax(torch.zeros_like(s)) @ value,
        ),
        Mistake(
            "mean of V",
            "Each output is the plain mean of the V it may see: all weights are equal, as if every score were 0.",
            lambda: right.softmax(torch.zeros_like(s).masked_fill(hidden, -math.inf)) @ value,
        ),
        Mistake(
            "last key left out",
            "The last key takes no part in the softmax: a loop over S_k keys runs while k < S_k.",
            lambda: right.softmax(without_last) @ value[..., : without_last.size(-1), :],
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


def _late_mask_mistakes(s: Tensor, value: Tensor, see: Tensor | None, mask: Tensor | None) -> list[Mistake]:
    """The causal mask `see` or a bool mask on the weights instead of the scores; s is scaled and not masked."""
    says = "The mask is applied after the softmax: the rows of P no longer sum to 1."
    found = []
    if see is not None:
        early = right.masked(s, mask=mask)
        found.append(
            Mistake("masked after the softmax", says, lambda: right.softmax(early).masked_fill(~see, 0.0) @ value)
        )
    if mask is not None and mask.dtype == torch.bool:
        early_causal = s if see is None else right.masked(s, mask=see)
        found.append(
            Mistake(
                "masked after the softmax", says, lambda: right.softmax(early_causal).masked_fill(~mask, 0.0) @ value
            )
        )
    return found


def output_mistakes(weights: Tensor, value: Tensor) -> list[Mistake]:
    """Wrong answers for O = P V; weights [..., S_q, S_k], value [..., S_k, head_dim]."""
    seq_k, head_dim = value.shape[-2:]
    found = [
        Mistake(
            "V transposed",
            "V is read as if it lay in memory as [head_dim, S_k]: the output is P times V^T where P times V is "
            "meant (gemm_nn, not gemm_nt).",
            lambda: weights @ value.reshape(*value.shape[:-2], head_dim, seq_k).transpose(-2, -1),
        )
    ]
    found += [
        Mistake(
            "last tile dropped",
            f"The sum P V runs over the first {n} of the {seq_k} keys only: the last, partial tile along K of "
            "the second GEMM is left out. The number of tiles is rounded up.",
            lambda n=n: weights[..., :n] @ value[..., :n, :],
        )
        for n in last_tile_starts(seq_k)
    ]
    found += [
        Mistake(
            "last key left out",
            "The sum P V leaves out the last key: a loop over S_k keys runs while k < S_k.",
            lambda: weights[..., :-1] @ value[..., :-1, :],
        ),
        Mistake(
            "weights left out",
            "Each output is the plain sum of V over the keys: V is added up without its weights.",
            lambda: torch.ones_like(weights) @ value,
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


def _head_mistakes(query: Tensor, key: Tensor, value: Tensor, options: dict) -> list[Mistake]:
    """K and V exchanged, or those of the wrong head; options are those of right.attention."""
    found = [
        Mistake(
            "K and V swapped",
            "K and V are swapped: the scores come from V and the sum runs over K.",
            lambda: right.attention(query, value, key, **options),
        )
    ]
    for name, says, used in (
        (
            "K in place of V",
            "K is read where V belongs: the weights are right, and the sum runs over K.",
            (query, key, key),
        ),
        ("V in place of K", "V is read where K belongs: the scores come from V.", (query, value, value)),
        ("K in place of Q", "K is read where Q belongs: the scores are K times K^T.", (key, key, value)),
        ("Q in place of K", "Q is read where K belongs: the scores are Q times Q^T.", (query, query, value)),
    ):
        if name.endswith(("V", "V in place of K")) or query.shape == key.shape:
            found.append(Mistake(name, says, lambda used=used: right.attention(*used, **options)))
    if query.dim() == 4 and query.size(1) > 1 and key.size(1) == query.size(1):
        found.append(
            Mistake(
                "K and V of the first head",
                "Every head attends to the K and V of the first head.",
                lambda: right.attention(query, key[:, :1], value[:, :1], **options),
            )
        )
    return found


def _dropped_keys(query: Tensor, key: Tensor, value: Tensor, options: dict) -> list[Mistake]:
    """The last, partial tile of keys left out of the softmax; or that of both matrix products."""
    seq_k, head_dim = key.size(-2), query.size(-1)
    scaled = options | {"scale": head_dim**-0.5 if options["scale"] is None else options["scale"]}
    s = right.scores(query, key, **options)
    found = [
        Mistake(
            "last tile dropped",
            f"Only the first {n} of the {seq_k} keys take part in the softmax. The loop over the tiles of keys ends "
            "too early (their number is rounded up, and it is that of the keys), or the last, partial tile is masked "
            "although some of its keys exist.",
            lambda n=n: right.softmax(s[..., :n]) @ value[..., :n, :] if n else torch.zeros_like(query),
        )
        for n in last_tile_starts(seq_k)
    ]
    both = [(n, m) for n in last_tile_starts(head_dim) for m in last_tile_starts(seq_k)]
    for n, m in both:
        found.append(
            Mistake(
                "last tile dropped",
                f"The scores use only the first {n} of the head_dim = {head_dim} entries, and P V only the first "
                f"{m} of the {seq_k} keys: both GEMMs leave out the last, partial tile along K.",
                lambda n=n, m=m: (
                    right.softmax(right.scores(query[..., :n], key[..., :n], **scaled))[..., :m] @ value[..., :m, :]
                ),
            )
        )
    return found


def _online_softmax_mistakes(s: Tensor, value: Tensor) -> list[Mistake]:
    """The online softmax (Milakov and Gimelshein 2018) with a rescale left out, for every usual tile of keys."""
    return [mistake for tile in TILES if tile < s.size(-1) for mistake in rescale_mistakes(s, value, tile)]
