"""Boxes: the sandboxes of one submission, isolated from each other.

build       the compilers; student code never runs here           kernels(task): one per task
kernels     the runner: host code and device code, no Python      in_runner(...): one for all public cases of a part,
                                                                  and a new one for each hidden case
Python      a nursery with a worker for each part                 in_python(...): one for public cases, one for hidden
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile

from common.compiling.operators import Library
from common.compiling.places import places_of
from common.compiling.variant import Variant
from common.console.paths import ROOT
from common.course.grading.clean_tree import modules_of, with_submission
from common.course.grading.hidden import tasks_below
from common.course.grading.sandbox import FairClock, Limits, Sandbox, patience
from common.course.grading.worker import SandboxedKernels, SandboxedRunner, SandboxedWorker
from common.course.grading.workshop import Workshop
from common.testing.runner.apart import Built
from common.testing.worker.child_process import answers
from common.testing.worker.messages import send
from common.testing.worker.nursery import Nursery
from common.testing.worker.worker import NotLoaded

MOST_BOXES = 40  # sandboxes that the watcher may kill for one submission
MOST_BYTES = 1 << 26  # size limit of a library


class Boxes:
    """The sandboxes of one submission; see the module docstring.

    Args:
        files: "task2/attention_kernel.cu" -> text; missing files have their released text.
        workshop: the class's workshop.

    Attributes:
        peak_bytes, cpu_seconds: used by the sandboxes' processes.
        marks: see Sandbox.mark.
    """

    def __init__(self, files: dict[str, str], workshop: Workshop) -> None:
        self._workshop = workshop
        self._folder = workshop.folder / f"tree-{id(self)}-{time.monotonic_ns()}"
        self._folder.mkdir(mode=0o755)
        self._tree = with_submission(workshop.base, self._folder / "course", files, copy=workshop.kind == "trusted")
        self._libraries = shutil.copytree(workshop.runner.parent, self._folder / "kernels")
        (self._libraries / workshop.runner.name).chmod(0o111)  # unreadable, so that no process can open its memory
        self._clock = FairClock()
        self._open: dict[str, Sandbox] = {}
        self._built: dict[str, tuple[str, str]] = {}  # task -> (why it cannot be built, or ""; the log)
        self._ended = 0
        self.peak_bytes, self.cpu_seconds = 0, 0.0
        self.marks: list[str] = []

    # ---- building and calling

    def kernels(self, task: str) -> str:
        """Builds a task's kernels, once; returns the compilers' log.

        Raises:
            NotLoaded: they cannot be built, or contain something that cannot be graded.
        """
        if task not in self._built:
            self._built[task] = self._build(task)
        problem, log = self._built[task]
        if problem:
            raise NotLoaded(problem, "BuildError")
        return log

    def in_runner(self, task: str) -> SandboxedKernels:
        """A caller for the task's kernels, in its own sandbox from first use. NotLoaded: see kernels."""
        self.kernels(task)
        about = json.loads((self._libraries / f"{task}.json").read_text())
        built = Built.of(self._libraries / f"{task}.so", about, self._tree / task / "given" / "binding.cpp")
        (place,) = places_of(task, Variant.STUDENT)
        sources = [self._tree / one.relative_to(ROOT) for one in (*place.kernels, place.binding)]
        runner = SandboxedRunner(
            self._libraries / self._workshop.runner.name, built, self._start, partial(self._lines, task)
        )
        return SandboxedKernels(task, Library(about["name"], built.library, tuple(sources)), runner)

    def in_python(self, task: str, compiled: bool, hidden: bool) -> SandboxedWorker:
        """A caller for parts that go through Python. NotLoaded: see kernels; also if no sandbox is available."""
        if compiled:
            for one in sorted({*self._workshop.tasks, *tasks_below(task)}):
                with contextlib.suppress(NotLoaded):
                    self.kernels(one)
            self.kernels(task)
        name = "hidden" if hidden else "public"
        if name in self._open and not self._open[name].alive():
            self._leave(name)
        if name not in self._open:
            # a model is loaded once for all public cases; hidden cases have no model
            self._open[name] = self._start(() if hidden else self._workshop.tasks, runtime=self._libraries)
        box = self._open[name]
        return SandboxedWorker(box, Nursery(None, elsewhere=box.socket.dup()), task, compiled)

    def _asked(self, request: str) -> tuple[dict, bytes]:
        """Sends a request to build.serve and returns its answer."""
        if "build" not in self._open:
            self._open["build"] = self._start((), serve="build.serve")
            self._open["build"].socket.setblocking(True)  # for Connection
        box = self._open["build"]
        with Connection(box.socket.dup().detach()) as connection:
            connection.send_bytes(request.encode())
            if not answers(connection, box.limits.load * patience()):
                raise OSError(f"The code was not compiled within {box.limits.load:g} seconds.")
            return json.loads(connection.recv_bytes(MOST_BYTES)), connection.recv_bytes(MOST_BYTES)

    def _lines(self, task: str, addresses: Sequence[str]) -> str:
        try:
            return "".join(f"\n  at {line}" for line in self._asked(" ".join((task, *addresses)))[0]["lines"])
        except (OSError, EOFError, LookupError, TypeError, ValueError, NotLoaded):
            return ""

    def _build(self, task: str) -> tuple[str, str]:
        """(why it cannot be built, or ""; the log)."""
        try:
            about, library = self._asked(task)
        except (OSError, EOFError, ValueError) as error:
            box = self._open.get("build")
            words = (box and box.ended_because) or str(error) or "The compiler's process has ended."
            self._leave("build")
            return words, words
        if problem := about.get("problem"):
            return problem, problem
        (self._libraries / f"{task}.so").write_bytes(library)
        (self._libraries / f"{task}.json").write_text(json.dumps({**about, "log": ""}))
        for name in (f"{task}.so", f"{task}.json"):
            (self._libraries / name).chmod(0o644)
        return "", about["log"]

    # ---- sandboxes

    def _start(self, tasks: tuple[str, ...] = (), runtime: Path | None = None, **how) -> Sandbox:
        shop = self._workshop
        if self._ended >= MOST_BOXES:
            raise NotLoaded(f"The code's sandboxes were ended {MOST_BOXES} times; it gets no further one.", "ended")
        if (left := shop.limits.seconds - self._clock.seconds()) <= 0:
            raise NotLoaded(f"The submission took longer than {shop.limits.seconds:g} seconds.", "not in time")
        limits: Limits = replace(shop.limits, seconds=round(left, 1))
        modules = modules_of(shop.base)
        box = Sandbox(self._tree, modules, runtime or shop.runtime, shop.kind, tasks, limits, closed=self.closed, **how)
        self.marks.append(box.mark)
        return box

    def closed(self, box: Sandbox) -> None:
        """Adds the resources used by a sandbox that has been closed."""
        self._ended += bool(box.ended_because)
        self.peak_bytes = max(self.peak_bytes, box.peak_bytes)
        self.cpu_seconds += box.cpu_seconds

    def _leave(self, name: str) -> None:
        if box := self._open.pop(name, None):
            box.close()

    @contextlib.contextmanager
    def timed(self, task: str, whose: str) -> Iterator[Connection]:
        """The connection to a process that serves timed rounds, in a sandbox that may use the GPU."""
        shop = self._workshop
        limits = replace(shop.limits, memory=3 * shop.limits.memory)  # CUDA's mappings count as well
        tree = self._tree if whose == "ours" else shop.base
        with (
            Sandbox(
                tree, modules_of(shop.base), shop.runtime, shop.kind, [task], limits, gpu=True, closed=self.closed
            ) as box,
            TemporaryFile() as printed,
        ):
            self.marks.append(box.mark)
            _, connection = Nursery(None, elsewhere=box.socket).fork(printed.fileno())
            with connection:
                send(connection, {"do": "begin", "task": task, "timed": whose})
                yield connection

    def leave(self) -> None:
        """Ends all running sandboxes."""
        for name in list(self._open):
            self._leave(name)

    def close(self) -> None:
        """Ends all sandboxes and deletes their files."""
        self.leave()
        shutil.rmtree(self._folder, ignore_errors=True)
