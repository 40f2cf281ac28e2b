"""python -m common.benchmark machine: runs predict/microbenchmarks.cu and prints the table for predict/machine.py."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from common.compiling import toolchain
from common.compiling.program import build_program
from common.compiling.result import BuildError
from common.console.terminal import say
from common.measure import gpus
from common.measure.report import NEEDS_GPU, gpu_is_there
from common.predict import machine

PROGRAM = Path(machine.__file__).with_name("microbenchmarks.cu")


def print_machine(console: Console) -> int:
    """0: printed. 1: it does not compile or run. 2: no GPU."""
    if not gpu_is_there(console):
        return NEEDS_GPU
    try:
        program = build_program(PROGRAM, "cuda")
    except (BuildError, toolchain.ToolchainError) as error:
        say(console, error, "red")
        return 1
    done = subprocess.run([str(program.path)], capture_output=True, text=True)
    if done.returncode:
        say(console, f"{PROGRAM.name} ended with status {done.returncode}: {done.stderr.strip()}", "red")
        return 1
    for line in table_lines(done.stdout.splitlines()):
        console.print(line, markup=False, highlight=False)
    return 0


def table_lines(printed: Iterable[str]) -> list[str]:
    """Converts the program's output to Python code for machine.py, with rates as fractions of the data sheet's."""
    found = dict(line.split(" ", 1) for line in printed if " " in line)
    gpu = gpus.find(found.pop("gpu"))
    values = {name: float(text) for name, text in found.items()}
    values["dram_share"] = values.pop("dram_bandwidth") / gpu.bandwidth
    values["block"] *= values["clock"]
    rows = [f'    "{name}": {value:.4g},' for name, value in values.items()]
    return [f"# {gpu.name}: python -m common.benchmark machine", "H100_MEASURED = {", *rows, "}"]
