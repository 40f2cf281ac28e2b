"""Builds the runner, the program in which the simulator runs kernels without Python: see common/testing/runner."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from common.compiling import toolchain
from common.compiling.full_disk import no_space
from common.compiling.locking import locked
from common.compiling.result import BuildError
from common.console.paths import ROOT, build_root

SOURCES = ROOT / "common" / "testing" / "runner"
# What a built library asks the loader for. Empty libraries of these names are loaded with the program, which has the
# functions itself, so the loader does not look for PyTorch's.
STANDS_FOR = ("libtorch", "libtorch_cpu", "libtorch_python", "libc10")
FLAGS = ("-std=c++20", "-O1", "-g", "-fvisibility=hidden", "-rdynamic", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN")


def runner_program() -> Path:
    """The program for this compiler, this torch and these sources, compiled if there is none yet.

    Raises:
        BuildError: it does not compile. ToolchainError: there is no compiler.
    """
    import torch

    compiler = toolchain.host_compiler()
    sources = sorted(SOURCES.glob("*.cpp"))
    digest = hashlib.sha256(f"{compiler} {compiler.stat().st_mtime_ns} {torch.__version__} {FLAGS}".encode())
    for source in (*sources, *SOURCES.glob("*.h")):
        digest.update(source.read_bytes())
    place = build_root() / "runner"
    folder = place / digest.hexdigest()[:16]
    with locked(place):
        if not folder.is_dir():
            for old in [one for one in place.iterdir() if one.is_dir()]:
                shutil.rmtree(old)
            unfinished = place / "unfinished"
            unfinished.mkdir()
            for name in STANDS_FOR:
                library = f"{name}.so"
                _run(
                    [compiler, "-shared", f"-Wl,-soname,{library}", "-x", "c", "/dev/null", "-o", unfinished / library]
                )
            headers = Path(torch.__file__).parent / "include"
            libraries = [unfinished / f"{name}.so" for name in STANDS_FOR]
            _run([compiler, *FLAGS, f"-I{headers}", *sources, *libraries, "-ldl", "-o", unfinished / "runner"])
            unfinished.rename(folder)
    return folder / "runner"


def _run(command: list) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        words = no_space(done.stderr, build_root()) or f"the runner does not compile:\n{done.stderr}"
        raise BuildError(words)
