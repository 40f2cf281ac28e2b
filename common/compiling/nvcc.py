"""Compiles kernels with nvcc without linking or loading, which needs neither a GPU nor a CUDA build of torch."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from common.compiling import report, toolchain
from common.compiling.errors import explain_failure
from common.compiling.flags import NVCC_FLAGS, UNFILLED_NVCC_FLAGS, check_arch, gencode
from common.compiling.gaps import find_gaps, with_own_headers
from common.compiling.launches import unchecked_launches
from common.compiling.locking import locked
from common.compiling.result import BuildError, BuildResult
from common.console.paths import ROOT, build_root


def compile_only(
    sources: Iterable[Path],
    archs: str | Sequence[str | tuple[str, ...]],
    folder: Path | None = None,
    further: Sequence[str] = (),
    with_host: bool = True,
) -> BuildResult:
    """Compiles the kernels with nvcc and discards the object, for machines that cannot load it.

    Args:
        sources: .cu files.
        archs: sm_75, sm_80, sm_90a, ...; one, or several, which are compiled in one faster call. The
            architectures in a tuple share the PTX of its first.
        folder: where the log goes; default build/cuda-<arch>/check.
        further: additional nvcc flags.
        with_host: compile the host code, too.

    Raises:
        BuildError: a file does not compile.
        ToolchainError: there is no nvcc.
    """
    groups = [(one,) if isinstance(one, str) else one for one in ([archs] if isinstance(archs, str) else archs)]
    for arch in (every := [arch for group in groups for arch in group]):
        check_arch(arch)
    named = "-".join(every)
    nvcc = toolchain.nvcc_for_build()
    sources = [Path(source).resolve() for source in sources]
    folder = folder or build_root() / f"cuda-{named}" / "check"
    gaps = find_gaps(sources)
    flags = [*NVCC_FLAGS, *(UNFILLED_NVCC_FLAGS if gaps else []), *(gencode(*group) for group in groups), *further]
    include = [f"-I{path}" for path in (ROOT, *nvcc.include_dirs())]
    log, start = "", time.perf_counter()
    with locked(folder):
        log_file = folder / "compile.log"
        for source in sources:
            form = ["-c", "-Xcompiler=-fsyntax-only"] if with_host else ["-fatbin"]  # the object is discarded
            command = [nvcc.path, *form, *flags, *include, source, "-o", os.devnull]
            done = subprocess.run(command, capture_output=True, text=True)
            log += done.stdout + done.stderr
            log_file.write_text(log)
            if done.returncode:
                raise BuildError(explain_failure(log, with_own_headers(sources), log_file))
    return BuildResult(
        f"nvcc {named}",
        folder,
        None,
        time.perf_counter() - start,
        True,
        [*report.own_warnings(log, with_own_headers(sources)), *unchecked_launches(with_own_headers(sources))],
        report.kernel_resources(log),
        gaps,
    )
