"""Wrong answers that students' attention is known to give: attention_mistakes(query, key, value, causal, scale).

The scale, the causal mask, the axis of the softmax, tiles left out, operands swapped, the online softmax without its
rescale. See common.known_mistakes for what a Mistake is and for those of the softmax and of the matrix product.
"""

import math

import torch
from torch import Tensor

from common import attention_reference as right
from common.known_mistakes import TILES, Mistake, last_tile_starts, softmax_without_max


def attention_mistakes(
    query: Tensor, key: Tensor, value: Tensor, causal: bool = False, scale: float | None = None
) -> list[Mistake]:
    """Wrong answers for attention; query [..., S_q, head_dim], key and value [..., S_k, head_dim]."""
    seq_q, seq_k, head_dim = query.size(-2), key.size(-2), query.size(-1)
    factor = head_dim**-0.5 if scale is None else scale
    called = "1 / sqrt(head_dim)" if scale is None else "the scale"
    raw = right.gemm_nt(query, key)
    s = right.scores(query, key, causal, scale)

    no_max = (
        "The row maximum is not subtracted before exp: exp of a score above 88.7 overflows float32, and inf / inf "
        "is NaN."
    )

    def over(weights_of: Tensor) -> Tensor:
        return right.softmax(weights_of) @ value

    found = [
        Mistake(
            "scale forgotten",
            f"The scores are not scaled: S = Q K^T must be multiplied by {called} = {factor:.4g} before the softmax.",
            lambda: over(_masked(raw, s)),
        ),
        Mistake(
            "scale applied twice",
            f"The scores are multiplied by {factor**2:.4g}: {called} is applied twice, or the square root is missing.",
            lambda: over(_masked(raw * factor**2, s)),
        ),
        Mistake(
            "scale inverted",
            f"The scores are multiplied by {1 / factor:.4g}; they must be divided by it: the scale is {called}.",
            lambda: over(_masked(raw / factor, s)),
        ),
        Mistake(
            "softmax over the wrong axis",
            "The softmax runs over the queries (the columns of S); it must run over the keys, along each row of S.",
            lambda: right.softmax(s.transpose(-2, -1)).transpose(-2, -1) @ value,
        ),
        Mistake(
            "softmax missing",
            "The softmax is missing: V is multiplied by the scores S themselves.",
            lambda: s.masked_fill(s == -math.inf, 0.0) @ value,
        ),
        Mistake(
            "not normalised",
            "The rows of P are not divided by their sum: V is multiplied by exp(S - max).",
            lambda: torch.exp(s - s.amax(-1, keepdim=True)) @ value,
        ),
        Mistake("no max subtraction", no_max, lambda: softmax_without_max(s, guarded=True) @ value),
        Mistake("no max subtraction", no_max, lambda: softmax_without_max(s, guarded=False) @ value),
        Mistake(
            "mean of V",
            "Each output is the plain mean of V: all weights are equal, as if every score were 0.",
            lambda: over(torch.zeros_like(s)),
        ),
        Mistake(
            "mean of V",
            "Each output is the plain mean of the V it may see: all weights are equal, as if every score were 0.",
            lambda: over(_masked(torch.zeros_like(s), s)),
        ),
        Mistake(
            "K not transposed",
            "K is read as if it lay in memory as [head_dim, S_k]: the scores are Q times K where Q times K^T is "
            "meant (gemm_nt, not gemm_nn).",
            lambda: over(_masked(query @ key.reshape(*key.shape[:-2], head_dim, seq_k) * factor, s)),
        ),
        Mistake(
            "V transposed",
            "V is read as if it lay in memory as [head_dim, S_k]: the output is P times V^T where P times V is "
            "meant (gemm_nn, not gemm_nt).",
            lambda: right.softmax(s) @ value.reshape(*value.shape[:-2], head_dim, seq_k).transpose(-2, -1),
        ),
        Mistake(
            "K and V swapped",
            "K and V are swapped: the scores come from V and the sum runs over K.",
            lambda: right.attention(query, value, key, causal, scale),
        ),
    ]
    if scale is not None:
        found.append(
            Mistake(
                "scale argument ignored",
                f"The scores are scaled by 1 / sqrt(head_dim) and not by the scale that was asked for, {scale:g}.",
                lambda: over(_masked(raw * head_dim**-0.5, s)),
            )
        )
    found += _mask_mistakes(raw * factor, value, causal, over)
    found += _dropped_tiles(query, key, value, s, factor, over)
    found += _online_softmax_mistakes(s, value)
    if query.dim() == 4 and query.size(1) > 1:
        heads = query.size(1)
        found.append(
            Mistake(
                "scaled by the hidden size",
                "The scores are divided by sqrt(heads * head_dim); the scale is 1 / sqrt(head_dim), head_dim "
                "being the size of one head.",
                lambda: over(_masked(raw * factor * heads**-0.5, s)),
            )
        )
        if key.shape[1] == heads:
            found.append(
                Mistake(
                    "K and V of the first head",
                    "Every head attends to the K and V of the first head.",
                    lambda: right.attention(query, key[:, :1], value[:, :1], causal, scale),
                )
            )
    if seq_q == seq_k:
        found.append(
            Mistake(
                "Q and K swapped",
                "Q and K are swapped: S is transposed.",
                lambda: right.attention(key, query, value, causal, scale),
            )
        )
    return found


def _masked(s: Tensor, like: Tensor) -> Tensor:
    """s with -inf wherever `like` has it."""
    return s.masked_fill(like == -math.inf, -math.inf)


def _mask_mistakes(s: Tensor, value: Tensor, causal: bool, over) -> list[Mistake]:
    """Mistakes in the causal mask; s [..., S_q, S_k] is scaled and not yet masked."""
    see = right.causal_mask(*s.shape[-2:], s.device)
    if not causal:
        return [
            Mistake(
                "causal mask not asked for",
                "The causal mask is applied although causal is false.",
                lambda: over(s.masked_fill(~see, -math.inf)),
            )
        ]
    strict = see.tril(-1)
    diagonal = (
        "The causal mask is off by one: the diagonal is masked too. Query i must see key j for every j <= i, its "
        "own position included."
    )
    first = (torch.arange(s.size(-2), device=s.device) == 0)[:, None]
    return [
        Mistake(
            "causal mask missing",
            "The causal mask is missing: queries see keys of the future (j > i).",
            lambda: over(s),
        ),
        Mistake("mask off by one", diagonal, lambda: over(s.masked_fill(~strict, -math.inf))),
        Mistake(
            "mask off by one",
            diagonal,
            lambda: torch.where(first, math.nan, over(s.masked_fill(~strict, -math.inf))),
        ),
        Mistake(
            "mask off by one",
            "The causal mask is off by one: query i sees key i + 1, one step into the future. Mask every j > i.",
            lambda: over(s.masked_fill(~torch.ones_like(see).tril(1), -math.inf)),
        ),
        Mistake(
            "mask transposed",
            "The causal mask is transposed: query i sees the keys j >= i; it must see j <= i.",
            lambda: over(s.masked_fill(~see.T, -math.inf)),
        ),
        Mistake(
            "masked scores are 0",
            "Masked scores are set to 0 instead of -inf: exp(0) is 1, so they still count.",
            lambda: over(s.masked_fill(~see, 0.0)),
        ),
        Mistake(
            "masked after the softmax",
            "The mask is applied after the softmax: the rows of P no longer sum to 1.",
            lambda: right.softmax(s).masked_fill(~see, 0.0) @ value,
        ),
    ]


def _dropped_tiles(query, key, value, s, factor, over) -> list[Mistake]:
    """Mistakes at the last, partial tile along the keys or along head_dim."""
    seq_k, head_dim = key.size(-2), query.size(-1)
    found = []
    for n in last_tile_starts(seq_k):
        found += [
            Mistake(
                "last tile dropped",
                f"Only the first {n} of the {seq_k} keys take part in the softmax: the last, partial tile of keys "
                "is left out. The number of tiles is rounded up.",
                lambda n=n: right.softmax(s[..., :n]) @ value[..., :n, :] if n else torch.zeros_like(query),
            ),
            Mistake(
                "last tile dropped",
                f"The sum P V runs over the first {n} of the {seq_k} keys only: the last, partial tile along K of "
                "the second GEMM is left out. The number of tiles is rounded up.",
                lambda n=n: right.softmax(s)[..., :n] @ value[..., :n, :],
            ),
        ]
    for n in last_tile_starts(head_dim):
        found.append(
            Mistake(
                "last tile dropped",
                f"The scores use only the first {n} of the head_dim = {head_dim} entries of Q and K: the last, "
                "partial tile along K of the first GEMM is left out. The number of tiles is rounded up.",
                lambda n=n: over(_masked(right.gemm_nt(query[..., :n], key[..., :n]) * factor, s)),
            )
        )
    both = [(n, m) for n in last_tile_starts(head_dim) for m in last_tile_starts(seq_k)]
    for n, m in both:
        found.append(
            Mistake(
                "last tile dropped",
                f"The scores use only the first {n} of the head_dim = {head_dim} entries, and P V only the first "
                f"{m} of the {seq_k} keys: both GEMMs leave out the last, partial tile along K.",
                lambda n=n, m=m: (
                    right.softmax(_masked(right.gemm_nt(query[..., :n], key[..., :n]) * factor, s))[..., :m]
                    @ value[..., :m, :]
                ),
            )
        )
    return found


def _online_softmax_mistakes(s: Tensor, value: Tensor) -> list[Mistake]:
    """The online softmax (Milakov and Gimelshein 2018) with a rescale left out, for every usual tile of keys."""
    found = []
    for tile in (t for t in TILES if t < s.size(-1)):
        for name, of_o, of_l in (("O and l", False, False), ("O", False, True), ("l", True, False)):
            found.append(
                Mistake(
                    "no rescale in the online softmax",
                    f"When the running maximum grows, {name} must be multiplied by exp(m_old - m_new); here it is "
                    f"not (tiles of {tile} keys).",
                    lambda tile=tile, of_o=of_o, of_l=of_l: _online(s, value, tile, of_o, of_l),
                )
            )
    return found


def _online(s: Tensor, value: Tensor, tile: int, rescale_o: bool, rescale_l: bool) -> Tensor:
    """FlashAttention's loop over tiles of keys, with or without the rescales of O [..., S_q, d] and l [..., S_q, 1]."""
    m = torch.full_like(s[..., :1], -math.inf)
    l, o = torch.zeros_like(m), torch.zeros_like(s[..., :1] * value[..., :1, :])  # noqa: E741
    for start in range(0, s.size(-1), tile):
        block = s[..., start : start + tile]
        m_new = torch.maximum(m, block.amax(-1, keepdim=True))
        safe = torch.where(m_new == -math.inf, 0.0, m_new)
        p, rescale = torch.exp(block - safe), torch.exp(m - safe)
        l = l * (rescale if rescale_l else 1.0) + p.sum(-1, keepdim=True)  # noqa: E741
        o = o * (rescale if rescale_o else 1.0) + p @ value[..., start : start + tile, :]
        m = m_new
    return o / l
