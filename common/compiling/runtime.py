"""The simulator's runtime as an object file. Every library links the same one, so it is compiled once."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from rich.console import Console

from common.compiling import toolchain
from common.compiling.freshness import mark_of
from common.compiling.full_disk import no_space
from common.compiling.locking import locked
from common.compiling.result import BuildError
from common.console.files import write_whole
from common.console.paths import build_root, shown_path
from common.console.terminal import say
from common.simulator import rewriter


def simulator_runtime(checked: bool) -> Path:
    """The object file for this compiler and these sources, compiled if there is none yet.

    Args:
        checked: for the checked build. Its kernels report each load and store to the runtime, which itself must not:
            hence other flags, and an object of its own.

    Raises:
        BuildError: the runtime does not compile.
        ToolchainError: there is no compiler.
    """
    compiler = toolchain.host_compiler()
    flags = [*rewriter.RUNTIME_FLAGS, *(["-DSIMULATOR_CHECKED"] if checked else []), "-DCUDA_SIMULATOR", "-fPIC"]
    digest = hashlib.sha256(f"{compiler} {compiler.stat().st_mtime_ns} {flags}".encode())
    for source in sorted([*rewriter.HERE.glob("runtime/*"), *rewriter.HERE.glob("include/**/*.h")]):
        digest.update(source.read_bytes())
    folder = build_root() / ("checked" if checked else "simulator") / "runtime"
    runtime = folder / f"runtime-{digest.hexdigest()[:16]}.o"
    stamp = runtime.with_suffix(".sha256")
    with locked(folder):
        if not stamp.exists() or stamp.read_text(errors="replace") != mark_of(runtime):
            if stamp.exists():
                say(Console(stderr=True), f"{shown_path(runtime)} is not as the last build left it: built anew")
            for old in folder.glob("runtime-*"):
                old.unlink()
            unfinished = runtime.with_suffix(".tmp")
            command = [compiler, *flags, f"-I{rewriter.INCLUDE_DIR}", "-c", *rewriter.RUNTIME_SOURCES, "-o", unfinished]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                words = no_space(done.stderr, folder) or f"the simulator's runtime does not compile:\n{done.stderr}"
                raise BuildError(words)
            unfinished.replace(runtime)
            write_whole(stamp, mark_of(runtime))
    return runtime
