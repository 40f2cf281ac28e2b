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

from common.diagnosis.mistakes.known import Mistake
from common.reference import oracle as right


def causal_mistakes(s: Tensor, causal: bool, lower_right: bool = False) -> list[Mistake]:
    """Mistakes in the causal mask; s [..., S_q, S_k] is scaled, and masked by the mask argument only."""
    see = right.causal_mask(*s.shape[-2:], s.device, lower_right)
    if not causal:
        says = "The causal mask is applied although causal is false."
        if s.size(-2) == 1:  # V of key 0 comes out, which has other causes
            return []
        return [Mistake("causal mask not asked for", says, lambda: s.masked_fill(~see, -math.inf))]
    lag = s.size(-1) - s.size(-2)
    diagonal = lag if lower_right else 0
    last = "i" if diagonal == 0 else f"i {'+' if diagonal > 0 else '-'} {abs(diagonal)}"  # the last key of query i

    def below(number: int) -> Tensor:
        """The scores of the keys j <= i + number only."""
        return s.masked_fill(~torch.ones_like(see).tril(number), -math.inf)

    off_by_one = (
        "The causal mask is off by one: the diagonal is masked too. Query i must see key j for every "
        f"j <= {last}, {'its own position' if diagonal == 0 else 'the last one'} included."
    )
    found = [
        Mistake(
            "causal mask missing",
            f"The causal mask is missing: queries see keys of the future (j > {last}).",
            lambda: s,
        ),
        Mistake("mask off by one", off_by_one, lambda: below(diagonal - 1)),
        Mistake(
            "mask off by one",
            f"The causal mask is off by one: query i sees key {last} + 1, one step into the future. Mask every "
            f"j > {last}.",
            lambda: below(diagonal + 1),
        ),
        Mistake(
            "mask transposed",
            f"The causal mask is transposed: query i sees the keys j >= {last}; it must see j <= {last}.",
            lambda: s.masked_fill(torch.ones_like(see).tril(diagonal - 1), -math.inf),
        ),
        Mistake(
            "masked scores are 0",
            "Masked scores are set to 0 instead of -inf: exp(0) is 1, so they still count.",
            lambda: s.masked_fill(~see, 0.0),
        ),
    ]
    if lag and lower_right:
        found.append(
            Mistake(
                "causal mask counted from the start",
                f"The causal mask is aligned with the first key, j <= i. With lower_right both count from the end: "
                f"query i sees the keys j <= i + S_k - S_q (= {last}).",
                lambda: below(0),
            )
        )
        found.append(
            Mistake(
                "causal mask shifted the wrong way",
                f"The causal mask is shifted the wrong way: query i sees the keys j <= i + S_q - S_k; it must be "
                f"j <= i + S_k - S_q (= {last}).",
                lambda: below(-lag),
            )
        )
    elif lag:
        found.append(
            Mistake(
                "causal mask counted from the end",
                f"The causal mask is aligned with the last key: query i sees the keys j <= i + S_k - S_q (= i "
                f"{'+' if lag > 0 else '-'} {abs(lag)}). Here, as in PyTorch, both count from the start: j <= i.",
                lambda: below(lag),
            )
        )
    return found


def mask_mistakes(raw: Tensor, factor: float, causal: bool, mask: Tensor, lower_right: bool = False) -> list[Mistake]:
    """Mistakes with the mask argument; raw [..., S_q, S_k] is neither scaled nor masked."""
    s = raw * factor
    hide_future = partial(right.masked, causal=causal, lower_right=lower_right)

    def with_mask(other: Tensor) -> Tensor:
        return hide_future(s, mask=other)

    kind = "bool" if mask.dtype == torch.bool else "float"
    found = [
        Mistake(
            "mask ignored",
            f"The {kind} mask that was given is not applied to the scores.",
            lambda: hide_future(s),
        )
    ]
    if kind == "bool":
        found += [
            Mistake(
                "mask inverted",
                "The bool mask is inverted: true means that the query may attend to the key, and false hides it.",
                lambda: with_mask(~mask),
            ),
        ]
    else:
        found += [
            Mistake(
                "mask added before the scale",
                "The float mask is added to the scores before they are scaled, so it is scaled too: it belongs to the "
                "scaled scores.",
                lambda: hide_future((raw + mask) * factor),
            ),
            Mistake(
                "float mask read as bool",
                "The float mask is used as if it were bool: every number but 0 counts as true. It must be added to "
                "the scores.",
                lambda: with_mask(mask != 0),
            ),
        ]
    return found + _broadcast_mistakes(mask, raw.shape, with_mask)


def _broadcast_mistakes(mask: Tensor, shape: torch.Size, with_mask: Callable[[Tensor], Tensor]) -> list[Mistake]:
    """The mask read with a stride left out or exchanged; shape is [batch, heads, S_q, S_k]."""
    whole = mask.reshape((1,) * (len(shape) - mask.dim()) + mask.shape)
    names = ("batch entry", "head", "query", "key")[-len(shape) :]
    found = [
        Mistake(
            "mask broadcast wrong",
            f"The mask of the first {name} is used for every {name}: along this dimension the mask has size "
            f"{whole.size(axis)} and its stride must not be 0.",
            lambda axis=axis: with_mask(whole.narrow(axis, 0, 1)),
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
                Mistake(
                    "mask broadcast wrong",
                    f"The {name_a} and the {name_b} are exchanged where the mask is read.",
                    lambda turned=turned: with_mask(turned),
                )
            )
    return found
