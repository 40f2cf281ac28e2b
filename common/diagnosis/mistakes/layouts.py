"""Wrong answers of an operator that takes an array for one of another layout: two of its axes exchanged in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Mistake

MOST_ELEMENTS = 1 << 16  # of all inputs: each layout is one more call of the reference


def layout_mistakes(inputs: Mapping[str, Tensor], ref: Tensor, reference: Callable[..., Tensor]) -> list[Mistake]:
    """Each input, all inputs of one shape together, and the output, with two axes exchanged.

    Args:
        inputs: of the call, in the oracle's precision.
        ref: the right answer.
        reference: reference(**inputs) computes it.
    """
    if sum(x.numel() for x in inputs.values()) > MOST_ELEMENTS:
        return []
    floats = {name: x for name, x in inputs.items() if x.is_floating_point()}
    alike: dict[tuple[int, ...], list[str]] = {}
    for name, x in floats.items():
        alike.setdefault(tuple(x.shape), []).append(name)
    sets = [[name] for name in floats] + [names for names in alike.values() if len(names) > 1]
    found = []
    for names in sets:
        for axes in _pairs(floats[names[0]]):
            read = {name: floats[name].reshape(_swapped(floats[name], axes)).transpose(*axes) for name in names}
            says = _says(" and ".join(names), "read", floats[names[0]], axes, len(names) > 1)
            name = f"axes of {', '.join(names)} exchanged"
            found.append(Mistake(name, says, lambda read=read: reference(**{**inputs, **read})))
    for axes in _pairs(ref):
        says = _says("The output", "written", ref, axes)
        answer = ref.transpose(*axes).contiguous().view(ref.shape)
        found.append(Mistake("axes of the output exchanged", says, lambda answer=answer: answer))
    return found


def _pairs(x: Tensor) -> list[tuple[int, int]]:
    """The axes that may be exchanged; the last two of a matrix are known by other names."""
    return [(i, j) for i, j in combinations(range(x.dim()), 2) if x.dim() > 2 and min(x.size(i), x.size(j)) > 1]


def _swapped(x: Tensor, axes: tuple[int, int]) -> torch.Size:
    sizes = list(x.shape)
    i, j = axes
    sizes[i], sizes[j] = sizes[j], sizes[i]
    return torch.Size(sizes)


def _says(what: str, done: str, x: Tensor, axes: tuple[int, int], several: bool = False) -> str:
    are, they = ("are", "they are") if several else ("is", "it is")
    of = f"axes {axes[0]} and {axes[1]} exchanged"
    return f"{what} {are} {done} as if stored as {list(_swapped(x, axes))}, with {of}; {they} {list(x.shape)}."
