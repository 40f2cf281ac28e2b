"""Wrong answers that students' kernels are known to give, computed in PyTorch so that an output can be compared.

    softmax_mistakes(x)                         every mistake for y = softmax(x)
    any_mistakes(ref)                           for any operator: zeros, transposed

Those of matrix products are in gemm.py, those of attention in attention_output.py. Each function returns a list of
Mistake. The inputs come in float64; where overflow is the mistake it is computed in float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from common.console.words import Sentences
from common.reference import oracle as right

TILES = (8, 16, 32, 64, 128, 256)


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


def softmax_mistakes(x: Tensor) -> list[Mistake]:
    """Wrong answers for y = softmax(x) over the last axis, x [rows, cols]."""
    largest = x.amax(-1, keepdim=True)
    e = torch.exp(x - torch.where(largest == -math.inf, 0.0, largest))
    masked = largest == -math.inf
    found = [
        known("not normalized", lambda: e),
        known("masked row is NaN", lambda: torch.where(masked, math.nan, right.softmax(x))),
        known("no max subtraction", lambda: softmax_without_max(x, True)),
        known("no max subtraction", lambda: softmax_without_max(x, False)),
    ]
    if bool((largest < 0).any()):
        found.append(known("maximum starts at 0", lambda: softmax_without_max(x, True, largest.clamp(min=0.0))))
    if x.size(0) > 1:
        found += [
            known("softmax over the wrong axis", lambda: right.softmax(x.transpose(-2, -1)).transpose(-2, -1)),
        ]
    return found


def softmax_without_max(x: Tensor, guarded: bool, shift: Tensor | float = 0.0) -> Tensor:
    """softmax in float32 that subtracts another number than the maximum; guarded: a sum of 0 gives zeros, not NaN."""
    e = torch.exp((x - shift).float())
    total = e.sum(-1, keepdim=True)
    return (torch.where(total == 0, 0.0, e / total) if guarded else e / total).to(x.dtype)
