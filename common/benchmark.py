"""python -m common.benchmark build: how long task 2's kernels take to build.

Every step is a process of its own on a copy of the kernel, in an empty build folder: a cold build, a build after an
edit of the .cu, one with nothing to do; then the whole command `python -m task2.compile` with nothing to do. The first
three leave out the import of torch, the last counts it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common import build, toolchain

_STEP = """
import sys
import torch.utils.cpp_extension
from common import build
result = build.compile_task("task2", solution=True, backend=sys.argv[1], sources=[sys.argv[2]], variant="benchmark")
print(result.seconds, int(result.rebuilt))
"""


def _seconds(backend: str, source: Path, folder: Path, rebuilds: bool) -> float:
    environment = {**os.environ, "ATTENTION_BUILD_DIR": str(folder)}
    command = [sys.executable, "-c", _STEP, backend, str(source)]
    done = subprocess.run(command, env=environment, cwd=build.ROOT, capture_output=True, text=True)
    if done.returncode:
        raise build.BuildError(done.stdout + done.stderr)
    seconds, rebuilt = done.stdout.split()[-2:]
    if bool(int(rebuilt)) != rebuilds:
        raise build.BuildError(f"the step was expected to {'rebuild' if rebuilds else 'do nothing'} and did not")
    return float(seconds)


def _command_seconds(backend: str, folder: Path) -> float:
    environment = {**os.environ, "ATTENTION_BUILD_DIR": str(folder)}
    command = [sys.executable, "-m", "task2.compile", "--solution", "--backend", backend]
    subprocess.run(command, env=environment, cwd=build.ROOT, check=True, capture_output=True)
    start = time.perf_counter()
    subprocess.run(command, env=environment, cwd=build.ROOT, check=True, capture_output=True)
    return time.perf_counter() - start


def measure_builds(backend: str, repeats: int, console: Console) -> Table:
    """The table of build times, medians of `repeats` rounds, each round from an empty folder.

    Args:
        backend: "cuda" or "simulator".
        repeats: rounds, at least 1.
    """
    steps: dict[str, list[float]] = {"cold build": [], "after an edit of the .cu": [], "nothing changed": []}
    with console.status("building ..."), tempfile.TemporaryDirectory() as scratch:
        for round_number in range(repeats):
            folder = Path(scratch, f"build{round_number}")
            source = Path(scratch, "attention_kernel.cu")
            shutil.copy(build.kernel_sources("task2", solution=True)[0], source)
            steps["cold build"].append(_seconds(backend, source, folder, True))
            source.write_text(source.read_text() + f"\n__device__ int edited_{round_number};\n")
            steps["after an edit of the .cu"].append(_seconds(backend, source, folder, True))
            steps["nothing changed"].append(_seconds(backend, source, folder, False))
        whole = _command_seconds(backend, folder)
    compiler = toolchain.compiler_version(toolchain.host_compiler())
    nvcc = toolchain.find_nvcc() if backend == "cuda" else None
    used = f"nvcc {nvcc.version[0]}.{nvcc.version[1]}, {compiler}" if nvcc else compiler
    table = Table(title=f"task 2, {backend}: {used}; {os.cpu_count()} cores", title_justify="left")
    table.add_column("step")
    table.add_column("seconds (median)", justify="right")
    table.add_column("each", justify="right")
    for name, seconds in steps.items():
        table.add_row(name, f"{statistics.median(seconds):.2f}", " ".join(f"{one:.2f}" for one in seconds))
    table.add_row("python -m task2.compile, nothing changed, import of torch included", f"{whole:.2f}", "")
    return table


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
    except (build.BuildError, toolchain.ToolchainError) as error:
        console.print(escape(str(error)), highlight=False, soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
