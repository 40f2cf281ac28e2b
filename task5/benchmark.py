"""How long strided attention takes on a GPU, beside PyTorch's scaled_dot_product_attention (SDPA), in float32.

    measure_problem(Problem(...), ops)     the times of one problem, the output checked first
    main(["--solution"])                   python -m task5.test --mode=benchmark --solution

The versions, timed in turn on the same inputs (common/timing.py):

    kernel             this task's kernel on the whole K and V
    SDPA, gathered     SDPA on strided K and V that were copied together beforehand: the copy is not counted
    gather + SDPA      the same, the copy counted
    dense + mask       SDPA on the whole K and V with a bool mask

The ideal is dense + mask times the share of the score matrix that the mask shows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from common import benchmark_report, build, toolchain
from common.cli import EXPECTED_ERRORS, add_build_arguments
from common.limits import float32_precision
from common.timing import Stopwatch, Timing, measure
from task5.attention import naive_strided_attention, strided_mask

if TYPE_CHECKING:
    from common.build import Operators

VERSIONS = ("kernel", "SDPA, gathered", "gather + SDPA", "dense + mask")
ERROR_BOUND = 1e-4  # of normally distributed inputs, float32 beside float64


@dataclass(frozen=True)
class Problem:
    """Query, key and value [batch, heads, seq_len, head_dim], and the keys 0, stride, 2 * stride, ..."""

    batch: int
    heads: int
    seq_len: int
    head_dim: int
    stride: int
    causal: bool

    @property
    def name(self) -> str:
        """ "2 x 16 x 4096 x 128, stride 4, causal": sizes as in the class."""
        sizes = f"{self.batch} x {self.heads} x {self.seq_len} x {self.head_dim}"
        return f"{sizes}, stride {self.stride}" + (", causal" if self.causal else "")


PROBLEMS = [Problem(2, 16, 4096, 128, stride, causal) for causal in (False, True) for stride in (2, 4, 8)]


def measure_problem(
    problem: Problem, ops: Operators, rounds: int = 20, stopwatch: Stopwatch | None = None
) -> tuple[dict[str, Timing], float]:
    """The timings of VERSIONS, and the share of the score matrix that is computed, 0 .. 1.

    Args:
        problem: its sizes.
        ops: the operators of task 5.
        rounds, stopwatch: see common.timing.measure.

    Raises:
        ValueError: the kernel's output is wrong.
        NotImplementedError: the kernel has an unfilled gap.
    """
    p, stride = problem, problem.stride
    generator = torch.Generator(ops.device).manual_seed(0)
    shape = (p.batch, p.heads, p.seq_len, p.head_dim)
    strided = strided_mask(p.seq_len, p.seq_len, stride, 0, p.causal, ops.device).expand(p.seq_len, -1)
    dense = torch.zeros(p.seq_len, p.seq_len, dtype=torch.bool, device=ops.device)
    dense[:, ::stride] = strided
    mask = strided if p.causal else None

    def gathered(x: Tensor) -> Tensor:
        return x[:, :, ::stride].contiguous()

    def make_inputs() -> list[Tensor]:
        query, key, value = (torch.randn(shape, generator=generator, device=ops.device) for _ in range(3))
        return [query, key, value, gathered(key), gathered(value)]

    peers = {
        "kernel": lambda q, k, v, *_: ops.strided_attention(q, k, v, stride, 0, p.causal),
        "SDPA, gathered": lambda q, k, v, few_k, few_v: F.scaled_dot_product_attention(q, few_k, few_v, attn_mask=mask),
        "gather + SDPA": lambda q, k, v, *_: F.scaled_dot_product_attention(
            q, gathered(k), gathered(v), attn_mask=mask
        ),
        "dense + mask": lambda q, k, v, *_: F.scaled_dot_product_attention(q, k, v, attn_mask=dense),
    }
    inputs = make_inputs()
    head = [x[:1, :1].double() for x in inputs[:3]]  # float64 takes much memory: one head
    ref = naive_strided_attention(*head, stride, 0, p.causal)
    with float32_precision("highest"):
        for name in VERSIONS:
            error = float((peers[name](*inputs)[:1, :1] - ref).abs().max())
            if not error <= ERROR_BOUND:
                raise ValueError(f"{p.name}: {name} is wrong by {error:.1e}, at most {ERROR_BOUND} is allowed")
        return measure(peers, make_inputs, rounds, stopwatch=stopwatch), float(dense.float().mean())


def table(measured: Sequence[tuple[Problem, dict[str, Timing], float]]) -> Table:
    """One row per problem: medians, and how near the kernel comes to the ideal."""
    result = Table(title="float32; batch x heads x tokens x head_dim", title_justify="left")
    result.add_column("problem")
    for column in (*VERSIONS, "of the ideal"):
        result.add_column(column, justify="right")
    for problem, timings, density in measured:
        ideal = timings["dense + mask"].seconds * density
        times = [benchmark_report.duration(timings[name].seconds) for name in VERSIONS]
        result.add_row(escape(problem.name), *times, f"{ideal / timings['kernel'].seconds:.0%}")
    return result


def parser() -> argparse.ArgumentParser:
    """What the benchmark takes from the command line."""
    result = argparse.ArgumentParser(prog="python -m task5.test --mode=benchmark", description=__doc__.split("\n")[0])
    add_build_arguments(result)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; exit status 0: measured, or there is no GPU to measure on; 1: not measured."""
    options = parser().parse_args(argv)
    console = Console()
    try:
        backend = toolchain.choose_backend(options.backend)
        if backend.name != "cuda":
            console.print(f"benchmark: nothing was timed. Times are measured on a GPU ({escape(backend.reason)}).")
            return 0
        ops = build.load("task5", options.solution, options.backend, options.arch)
        measured = [(problem, *measure_problem(problem, ops)) for problem in PROBLEMS]
    except (*EXPECTED_ERRORS, RuntimeError, NotImplementedError) as error:
        console.print(f"benchmark: {escape(str(error))}", highlight=False)
        return 1
    wide = Console(width=max(console.width, 120))
    wide.print(table(measured))
    return 0
