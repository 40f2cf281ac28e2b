"""Runs `python -m taskN.test` under NVIDIA's tools: finds them, builds the command, splits its output.

The tool instruments a child process, `python -m taskN.test --under-tool --case ...`. It calls each case once, without
guards around the inputs and without filling memory (both would hide mistakes from the tool), and prints the case's name
first, so that the tool's output can be attributed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.compiling import toolchain
from common.compiling.toolchain import ToolchainError
from common.console.words import error_words
from common.testing import judging
from common.testing.case import Case
from common.testing.case_choice import full_name

CASE_MARK = "@case "
INSTALL = {
    "compute-sanitizer": "pip install 'cuda-toolkit[sanitizer]' -c constraints.txt",
    "ncu": "sudo apt-get install nsight-compute (it also comes with the CUDA toolkit)",
}
TIMEOUT = 1800  # seconds for one run under a tool


def find(tool: str) -> Path:
    """The tool's executable, from PATH or a CUDA toolkit.

    Raises:
        ToolchainError: it is not installed; the message says how to get it and what works without it.
    """
    if on_path := shutil.which(tool):
        return Path(on_path)
    for nvcc in toolchain.all_nvccs():
        for folder in (nvcc.home / "bin", nvcc.home / tool):
            if (folder / tool).is_file():
                return folder / tool
    raise ToolchainError(
        f"{tool} was found neither on PATH nor in a CUDA toolkit; install it: {INSTALL[tool]}; "
        "or use --backend simulator, which needs no tool"
    )


def child(task: str, options: argparse.Namespace, cases: Sequence[Case]) -> list[str]:
    """The command to run under a tool: these cases of the task, with the same sources."""
    command = [sys.executable, "-m", f"{task}.test", "--under-tool", "--variant", options.variant]
    command += ["--backend", "cuda", "--seed", str(options.seed)]
    command += ["--arch", options.arch] if options.arch else []
    for case in cases:
        command += ["--case", full_name(case)]
    return command


def run_under_tool(cases: Sequence[Case], ops, seed: int) -> int:
    """Runs the cases in the child."""
    for case in cases:
        print(f"{CASE_MARK}{full_name(case)}", flush=True)
        verdict = judging.judge(case, ops, seed, bare=True)
        print(f"{verdict.status} {' '.join(verdict.diagnosis[:1])}", flush=True)
    return 0


def by_case(text: str) -> Iterator[tuple[str, str]]:
    """Splits a child's output under a tool: (case, its output); case "" for the output before the first case."""
    name, lines = "", []
    for line in text.splitlines():
        if line.startswith(CASE_MARK):
            yield name, "\n".join(lines)
            name, lines = line.removeprefix(CASE_MARK), []
        else:
            lines.append(line)
    yield name, "\n".join(lines)


def output_of(command: Sequence[str | Path], **environment: str) -> str:
    """The command's whole output, regardless of its exit status.

    Raises:
        ToolchainError: it could not be started or ran for more than TIMEOUT seconds.
    """
    try:
        done = subprocess.run(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **environment},
            timeout=TIMEOUT,
        )
    except OSError as error:
        raise ToolchainError(f"{command[0]} could not be started: {error_words(error)}") from None
    except subprocess.TimeoutExpired:
        name = Path(command[0]).name
        raise ToolchainError(f"{name} ran for over {TIMEOUT} seconds; choose fewer cases with --case") from None
    return done.stdout
