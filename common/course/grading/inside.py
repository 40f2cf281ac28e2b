"""The code that runs in the sandbox: a nursery whose workers run the parts that go through Python.

It knows no seeds, references or verdicts. A worker first receives its task,
{"do": "begin", "task": "task2", "compiled": true}, and then serves calls like any other (common/testing/worker).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import resource
import socket
import sys
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE = 36, 4


def main(root: str, file: str, cpu: str, file_bytes: str, threads: str, gpu: str, *tasks: str) -> None:
    """Serves until the grader closes its end of the socket.

    Args:
        root: the tree; modules of common and of the tasks must all come from it.
        file: the file descriptor of the socket to the grader.
        cpu, file_bytes: limits per process, see sandbox.Limits. threads: limit for all processes together.
        gpu: "1" if the workers use a GPU.
        tasks: the tasks that will be requested.
    """
    hard = {resource.RLIMIT_FSIZE: int(file_bytes), resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: 1024}
    if os.getuid():
        hard[resource.RLIMIT_NPROC] = int(threads)
    settle(hard)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphaned descendants are reparented to this process
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)  # no worker can write to the memory from which the others are forked

    import_torch(gpu == "1")
    if gpu != "1":
        from common.compiling import load

        load.load = lambda request: _kernels(request.task)  # patch first: a task's modules import it by name
    from common.testing.worker.nursery import serve

    for task in tasks:
        getattr(importlib.import_module(f"{task}.cases"), "warm_up", lambda: None)()
    assert_all_from(root)
    serve(socket.socket(fileno=int(file)), partial(_work, root, int(cpu)))
    os._exit(0)  # skip cleanup: nothing here needs it, and the grader is waiting


def settle(limits: Mapping[int, int]) -> None:
    """Applies the limits to this process."""
    for what, most in limits.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))


def import_torch(gpu: bool) -> None:
    """Imports once what all workers need. With a GPU, cpp_extension is left out: importing it initializes CUDA, and a
    process forked after that cannot use the GPU."""
    import torch

    torch.set_num_threads(1)
    if not gpu:
        importlib.import_module("torch.utils.cpp_extension")


def assert_all_from(root: str) -> None:
    """Raises ImportError if a module of the course was not imported from the tree."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "common" or name.split(".")[0].removeprefix("task").isdigit():
            files = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
            if strange := [one for one in files if one and not Path(one).is_relative_to(root)]:
                raise ImportError(f"{name} comes from {strange[0]}; it must come from {root}")


def _work(root: str, cpu: int, connection: Connection) -> None:
    from common.testing.worker import child
    from common.testing.worker.messages import receive

    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    begin, _ = receive(connection)
    if begin.get("timed"):
        _timed(begin["task"], begin["timed"], connection)
        return
    child.work(served(root, begin["task"], begin["compiled"]), connection)


def served(root: str, task: str, compiled: bool):
    """What a worker of this task serves; it has no operators if nothing is compiled. The student's Python runs in
    another process, without tensors."""
    from common.compiling.operators import Operators
    from common.course.grading.handle_server import module_of
    from common.testing import python_side
    from common.testing.worker.child import Served

    python_side.python_module = lambda task, variant, name: module_of(root, task, name, compiled)
    return Served(
        lambda: _kernels(task) if compiled else Operators(task, "student", "simulator", []), partial(cases_of, task)
    )


@functools.cache
def _kernels(task: str):
    """The operators of a built library: its kernels run in a process without Python, which sees only the tensors of the
    current call."""
    from common.cli.runner import RunnerOperators
    from common.compiling.operators import Library
    from common.compiling.places import places_of
    from common.compiling.variant import Variant
    from common.testing.runner.apart import COPIED_BACK, ApartProcess, Built

    class Kernels(ApartProcess):
        def call(self, *given):
            if self._process is None:
                self.begin()
            made = super().call(*given)
            if self.counts["read_back"]:
                raise RuntimeError(COPIED_BACK)
            return made

    folder = Path(os.environ["GRADING_KERNELS"])  # libraries built later appear there too
    (place,) = places_of(task, Variant.STUDENT)
    if not (folder / f"{task}.json").exists():
        raise RuntimeError(f"{task}'s kernels, which this runs, cannot be built.")
    about = json.loads((folder / f"{task}.json").read_text())
    built = Built.of(folder / f"{task}.so", about, place.binding)
    library = Library(about["name"], built.library, (*place.kernels, place.binding))
    ops = RunnerOperators(task, "student", [library], Kernels(folder / "runner", built))
    del ops.memory  # inputs and all tensors made by student Python are in this process's memory
    return ops


def _timed(task: str, whose: str, connection: Connection) -> None:
    """Serves timed rounds on a GPU; whose: "ours" or "peers"."""
    import torch

    from common.compiling.load import load
    from common.compiling.request import BuildRequest
    from common.course.grading.timed import serve_rounds

    def make():
        ops = load(BuildRequest(task, "student", "cuda")) if whose == "ours" else None
        return partial(importlib.import_module(f"{task}.cases.speed").prepare, ops)

    serve_rounds(make, connection, torch.device("cuda"))


def cases_of(task: str) -> list:
    """A task's cases, including those that only grading runs."""
    module = importlib.import_module(f"{task}.cases")
    return [*module.cases(), *getattr(module, "graded", list)()]
