"""python -m common.nvcc_check [FILE ...]: nvcc on every .cu for several architectures; no GPU needed.

Skeletons, solutions and the fast kernels of common/kernels, or the files named. Exit status 0 only if everything
compiles without a warning.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import track

from common.cli.options import EXPECTED_ERRORS
from common.compiling import report as compile_report
from common.compiling.nvcc import compile_only
from common.console.paths import ROOT, build_root, shown_path
from common.console.terminal import say
from common.console.words import counted, error_words

# Turing, Ampere, Ada, Hopper, Blackwell: in the data centre and on a desk
ARCHS = ("sm_75", "sm_80", "sm_89", "sm_90a", "sm_100", "sm_120")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m common.nvcc_check",
        usage="%(prog)s [FILE ...] [--arch sm_XX ...]",
        description=__doc__.split(": ")[1].split("\n")[0],
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="a .cu file; default: all of the tasks and common/kernels"
    )
    parser.add_argument("--arch", nargs="+", default=list(ARCHS), metavar="sm_XX", help=f"default: {' '.join(ARCHS)}")
    options = parser.parse_args(argv)
    for name in options.files:
        if not name.endswith(".cu") or not Path(name).is_file():
            parser.error(f"FILE is {name!r}; it must be a .cu file that exists")
    console = Console()
    sources = sorted({Path(name).resolve() for name in options.files} or _every_source())
    bad = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(lambda source: _compile(source, options.arch), sources)
        for ok, words in track(done, "nvcc", len(sources), console=console, disable=not console.is_terminal):
            bad += not ok
            say(console, words)
    say(console, f"{len(sources) - bad} of {len(sources)} compiled without a warning for {', '.join(options.arch)}")
    return 1 if bad or not sources else 0


def _every_source() -> list[Path]:
    return [*ROOT.glob("task*/*.cu"), *ROOT.glob("task*/solution/*.cu"), *ROOT.glob("common/kernels/*/*.cu")]


def _compile(source: Path, archs: Sequence[str]) -> tuple[bool, str]:
    """Whether it compiles without a warning, and a line about it; a folder of its own, so that several can run."""
    folder = build_root() / "nvcc_check" / shown_path(source).strip("/").replace("/", "-")
    try:
        result = compile_only([source], archs, folder)
    except EXPECTED_ERRORS as error:
        return False, f"{shown_path(source)}: {error_words(error)}"
    log = (folder / "compile.log").read_text()
    warnings = [one for one in compile_report.diagnostics(log) if one.kind == "warning"]
    verdict = "\n".join(line for one in warnings for line in one.lines) if warnings else "ok"
    spilling = Counter(one.arch for one in result.kernels if one.spill_stores or one.spill_loads)
    notes = "".join(f"; {counted(number, 'kernel')} for {arch} spill" for arch, number in spilling.items())
    return not warnings, f"{shown_path(source)}: {verdict}{notes}"


if __name__ == "__main__":
    raise SystemExit(main())
