"""python -m common.kernels.distributed.paper: estimates the cost of ring attention and Ulysses on N GPUs.

Per rank, for batch 1, 2 bytes per number, S tokens, H heads, K kv_heads, head_dim D, N ranks, under a causal mask:

    arithmetic              2 S^2 H D / N operations forward, 2.5 times that backward
    ring, a step            1 / N of a rank's arithmetic, while 2 (S / N) K D numbers are transferred; N - 1 transfers.
                            Backward also transfers their gradients, 4 bytes per number, and once more to return home
    ulysses                 (2 H + 2 K) (S / N) D (N - 1) / N numbers are sent before and after the arithmetic, backward
                            as many again

A ring's step hides its transfer if the arithmetic takes longer; what is not hidden adds up, and the last transfer of
the gradients is never hidden. Ulysses hides nothing. Latency is ignored.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

BYTES, GRADIENT_BYTES = 2, 4
BACKWARD = 2.5  # operations relative to the forward pass
MOST = 2.0**36  # tokens; beyond that nothing changes


@dataclass(frozen=True)
class Machine:
    """ranks GPUs, each with `flops` operations per second and `bandwidth` bytes per second each way."""

    ranks: int
    flops: float
    bandwidth: float


@dataclass(frozen=True)
class Problem:
    """Causal attention of tokens x heads x head_dim with kv_heads; forward, or only its backward pass."""

    tokens: float
    heads: int
    kv_heads: int
    head_dim: int
    backward: bool = False


def operations(problem: Problem, machine: Machine) -> float:
    """Operations of a rank in all steps."""
    once = 2 * problem.tokens**2 * problem.heads * problem.head_dim / machine.ranks
    return BACKWARD * once if problem.backward else once


def arithmetic(problem: Problem, machine: Machine) -> float:
    """Seconds of computation per rank."""
    return operations(problem, machine) / machine.flops


def ring(problem: Problem, machine: Machine) -> tuple[float, float]:
    """(bytes that a rank sends in a step in the middle, seconds for all steps)."""
    numbers = 2 * problem.tokens / machine.ranks * problem.kv_heads * problem.head_dim
    keys, gradients = numbers * BYTES, numbers * GRADIENT_BYTES if problem.backward else 0.0
    step = arithmetic(problem, machine) / machine.ranks
    if machine.ranks == 1:
        return 0.0, step
    first, middle, last = (max(step, sent / machine.bandwidth) for sent in (keys, keys + gradients, gradients))
    home = gradients / machine.bandwidth
    return keys + gradients, first + (machine.ranks - 2) * middle + last + home


def ulysses(problem: Problem, machine: Machine) -> tuple[float, float]:
    """(bytes that a rank sends, seconds)."""
    heads = 2 * problem.heads + 2 * max(problem.kv_heads, machine.ranks)
    share = (machine.ranks - 1) / machine.ranks
    sent = heads * problem.tokens / machine.ranks * problem.head_dim * BYTES * share
    return sent, arithmetic(problem, machine) + sent / machine.bandwidth


def hidden_from(problem: Problem, machine: Machine) -> float:
    """The number of tokens from which a ring's step hides its transfer: both take equally long."""
    forward = 2 * machine.ranks * problem.kv_heads / problem.heads * machine.flops / machine.bandwidth
    return forward * (BYTES + GRADIENT_BYTES) / BYTES / BACKWARD if problem.backward else forward


def ring_wins_from(problem: Problem, machine: Machine) -> float:
    """The number of tokens from which the ring is faster than Ulysses; 0: always, infinity: never."""

    def wins(tokens: float) -> bool:
        longer = replace(problem, tokens=tokens)
        return ring(longer, machine)[1] < ulysses(longer, machine)[1]

    low, high = 1.0, MOST
    if not wins(high):
        return math.inf
    if wins(low):
        return 0.0
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if wins(middle) else (middle, high)
    return high


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
    parser.add_argument("--backward", action="store_true", help="the backward pass alone; name its --tflops")
    options = parser.parse_args(argv)
    for name in ("ranks", "bandwidth", "tflops", "heads", "kv_heads", "head_dim"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be above 0")
    machine = Machine(options.ranks, options.tflops * 1e12, options.bandwidth * 1e9)
    problem = Problem(1, options.heads, options.kv_heads, options.head_dim, options.backward)
    console = Console()
    console.print(_table(problem, machine, options))
    hidden = hidden_from(problem, machine) / 1024
    console.print(f"a ring's journeys are hidden from {_thousands(hidden)} tokens on", highlight=False)
    if problem.heads % machine.ranks:
        said = f"ulysses: {options.heads} heads are no multiple of {options.ranks} ranks"
    else:
        least = ring_wins_from(problem, machine)
        said = {0.0: "the ring is faster at any length", math.inf: "ulysses is faster at any length"}.get(
            least, f"the ring is faster than ulysses from {_thousands(least / 1024)} tokens on"
        )
    console.print(said, highlight=False)
    return 0


def _thousands(tokens: float) -> str:
    """Formats a number of tokens in thousands: "29.3k", "1,500k"."""
    return f"{float(f'{tokens:.3g}'):,g}k"


def _table(problem: Problem, machine: Machine, options: argparse.Namespace) -> Table:
    possible = problem.heads % machine.ranks == 0
    what = "backward" if problem.backward else "forward"
    rates = f"{options.bandwidth:g} GB/s, {options.tflops:g} TFLOP/s"
    table = Table(title=f"{options.ranks} GPUs, {rates}, causal {what}, ms")
    of_ring = ("ring: a step computes", "and sends", "ring")
    for column in ("tokens", "arithmetic", *of_ring, "ulysses sends", "ulysses", "faster"):
        table.add_column(column, justify="right")
    for thousands in (8, 32, 128, 512, 2048):
        longer = replace(problem, tokens=1024 * thousands)
        (step, of_ring), (sent, of_ulysses) = ring(longer, machine), ulysses(longer, machine)
        faster = "ring" if of_ring < of_ulysses or not possible else "ulysses"
        times = [1e3 * x for x in (arithmetic(longer, machine), of_ring, of_ulysses)]
        table.add_row(
            f"{thousands}k",
            _number(times[0]),
            f"{_number(operations(longer, machine) / machine.ranks / 1e12)} TFLOP",
            f"{_number(step / 1e6)} MB",
            _number(times[1]),
            f"{_number(sent / 1e6)} MB" if possible else "-",
            _number(times[2]) if possible else "-",
            faster,
        )
    return table


def _number(x: float) -> str:
    """Formats a number with three digits."""
    return f"{float(f'{x:.3g}'):,g}"


if __name__ == "__main__":
    raise SystemExit(main())
