"""Wrong scores that students' attention is known to compute: score_mistakes(query, key, causal, scale, mask, ...).

The scale, the causal mask, the mask argument, operands swapped, parts of the sum left out. Each answer is S, scaled and
masked, as it would be with the mistake; attention.py follows it to the output. See known.py
for what a Mistake is.
"""

from functools import partial

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Mistake, Words
from common.diagnosis.mistakes.masks import causal_mistakes, mask_mistakes
from common.reference import oracle as right

known = Words(__file__)


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
    factor = right.scale_or_default(scale, head_dim)
    called = "1 / sqrt(head_dim)" if scale is None else "the scale"
    raw = right.gemm_nt(query, key)
    masked = partial(right.masked, causal=causal, mask=mask, lower_right=lower_right)

    found = [
        known("scale forgotten", lambda: masked(raw), called=called, factor=factor),
        known("scale applied twice", lambda: masked(raw * factor**2), squared=factor**2, called=called),
        known("K not transposed", lambda: masked(query @ key.reshape(*key.shape[:-2], head_dim, seq_k) * factor)),
        known("last column left out", lambda: masked(right.gemm_nt(query[..., :-1], key[..., :-1]) * factor)),
    ]
    found += causal_mistakes(right.masked(raw * factor, mask=mask), causal, lower_right)
    if mask is not None:
        found += mask_mistakes(raw, factor, causal, mask, lower_right)
    if query.dim() == 4 and query.size(1) > 1:
        found.append(known("scaled by the hidden size", lambda: masked(raw * factor * query.size(1) ** -0.5)))
    if key.dim() == 4 and key.size(0) * key.size(1) > 1:
        found.append(known("K of the first matrix", lambda: masked(right.gemm_nt(query, key[:1, :1]) * factor)))
        if seq_q < seq_k:  # with more queries than keys the last rows lie outside
            found.append(
                known("K counted in queries", lambda: masked(right.gemm_nt(query, _counted_in(seq_q, key)) * factor))
            )
    return found


def _counted_in(rows: int, x: Tensor) -> Tensor:
    """x [batch, heads, S, D] read as if a head had `rows` rows, at most S: each has S rows from number * rows on."""
    batch, heads, seq, head_dim = x.shape
    flat = x.reshape(-1, head_dim)
    first = rows * torch.arange(batch * heads, device=x.device)
    return flat[first[:, None] + torch.arange(seq, device=x.device)].reshape(x.shape)
