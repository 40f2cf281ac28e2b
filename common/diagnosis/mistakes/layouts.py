"""Wrong answers of an operator that takes an array for one of another layout: two of its axes exchanged in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Mistake, Words

known = Words(__file__)

MOST_ELEMENTS = 1 << 16  # of all inputs: each layout is one more call of the reference


def layout_mistakes(inputs: Mapping[str, Tensor], reference: Callable[..., Tensor]) -> list[Mistake]:
    """Each input, and all inputs of one shape together, with two axes exchanged.

    Args:
        inputs: of the call, in the oracle's precision.
        reference: reference(**inputs) computes the right answer.
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
            said = _said(floats[names[0]], axes) | {"names": ", ".join(names), "all": " and ".join(names)}
            key = "axes of {names} exchanged (several arrays)" if len(names) > 1 else "axes of {names} exchanged"
            found.append(known(key, lambda read=read: reference(**{**inputs, **read}), **said))
    return found


def _pairs(x: Tensor) -> list[tuple[int, int]]:
    """The axes that may be exchanged; the last two of a matrix are known by other names."""
    return [(i, j) for i, j in combinations(range(x.dim()), 2) if x.dim() > 2 and min(x.size(i), x.size(j)) > 1]


def _swapped(x: Tensor, axes: tuple[int, int]) -> torch.Size:
    sizes = list(x.shape)
    i, j = axes
    sizes[i], sizes[j] = sizes[j], sizes[i]
    return torch.Size(sizes)


def _said(x: Tensor, axes: tuple[int, int]) -> dict[str, object]:
    return {"stored": [*_swapped(x, axes)], "i": axes[0], "j": axes[1], "shape": [*x.shape]}
