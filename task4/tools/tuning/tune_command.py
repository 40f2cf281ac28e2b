"""Finds the fastest tiles for this machine's GPU and writes them into tiles.h.

python -m task4.tune [--solution] [--head-dim 64 ...] [--shared-kb 64] [--keep]

Every B_r x B_c x warps of a grid is compiled, checked against a float64 reference and timed, for each head_dim. Exit
status 0: measured (and written, unless --keep). 1: no tiles gave right results. 2: nothing was run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from common.cli.options import EXPECTED_ERRORS, add_variant_arguments
from common.compiling import toolchain
from common.compiling.variant import Variant
from common.console.files import write_whole
from common.console.paths import build_root, shown_path
from common.console.terminal import say, wide, working
from common.console.words import counted
from common.measure import gpus
from common.measure.timing import Stopwatch
from task4.given import tiles as tiles_file
from task4.given.tiles import HEAD_DIMS
from task4.tools.tuning import report as tune_report
from task4.tools.tuning.grid import B_CS, B_RS, WARPS, Candidate, TuningBuild, compile_candidates, grid
from task4.tools.tuning.run import Outcome, Workload, best, run


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    options = _parser().parse_args(argv)
    console = wide(Console())
    try:
        gpu = gpus.chosen(options.gpu)
        candidates = grid(options.head_dim, options.br, options.bc, options.warps, gpu, options.shared_kb)
        workload = Workload(options.batch, options.heads, options.tokens, options.rounds)
        backend = toolchain.choose_backend("auto")
        if backend.name != "cuda":
            _without_gpu(console, backend, candidates, gpu, options)
            return 2
        possible = sum(not one.problems for one in candidates)
        kernel = "the reference solution" if options.variant == Variant.SOLUTION else "your kernel"
        what = (
            f"compiling {kernel} with {counted(possible, 'choice')} of tiles ({len(candidates) - possible} impossible)"
        )
        with working(console, f"{what} ..."):
            tuning = compile_candidates(candidates, options.variant, options.shared_kb)
    except EXPECTED_ERRORS as error:
        say(console, error)
        say(console, "task4.tune: nothing was run", "red")
        return 2
    return report(console, tuning, candidates, workload, options)


def report(
    console: Console,
    tuning: TuningBuild,
    candidates: Sequence[Candidate],
    workload: Workload,
    options: argparse.Namespace,
    stopwatch: Stopwatch | None = None,
    file: Path = tiles_file.FILE,
) -> int:
    """Measures, prints, and writes `file`; returns main's exit status."""
    outcomes = run(tuning, candidates, workload, console, stopwatch)
    present = toolchain.find_gpu()
    where = present.name if present else tuning.ops.backend
    say(
        console,
        f"{where}; {workload.batch} x {workload.heads} heads, {workload.tokens} tokens; a call without a mask and a "
        f"causal one, median of {workload.rounds}",
    )
    tune_report.print_heat_maps(console, outcomes)
    picture = (Path(options.picture) if options.picture else build_root() / "tune") / "tiles.png"
    tune_report.draw(outcomes, f"task 4: TFLOP/s on {where}, {workload.tokens} tokens", picture)
    say(console, f"picture: {shown_path(picture)}")
    fastest = best(outcomes)
    if not fastest:
        say(console, "no tiles gave right results: does `python -m task4.test` pass?", "red")
        return 1
    _write(console, outcomes, fastest, where, options, file)
    return 0


def _write(
    console: Console,
    outcomes: Sequence[Outcome],
    fastest: dict[int, Outcome],
    where: str,
    options: argparse.Namespace,
    file: Path,
) -> None:
    before = tiles_file.read_tiles(file)
    rates = {(one.candidate.head_dim, one.candidate.tiles): one.tflops for one in outcomes}
    for D, one in fastest.items():
        old = rates.get((D, before[D]), 0.0)
        gained = f", {one.tflops / old:.2f} times as fast as {before[D]}" if old else f" (now {before[D]})"
        say(console, f"  head_dim {D:<4} {one.candidate.tiles}: {one.tflops:.1f} TFLOP/s{gained}")
    if options.keep:
        say(console, f"{shown_path(file)} is left as it was (--keep)")
        return
    chosen = {D: one.candidate.tiles for D, one in fastest.items()}
    command = " ".join(["python -m task4.tune", *(["--solution"] if options.variant == Variant.SOLUTION else [])])
    note = f"{command}, {options.shared_kb} KB, {where}"
    write_whole(file, tiles_file.written(file.read_text(), chosen, options.shared_kb, note, file))
    say(console, f"written to {shown_path(file)}; `python -m task4.compile` builds with it")


def _without_gpu(
    console: Console, backend: toolchain.Backend, candidates: Sequence[Candidate], gpu, options: argparse.Namespace
) -> None:
    named = "asked for" if options.gpu else "name another with --gpu"
    say(console, f"Nothing can be measured here: {backend.reason}.")
    if backend.problem:
        say(console, backend.problem, "yellow")
    say(
        console,
        f"This is what would be tried on {gpu.name} ({named}), with {options.shared_kb} KB of shared memory per block; "
        "tiles.h is left as it was.",
    )
    tune_report.print_possible(console, candidates, gpu)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m task4.tune",
        description="Find the fastest tiles for this machine's GPU and write them to tiles.h.",
    )
    add_variant_arguments(parser, (Variant.STUDENT, Variant.SOLUTION))
    parser.add_argument(
        "--head-dim", type=int, nargs="+", choices=HEAD_DIMS, default=list(HEAD_DIMS), help="only these (default: all)"
    )
    parser.add_argument(
        "--shared-kb",
        type=_at_least_1,
        default=64,
        metavar="KB",
        help="shared memory that a block may use (default 64, which every GPU has; an H100 has 227)",
    )
    parser.add_argument("--keep", action="store_true", help="only show the results; don't write tiles.h")
    for name, values, what in (
        ("br", B_RS, "rows of Q per block"),
        ("bc", B_CS, "keys per tile"),
        ("warps", WARPS, "warps per block"),
    ):
        parser.add_argument(
            f"--{name}", type=_at_least_1, nargs="+", default=list(values), help=f"{what} to try (default {values})"
        )
    defaults = Workload()
    for name in ("batch", "heads", "tokens", "rounds"):
        parser.add_argument(
            f"--{name}",
            type=_at_least_1,
            default=getattr(defaults, name),
            help=f"{name} to time (default %(default)s)",
        )
    parser.add_argument("--picture", metavar="FOLDER", help="where tiles.png goes (default build/tune)")
    parser.add_argument("--gpu", metavar="NAME", help="without a GPU: whose limits to show, for example t4")
    return parser


def _at_least_1(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}; it must be at least 1")
    return value
