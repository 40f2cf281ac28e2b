"""Builds the simulator's runtime: objects that all libraries and programs link, one set per kind of build."""

from __future__ import annotations

from pathlib import Path

from common.simulator import rewriter


def runtime_jobs(checked: bool) -> list[tuple[Path, list[str]]]:
    """The runtime's sources and flags, for compile_objects.

    Args:
        checked: for the checked build. Its kernels report each load and store to the runtime, which itself is not
            instrumented but has more sources and another define.
    """
    flags = [*rewriter.RUNTIME_FLAGS, "-DCUDA_SIMULATOR", "-fPIC", f"-I{rewriter.INCLUDE_DIR}"]
    if not checked:
        return [(source, flags) for source in rewriter.RUNTIME_SOURCES]
    sources = [*rewriter.CHECKER_SOURCES, *rewriter.RUNTIME_SOURCES]  # the longest first
    return [(source, [*flags, "-DSIMULATOR_CHECKED"]) for source in sources]
