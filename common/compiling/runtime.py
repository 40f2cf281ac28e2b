"""The simulator's runtime: objects that every library and program of one kind links."""

from __future__ import annotations

from pathlib import Path

from common.compiling.full_disk import no_space
from common.compiling.objects import CompilerFailed, Made, cache_root, compile_objects
from common.compiling.result import BuildError
from common.simulator import rewriter


def runtime_jobs(checked: bool) -> list[tuple[Path, list[str]]]:
    """What compile_objects is to compile for the runtime: sources and their flags.

    Args:
        checked: for the checked build. Its kernels report each load and store to the runtime, which itself must not:
            hence other flags, and objects of its own.
    """
    flags = [*rewriter.RUNTIME_FLAGS, "-DCUDA_SIMULATOR", "-fPIC", f"-I{rewriter.INCLUDE_DIR}"]
    if not checked:
        return [(source, flags) for source in rewriter.RUNTIME_SOURCES]
    sources = [*rewriter.CHECKER_SOURCES, *rewriter.RUNTIME_SOURCES]  # the longest first
    return [(source, [*flags, "-DSIMULATOR_CHECKED"]) for source in sources]


def simulator_runtime(checked: bool) -> list[Made]:
    """The runtime's objects.

    Raises:
        BuildError: it does not compile. ToolchainError: there is no compiler.
    """
    try:
        return compile_objects(runtime_jobs(checked))
    except CompilerFailed as error:
        words = no_space(str(error), cache_root()) or f"the simulator's runtime does not compile:\n{error}"
        raise BuildError(words) from None
