"""python -m taskN.benchmark, python -m common.benchmark NAME: the command line around a Benchmark.

raise SystemExit(benchmark_main(FLASH))
"""

from __future__ import annotations

import argparse
import datetime
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.cli.options import EXPECTED_ERRORS, command_of
from common.cli.predict import add_predict_arguments, predict_benchmark
from common.console.files import write_whole
from common.console.paths import shown_path
from common.console.terminal import say, wide
from common.measure import report
from common.measure.benchmark import files, pictures, tables
from common.measure.benchmark.goals import Conclusion, conclusions
from common.measure.benchmark.problem import Benchmark, Problem, Version
from common.measure.benchmark.runner import Record, Runner, shares
from common.measure.limits import Limits, float32_precision, measure_limits
from common.testing import results

MEASURED, FAILED = 0, 1  # exit statuses; another is report.NEEDS_GPU


def benchmark_main(benchmark: Benchmark, argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0: measured, 1: a version is wrong, unfinished or does not compile, 2: no GPU."""
    parser = parser_of(benchmark)
    options = parser.parse_args(argv)
    console = wide(Console())
    if options.draw:
        return _draw_again(parser, console, benchmark, options)
    try:
        problems = benchmark.problems(options)
    except ValueError as error:
        parser.error(str(error))
    if not problems:
        parser.error("with these options there is nothing to measure")
    if options.predict:
        return predict_benchmark(console, parser, benchmark, problems, options, command_of(benchmark.program, argv))
    if options.gpu:
        parser.error("--gpu is for --predict: add it")
    if getattr(options, "report", False) and not benchmark.block:
        parser.error(
            "Results.md has no table of measured times for this benchmark: add --predict, or leave --report out"
        )
    if not report.gpu_is_there(console):
        return report.NEEDS_GPU
    try:
        with console.status("compiling ..."):
            versions_of = benchmark.versions(options)
    except EXPECTED_ERRORS as error:
        say(console, error, "red")
        return FAILED
    names = options.versions or list(benchmark.labels)

    def chosen(problem: Problem) -> dict[str, Version]:
        return {name: version for name, version in versions_of(problem).items() if name in names}

    records, limits, failed = measure(console, problems, chosen, options, benchmark.ladder(options))
    drawn = conclusions(records, benchmark.goals)
    if drawn:
        console.print(tables.conclusion_table(drawn))
    for line in benchmark.notes(records):
        say(console, line)
    command = command_of(benchmark.program, argv)
    written = write(console, options, command, records, limits, drawn, benchmark)
    return FAILED if failed or not written or any(one.failed for one in records) else MEASURED


def measure(
    console: Console,
    problems: Sequence[Problem],
    versions_of: Callable[[Problem], dict[str, Version]],
    options: argparse.Namespace,
    ladder: bool = False,
) -> tuple[list[Record], Limits, bool]:
    """Times all problems and prints each setting's table as soon as it is complete.

    Args:
        console: where to print.
        problems: grouped by setting.
        versions_of: problem -> the versions that compute it.
        options: has `seconds` and `rounds`.
        ladder: see Benchmark.

    Returns:
        (the records, the machine's peak rates, whether the GPU was lost during the run).
    """
    kinds = tuple(dict.fromkeys(problem.limit for problem in problems if problem.limit != "copy"))
    with console.status("measuring what the machine can do ..."):
        limits = measure_limits(matmul=kinds, rounds=5)
    say(console, ", ".join(f"{name} {value}" for name, value in report.machine().items()))
    rates = "".join(f"; matmul 8192^3, {kind}: {rate / 1e12:.1f} TFLOP/s" for kind, rate in limits.matmul.items())
    say(console, f"copy {limits.copy / 1e12:.2f} TB/s read + written{rates}")
    runner, records = Runner(options.seconds, options.rounds), []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
        torch.no_grad(),
        float32_precision("highest"),
        warnings.catch_warnings(),
    ):
        # autograd's thread uses cuBLAS for the first time; harmless
        warnings.filterwarnings("ignore", message=".*no current CUDA context.*")
        bar = progress.add_task("", total=len(problems))
        for number, (problem, share) in enumerate(zip(problems, shares(problems), strict=True)):
            progress.update(bar, description=f"{problem.setting}, {problem.column}")
            try:
                records += runner.run(problem, versions_of(problem), share)
            except RuntimeError as error:  # the GPU is lost; earlier measurements are kept
                say(console, error, "red")
                return records, limits, True
            torch.cuda.empty_cache()
            progress.advance(bar)
            if number + 1 == len(problems) or problems[number + 1].setting != problem.setting:
                setting = [one for one in records if one.problem.setting == problem.setting]
                if setting:
                    console.print(tables.table(setting, limits, ladder))
                if words := tables.left_out_words(setting):
                    say(console, words, "dim")
    return records, limits, False


def write(
    console: Console,
    options: argparse.Namespace,
    command: str,
    records: Sequence[Record],
    limits: Limits,
    drawn: Sequence[Conclusion],
    benchmark: Benchmark,
) -> bool:
    """Handles --json, --pictures, --output and --report; returns whether everything could be written."""
    machine = report.machine()
    json_file = options.json or (options.output and options.output / "results.json")
    folder = options.pictures or options.output
    try:
        if json_file:
            date = datetime.date.today().isoformat()
            write_whole(json_file, files.to_json(machine, limits, command, date, records, drawn))
            say(console, f"written: {shown_path(json_file)}")
        if folder:
            _say_pictures(console, pictures.draw(records, limits, machine, folder))
    except OSError as error:
        say(console, error, "red")
        return False
    if not getattr(options, "report", False):
        return True
    problems = results.try_report(console, benchmark.block, block(command, machine, records))
    for problem in problems:
        say(console, problem, "red")
    return not problems


def block(command: str, machine: dict[str, str], records: Sequence[Record]) -> results.Block:
    """The block for Results.md: times of all problems, a row per problem and a column per version."""
    labels = list(dict.fromkeys(one.label for one in records))
    rows = []
    for problem in dict.fromkeys(one.problem for one in records):
        times = {
            one.label: report.duration(one.timing.seconds) for one in records if one.problem == problem and one.timing
        }
        rows.append([problem.setting, problem.column, *(times.get(label, "-") for label in labels)])
    return results.Block(command, machine, ["setting", "size", *labels], rows, ["Medians."])


def _say_pictures(console: Console, drawn: Sequence[Path]) -> None:
    for file in drawn:
        say(console, f"picture: {shown_path(file)}")


def _draw_again(
    parser: argparse.ArgumentParser, console: Console, benchmark: Benchmark, options: argparse.Namespace
) -> int:
    """Handles --draw: plots a JSON file, into its folder unless --pictures names another."""
    try:
        records, limits, machine = files.from_json(options.draw.read_text(), benchmark.problem_of)
        folder = options.pictures or options.output or options.draw.parent
        _say_pictures(console, pictures.draw(records, limits, machine, folder))
    except (OSError, ValueError) as error:
        parser.error(f"--draw {options.draw}: {error}")
    return MEASURED


def parser_of(benchmark: Benchmark) -> argparse.ArgumentParser:
    """The parser of a benchmark's command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {benchmark.program}", description=benchmark.description)
    benchmark.add_arguments(parser)
    add = parser.add_argument
    add("--versions", nargs="+", choices=benchmark.labels, metavar="NAME", help=", ".join(benchmark.labels))
    add(
        "--rounds",
        type=positive(int),
        default=20,
        metavar="N",
        help="at most N timed runs of each version (default %(default)s)",
    )
    add("--seconds", type=positive(float), default=300.0, metavar="S", help="limit for the whole run (default 300)")
    add("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    add("--pictures", type=Path, metavar="FOLDER", help="plot them into FOLDER")
    add("--output", type=Path, metavar="FOLDER", help="both: FOLDER/results.json and the plots")
    add_predict_arguments(parser)
    add("--draw", type=Path, metavar="FILE", help="only redraw this JSON file; needs no GPU")
    if benchmark.block or benchmark.program.startswith("task"):
        add("--report", action="store_true", help="write the times to Results.md; with --predict, marked as predicted")
    return parser


def positive(kind: type) -> Callable[[str], float]:
    """An argparse type for numbers above 0; its error names the option, the value and the allowed range."""

    def parse(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            raise argparse.ArgumentTypeError(f"it is {text!r}; it must be a number above 0")
        return number

    return parse
