"""Wrong answers that students' kernels are known to give, computed in PyTorch so that an output can be compared.

    any_mistakes(ref)                       of any operator: zeros, transposed
    layout_mistakes(inputs, reference)      of one that takes an array for one of another layout

Each function of the modules here returns a list of Mistake. The inputs come in float64; where overflow or underflow is
the mistake it is computed in float32.
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
MOST_ELEMENTS = 1 << 16  # of all inputs: each layout is one more call of the reference


@dataclass(frozen=True)
class Mistake:
    """A wrong answer: a short name, what the report says, and the function that computes the output it gives.

    A vague one says what the output looks like, not what was done wrong: of two that fit it is reported second. NaN in
    one that reads_unused was read where nothing may be read, see common.diagnosis.locating.UNUSED_BITS.
    """

    name: str
    says: str
    answer: Callable[[], Tensor]
    vague: bool = False
    reads_unused: bool = False

    def remembered(self) -> Mistake:
        """The same; its answer is computed once."""
        return replace(self, answer=functools.cache(self.answer))

    def then(self, use: Callable[[Tensor], Tensor]) -> Mistake:
        """The same mistake, followed to what is computed from its answer."""
        return replace(self, answer=lambda: use(self.answer()))


class Inference(Mistake):
    """What can be concluded from an output that equals no known wrong answer, where the operator is linear in an input.

    Attributes:
        infer: infer(out, bound) -> (a name, what the report says), or None; out in the oracle's precision.
    """

    def __init__(self, infer: Callable[[Tensor, float], tuple[str, str] | None]) -> None:
        super().__init__("", "", lambda: torch.empty(0))
        object.__setattr__(self, "infer", infer)

    def remembered(self) -> Inference:
        """Itself: it has no answer."""
        return self


class Words:
    """The sentences of a module's known mistakes, and the mistakes made with them: `known = Words(__file__)`.

    A key is the mistake's name; one of several sentences of a name adds which in parentheses: "plain sum (of the lse)".
    `always` are values that stay the same.
    """

    def __init__(self, module: str, **always: object) -> None:
        self._says, self._always = Sentences(module), always

    def __call__(
        self, key: str, answer: Callable[[], Tensor], vague: bool = False, reads_unused: bool = False, **values: object
    ) -> Mistake:
        """The mistake of this key, with these values in its name and sentence."""
        return Mistake(*self.says(key, **values), answer, vague, reads_unused)

    def says(self, key: str, **values: object) -> tuple[str, str]:
        """The name and the sentence of what was concluded from an output."""
        values = self._always | values
        return key.split(" (")[0].format(**values), self._says(key, **values)


known = Words(__file__)


def last_tile_starts(size: int) -> list[int]:
    """Where the last, partial tile of an axis begins, for every usual tile width, the largest first."""
    return sorted({size // tile * tile for tile in TILES if size % tile}, reverse=True)


def any_mistakes(ref: Tensor) -> list[Mistake]:
    """Mistakes that need no mathematics: zeros, the output transposed."""
    found = [known("all zeros", lambda: torch.zeros_like(ref))]
    if ref.dim() >= 2 and min(ref.shape[-2:]) > 1:
        found.append(known("output transposed", lambda: ref.transpose(-2, -1).contiguous().reshape(ref.shape)))
    return found


def layout_mistakes(inputs: Mapping[str, Tensor], reference: Callable[..., Tensor]) -> list[Mistake]:
    """Each input, and all inputs of one shape together, with two axes exchanged in memory.

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
    found = []
    for names in [[name] for name in floats] + [names for names in alike.values() if len(names) > 1]:
        shape = floats[names[0]].shape
        for i, j in combinations(range(len(shape)), 2):
            if len(shape) < 3 or min(shape[i], shape[j]) < 2:  # of a matrix the exchange is known by other names
                continue
            stored = [*shape]
            stored[i], stored[j] = stored[j], stored[i]
            read = {name: floats[name].reshape(stored).transpose(i, j) for name in names}
            values = {"stored": stored, "i": i, "j": j, "shape": [*shape]}
            values |= {"names": ", ".join(names), "all": " and ".join(names)}
            key = "axes of {names} exchanged (several arrays)" if len(names) > 1 else "axes of {names} exchanged"
            found.append(known(key, lambda read=read: reference(**{**inputs, **read}), **values))
    return found
