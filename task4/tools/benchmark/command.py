"""How fast attention is on a GPU: every version of the course beside PyTorch's, forward and backward.

python -m task4.benchmark [--dtype fp32 fp16 bf16] [--head-dim 64 128] [--seq 512 ... 16384] [--hidden 2048]
                          [--pass forward|backward] [--peers NAME ...] [--rounds N] [--seconds S] [--output FOLDER]
                          [--no-pictures]
python -m task4.benchmark --draw FILE ...

Each problem has 16,384 tokens (batch = 16384 / seq, heads = hidden / head_dim), with and without a causal mask. What is
timed was compared with float64 before; all versions take turns in the same run. Operations are counted as 4 batch heads
seq^2 head_dim forward and 2.5 times that backward, half of it under a mask, whatever a version really computes. The
tables are TFLOP/s; FOLDER (build/benchmark/task4) gets a JSON file per dtype and the pictures.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.compiling.result import BuildError
from common.compiling.toolchain import ToolchainError
from common.console.paths import build_root, shown_path
from common.console.terminal import wide
from common.measure import report
from common.measure.limits import Limits, float32_precision, measure_limits
from task4.tools.benchmark import grid as sizes
from task4.tools.benchmark import pictures, tables
from task4.tools.benchmark.grid import Problem
from task4.tools.benchmark.peers import DEFAULT_PEERS, PEERS, Kernels, peers_for
from task4.tools.benchmark.runs import Record, Runner, shares
from task4.tools.benchmark.summary import summarise


def _positive(what: str, kind: type = int):
    """A number above 0 for argparse, whose message names the option, the value and what is allowed."""

    def parse(text: str):
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            raise argparse.ArgumentTypeError(f"{what} is {text!r}; it must be a number above 0")
        return number

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m task4.benchmark", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--dtype", nargs="+", choices=sizes.DTYPES, default=list(sizes.DTYPES), help="default: all three")
    add("--head-dim", nargs="+", type=_positive("head_dim"), default=list(sizes.HEAD_DIMS), help="default: 64 128")
    add("--seq", nargs="+", type=_positive("seq"), default=list(sizes.LENGTHS), help="default: 512 1024 ... 16384")
    add("--hidden", type=_positive("hidden"), default=sizes.HIDDEN, help="heads * head_dim (default 2048)")
    add("--pass", dest="passes", nargs="+", choices=sizes.PASSES, default=list(sizes.PASSES), help="default: both")
    add("--peers", nargs="+", choices=PEERS, metavar="NAME", default=list(DEFAULT_PEERS), help=", ".join(PEERS))
    add("--rounds", type=_positive("rounds"), default=20, help="timed runs of each version, at most (default 20)")
    add("--seconds", type=_positive("seconds", float), default=300.0, help="for all measurements (default 300)")
    add("--output", type=Path, metavar="FOLDER", help="default: build/benchmark/task4")
    add("--no-pictures", action="store_true", help="write the JSON files only; --draw makes the pictures later")
    add("--draw", nargs="+", type=Path, metavar="FILE", help="only draw these JSON files again; needs no GPU")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; exit status 0, 1: a version is wrong or does not compile, 2: no GPU."""
    parser = _parser()
    options = parser.parse_args(argv)
    console = wide(Console())
    folder = options.output or build_root() / "benchmark" / "task4"
    if options.draw:
        return _draw_again(parser, console, options.draw, options.output)
    try:
        problems = sizes.grid(options.passes, options.dtype, options.head_dim, options.seq, options.hidden)
    except ValueError as error:
        parser.error(str(error))
    names = tuple(options.peers)
    problems = [problem for problem in problems if peers_for(names, problem.direction, problem.dtype)]
    if not problems:
        parser.error(f"--peers {' '.join(names)}: none of them has this pass in {', '.join(options.dtype)}")
    if not report.gpu_is_there(console):
        return report.NEEDS_GPU
    kernels = Kernels("cuda")
    try:
        with console.status("compiling ..."):
            for needed in dict.fromkeys(peer.kernels for peer in all_peers(problems, names) if peer.kernels):
                getattr(kernels, needed)
    except (BuildError, ToolchainError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    command = shlex.join(["python", "-m", "task4.benchmark", *(sys.argv[1:] if argv is None else argv)])
    started = time.perf_counter()
    limits = _limits(console, problems)
    runner = Runner(kernels, options.seconds - (time.perf_counter() - started), options.rounds)
    records: list[Record] = []
    save = partial(_write_json, records, limits, command, folder)
    failed = False
    try:
        run_all(console, problems, names, runner, records, save)
    except RuntimeError as error:  # the GPU is lost: what was measured before is not
        console.print(str(error), style="red", markup=False, highlight=False)
        failed = True
    if records:
        if lines := summarise(records):
            console.print(tables.summary_table(lines))
        files = save()
        files += [] if options.no_pictures else pictures.draw(records, limits, report.machine(), folder)
        console.print(f"{shown_path(folder)}: {', '.join(file.name for file in files)}", highlight=False)
    console.print(f"{time.perf_counter() - started:.0f} s", highlight=False)
    return 1 if failed or any(one.left_out == "wrong" for one in records) else 0


def all_peers(problems: Sequence[Problem], names: tuple[str, ...]) -> list:
    """Everybody who takes part in any of the problems."""
    kinds = dict.fromkeys((problem.direction, problem.dtype) for problem in problems)
    return [peer for kind in kinds for peer in peers_for(names, *kind).values()]


def _limits(console: Console, problems: Sequence[Problem]) -> Limits:
    dtypes = {problem.dtype for problem in problems}
    kinds = (*(("float32",) if "fp32" in dtypes else ()), "bfloat16")
    with console.status("measuring what the machine can do ..."):
        limits = measure_limits(matmul=kinds, rounds=5)
    rates = ", ".join(f"{kind} {rate / 1e12:.1f}" for kind, rate in limits.matmul.items())
    console.print(", ".join(f"{name} {value}" for name, value in report.machine().items()), highlight=False)
    console.print(
        f"copy {limits.copy / 1e12:.2f} TB/s read + written; matmul 8192^3, TFLOP/s: {rates}", highlight=False
    )
    return limits


def run_all(
    console: Console,
    problems: Sequence[Problem],
    names: tuple[str, ...],
    runner: Runner,
    records: list[Record],
    save: Callable[[], object] = lambda: None,
) -> None:
    """Adds the records of all problems. As soon as a setting is complete it prints a table and calls `save`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
        torch.no_grad(),
        float32_precision("highest"),
        warnings.catch_warnings(),
    ):
        # autograd's thread meets cuBLAS for the first time; harmless
        warnings.filterwarnings("ignore", message=".*no current CUDA context.*")
        bar = progress.add_task("", total=len(problems))
        for number, (problem, share) in enumerate(zip(problems, shares(problems), strict=True)):
            progress.update(bar, description=problem.title)
            records += runner.run(problem, peers_for(names, problem.direction, problem.dtype), share)
            progress.advance(bar)
            if number + 1 == len(problems) or problems[number + 1].setting != problem.setting:
                setting = [one for one in records if one.problem.setting == problem.setting]
                console.print(tables.table(setting))
                if words := tables.left_out_words(setting):
                    console.print(words, markup=False, highlight=False, style="dim")
                save()


def _write_json(records: Sequence[Record], limits: Limits, command: str, folder: Path) -> list[Path]:
    """A file for each dtype."""
    folder.mkdir(parents=True, exist_ok=True)
    machine, date = report.machine(), datetime.date.today().isoformat()
    files = []
    for dtype in dict.fromkeys(one.problem.dtype for one in records):
        chosen = [one for one in records if one.problem.dtype == dtype]
        files.append(folder / f"{dtype}.json")
        files[-1].write_text(tables.to_json(machine, limits, command, date, chosen, summarise(chosen)))
    return files


def _draw_again(parser: argparse.ArgumentParser, console: Console, files: Sequence[Path], output: Path | None) -> int:
    """--draw: the pictures of JSON files, into the folder of each unless --output names another."""
    for file in files:
        folder = output or file.parent
        try:
            records, limits, machine = tables.from_json(file.read_text())
            drawn = pictures.draw(records, limits, machine, folder)
        except (OSError, ValueError) as error:
            parser.error(f"--draw {file}: {error}")
        console.print(f"{shown_path(folder)}: {', '.join(one.name for one in drawn)}", highlight=False)
    return 0
