"""Builds the runner, the program in which the simulator runs kernels without Python: see common/testing/runner."""

from __future__ import annotations

from pathlib import Path

from common.compiling import toolchain
from common.compiling.full_disk import no_space
from common.compiling.locking import locked
from common.compiling.objects import CompilerFailed, cache_root, compile_objects, link
from common.compiling.result import BuildError
from common.console.paths import ROOT, build_root

SOURCES = ROOT / "common" / "testing" / "runner"
# The dependencies of a built library. Empty libraries with these names are loaded with the program, which implements
# the functions itself, so the loader does not look for PyTorch's.
STANDS_FOR = ("libtorch", "libtorch_cpu", "libtorch_python", "libc10")


def runner_program() -> Path:
    """The program for the current compiler, torch and sources, compiled if needed.

    Raises:
        BuildError: it does not compile. ToolchainError: there is no compiler.
    """
    folder = build_root() / "runner"
    flags = ["-std=c++20", "-O1", "-g", "-fvisibility=hidden", f"-isystem{toolchain.torch_folder() / 'include'}"]
    try:
        with locked(folder):
            objects = compile_objects([(source, flags) for source in sorted(SOURCES.glob("*.cpp"))])
            libraries = [folder / f"{name}.so" for name in STANDS_FOR]
            for one in libraries:
                link([], ["-shared", f"-Wl,-soname,{one.name}", "-x", "c++", "/dev/null"], one)
            # DT_RPATH, not DT_RUNPATH, takes precedence over $LD_LIBRARY_PATH, which may contain PyTorch's folder
            found_here = "-Wl,--disable-new-dtags,-rpath,$ORIGIN"
            linked = ["-rdynamic", "-Wl,--no-as-needed", found_here, *map(str, libraries), "-ldl"]
            link(objects, linked, folder / "runner")
    except CompilerFailed as error:
        words = no_space(str(error), cache_root()) or f"the runner does not compile:\n{error}"
        raise BuildError(words) from None
    return folder / "runner"
