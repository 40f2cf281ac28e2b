"""The operators of tasks 4 and 6, and a wrapper that counts their calls."""

from collections import Counter


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


def load_kernels(solution=False, backend="auto", arch=None):
    """Compiles (if needed) and loads tasks 4 and 6.

    solution: the reference solution's kernels instead of the student's.
    backend: "auto", "cuda" or "simulator". arch: nvcc's target (None: the GPU present).
    Returns (task 4's operators, task 6's).
    Raises what `common.build.load` raises when a kernel does not compile.
    """
    from common import build

    return tuple(build.load(task, solution, backend, arch) for task in ("task4", "task6"))
