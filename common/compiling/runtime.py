"""The simulator's runtime: objects that every library and program of one kind links."""

from __future__ import annotations

from pathlib import Path

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
