"""BuildRequest -> loaded operators, with nvcc or the simulator.

    ops = load(BuildRequest("task2", "solution"))       compile if anything changed, load, return the operators
    results = build(BuildRequest("task2"))              likewise, but return the results: one BuildResult per library

For nvcc, torch.utils.cpp_extension.load writes the ninja file and runs ninja. The simulator, whose build times matter
to most users, takes objects from a cache that all checkouts on a machine share (objects.py), which cpp_extension.load
cannot do. Builds are serialized by a lock that the operating system releases when its process ends, so a killed build
never blocks the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace

from rich.console import Console

from common.compiling import report, toolchain
from common.compiling.errors import explain_failure
from common.compiling.freshness import forget_stale, remember
from common.compiling.full_disk import no_space
from common.compiling.gaps import with_own_headers
from common.compiling.launches import unchecked_launches
from common.compiling.locking import locked
from common.compiling.nvcc import compile_only
from common.compiling.objects import CompilerFailed, cache_root, compile_objects, link
from common.compiling.operators import Library, Operators
from common.compiling.plan import Plan, plans_of
from common.compiling.report import KernelResources
from common.compiling.request import BuildRequest
from common.compiling.result import BuildError, BuildResult
from common.compiling.toolchain import ToolchainError
from common.console.files import write_whole
from common.console.paths import shown_path
from common.console.terminal import say

# torch keeps build state and CUDA_HOME in module globals: one build at a time per process
_one_build = threading.Lock()
_results: dict[str, tuple[Plan, BuildResult]] = {}
_simulated: tuple[str | None, list[Operators]] | None = None


def build(request: BuildRequest) -> list[BuildResult]:
    """Brings a request's libraries up to date, compiling only what changed.

    Returns:
        One BuildResult per place. Its library is None if the kernels can be compiled but not loaded (nvcc on a machine
        whose torch has no CUDA).

    Raises:
        BuildError: the sources do not compile. ToolchainError: a tool is missing. ValueError, FileNotFoundError: see
        common.compiling.plan.plans_of.
    """
    plans = plans_of(request)
    if plans[0].backend == "cuda" and toolchain.torch_cuda_version() is None:
        return [compile_only(plan.place.kernels, plan.arch or "", plan.folder) for plan in plans]
    return [_build(plan) for plan in plans]


@contextlib.contextmanager
def simulated(arch: str | None = None) -> Iterator[list[Operators]]:
    """In this block, load() uses the simulator's checked build for every request; `arch` is the default architecture.

    Yields a list to which each load appends its operators.
    """
    global _simulated
    before, _simulated = _simulated, (arch, [])
    try:
        yield _simulated[1]
    finally:
        _simulated = before


def load(request: BuildRequest) -> Operators:
    """Builds whatever is out of date and returns the operators. Errors: see build."""
    if _simulated:
        arch, loaded = _simulated
        request = replace(request, backend="simulator", checked=True, arch=request.arch or arch)
        loaded.append(_load(request))
        return loaded[-1]
    return _load(request)


def _load(request: BuildRequest) -> Operators:
    plans = plans_of(request)
    if plans[0].backend == "cuda" and toolchain.torch_cuda_version() is None:
        raise ToolchainError(
            "this torch has no CUDA, so kernels built by nvcc cannot be loaded; use --backend simulator"
        )
    from common.compiling.results import register_results  # imports torch

    libraries = []
    for plan in plans:
        result = _build(plan)
        assert result.library is not None
        register_results(plan.name, plan.place.binding)
        sources = (*plan.place.kernels, plan.place.binding)
        libraries.append(Library(plan.name, result.library, sources, tuple(result.warnings), result.rebuilt))
    return Operators(request.task, plans[0].variant, plans[0].backend, libraries)


def _build(plan: Plan) -> BuildResult:
    """Builds and loads, once per process and name."""
    with _one_build:
        if plan.name in _results:
            loaded, result = _results[plan.name]
            if loaded.place != plan.place:
                raise ValueError(
                    f"{plan.name} is loaded already, from {loaded.place.kernels}; give the other sources a label"
                )
            return result
        import torch  # first, so that the time below is the compilers' and the loader's

        run = _run_nvcc if plan.backend == "cuda" else _run_simulator
        library = plan.library
        start = time.perf_counter()
        with locked(plan.folder):
            rebuilt = run(plan)
            result = BuildResult(
                plan.name,
                plan.folder,
                library,
                time.perf_counter() - start,
                rebuilt,
                [*_remembered_warnings(plan, rebuilt), *unchecked_launches(with_own_headers(plan.place.kernels))],
                _remembered_kernels(plan) if plan.backend == "cuda" else [],
                plan.gaps,
            )
            if plan.backend == "cuda":
                remember(plan.folder)
            else:
                torch.ops.load_library(str(library))
        _results[plan.name] = plan, result
        return result


def _run_simulator(plan: Plan) -> bool:
    """Compiles what is not in the cache, and links. Returns whether the library has changed."""
    jobs, linker_flags = plan.for_simulator()
    log = ""
    try:
        objects = compile_objects(jobs)
        log = "\n".join(one.log for one in objects)
        new = link(objects, linker_flags, plan.library)
    except (CompilerFailed, OSError) as error:
        log += report.demangled(str(error))
        if full := no_space(log, plan.folder) or no_space(log, cache_root()):
            raise BuildError(full) from None
        if isinstance(error, OSError):
            raise
        raise BuildError(explain_failure(log, with_own_headers(plan.place.kernels), plan.log_file)) from None
    finally:
        with contextlib.suppress(OSError):
            write_whole(plan.log_file, log)
    return new


def _run_nvcc(plan: Plan) -> bool:
    """Runs torch's load(): ninja builds what is out of date, then the library is loaded into this process.

    Returns whether the library has changed.
    """
    toolchain.find_ninja()
    os.environ["CXX"] = str(toolchain.host_compiler())
    from torch.utils import cpp_extension

    before = plan.library.stat().st_mtime_ns if plan.library.exists() else None
    arguments = plan.for_nvcc()
    cpp_extension.CUDA_HOME = str(toolchain.nvcc_for_build().home)
    plan.log_file.write_text("")
    if damaged := forget_stale(plan.folder):
        what = ", ".join(damaged)
        are = "is" if len(damaged) == 1 else "are"
        words = f"{what} {are} not as the last build left {'it' if are == 'is' else 'them'}: rebuilt"
        say(Console(stderr=True), f"{shown_path(plan.folder)}: {words}")
    try:
        cpp_extension.load(name=plan.name, build_directory=str(plan.folder), is_python_module=False, **arguments)
    except (RuntimeError, OSError) as error:
        log = plan.log_file.read_text(errors="replace") + "\n" + report.demangled(f"{error}\n{error.__cause__ or ''}")
        if full := no_space(log, plan.folder):
            raise BuildError(full) from None
        _remembered_kernels(plan)
        plan.log_file.write_text(log)
        remember(plan.folder)
        own = with_own_headers(plan.place.kernels)
        raise BuildError(explain_failure(log, own, plan.log_file)) from None
    return plan.library.stat().st_mtime_ns != before


def _remembered_warnings(plan: Plan, rebuilt: bool) -> list[str]:
    """The compilers' warnings; nvcc's are saved for builds that have nothing to do."""
    memory = plan.folder / "warnings.json"
    if plan.backend == "cuda" and not rebuilt:
        return json.loads(memory.read_text()) if memory.exists() else []
    warnings = report.own_warnings(plan.log_file.read_text(errors="replace"), with_own_headers(plan.place.kernels))
    if plan.backend == "cuda":
        write_whole(memory, json.dumps(warnings))
    return warnings


def _remembered_kernels(plan: Plan) -> list[KernelResources]:
    """ptxas's report, which is saved for builds that have nothing to do: it covers only what is compiled."""
    memory = plan.folder / "kernels.json"
    kernels = report.kernel_resources(plan.log_file.read_text(errors="replace"))
    if kernels:
        write_whole(memory, json.dumps([asdict(kernel) for kernel in kernels]))
        return kernels
    return [KernelResources(**kernel) for kernel in json.loads(memory.read_text())] if memory.exists() else []
