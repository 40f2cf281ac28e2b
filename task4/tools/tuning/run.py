"""Checks and times the candidates of `python -m task4.tune`.

    outcomes = run(tuning, candidates, workload, console)
    best(outcomes)                {head_dim: the fastest outcome}

A candidate is timed only if its output is right. The timed work is one call without a mask followed by one with a
causal mask, on the same inputs, for all candidates of a head_dim in turn (common/measure/timing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from common.measure.timing import CudaStopwatch, Stopwatch, measure
from common.testing.cases.attention_cases import attention_case
from common.testing.judging import judge
from task4.tools.tuning.grid import Candidate, TuningBuild

WARM_UP = 2


@dataclass(frozen=True)
class Workload:
    """The timed inputs: query, key and value [batch, heads, tokens, head_dim], and the number of rounds."""

    batch: int = 4
    heads: int = 16
    tokens: int = 2048
    rounds: int = 8

    def inputs(self, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        shape = (self.batch, self.heads, self.tokens, head_dim)
        return tuple(torch.randn(shape, device=device) for _ in range(3))

    def flops(self, head_dim: int) -> float:
        """FLOPs of both calls; the causal mask needs about half of them."""
        return 1.5 * 4 * self.batch * self.heads * self.tokens**2 * head_dim


@dataclass(frozen=True)
class Outcome:
    """The result for one candidate.

    Attributes:
        candidate: if it was not compiled, its problems say why.
        wrong: what is wrong with its output, "" if nothing.
        tflops: 0 if it was not timed.
        spills: bytes per thread.
    """

    candidate: Candidate
    wrong: str = ""
    tflops: float = 0.0
    spills: int = 0


class _Counted:
    """A stopwatch that moves a progress bar."""

    def __init__(self, stopwatch: Stopwatch, advance: Callable[[], None]) -> None:
        self._stopwatch, self._advance = stopwatch, advance

    def seconds(self, call: Callable[[], Any]) -> float:
        taken = self._stopwatch.seconds(call)
        self._advance()
        return taken


def run(
    tuning: TuningBuild,
    candidates: Sequence[Candidate],
    workload: Workload,
    console: Console,
    stopwatch: Stopwatch | None = None,
) -> list[Outcome]:
    """The outcome of every candidate, in their order."""
    possible = [one for one in candidates if not one.problems]
    found: dict[Candidate, Outcome] = {one: Outcome(one) for one in candidates if one.problems}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("comparing", total=len(possible))
        for one in possible:
            progress.update(bar, description=f"comparing head_dim {one.head_dim}: {one.tiles}")
            found[one] = Outcome(one, complaint(tuning, one), spills=tuning.spills(one))
            progress.advance(bar)
        stopwatch = stopwatch or CudaStopwatch()
        for D in dict.fromkeys(one.head_dim for one in possible):
            right = [one for one in possible if one.head_dim == D and not found[one].wrong]
            if not right:
                continue
            bar = progress.add_task(f"timing head_dim {D}", total=len(right) * (workload.rounds + WARM_UP))
            timings = measure(
                {one.arguments: _both_masks(tuning, one) for one in right},
                lambda D=D: workload.inputs(D, tuning.ops.device),
                workload.rounds,
                WARM_UP,
                _Counted(stopwatch, lambda bar=bar: progress.advance(bar)),
            )
            for one in right:
                tflops = workload.flops(D) / timings[one.arguments].seconds * 1e-12
                found[one] = Outcome(one, tflops=tflops, spills=tuning.spills(one))
    return [found[one] for one in candidates]


def _both_masks(tuning: TuningBuild, candidate: Candidate) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        tuning.choose(candidate)
        tuning.ops.flash_attention(query, key, value, False)
        return tuning.ops.flash_attention(query, key, value, True)

    return call


def complaint(tuning: TuningBuild, candidate: Candidate) -> str:
    """What is wrong with the candidate's output for sizes that don't fill its tiles; "" if it is right."""
    tuning.choose(candidate)
    for causal in (False, True):
        case = attention_case(
            *("flash_attention", "tune", "ragged", 1, 2, 113, 203, candidate.head_dim - 1, causal),
            lower_right=causal,
            tiles=(candidate.tiles.B_r, candidate.tiles.B_c),
            draws=1,
        )
        verdict = judge(case, tuning.ops)
        if not verdict.ok:
            return verdict.diagnosis[0] if verdict.diagnosis else verdict.status
    return ""


def best(outcomes: Sequence[Outcome]) -> dict[int, Outcome]:
    """The fastest outcome of every head_dim that has one."""
    timed = [one for one in outcomes if one.tflops]
    return {
        D: max((one for one in timed if one.candidate.head_dim == D), key=lambda one: one.tflops)
        for D in sorted({one.candidate.head_dim for one in timed})
    }
