"""python -m common.benchmark build: how long task 2's kernels take to build."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from common.compiling import toolchain
from common.compiling.result import BuildError
from common.measure.build_times import measure_builds


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m common.benchmark", description="Measure what the course rests on.")
    what = parser.add_subparsers(dest="what", required=True)
    builds = what.add_parser("build", help="build times of task 2")
    builds.add_argument("--backend", choices=("auto", *toolchain.BACKENDS), default="auto")
    builds.add_argument("--repeats", type=int, default=3, help="rounds (default 3)")
    options = parser.parse_args(argv)
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}; it must be at least 1")
    console = Console()
    try:
        backend = toolchain.choose_backend(options.backend).name
        console.print(measure_builds(backend, options.repeats, console))
    except (BuildError, toolchain.ToolchainError) as error:
        console.print(escape(str(error)), highlight=False, soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
