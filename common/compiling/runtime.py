"""The simulator's runtime as an object file. Every library links the same one, so it is compiled once."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from common.compiling import toolchain
from common.compiling.locking import locked
from common.compiling.result import BuildError
from common.console.paths import build_root
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
    # what watches a kernel's arrays is no use here, and takes as long as all the rest
    plain = [flag for flag in rewriter.CXX_FLAGS if not flag.startswith(("-fsanitize=", "-fno-sanitize"))]
    flags = [*plain, *(["-DSIMULATOR_CHECKED"] if checked else []), "-DCUDA_SIMULATOR", "-fPIC"]
    digest = hashlib.sha256(f"{compiler} {compiler.stat().st_mtime_ns} {flags}".encode())
    for source in sorted([*rewriter.HERE.glob("runtime/*"), *rewriter.HERE.glob("include/**/*.h")]):
        digest.update(source.read_bytes())
    folder = build_root() / ("checked" if checked else "simulator") / "runtime"
    runtime = folder / f"runtime-{digest.hexdigest()[:16]}.o"
    with locked(folder):
        if not runtime.exists():
            for old in folder.glob("runtime-*.o"):
                old.unlink()
            unfinished = runtime.with_suffix(".tmp")
            command = [compiler, *flags, f"-I{rewriter.INCLUDE_DIR}", "-c", *rewriter.RUNTIME_SOURCES, "-o", unfinished]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise BuildError(f"the simulator's runtime does not compile:\n{done.stderr}")
            unfinished.replace(runtime)
    return runtime
