"""python -m common.kernels.distributed.paper: what a ring and Ulysses cost on N GPUs, on paper.

Per rank, for batch 1, 2 bytes a number, S tokens, H heads, K heads of keys, head_dim D, N ranks:

    arithmetic, forward     4 S^2 H D / N operations, half of that causal
    ring, a step            2 (S / N) K D numbers travel while 1 / N of a rank's arithmetic is done; N - 1 steps
    ulysses                 (2 H + 2 K) (S / N) D (N - 1) / N numbers travel before and after the arithmetic

A ring's step hides its journey when the arithmetic takes longer; what it does not hide adds up. Ulysses hides nothing.
Latency is left out. Forward only: backward, a ring sends keys and float32 gradients of keys (3 times as much) for 2.5
times the arithmetic, Ulysses twice as much.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

BYTES = 2


@dataclass(frozen=True)
class Machine:
    """ranks GPUs, each of `flops` operations per second, which send `bandwidth` bytes per second each way."""

    ranks: int
    flops: float
    bandwidth: float


@dataclass(frozen=True)
class Problem:
    """Causal attention of tokens x heads x head_dim, keys of kv_heads."""

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int


def arithmetic(problem: Problem, machine: Machine) -> float:
    """Seconds that a rank computes."""
    return 2 * problem.tokens**2 * problem.heads * problem.head_dim / machine.ranks / machine.flops


def ring(problem: Problem, machine: Machine) -> tuple[float, float]:
    """(bytes that a rank sends in a step, seconds of all steps)."""
    sent = 2 * problem.tokens / machine.ranks * problem.kv_heads * problem.head_dim * BYTES
    step = arithmetic(problem, machine) / machine.ranks
    return sent, step + (machine.ranks - 1) * max(step, sent / machine.bandwidth)


def ulysses(problem: Problem, machine: Machine) -> tuple[float, float]:
    """(bytes that a rank sends, seconds)."""
    heads = 2 * problem.heads + 2 * max(problem.kv_heads, machine.ranks)
    share = (machine.ranks - 1) / machine.ranks
    sent = heads * problem.tokens / machine.ranks * problem.head_dim * BYTES * share
    return sent, arithmetic(problem, machine) + sent / machine.bandwidth


def hidden_from(problem: Problem, machine: Machine) -> float:
    """The number of tokens from which a ring's step hides its journey: arithmetic and journey take as long."""
    return 2 * machine.ranks * problem.kv_heads / problem.heads * machine.flops / machine.bandwidth


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m common.kernels.distributed.paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, default=8, help="default 8")
    parser.add_argument("--bandwidth", type=float, default=320.0, help="GB/s each way and GPU; default 320")
    parser.add_argument("--tflops", type=float, default=600.0, help="of the attention kernel; default 600")
    parser.add_argument("--heads", type=int, default=16, help="default 16")
    parser.add_argument("--kv-heads", type=int, default=16, help="default 16")
    parser.add_argument("--head-dim", type=int, default=128, help="default 128")
    options = parser.parse_args(argv)
    for name in ("ranks", "bandwidth", "tflops", "heads", "kv_heads", "head_dim"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be above 0")
    machine = Machine(options.ranks, options.tflops * 1e12, options.bandwidth * 1e9)
    title = f"{options.ranks} GPUs, {options.bandwidth:g} GB/s, {options.tflops:g} TFLOP/s, causal forward, ms"
    possible = options.heads % options.ranks == 0
    table = Table(title=title)
    for column in ("tokens", "arithmetic", "ring: a step sends", "ring", "ulysses sends", "ulysses", "faster"):
        table.add_column(column, justify="right")
    for thousands in (8, 32, 128, 512, 2048):
        problem = Problem(1024 * thousands, options.heads, options.kv_heads, options.head_dim)
        (step, of_ring), (sent, of_ulysses) = ring(problem, machine), ulysses(problem, machine)
        faster = "ring" if of_ring < of_ulysses or not possible else "ulysses"
        times = [1e3 * x for x in (arithmetic(problem, machine), of_ring, of_ulysses)]
        table.add_row(
            f"{thousands}k",
            f"{times[0]:.3g}",
            f"{step / 1e6:.3g} MB",
            f"{times[1]:.3g}",
            f"{sent / 1e6:.3g} MB",
            f"{times[2]:.3g}" if possible else "-",
            faster,
        )
    console = Console()
    console.print(table)
    tokens = hidden_from(Problem(1, options.heads, options.kv_heads, options.head_dim), machine)
    console.print(f"a ring's journeys are hidden from {tokens / 1024:.3g}k tokens on", highlight=False)
    if not possible:
        console.print(f"ulysses: {options.heads} heads are no multiple of {options.ranks} ranks", highlight=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
