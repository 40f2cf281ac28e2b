"""Wrong scores that students' attention is known to compute: score_mistakes(query, key, causal, scale, mask, ...).

The scale, the causal mask, the mask argument, operands swapped, parts of the sum left out. Each answer is S, scaled and
masked, as it would be with the mistake; attention.py follows it to the output. See known.py
for what a Mistake is.
"""

from functools import partial

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Mistake
from common.diagnosis.mistakes.masks import causal_mistakes, mask_mistakes
from common.reference import oracle as right


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
        Mistake(
            "scale forgotten",
            f"The scores are not scaled: S = Q K^T must be multiplied by {called} = {factor:.4g} before the softmax.",
            lambda: masked(raw),
        ),
        Mistake(
            "scale applied twice",
            f"The scores are multiplied by {factor**2:.4g}: {called} is applied twice, or the square root is missing.",
            lambda: masked(raw * factor**2),
        ),
        Mistake(
            "K not transposed",
            "K is read as if it lay in memory as [head_dim, S_k]: the scores are Q times K where Q times K^T is "
            "meant (gemm_nt, not gemm_nn).",
            lambda: masked(query @ key.reshape(*key.shape[:-2], head_dim, seq_k) * factor),
        ),
        Mistake(
            "last column left out",
            "The scores leave out the last column of Q and K: a loop over head_dim columns runs while d < head_dim.",
            lambda: masked(right.gemm_nt(query[..., :-1], key[..., :-1]) * factor),
        ),
    ]
    found += causal_mistakes(right.masked(raw * factor, mask=mask), causal, lower_right)
    if mask is not None:
        found += mask_mistakes(raw, factor, causal, mask, lower_right)
    if query.dim() == 4 and query.size(1) > 1:
        found.append(
            Mistake(
                "scaled by the hidden size",
                "The scores are divided by sqrt(heads * head_dim); the scale is 1 / sqrt(head_dim), head_dim "
                "being the size of one head.",
                lambda: masked(raw * factor * query.size(1) ** -0.5),
            )
        )
    if key.dim() == 4 and key.size(0) * key.size(1) > 1:
        found.append(
            Mistake(
                "K of the first matrix",
                "Every head of every batch entry reads the K of the first one: the matrix's offset is missing.",
                lambda: masked(right.gemm_nt(query, key[:1, :1]) * factor),
            )
        )
        if seq_q < seq_k:  # with more queries than keys the last rows lie outside
            found.append(
                Mistake(
                    "K counted in queries",
                    "K of a head begins where it would if a head had S_q keys: its offset is that many heads times S_k "
                    "rows. The two agree where S_q = S_k.",
                    lambda: masked(right.gemm_nt(query, _counted_in(seq_q, key)) * factor),
                )
            )
    return found


def _counted_in(rows: int, x: Tensor) -> Tensor:
    """x [batch, heads, S, D] read as if a head had `rows` rows, at most S: each has S rows from number * rows on."""
    batch, heads, seq, head_dim = x.shape
    flat = x.reshape(-1, head_dim)
    first = rows * torch.arange(batch * heads, device=x.device)
    return flat[first[:, None] + torch.arange(seq, device=x.device)].reshape(x.shape)
