"""Checks the output of timed calls: compares a part of it with float64.

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
    """The error of an output relative to float64.

    Attributes:
        relative: |out - ref| / |ref| (Frobenius norms); the worst of several parts.
        largest: max|out - ref|, for the part closest to its bound or exceeding it most.
        bound: bound for `largest`: 2 max|same precision PyTorch - ref| + a floor, as for a test's cases.
    """

    relative: float
    largest: float
    bound: float

    @property
    def ok(self) -> bool:
        return self.largest <= self.bound  # False for NaN


@dataclass(frozen=True)
class Sample:
    """The correct answer for some parts of the outputs.

    Attributes:
        pick: outputs -> those parts.
        right: the correct parts, in float64.
        bounds: bounds on max|part - right| for each.
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
        """A sample whose bounds are twice PyTorch's error in the same precision, plus a floor.

        Args:
            pick: see the class.
            exact, same_precision: the parts by plain PyTorch, in float64 and in the precision of the inputs.
            floor: float64 part -> floor of its bound.
        """
        both = zip(same_precision, exact, strict=True)
        return cls(pick, exact, [2 * max_error_of(same, ref) + floor(ref) for same, ref in both])

    def compare(self, outputs: Tensor | Sequence[Tensor]) -> Errors:
        """The errors of a version's outputs."""
        outputs = [outputs] if isinstance(outputs, Tensor) else outputs
        found = []
        for part, ref, bound in zip(self.pick(outputs), self.right, self.bounds, strict=True):
            part = part.double()
            found.append(Errors(float((part - ref).norm() / ref.norm()), max_error_of(part, ref), bound))
        # NaN compares false with everything; it counts as worst
        worst = max(found, key=lambda one: torch.inf if math.isnan(one.largest) else one.largest / one.bound)
        relative = max(one.relative for one in found) if worst.ok else worst.relative
        return Errors(relative, worst.largest, worst.bound)


def attention_floor(keys: int, dtype: torch.dtype) -> Callable[[Tensor], float]:
    """The floor for attention over `keys` keys: rounding of scores, of float32 sums, and of the result to 16 bits."""
    rounding = torch.finfo(dtype).eps / 2 if dtype in (torch.float16, torch.bfloat16) else 0.0

    def floor(ref: Tensor) -> float:
        size = max(1.0, float(ref.abs().max()))
        return 1e-5 * size + running_sum_floor(keys, size) + rounding * size

    return floor


def heads(outputs: Sequence[Tensor]) -> list[Tensor]:
    """For each output [batch, heads, ...]: the first head of the first sequence and the last head of the last."""
    batch, number = outputs[0].shape[:2]
    chosen = dict.fromkeys([(0, 0), (batch - 1, number - 1)])
    return [out[where] for where in chosen for out in outputs]
