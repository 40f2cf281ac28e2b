"""python -m common.nvcc_check: nvcc on every .cu, skeleton and solution, for several architectures; no GPU needed.

Exit status 0 only if everything compiles without a warning.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

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
    for source, arch in track(jobs, "nvcc", console=console, disable=not console.is_terminal):
        try:
            result = build.compile_only([source], arch)
        except EXPECTED_ERRORS as error:
            console.print(escape(f"{arch}: {error}"), highlight=False, soft_wrap=True)
            bad += 1
            continue
        log = (result.folder / "compile.log").read_text()
        warnings = [one for one in compile_report.diagnostics(log) if one.kind == "warning"]
        spilled = [one.name for one in result.kernels if one.spill_stores or one.spill_loads]
        note = f"; spills in {', '.join(spilled)}" if spilled else ""
        verdict = "\n".join(line for one in warnings for line in one.lines) if warnings else "ok"
        bad += bool(warnings)
        console.print(escape(f"{arch:7} {shown_path(source)}: {verdict}{note}"), highlight=False, soft_wrap=True)
    console.print(f"{len(jobs) - bad} of {len(jobs)} compiled without a warning")
    return 1 if bad or not jobs else 0


if __name__ == "__main__":
    raise SystemExit(main())
