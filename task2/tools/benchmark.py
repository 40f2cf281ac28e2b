"""How fast task 2's kernels are on a GPU, beside PyTorch's and beside what the machine can do.

python -m task2.benchmark [--yours] [--steps] [--part softmax|gemm] [--rounds N] [--json FILE]

Prints a table per problem: the taught solution, the tuned version (common/kernels), torch.softmax or cuBLAS (torch's
float32 matrix product, no TF32), all timed in turn on the same inputs; and the share of the measured copy bandwidth or
matrix product rate. Every output is compared with float64 first.
With --yours: your attention_kernel.cu too. With --steps: the versions between the taught kernel and the tuned one, each
with one change more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.compiling.result import BuildError
from common.compiling.toolchain import ToolchainError
from common.measure import report
from common.measure.limits import Limits, float32_precision, measure_limits
from common.measure.timing import Stopwatch, measure
from common.reference import attention as reference
from common.reference.bounds import max_error_of, running_sum_floor

if TYPE_CHECKING:
    from common.compiling.operators import Operators

SOFTMAX_SIZES = [
    (65536, 4096),
    (4194304, 64),
    (1048576, 128),
    (262144, 1024),
    (8192, 32768),
    (4096, 65536),
    (65537, 4095),
]
GEMM_SIZES = [(1, 4096, 4096, 4096), (1, 1024, 1024, 1024), (1, 4095, 4097, 4093), (96, 1024, 1024, 64)]
SOFTMAX_STEPS = ["1 one pass, warp shuffles", "2 float4", "3 row in registers"]
GEMM_STEPS = ["1 register tiles", "2 float4", "3 no bank conflicts", "4 pipelined"]


@dataclass(frozen=True)
class Problem:
    """One size of one operator: how inputs are made, what the right answer is, how much work it takes.

    Attributes:
        title: "softmax 65536 x 4096".
        make_inputs: () -> the operator's arguments, random, on `device`.
        reference: the same in plain PyTorch, in the precision of its arguments.
        floor: of the bound on the error, as in common.testing.checking.
        work: bytes to read and write, or operations to do, at least.
        unit: "TB/s" or "TFLOP/s".
    """

    title: str
    make_inputs: Callable[[], tuple[Tensor, ...]]
    reference: Callable[..., Tensor]
    floor: float
    work: float
    unit: str


def softmax_problem(rows: int, cols: int, device: str = "cuda") -> Problem:
    """softmax over the last axis of [rows, cols]; work: each entry read once and written once."""
    return Problem(
        f"softmax {rows} x {cols}",
        lambda: (4 * torch.randn(rows, cols, device=device),),
        reference.softmax,
        1e-6,
        2 * 4 * rows * cols,
        "TB/s",
    )


def gemm_problem(operator: str, batch: int, m: int, n: int, k: int, device: str = "cuda") -> Problem:
    """gemm_nn or gemm_nt; work: 2 M N K operations per matrix."""
    b_shape = {"gemm_nn": (batch, k, n), "gemm_nt": (batch, n, k)}[operator]
    product = {"gemm_nn": "A B", "gemm_nt": "A B^T"}[operator]
    return Problem(
        f"{product}, {f'batch {batch}, ' if batch > 1 else ''}M N K = {m} {n} {k}",
        lambda: (torch.randn(batch, m, k, device=device), torch.randn(b_shape, device=device)),
        getattr(reference, operator),
        running_sum_floor(k, 4 * k**0.5),  # a sum of k products of two normal variables: seldom over 4 sqrt(k)
        2 * batch * m * n * k,
        "TFLOP/s",
    )


def check_output(problem: Problem, name: str, call: Callable[..., Tensor], sample: int = 512) -> None:
    """Refuses to time what is wrong: compares with float64 by the bound of common.testing.checking.

    Args:
        problem: what is computed.
        name: of the version, for the message.
        call: the version.
        sample: how many rows are compared, spread evenly from the first to the last, of as many matrices at most.

    Raises:
        RuntimeError: the output is wrong.
    """
    inputs = problem.make_inputs()
    out = call(*inputs)

    def rows(x: Tensor) -> Tensor:
        return x[torch.linspace(0, len(x) - 1, min(sample, len(x)), device=x.device).long()]

    if len(inputs) == 1:  # the rows of a softmax do not depend on one another
        out, inputs = rows(out), (rows(inputs[0]),)
    else:
        out, inputs = rows(out), tuple(map(rows, inputs))
    ref = problem.reference(*(x.double() for x in inputs))
    bound = 2 * max_error_of(problem.reference(*inputs), ref) + problem.floor
    error = max_error_of(out, ref)
    if not error <= bound:
        raise RuntimeError(f"{name} is wrong on {problem.title}: max error {error:.2e}, bound {bound:.2e}; not timed")


def peers(
    operator: str, taught: Operators, tuned: Operators, steps: bool, yours: Operators | None = None
) -> dict[str, Callable]:
    """The versions of an operator, ours and PyTorch's, which comes last."""
    library, torch_call = {
        "softmax": ("torch.softmax", partial(torch.softmax, dim=-1)),
        "gemm_nn": ("cuBLAS", torch.matmul),
        "gemm_nt": ("cuBLAS", lambda a, b: torch.matmul(a, b.mT)),
    }[operator]
    ours: dict[str, Callable] = {"yours": getattr(yours, operator)} if yours else {}
    ours["taught"] = getattr(taught, operator)
    if steps:
        names = SOFTMAX_STEPS if operator == "softmax" else GEMM_STEPS
        call = getattr(tuned, f"{operator}_step")
        ours |= {name: partial(_step, call, number) for number, name in enumerate(names, start=1)}
    else:
        ours["tuned"] = getattr(tuned, operator)
    return ours | {library: torch_call}


def _step(call: Callable[..., Tensor], number: int, *inputs: Tensor) -> Tensor:
    return call(*inputs, number)


def run(
    problem: Problem,
    versions: dict[str, Callable],
    limits: Limits,
    rounds: int,
    ladder: bool,
    stopwatch: Stopwatch | None = None,
) -> report.Section:
    """Checks and times all versions of one problem; the last of them is the peer.

    Raises:
        RuntimeError: a version is wrong.
    """
    if problem.unit == "TB/s":
        limit = report.Limit("copy", limits.copy)
    else:
        limit = report.Limit("matmul", limits.matmul["float32"])
    with float32_precision("highest"), torch.no_grad():
        for name, call in versions.items():
            check_output(problem, name, call)
        timings = measure(versions, problem.make_inputs, rounds, stopwatch=stopwatch)
    return report.Section(problem.title, problem.work, problem.unit, timings, limit, list(versions)[-1], ladder)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; exit status 0, 1: a kernel does not compile or is wrong, 2: no GPU."""
    parser = argparse.ArgumentParser(prog="python -m task2.benchmark", description=__doc__.split("\n")[0])
    parser.add_argument("--yours", action="store_true", help="your attention_kernel.cu as well")
    parser.add_argument("--steps", action="store_true", help="the versions between taught and tuned, at two sizes")
    parser.add_argument("--part", choices=("softmax", "gemm"), help="only these kernels (default: both)")
    parser.add_argument("--rounds", type=int, default=20, help="timed runs of each version (default 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE as well")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; it must be at least 1")
    console = Console()
    if not report.gpu_is_there(console):
        return report.NEEDS_GPU
    problems: list[tuple[str, Problem]] = []
    if options.part != "gemm":
        sizes = [(65536, 4096), (4096, 65536)] if options.steps else SOFTMAX_SIZES
        problems += [("softmax", softmax_problem(*size)) for size in sizes]
    if options.part != "softmax":
        sizes = GEMM_SIZES[:1] if options.steps else GEMM_SIZES
        problems += [(name, gemm_problem(name, *size)) for size in sizes for name in ("gemm_nn", "gemm_nt")]
    sections = []
    try:
        with console.status("compiling ..."):
            taught, tuned = load(BuildRequest("task2", "solution")), load(BuildRequest("task2", "tuned"))
            yours = load(BuildRequest("task2")) if options.yours else None
        with console.status("measuring what the machine can do ..."):
            limits = measure_limits(matmul=("float32",))
        console.print(", ".join(f"{name} {value}" for name, value in report.machine().items()), highlight=False)
        console.print(
            f"copy {limits.copy / 1e12:.2f} TB/s read + written; matmul 8192^3 float32, no TF32: "
            f"{limits.matmul['float32'] / 1e12:.1f} TFLOP/s",
            highlight=False,
        )
        for operator, problem in problems:
            versions = peers(operator, taught, tuned, options.steps, yours)
            sections.append(run(problem, versions, limits, options.rounds, options.steps))
            console.print(report.table(sections[-1]))
    except (BuildError, ToolchainError, RuntimeError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    if options.json:
        command = "python -m task2.benchmark " + " ".join(sys.argv[1:] if argv is None else argv)
        report.write_json(options.json, command.strip(), sections, report.machine())
    return 0
