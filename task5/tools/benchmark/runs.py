"""Checks and times one problem of `python -m task5.benchmark`.

measured = run(problem, ops, flex=True, rounds=20)
measured.timings[OURS].seconds, measured.left_out, measured.ideal
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.measure.limits import float32_precision
from common.measure.timing import Stopwatch, Timing, measure
from common.reference import attention as reference
from common.reference.bounds import max_error_of, running_sum_floor
from task5.tools.benchmark.problems import DTYPES, Problem
from task5.tools.benchmark.versions import DENSE, OURS, Masks, prepare, versions

if TYPE_CHECKING:
    from common.compiling.operators import Operators

SLOW = 5  # times our kernel's time: what takes longer has a few rounds of its own
SLOW_ROUNDS = 3


@dataclass(frozen=True)
class Measured:
    """What was found out about one problem.

    Attributes:
        timings: version -> its runs.
        errors: version -> the largest error of an element of the sampled heads.
        left_out: version -> why it has no time.
    """

    problem: Problem
    timings: dict[str, Timing]
    errors: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def seconds(self, name: str) -> float | None:
        """The median of a version, None if it has none."""
        return self.timings[name].seconds if name in self.timings else None

    @property
    def ideal(self) -> float | None:
        """Dense time x density, seconds: what the pattern would take if every score cost what it costs in the dense
        kernel that PyTorch chose."""
        dense = self.seconds(DENSE)
        return None if dense is None else dense * self.problem.density


class Sample:
    """The right answer for the first and the last head, in float64, and how far off a version may be.

    Bound: 2 max|plain PyTorch in the same dtype - float64| + a floor for float32 sums, as in common.testing.checking.
    """

    def __init__(self, problem: Problem, inputs: Sequence[Tensor]) -> None:
        self.heads = list(dict.fromkeys([(0, 0), (problem.batch - 1, problem.heads - 1)]))
        self.right, self.bounds = [], []
        with float32_precision("highest"):
            for batch, head in self.heads:
                query, key, value = (x[batch, head] for x in inputs)
                exact, same = [], []
                for rows in problem.row_blocks(query.device):
                    seen = problem.sees(rows)
                    seen = seen[head] if seen.dim() == 3 else seen
                    exact.append(reference.attention(query[rows].double(), key.double(), value.double(), mask=seen))
                    same.append(reference.attention(query[rows], key, value, mask=seen))
                self.right.append(torch.cat(exact))
                floor = _floor(problem, self.right[-1])
                self.bounds.append(2 * max_error_of(torch.cat(same), self.right[-1]) + floor)

    def error(self, out: Tensor) -> tuple[float, float]:
        """(largest error, its bound) of the head that comes closest to its bound; NaN counts as infinitely wrong."""
        found = [
            (max_error_of(out[where].double(), right), bound)
            for where, right, bound in zip(self.heads, self.right, self.bounds, strict=True)
        ]
        return max(found, key=lambda one: one[0] / one[1] if one[0] == one[0] else float("inf"))


def _floor(problem: Problem, ref: Tensor) -> float:
    """Rounding of the scores, of sums in float32, and of a result of this size to 16 bits."""
    size = max(1.0, float(ref.abs().max()))
    rounding = torch.finfo(DTYPES[problem.dtype]).eps / 2 if problem.dtype != "fp32" else 0.0
    return 1e-5 * size + running_sum_floor(problem.seq_len, size) + rounding * size


def run(
    problem: Problem,
    ops: Operators,
    flex: bool = True,
    rounds: int = 20,
    device: torch.device | str = "cuda",
    stopwatch: Stopwatch | None = None,
) -> Measured:
    """Checks all versions on the same inputs, and times those that are right, in turn.

    Args:
        problem, ops, flex: see versions().
        rounds: timed runs of each version.
        device, stopwatch: for tests; see common.measure.timing.measure.

    Raises:
        ValueError: our kernel is wrong.
        NotImplementedError: our kernel has an unfilled gap.
    """
    with torch.no_grad(), float32_precision("highest"):
        masks = Masks(problem, device, ops)
        calls = versions(problem, ops, masks, flex)
        inputs = problem.make_inputs(device)
        extra = prepare(problem, *inputs[1:])
        sample = Sample(problem, inputs)
        errors, left_out = {}, {}
        for name, call in list(calls.items()):
            try:
                out = call(*inputs, extra)
            except (RuntimeError, torch.OutOfMemoryError) as error:
                if name == OURS:
                    raise
                left_out[name] = (str(error).strip() or type(error).__name__).splitlines()[0]
                del calls[name]
                continue
            if name == DENSE:  # another result: it only says what a score costs
                continue
            errors[name], bound = sample.error(out)
            if not errors[name] <= bound:
                words = f"wrong by {errors[name]:.1e}, at most {bound:.1e} is allowed"
                if name == OURS:
                    raise ValueError(f"{problem.name}, {problem.sizes}, {problem.dtype}: the kernel is {words}")
                left_out[name] = words
                del calls[name]
        del inputs, extra, out

        def make_inputs() -> list:
            query, key, value = problem.make_inputs(device)
            return [query, key, value, prepare(problem, key, value)]

        first = measure(calls, make_inputs, 1, 1, stopwatch)
        slow = {name: calls[name] for name in calls if first[name].seconds > SLOW * first[OURS].seconds}
        fast = {name: calls[name] for name in calls if name not in slow}
        timings = measure(fast, make_inputs, rounds, 1, stopwatch)
        if slow:
            timings |= measure(slow, make_inputs, min(rounds, SLOW_ROUNDS), 0, stopwatch)
    ordered = {name: timings[name] for name in calls}
    return Measured(problem, ordered, errors, left_out)
