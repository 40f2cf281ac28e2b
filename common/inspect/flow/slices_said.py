"""A set of elements in words: said("key", (2, 4, 32, 8), mask) -> "key[0, 1, 16:32, :]"."""

from __future__ import annotations

import numpy as np

from common.console.words import counted


def said(name: str, shape: tuple[int, ...], mask: np.ndarray) -> str:
    """The smallest slice of a tensor that holds the elements; where it holds others as well, their count.

    Args:
        name: of the tensor.
        shape: of it.
        mask: which of its elements, bool [numel]; one at least.
    """
    chosen = mask.reshape(shape)
    ranges = []
    for axis, size in enumerate(shape):
        others = tuple(i for i in range(len(shape)) if i != axis)
        at = np.flatnonzero(chosen.any(others)) if others else np.flatnonzero(chosen)
        ranges.append((int(at[0]), int(at[-1]) + 1, size))
    count, whole = int(chosen.sum()), int(np.prod([stop - start for start, stop, _ in ranges]))
    inside = ", ".join(map(_range, ranges))
    text = f"{name}[{inside}]" if shape else name
    return text if count == whole else f"{counted(count, 'element')} of {text}"


def _range(one: tuple[int, int, int]) -> str:
    start, stop, size = one
    if stop - start == 1:
        return str(start)
    return ":" if stop - start == size else f"{start}:{stop}"
