"""Wrong masks that students' attention is known to apply to its scores.

    causal_mistakes(s, causal, lower_right)                  the causal mask
    mask_mistakes(raw, factor, causal, mask, lower_right)    the mask argument

s and raw are scores [..., S_q, S_k], and so are the answers: scaled, and masked as they would be with the mistake.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Mistake, Words
from common.reference import oracle as right

known = Words(__file__)


def causal_mistakes(s: Tensor, causal: bool, lower_right: bool = False) -> list[Mistake]:
    """Mistakes in the causal mask; s [..., S_q, S_k] is scaled, and masked by the mask argument only."""
    see = right.causal_mask(*s.shape[-2:], s.device, lower_right)
    if not causal:
        if s.size(-2) == 1:  # V of key 0 comes out, which has other causes
            return []
        return [known("causal mask not asked for", lambda: s.masked_fill(~see, -math.inf))]
    lag = s.size(-1) - s.size(-2)
    diagonal = lag if lower_right else 0
    last = "i" if diagonal == 0 else f"i {'+' if diagonal > 0 else '-'} {abs(diagonal)}"  # the last key of query i

    def below(number: int) -> Tensor:
        """The scores of the keys j <= i + number only."""
        return s.masked_fill(~torch.ones_like(see).tril(number), -math.inf)

    included = "its own position" if diagonal == 0 else "the last one"
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
        found.append(
            known("causal mask counted from the end", lambda: below(lag), lag=f"{'+' if lag > 0 else '-'} {abs(lag)}")
        )
    return found


def mask_mistakes(raw: Tensor, factor: float, causal: bool, mask: Tensor, lower_right: bool = False) -> list[Mistake]:
    """Mistakes with the mask argument; raw [..., S_q, S_k] is neither scaled nor masked."""
    s = raw * factor
    hide_future = partial(right.masked, causal=causal, lower_right=lower_right)

    def with_mask(other: Tensor) -> Tensor:
        return hide_future(s, mask=other)

    kind = "bool" if mask.dtype == torch.bool else "float"
    found = [known("mask ignored", lambda: hide_future(s), kind=kind)]
    if kind == "bool":
        found += [
            known("mask inverted", lambda: with_mask(~mask)),
        ]
    else:
        found += [
            known("mask added before the scale", lambda: hide_future((raw + mask) * factor)),
            known("float mask read as bool", lambda: with_mask(mask != 0)),
        ]
    return found + _broadcast_mistakes(mask, raw.shape, with_mask)


def _broadcast_mistakes(mask: Tensor, shape: torch.Size, with_mask: Callable[[Tensor], Tensor]) -> list[Mistake]:
    """The mask read with a stride left out or exchanged; shape is [batch, heads, S_q, S_k]."""
    whole = mask.reshape((1,) * (len(shape) - mask.dim()) + mask.shape)
    names = ("batch entry", "head", "query", "key")[-len(shape) :]
    found = [
        known(
            "mask broadcast wrong",
            lambda axis=axis: with_mask(whole.narrow(axis, 0, 1)),
            name=name,
            size=whole.size(axis),
        )
        for axis, name in enumerate(names)
        if whole.size(axis) > 1
    ]
    exchanged = [(-2, -1, "query", "key")] + ([(0, 1, "batch entry", "head")] if len(shape) == 4 else [])
    for a, b, name_a, name_b in exchanged:
        turned = whole.transpose(a, b)
        fits = all(size in (1, wanted) for size, wanted in zip(turned.shape, shape, strict=True))
        if fits and whole.size(a) * whole.size(b) > 1:
            found.append(
                known(
                    "mask broadcast wrong (dimensions exchanged)",
                    lambda turned=turned: with_mask(turned),
                    name_a=name_a,
                    name_b=name_b,
                )
            )
    return found
