"""The operators of the tasks that task 7 stands on, and a wrapper that counts their calls."""

from __future__ import annotations

from collections import Counter

VARIANTS = ("student", "solution", "tuned")


class CountedOperators:
    """Passes everything on to `ops` and counts, in `calls`, every operator call that returned."""

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


def load_variant(tasks, variant: str, backend: str = "auto", arch: str | None = None) -> tuple:
    """Compiles (if needed) and loads the operators of several tasks.

    Args:
        tasks: ("task4", "task6").
        variant: "student" (yours), "solution" (the reference solution's taught kernels) or "tuned" (the engineer's).
        backend: "auto", "cuda" or "simulator".
        arch: nvcc's target such as "sm_90a"; None: the GPU that is present.

    Returns:
        The operators of each task.

    Raises:
        ValueError: no such variant. What `common.build.load` raises when a kernel does not compile.
    """
    from common import build

    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}; allowed: {', '.join(map(repr, VARIANTS))}")
    solution, tuned = variant == "solution", variant == "tuned"
    return tuple(build.load(task, solution, backend, arch, tuned=tuned) for task in tasks)


def load_kernels(variant: str = "student", backend: str = "auto", arch: str | None = None) -> tuple:
    """(task 4's operators, task 6's); arguments and errors: see load_variant."""
    return load_variant(("task4", "task6"), variant, backend, arch)
