"""The command lines of every taskN/compile.py and taskN/test.py.

compile_main("task2")                  python -m task2.compile [--solution] [--backend] [--arch] [--verbose]
test_main("task2", PARTS, cases())     python -m task2.test [--softmax ...] [--case NAME] [--list] [--check | --profile]
test_main(..., timed=SPEED)            the same with a part that is timed, see common/timed_part.py
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common import build, toolchain
from common.gaps import shown_path

if TYPE_CHECKING:
    from common.checking import Case
    from common.timed_part import TimedPart

EXPECTED_ERRORS = (build.BuildError, toolchain.ToolchainError, FileNotFoundError, ValueError)


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    """--solution, --backend, --arch: what to build and for what."""
    parser.add_argument("--solution", action="store_true", help="use the reference solution instead of your files")
    parser.add_argument(
        "--backend",
        choices=("auto", *toolchain.BACKENDS),
        default="auto",
        help="default: the GPU if it can be used",
    )
    parser.add_argument("--arch", metavar="sm_XX", help="nvcc's target, for example sm_80 (default: the GPU present)")


def _parser(task: str, module: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {task}.{module}", description=description)
    add_build_arguments(parser)
    parser.add_argument(
        "--tuned", action="store_true", help="use the engineer's versions under solution/, where the task has them"
    )
    return parser


@contextlib.contextmanager
def working(console: Console, what: str) -> Iterator[None]:
    """A spinner on a terminal, one line elsewhere."""
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        console.print(what)
        yield


def say_backend(console: Console, requested: str) -> None:
    """Says which backend was chosen, and warns when a GPU is left unused."""
    backend = toolchain.choose_backend(requested)
    if backend.problem:
        console.print(f"[yellow]{escape(backend.problem)}[/]")
    console.print(f"backend: {backend.name} ({escape(backend.reason)})", highlight=False)


def variant(options: argparse.Namespace) -> str:
    """What was asked for, in words."""
    return "tuned versions" if options.tuned else "reference solution" if options.solution else "your files"


def _kernel_table(kernels: Sequence[build.KernelResources]) -> Table:
    table = Table(
        title="per thread, as ptxas reports it; shared memory per block; bytes", title_justify="left", box=SIMPLE
    )
    table.add_column("kernel", overflow="fold")
    for column in ("arch", "registers", "shared", "stack", "spills out/in"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in kernels:
        spills = f"{one.spill_stores}/{one.spill_loads}"
        if one.spill_stores or one.spill_loads:
            spills = f"[red]{spills}[/]"
        table.add_row(escape(one.name), one.arch, str(one.registers), str(one.shared), str(one.stack), spills)
    return table


def report_build(console: Console, task: str, result: build.BuildResult) -> None:
    """Prints what a build did: time, warnings, kernels, unfilled gaps."""
    for warning in result.warnings:
        console.print(f"[yellow]{escape(warning)}[/]", highlight=False)
    if result.kernels:
        console.print(_kernel_table(result.kernels))
    if result.gaps:
        console.print(f"{len(result.gaps)} gaps are not filled yet:")
        for gap in result.gaps:
            console.print(f"  {escape(str(gap))}", highlight=False)
    did = "built" if result.rebuilt else "nothing had changed"
    where = (
        "compiled only: this torch has no CUDA to load it with"
        if result.library is None
        else shown_path(result.library)
    )
    console.print(f"{task}: {did}, {result.seconds:.1f} s ({where})", highlight=False, soft_wrap=True)


def compile_main(task: str, argv: Sequence[str] | None = None) -> int:
    """`python -m taskN.compile`; exit status 0: built, 1: the sources do not compile, 2: nothing to build with."""
    parser = _parser(task, "compile", f"Compile {task}'s kernels and show what the compiler says.")
    parser.add_argument("--verbose", action="store_true", help="print the compilers' whole output")
    options = parser.parse_args(argv)
    console = Console()
    try:
        say_backend(console, options.backend)
        with working(console, f"compiling {task} ({variant(options)}) ..."):
            result = build.compile_task(task, options.solution, options.backend, options.arch, tuned=options.tuned)
    except EXPECTED_ERRORS as error:
        console.print(escape(str(error)), highlight=False, soft_wrap=True)
        console.print(f"[red]{task}: not built[/]")
        return 1 if isinstance(error, build.BuildError) else 2
    if options.verbose:
        console.print(escape((result.folder / "compile.log").read_text()), highlight=False, soft_wrap=True)
    report_build(console, task, result)
    return 0


def test_main(
    task: str,
    parts: dict[str, str],
    cases: Sequence[Case],
    argv: Sequence[str] | None = None,
    timed: TimedPart | None = None,
) -> int:
    """`python -m taskN.test`; returns the exit status.

    0: every chosen case passed (and --check found nothing). 1: one did not, or the timed part, run on a GPU, lost
    points. 2: nothing was run.

    Args:
        task: "task2", ...
        parts: part name -> help text; each becomes a flag, no flag means all of them.
        cases: the task's test cases, see common.checking.
        timed: a further part, which is not made of cases.
    """
    from common import case_choice, checking, gpu_tools, timed_part

    parser = _test_parser(task, parts | ({timed.name: timed.help} if timed else {}))
    if timed:
        timed.add_arguments(parser)
    options = parser.parse_args(argv)
    console = Console()
    time_it = timed is not None and not options.cases and timed.name in (options.parts or [timed.name])
    try:
        if options.tuned:
            cases = case_choice.for_operators(cases, build.operator_names(task, tuned=True))
        if timed and options.parts == [timed.name]:
            _refuse_without_cases(timed.name, options)
            chosen = []
        else:
            chosen = case_choice.choose(checking.chosen_parts(cases, options.parts), options.cases)
        if options.list:
            case_choice.print_list(console, task, chosen)
            return 0
        if options.check or options.profile:
            return _look_inside(console, task, chosen, options)
        say_backend(console, options.backend)
        with working(console, f"compiling {task} ({variant(options)}) ..."):
            ops = build.load(task, options.solution, options.backend, options.arch, tuned=options.tuned)
    except EXPECTED_ERRORS as error:
        console.print(escape(str(error)), highlight=False, soft_wrap=True)
        console.print(f"[red]{task}: nothing was run[/]")
        return 2
    title = f"{task}, {variant(options)}, {ops.backend}"
    if options.under_tool:
        return gpu_tools.run_under_tool(chosen, ops, options.seed)
    if timed and time_it:
        return timed_part.run(title, chosen, timed, ops, console, options)
    return checking.run(title, chosen, ops, options.seed, console=console, points=not options.cases)


def _refuse_without_cases(part: str, options: argparse.Namespace) -> None:
    """ValueError for what needs cases, of which a timed part has none."""
    given = [name for name in ("check", "profile", "list") if getattr(options, name)] + ["case"] * bool(options.cases)
    if given:
        raise ValueError(f"--{given[0]} is about test cases, and --{part} has none: leave one of the two out")


def _test_parser(task: str, parts: dict[str, str]) -> argparse.ArgumentParser:
    parser = _parser(task, "test", f"Test {task}'s kernels against a float64 reference.")
    for part, text in parts.items():
        parser.add_argument(f"--{part}", action="append_const", dest="parts", const=part, help=text)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    parser.add_argument(
        "--case",
        action="append",
        dest="cases",
        metavar="NAME",
        help="only this case (or all whose name holds NAME); can be repeated",
    )
    parser.add_argument("--list", action="store_true", help="list the cases and run nothing")
    inside = parser.add_mutually_exclusive_group()
    inside.add_argument(
        "--check",
        action="store_true",
        help="look for races, accesses out of bounds, uninitialised memory (simulator; compute-sanitizer on a GPU)",
    )
    inside.add_argument(
        "--profile",
        action="store_true",
        help="count memory transactions, bank conflicts, arithmetic (simulator; Nsight Compute on a GPU)",
    )
    parser.add_argument("--gpu", metavar="NAME", help="with --profile: whose data sheet to compare with (default H200)")
    parser.add_argument(
        "--picture", metavar="FOLDER", help="with --profile: where the pictures go (default build/profile/<task>)"
    )
    parser.add_argument("--under-tool", action="store_true", help=argparse.SUPPRESS)  # see common/gpu_tools.py
    return parser


def _look_inside(console: Console, task: str, cases: Sequence[Case], options: argparse.Namespace) -> int:
    """--check and --profile, in the simulator or with NVIDIA's tools."""
    from common import look_inside

    return look_inside.run(console, task, cases, options)
