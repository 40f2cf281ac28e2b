"""python -m common.nvcc_check: nvcc on every .cu, skeleton and solution, for several architectures; no GPU needed.

Exit status 0 only if everything compiles without a warning.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import track

from common import build, compile_report
from common.cli import EXPECTED_ERRORS
from common.gaps import shown_path

ARCHS = ("sm_75", "sm_80", "sm_90a")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m common.nvcc_check", description=__doc__.split("\n")[0])
    parser.add_argument("--arch", nargs="+", default=list(ARCHS), metavar="sm_XX", help=f"default: {' '.join(ARCHS)}")
    options = parser.parse_args(argv)
    console = Console()
    sources = sorted([*build.ROOT.glob("task*/*.cu"), *build.ROOT.glob("task*/solution/*.cu")])
    jobs = [(source, arch) for source in sources for arch in options.arch]
    bad = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(lambda job: _compile(*job), jobs)
        for ok, words in track(done, "nvcc", len(jobs), console=console, disable=not console.is_terminal):
            bad += not ok
            console.print(escape(words), highlight=False, soft_wrap=True)
    console.print(f"{len(jobs) - bad} of {len(jobs)} compiled without a warning")
    return 1 if bad or not jobs else 0


def _compile(source: Path, arch: str) -> tuple[bool, str]:
    """Whether it compiles without a warning, and a line about it; a folder of its own, so that several can run."""
    folder = build.build_root() / f"cuda-{arch}" / "check" / str(source.relative_to(build.ROOT)).replace("/", "-")
    try:
        result = build.compile_only([source], arch, folder)
    except EXPECTED_ERRORS as error:
        return False, f"{arch}: {error}"
    log = (folder / "compile.log").read_text()
    warnings = [one for one in compile_report.diagnostics(log) if one.kind == "warning"]
    spilled = sum(bool(one.spill_stores or one.spill_loads) for one in result.kernels)
    note = f"; {spilled} of {len(result.kernels)} kernels spill" if spilled else ""
    verdict = "\n".join(line for one in warnings for line in one.lines) if warnings else "ok"
    return not warnings, f"{arch:7} {shown_path(source)}: {verdict}{note}"


if __name__ == "__main__":
    raise SystemExit(main())
