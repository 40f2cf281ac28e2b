"""How long task 2's kernels take to build: what `python -m common.benchmark build` measures.

Every step is a process of its own on a copy of the kernel, in an empty build folder: a cold build, a build after an
edit of the .cu, one with nothing to do; then the whole command `python -m task2.compile` with nothing to do. The first
three leave out the import of torch, the last counts it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from common.compiling import toolchain
from common.compiling.places import places_of
from common.compiling.result import BuildError
from common.compiling.variant import Variant
from common.console.paths import ROOT

_STEP = """
import sys
import torch.utils.cpp_extension
from common.compiling.load import build
from common.compiling.request import BuildRequest
[result] = build(BuildRequest("task2", "solution", sys.argv[1], sources=[sys.argv[2]], label="benchmark"))
print(result.seconds, int(result.rebuilt))
"""


def _seconds(backend: str, source: Path, folder: Path, rebuilds: bool) -> float:
    environment = {**os.environ, "ATTENTION_BUILD_DIR": str(folder)}
    command = [sys.executable, "-c", _STEP, backend, str(source)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(done.stdout + done.stderr)
    seconds, rebuilt = done.stdout.split()[-2:]
    if bool(int(rebuilt)) != rebuilds:
        raise BuildError(f"the step was expected to {'rebuild' if rebuilds else 'do nothing'} and did not")
    return float(seconds)


def _command_seconds(backend: str, folder: Path) -> float:
    environment = {**os.environ, "ATTENTION_BUILD_DIR": str(folder)}
    command = [sys.executable, "-m", "task2.compile", "--solution", "--backend", backend]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True)
    start = time.perf_counter()
    subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True)
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
            shutil.copy(places_of("task2", Variant.SOLUTION)[0].kernels[0], source)
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
