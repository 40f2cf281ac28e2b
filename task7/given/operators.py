"""Operators of the tasks that task 7 builds on, and a wrapper that counts calls.

load_kernels("student")             (task 4's, task 6's)
load_engine_kernels("student")      those and task 7's own, for the engine
CountedOperators(ops)
"""

from __future__ import annotations

from collections import Counter

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest
from common.compiling.variant import Variant
from common.kernels.gpt2.engine_kernels import EngineKernels, tuned_kernels


class CountedOperators:
    """Forwards everything to `ops` and counts, in `calls`, the operator calls that returned."""

    def __init__(self, ops):
        self._ops = ops
        self.calls = Counter()

    def __getattr__(self, name):
        attribute = getattr(self._ops, name)
        if not callable(attribute):
            return attribute

        def counted(*args, **kwargs):
            result = attribute(*args, **kwargs)
            self.calls[name] += 1
            return result

        return counted


def load_kernels(
    variant: str = "student",
    backend: str = "auto",
    arch: str | None = None,
    tasks: tuple[str, ...] = ("task4", "task6"),
) -> tuple[Operators, ...]:
    """Compiles (if needed) and loads the operators of several tasks.

    Args:
        variant: "student" (yours), "solution" (the reference solution's taught kernels) or "tuned" (the engineer's).
        backend: "auto", "cuda" or "simulator".
        arch: nvcc's target such as "sm_90a"; None: the GPU that is present.
        tasks: the tasks to load.

    Returns:
        The operators of each task.

    Raises:
        ValueError: no such variant. What common.compiling.load.load raises when a kernel does not compile.
    """
    return tuple(load(BuildRequest(task, variant, backend, arch)) for task in tasks)


def load_engine_kernels(variant: str = "student", backend: str = "auto", arch: str | None = None) -> EngineKernels:
    """The operators that the engine runs on. Arguments and errors: see load_kernels."""
    if Variant.of(variant) == Variant.TUNED:
        return tuned_kernels(backend, arch)
    return EngineKernels(*load_kernels(variant, backend, arch, ("task4", "task6", "task7")), str(variant))
