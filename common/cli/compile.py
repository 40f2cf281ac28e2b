"""python -m taskN.compile: builds a task's operators and shows the compilers' output."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common.cli.options import EXPECTED_ERRORS, INTERRUPTED, add_build_arguments, request_of, say_backend
from common.compiling.load import build
from common.compiling.report import KernelResources
from common.compiling.result import BuildError, BuildResult
from common.console.paths import shown_path
from common.console.terminal import say, working
from common.console.words import counted


def compile_main(task: str, argv: Sequence[str] | None = None) -> int:
    """`python -m taskN.compile`; exit status 0: built, 1: the sources do not compile, 2: no compiler.

    130: Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {task}.compile", description=f"Compile {task}'s kernels and show what the compiler says."
    )
    add_build_arguments(parser)
    parser.add_argument("--verbose", action="store_true", help="print the compilers' whole output")
    options = parser.parse_args(argv)
    console = Console()
    try:
        say_backend(console, options.backend)
        with working(console, f"compiling {task} ({options.variant.words}) ..."):
            results = build(request_of(task, options))
    except EXPECTED_ERRORS as error:
        say(console, error)
        say(console, f"{task}: not built", "red")
        return 1 if isinstance(error, BuildError) else 2
    except KeyboardInterrupt:
        say(console, f"\n{task}: interrupted", "red")
        return INTERRUPTED
    for result in results:
        if options.verbose:
            say(console, (result.folder / "compile.log").read_text())
        report_build(console, task, result)
    return 0


def report_build(console: Console, task: str, result: BuildResult) -> None:
    """Prints a build's result: warnings, kernels, unfilled gaps, time."""
    for warning in result.warnings:
        say(console, warning, "yellow")
    if result.kernels:
        console.print(_kernel_table(result.kernels))
    if result.gaps:
        are = "is" if len(result.gaps) == 1 else "are"
        say(console, f"{counted(len(result.gaps), 'gap')} {are} not filled yet:")
        for gap in result.gaps:
            say(console, f"  {gap!s}")
    did = "built" if result.rebuilt else "nothing had changed"
    where = (
        "compiled only: this torch has no CUDA to load it with"
        if result.library is None
        else shown_path(result.library)
    )
    say(console, f"{task}: {did}, {result.seconds:.1f} s ({where})")


def _kernel_table(kernels: Sequence[KernelResources]) -> Table:
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
