"""Whether what is timed is right: a part of an output against float64.

sample = Sample.of(pick, exact, same_precision, floor)
sample.compare(outputs)                     -> Errors(relative, largest, bound)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.reference.bounds import max_error_of, running_sum_floor


@dataclass(frozen=True)
class Errors:
    """How far an output is from float64.

    Attributes:
        relative: |out - ref| / |ref| (Frobenius norms); of several parts the worst.
        largest: max|out - ref|, of the part that comes closest to its bound or exceeds it.
        bound: for `largest`: 2 max|same precision PyTorch - ref| + a floor, as for a test's cases.
    """

    relative: float
    largest: float
    bound: float

    @property
    def ok(self) -> bool:
        return self.largest <= self.bound  # False for NaN


@dataclass(frozen=True)
class Sample:
    """The right answer for some parts of the outputs.

    Attributes:
        pick: outputs -> those parts.
        right: them in float64.
        bounds: on max|part - right| of each.
    """

    pick: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    right: Sequence[Tensor]
    bounds: Sequence[float]

    @classmethod
    def of(
        cls,
        pick: Callable[[Sequence[Tensor]], Sequence[Tensor]],
        exact: Sequence[Tensor],
        same_precision: Sequence[Tensor],
        floor: Callable[[Tensor], float],
    ) -> Sample:
        """A sample whose bounds are twice the error of PyTorch in the same precision, and a floor.

        Args:
            pick: see the class.
            exact, same_precision: the parts by plain PyTorch, in float64 and in the precision of the inputs.
            floor: of the bound, for a part in float64.
        """
        both = zip(same_precision, exact, strict=True)
        return cls(pick, exact, [2 * max_error_of(same, ref) + floor(ref) for same, ref in both])

    def compare(self, outputs: Tensor | Sequence[Tensor]) -> Errors:
        """Of what a version returned."""
        outputs = [outputs] if isinstance(outputs, Tensor) else outputs
        found = []
        for part, ref, bound in zip(self.pick(outputs), self.right, self.bounds, strict=True):
            part = part.double()
            found.append(Errors(float((part - ref).norm() / ref.norm()), max_error_of(part, ref), bound))
        # a NaN, which compares false with everything, counts as worst
        worst = max(found, key=lambda one: torch.inf if math.isnan(one.largest) else one.largest / one.bound)
        relative = max(one.relative for one in found) if worst.ok else worst.relative
        return Errors(relative, worst.largest, worst.bound)


def attention_floor(keys: int, dtype: torch.dtype) -> Callable[[Tensor], float]:
    """For attention over `keys` keys: rounding of the scores, of sums in float32, and of the result to 16 bits."""
    rounding = torch.finfo(dtype).eps / 2 if dtype in (torch.float16, torch.bfloat16) else 0.0

    def floor(ref: Tensor) -> float:
        size = max(1.0, float(ref.abs().max()))
        return 1e-5 * size + running_sum_floor(keys, size) + rounding * size

    return floor


def heads(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Of [batch, heads, ...]: the first head of the first sequence and the last of the last, of every output."""
    batch, number = outputs[0].shape[:2]
    chosen = dict.fromkeys([(0, 0), (batch - 1, number - 1)])
    return [out[where] for where in chosen for out in outputs]
