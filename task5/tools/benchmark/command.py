"""How fast sparse attention is on a GPU: our kernels beside PyTorch's.

python -m task5.benchmark [--dtype bf16] [--pattern strided window blocks] [--seq 4096 16384] [--no-flex] [--rounds N]
                          [--report] [--json FILE] [--pictures FOLDER]

2 x 16 heads of 128. float16 and bfloat16 run the tuned kernels; float32 yours, or with --solution the taught ones.
Strided attention (stride 1, which is dense, 2, 4, 8), causal sliding windows (256 and 1024 keys) and block-sparse
attention (about one block of 128 x 128 in 8) beside FlexAttention and SDPA with a mask; strided attention also beside
SDPA on K and V that were gathered beforehand, and with the gather counted.
Every output is compared with float64 first; versions take turns in the same run. The ideal is the time of dense
attention times the share of the score matrix that is seen.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.cli.options import EXPECTED_ERRORS, add_build_arguments, request_of
from common.compiling import toolchain
from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.variant import Variant
from common.console.terminal import wide
from common.measure import report
from common.testing import results
from task5.tools.benchmark import pictures, tables
from task5.tools.benchmark.problems import DTYPES, PATTERNS, grid
from task5.tools.benchmark.runs import Measured, run

BLOCK = "task5 benchmark"  # in Results.md
LENGTHS = (4096, 16384)


def parser() -> argparse.ArgumentParser:
    """What the benchmark takes from the command line."""
    result = argparse.ArgumentParser(prog="python -m task5.benchmark", description=__doc__.split("\n")[0])
    add_build_arguments(result, default=Variant.TUNED)
    add = result.add_argument
    add("--dtype", choices=DTYPES, help="default: bf16 for the tuned kernels; the others take fp32 only")
    add("--pattern", nargs="+", choices=PATTERNS, default=list(PATTERNS), help="default: all three")
    add("--seq", nargs="+", type=int, default=list(LENGTHS), metavar="N", help="tokens (default: 4096 16384)")
    add("--no-flex", action="store_true", help="leave FlexAttention out, which torch.compile compiles for a while")
    add("--rounds", type=int, default=20, metavar="N", help="timed runs of each version (default 20)")
    add("--report", action="store_true", help="write the table into Results.md")
    add("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    add("--pictures", type=Path, metavar="FOLDER", help="draw the times there")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; exit status 0: measured, or there is no GPU to measure on; 1: a kernel is wrong, unfilled or
    does not compile; 2: bad arguments."""
    arguments = parser()
    options = arguments.parse_args(argv)
    if options.rounds < 1:
        arguments.error(f"--rounds is {options.rounds}; it must be at least 1")
    options.dtype = options.dtype or ("bf16" if options.variant == Variant.TUNED else "fp32")
    try:
        problems = grid(options.dtype, options.pattern, options.seq)
    except ValueError as error:
        arguments.error(f"--seq: {error}")
    if not problems:
        arguments.error(f"--seq is {options.seq}: these sequences are too short for {', '.join(options.pattern)}")
    console = wide(Console())
    try:
        backend = toolchain.choose_backend(options.backend)
        if backend.name != "cuda":
            console.print(f"benchmark: nothing was timed. Times are measured on a GPU ({escape(backend.reason)}).")
            return 0
        with console.status("compiling ..."):
            ops = _operators(options)
        measured = measure_all(console, problems, ops, not options.no_flex, options.rounds)
    except (*EXPECTED_ERRORS, RuntimeError, NotImplementedError) as error:
        console.print(f"benchmark: {escape(str(error))}", highlight=False)
        return 1
    for line in tables.goal_lines(measured):
        console.print(line, highlight=False)
    command = shlex.join(["python", "-m", "task5.benchmark", *(sys.argv[1:] if argv is None else argv)])
    return _write(console, options, command, measured, ops)


def _operators(options: argparse.Namespace) -> Operators:
    """Those of the variant that was asked for; the taught kernels are float32, the tuned ones are not."""
    if (options.variant == Variant.TUNED) == (options.dtype == "fp32"):
        allowed = "fp16, bf16" if options.variant == Variant.TUNED else "fp32"
        raise ValueError(f"--dtype is {options.dtype}; the {options.variant} kernels take {allowed}")
    return load(request_of("task5", options))


def measure_all(console: Console, problems: Sequence, ops: Operators, flex: bool, rounds: int) -> list[Measured]:
    """All problems, with a table as soon as a pattern is complete."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    measured: list[Measured] = []
    in_order = sorted(problems, key=lambda problem: PATTERNS.index(problem.pattern))
    console.print(", ".join(f"{name} {value}" for name, value in report.machine().items()), highlight=False)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(in_order))
        for number, problem in enumerate(in_order):
            progress.update(bar, description=f"{problem.name}, {problem.seq_len} tokens")
            measured.append(run(problem, ops, flex, rounds))
            torch.cuda.empty_cache()
            progress.advance(bar)
            if number + 1 == len(in_order) or in_order[number + 1].pattern != problem.pattern:
                of_pattern = [one for one in measured if one.problem.pattern == problem.pattern]
                console.print(tables.table(of_pattern))
                if words := tables.left_out_words(of_pattern):
                    console.print(words, markup=False, highlight=False, style="dim")
    return measured


def _write(
    console: Console, options: argparse.Namespace, command: str, measured: Sequence[Measured], ops: Operators
) -> int:
    """--json, --pictures, --report."""
    if options.json:
        options.json.write_text(tables.to_json(report.machine(), command, measured))
    if options.pictures:
        files = pictures.draw(measured, report.machine(), options.pictures)
        console.print(f"{options.pictures}: {', '.join(file.name for file in files)}", highlight=False, markup=False)
    if options.report:
        block = tables.block(report.machine(), command, measured, f"{ops.variant} kernels")
        problems = results.try_report(console, BLOCK, block)
        for problem in problems:
            console.print(problem, style="red", markup=False, highlight=False)
        return 1 if problems else 0
    return 0
