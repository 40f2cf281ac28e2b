"""Wrong masks that students' attention is known to apply to its scores.

    causal_mistakes(s, causal)                  the causal mask
    mask_mistakes(raw, factor, causal, mask)    the mask argument

s and raw are scores [..., S_q, S_k], and so are the answers: scaled, and masked as they would be with the mistake.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common import attention_reference as right
from common.known_mistakes import Mistake


def causal_mistakes(s: Tensor, causal: bool) -> list[Mistake]:
    """Mistakes in the causal mask; s [..., S_q, S_k] is scaled, and masked by the mask argument only."""
    see = right.causal_mask(*s.shape[-2:], s.device)
    if not causal:
        return [
            Mistake(
                "causal mask not asked for",
                "The causal mask is applied although causal is false.",
                lambda: s.masked_fill(~see, -math.inf),
            )
        ]
    strict = see.tril(-1)
    diagonal = (
        "The causal mask is off by one: the diagonal is masked too. Query i must see key j for every j <= i, its "
        "own position included."
    )
    found = [
        Mistake(
            "causal mask missing",
            "The causal mask is missing: queries see keys of the future (j > i).",
            lambda: s,
        ),
        Mistake("mask off by one", diagonal, lambda: s.masked_fill(~strict, -math.inf)),
        Mistake(
            "mask off by one",
            "The causal mask is off by one: query i sees key i + 1, one step into the future. Mask every j > i.",
            lambda: s.masked_fill(~torch.ones_like(see).tril(1), -math.inf),
        ),
        Mistake(
            "mask transposed",
            "The causal mask is transposed: query i sees the keys j >= i; it must see j <= i.",
            lambda: s.masked_fill(torch.ones_like(see).tril(-1), -math.inf),
        ),
        Mistake(
            "masked scores are 0",
            "Masked scores are set to 0 instead of -inf: exp(0) is 1, so they still count.",
            lambda: s.masked_fill(~see, 0.0),
        ),
    ]
    if lag := s.size(-1) - s.size(-2):
        found.append(
            Mistake(
                "causal mask counted from the end",
                f"The causal mask is aligned with the last key: query i sees the keys j <= i + S_k - S_q (= i "
                f"{'+' if lag > 0 else '-'} {abs(lag)}). Here, as in PyTorch, both count from the start: j <= i.",
                lambda: s.masked_fill(~torch.ones_like(see).tril(lag), -math.inf),
            )
        )
    return found


def mask_mistakes(raw: Tensor, factor: float, causal: bool, mask: Tensor) -> list[Mistake]:
    """Mistakes with the mask argument; raw [..., S_q, S_k] is neither scaled nor masked."""
    s = raw * factor

    def with_mask(other: Tensor) -> Tensor:
        return right.masked(s, causal, other)

    kind = "bool" if mask.dtype == torch.bool else "float"
    found = [
        Mistake(
            "mask ignored",
            f"The {kind} mask that was given is not applied to the scores.",
            lambda: right.masked(s, causal),
        )
    ]
    if kind == "bool":
        found += [
            Mistake(
                "mask inverted",
                "The bool mask is inverted: true means that the query may attend to the key, and false hides it.",
                lambda: with_mask(~mask),
            ),
            Mistake(
                "bool mask added",
                "The bool mask is added to the scores as 0 and 1; where it is false the score must become -inf.",
                lambda: with_mask(mask.to(s.dtype)),
            ),
            Mistake(
                "masked scores are 0",
                "Scores that the mask hides are set to 0 instead of -inf: exp(0) is 1, so they still count.",
                lambda: right.masked(s.masked_fill(~mask, 0.0), causal),
            ),
        ]
    else:
        found += [
            Mistake(
                "mask added before the scale",
                "The float mask is added to the scores before they are scaled, so it is scaled too: it belongs to the "
                "scaled scores.",
                lambda: right.masked((raw + mask) * factor, causal),
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
