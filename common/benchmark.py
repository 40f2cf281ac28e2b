"""python -m common.benchmark NAME: how fast the kernels of common/kernels are on a GPU, and how long a verdict takes.

flash, options, gemm, softmax, sparse, decode     a room against its peers; `python -m common.benchmark flash --help`
distributed                                       attention over several GPUs, under torchrun
verdict                                           seconds from an edit to a verdict, in the simulator
machine                                           a GPU's latencies and rates, for common/predict/machine.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from common.cli.benchmark import benchmark_main
from common.cli.machine import print_machine
from common.compiling import toolchain
from common.compiling.load import load
from common.compiling.manifest import tasks
from common.compiling.request import BuildRequest
from common.console.terminal import say
from common.measure.benchmark.problem import Benchmark
from common.measure.benchmarks import gemm, softmax
from common.measure.benchmarks.decode import decode_benchmark
from common.measure.benchmarks.distributed import command as distributed
from common.measure.benchmarks.flash import flash_benchmark
from common.measure.benchmarks.options import options_benchmark
from common.measure.benchmarks.sdpa import HALF
from common.measure.benchmarks.sparse import sparse_benchmark
from common.measure.verdict_times import VerdictError, measure_verdicts, verdict_table


def _sparse(program: str) -> Benchmark:
    def dtype(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--dtype", choices=HALF, default="bf16", help="default: bf16")

    def operators(options: argparse.Namespace):
        return load(BuildRequest("sparse", backend="cuda"))

    return sparse_benchmark(program, operators, {"tuned": "tuned"}, lambda options: options.dtype, dtype)


ROOMS: dict[str, Callable[[str], Benchmark]] = {
    "decode": decode_benchmark,
    "flash": flash_benchmark,
    "gemm": gemm.gemm_benchmark,
    "options": options_benchmark,
    "softmax": softmax.softmax_benchmark,
    "sparse": _sparse,
}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m common.benchmark", description=__doc__.split("\n")[0])
    parser.add_argument(
        "name",
        choices=(*ROOMS, "distributed", "verdict", "machine"),
        help="what is measured; NAME --help lists its options",
    )
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = parser.parse_args(arguments[:1]).name
    if name == "distributed":
        return distributed.main(arguments[1:])
    if name == "machine":
        argparse.ArgumentParser(prog="python -m common.benchmark machine").parse_args(arguments[1:])
        return print_machine(Console())
    if name != "verdict":
        return benchmark_main(ROOMS[name](f"common.benchmark {name}"), arguments[1:])
    return _verdicts(arguments[1:])


def _verdicts(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m common.benchmark verdict", description="Seconds from an edit to a verdict, in the simulator."
    )
    parser.add_argument("tasks", nargs="*", metavar="taskN", help="default: all")
    parser.add_argument("--fresh", action="store_true", help="start each task with an empty cache of compiled objects")
    options = parser.parse_args(argv)
    if unknown := [one for one in options.tasks if one not in tasks()]:
        parser.error(f"taskN is {unknown[0]!r}; it must be one of {', '.join(tasks())}")
    console, table = Console(), verdict_table()
    try:
        measure_verdicts(table, options.tasks or tasks(), options.fresh, console)
        return 0
    except (VerdictError, toolchain.ToolchainError) as error:
        say(console, error)
        return 1
    finally:
        console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
