"""Whether what is timed is right: some heads of an output against attention in float64.

sample = Sample.of(problem, inputs)         the right answer for the first and the last head
sample.compare(outputs)                     -> Errors(relative, largest, bound)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.measure.limits import float32_precision
from common.reference import attention as reference
from common.reference.bounds import max_error_of, running_sum_floor
from task4.tools.benchmark.grid import DTYPES, Problem

ROWS = 1024  # queries at a time, so that a long sequence's scores fit


@dataclass(frozen=True)
class Errors:
    """How far an output is from float64.

    Attributes:
        relative: |out - ref| / |ref| (Frobenius norms); of several outputs the worst.
        largest: max|out - ref|, of the output that comes closest to its bound or exceeds it.
        bound: for `largest`: 2 max|same precision PyTorch - ref| + a floor, as in common.testing.checking.
    """

    relative: float
    largest: float
    bound: float

    @property
    def ok(self) -> bool:
        return self.largest <= self.bound  # False for NaN


def reference_head(problem: Problem, head: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """One head by plain PyTorch, in the precision of its tensors, a block of queries at a time.

    Args:
        problem: its direction and mask count.
        head: query, key, value, grad_out, each [seq_len, head_dim].

    Returns:
        (out,) for a forward problem; the gradients of query, key and value for a backward one.
    """
    query, key, value, grad_out = head
    positions = torch.arange(problem.seq_len, device=query.device)
    rows_out, grad_key, grad_value = [], 0.0, 0.0
    for start in range(0, problem.seq_len, ROWS):
        rows = slice(start, start + ROWS)
        mask = positions <= positions[rows, None] if problem.causal else None
        if problem.direction == "forward":
            rows_out.append(reference.attention(query[rows], key, value, mask=mask))
            continue
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in (query[rows], key, value)]
            out = reference.attention(*leaves, mask=mask)
            grad_rows, more_key, more_value = torch.autograd.grad(out, leaves, grad_out[rows])
        rows_out.append(grad_rows)
        # sums over the blocks are not rounded to 16 bits in between
        grad_key, grad_value = grad_key + more_key.double(), grad_value + more_value.double()
    if problem.direction == "forward":
        return (torch.cat(rows_out),)
    return torch.cat(rows_out), grad_key.to(key.dtype), grad_value.to(value.dtype)


@dataclass(frozen=True)
class Sample:
    """The right answers for some heads.

    Attributes:
        heads: (batch, head) of each.
        right: per head, the outputs in float64.
        bounds: per head, on max|out - right| of each output.
    """

    heads: list[tuple[int, int]]
    right: list[tuple[Tensor, ...]]
    bounds: list[list[float]]

    @classmethod
    def of(cls, problem: Problem, inputs: Sequence[Tensor]) -> Sample:
        """The first head of the first sequence and the last of the last."""
        heads = list(dict.fromkeys([(0, 0), (problem.batch - 1, problem.heads - 1)]))
        right, bounds = [], []
        with torch.no_grad(), float32_precision("highest"):
            for batch, head in heads:
                given = [x[batch, head] for x in inputs]
                right.append(reference_head(problem, [x.double() for x in given]))
                same_precision = reference_head(problem, given)
                bounds.append(
                    [
                        2 * max_error_of(same, ref) + _floor(problem, ref)
                        for same, ref in zip(same_precision, right[-1], strict=True)
                    ]
                )
        return cls(heads, right, bounds)

    def compare(self, outputs: Tensor | Sequence[Tensor]) -> Errors:
        """Of one peer's out, or of its three gradients."""
        outputs = [outputs] if isinstance(outputs, Tensor) else outputs
        found = []
        for (batch, head), right, bounds in zip(self.heads, self.right, self.bounds, strict=True):
            for output, ref, bound in zip(outputs, right, bounds, strict=True):
                out = output[batch, head].double()
                relative = float((out - ref).norm() / ref.norm())
                found.append(Errors(relative, max_error_of(out, ref), bound))
        # a NaN, which compares false with everything, counts as worst
        worst = max(found, key=lambda one: torch.inf if math.isnan(one.largest) else one.largest / one.bound)
        return Errors(
            worst.relative if not worst.ok else max(one.relative for one in found), worst.largest, worst.bound
        )


def _floor(problem: Problem, ref: Tensor) -> float:
    """Rounding of the scores, of sums in float32, and of a result of this size to 16 bits."""
    size = max(1.0, float(ref.abs().max()))
    rounding = torch.finfo(DTYPES[problem.dtype]).eps / 2 if problem.dtype != "fp32" else 0.0
    return 1e-5 * size + running_sum_floor(problem.seq_len, size) + rounding * size
