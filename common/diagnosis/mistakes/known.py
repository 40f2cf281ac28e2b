"""Known wrong answers of students' kernels, computed in PyTorch for comparison with an output.

    any_mistakes(ref)                       any operator: zeros, transposed
    layout_mistakes(inputs, reference)      an array read with the wrong layout

Each function of these modules returns a list of Mistake. The inputs are float64; if the mistake is overflow or
underflow, it is computed in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from common.console.words import Sentences

TILES = (8, 16, 32, 64, 128, 256)
MOST_ELEMENTS = 1 << 16  # in all inputs: each layout costs another call of the reference


@dataclass(frozen=True)
class Mistake:
    """A wrong answer: a short name, the report's sentence, and a function that computes its output.

    A vague mistake describes the output, not what was done wrong; if two match, it is reported second. If reads_unused,
    its NaN was read where nothing may be read, see common.diagnosis.locating.UNUSED_BITS.
    """

    name: str
    says: str
    answer: Callable[[], Tensor]
    vague: bool = False
    reads_unused: bool = False

    def remembered(self) -> Mistake:
        """The same mistake with its answer cached."""
        return replace(self, answer=functools.cache(self.answer))

    def then(self, use: Callable[[Tensor], Tensor]) -> Mistake:
        """The same mistake, propagated to what is computed from its answer."""
        return replace(self, answer=lambda: use(self.answer()))


class Inference(Mistake):
    """An inference from an output that matches no known wrong answer, for an operator that is linear in an input.

    Attributes:
        infer: infer(out, bound) -> (a name, what the report says), or None; out in the oracle's precision.
    """

    def __init__(self, infer: Callable[[Tensor, float], tuple[str, str] | None]) -> None:
        super().__init__("", "", lambda: torch.empty(0))
        object.__setattr__(self, "infer", infer)

    def remembered(self) -> Inference:
        """Returns itself: it has no answer to cache."""
        return self


class Words:
    """The sentences of a module's known mistakes, and a factory for the mistakes: `known = Words(__file__)`.

    A key is the mistake's name; if a name has several sentences, a suffix in parentheses selects one: "plain sum (of
    the lse)". `always` are constant values for the placeholders.
    """

    def __init__(self, module: str, **always: object) -> None:
        self._says, self._always = Sentences(module), always

    def __call__(
        self, key: str, answer: Callable[[], Tensor], vague: bool = False, reads_unused: bool = False, **values: object
    ) -> Mistake:
        """The mistake with this key; the values fill placeholders in its name and sentence."""
        return Mistake(*self.says(key, **values), answer, vague, reads_unused)

    def says(self, key: str, **values: object) -> tuple[str, str]:
        """The name and sentence for an inference from an output."""
        values = self._always | values
        return key.split(" (")[0].format(**values), self._says(key, **values)


known = Words(__file__)


def last_tile_starts(size: int) -> list[int]:
    """The start of the last, partial tile of an axis for every common tile width, largest first."""
    return sorted({size // tile * tile for tile in TILES if size % tile}, reverse=True)


def any_mistakes(ref: Tensor) -> list[Mistake]:
    """Mistakes of any operator: zeros, the output transposed."""
    found = [known("all zeros", lambda: torch.zeros_like(ref))]
    if ref.dim() >= 2 and min(ref.shape[-2:]) > 1:
        found.append(known("output transposed", lambda: ref.transpose(-2, -1).contiguous().reshape(ref.shape)))
    return found


def layout_mistakes(inputs: Mapping[str, Tensor], reference: Callable[..., Tensor]) -> list[Mistake]:
    """Each input, and all inputs of one shape together, with two axes swapped in memory.

    Args:
        inputs: the call's inputs, in the oracle's precision.
        reference: reference(**inputs) computes the correct answer.
    """
    if sum(x.numel() for x in inputs.values()) > MOST_ELEMENTS:
        return []
    floats = {name: x for name, x in inputs.items() if x.is_floating_point()}
    alike: dict[tuple[int, ...], list[str]] = {}
    for name, x in floats.items():
        alike.setdefault(tuple(x.shape), []).append(name)
    found = []
    for names in [[name] for name in floats] + [names for names in alike.values() if len(names) > 1]:
        shape = floats[names[0]].shape
        for i, j in combinations(range(len(shape)), 2):
            if len(shape) < 3 or min(shape[i], shape[j]) < 2:  # for a matrix, the swap is known by other names
                continue
            stored = [*shape]
            stored[i], stored[j] = stored[j], stored[i]
            read = {name: floats[name].reshape(stored).transpose(i, j) for name in names}
            values = {"stored": stored, "i": i, "j": j, "shape": [*shape]}
            values |= {"names": ", ".join(names), "all": " and ".join(names)}
            key = "axes of {names} exchanged (several arrays)" if len(names) > 1 else "axes of {names} exchanged"
            found.append(known(key, lambda read=read: reference(**{**inputs, **read}), **values))
    return found
