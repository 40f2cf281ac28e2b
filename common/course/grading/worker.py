"""The grader's end of sandboxed processes: a worker for parts that go through Python, a runner for kernels."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from common.cli.runner import RunnerOperators
from common.compiling.operators import Library
from common.console.words import error_words
from common.course.grading.at_work import allowed
from common.course.grading.sandbox import Program, Sandbox, patience
from common.testing.calling import POISONED, Around, Called, CallFailed, InProcess
from common.testing.case import ERROR, Case
from common.testing.runner.apart import ApartProcess, Built
from common.testing.worker.child_process import WHILE_IT_RAN
from common.testing.worker.messages import send
from common.testing.worker.nursery import Nursery
from common.testing.worker.worker import NotLoaded, Worker

MOST_BYTES = 1 << 28  # size limit of an answer; the largest output of a case has 16 MB


class SandboxedWorker(Worker):
    """Calls one task's operators in a sandboxed worker.

    Args:
        box: a running sandbox.
        nursery: the nursery in it.
        task: "task2".
        compiled: whether it calls kernels; False for a pure Python part.
    """

    most_bytes = MOST_BYTES
    backend, device = "simulator", torch.device("cpu")

    def __init__(self, box: Sandbox, nursery: Nursery, task: str, compiled: bool = True) -> None:
        super().__init__(None, nursery)
        self._box, self.task, self.compiled = box, task, compiled

    @property
    def load_seconds(self) -> float:
        """Wall-clock limit for loading, under the current load."""
        return round(self._box.limits.load * patience())

    @property
    def call_seconds(self) -> dict[str, float]:
        """The same for one call, by backend."""
        return {"simulator": round(self._box.limits.call * patience())}

    def load(self) -> None:
        """See Worker.load."""
        try:
            super().load()
        except (OSError, KeyError, TypeError) as error:
            self.end_process()
            words = f"No process can be started in the sandbox: {error_words(error)}. {self._box.said}".strip()
            raise NotLoaded(self._box.ended_because or words, "ended") from None
        if self.backend != "simulator":
            self.end_process()
            raise NotLoaded("The process that loaded the code sent an answer that can't be read.", "ended")

    def close(self) -> None:
        """Ends the worker; the nursery keeps running."""
        self.end_process()
        self._printed.close()

    def _begin(self) -> None:
        send(self._connection, {"do": "begin", "task": self.task, "compiled": self.compiled})

    def _no_more(self) -> str:
        return self._box.ended_because or f"No process can be started in the sandbox. {self._box.said}".strip()

    def _ending(self, when: str = "while it ran your code") -> list[str]:
        words = super()._ending(when)
        return [self._box.ended_because] if self._box.ended_because else words

    def _new_words(self) -> str:
        return super()._new_words()[-4000:]

    @staticmethod
    def _show(words: str) -> None:
        """Ignores what student code prints."""

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._printed.close()


class SandboxedRunner(ApartProcess):
    """A runner in a sandbox. `start` makes a Sandbox from its keyword arguments; for `lines` see ApartProcess."""

    def __init__(
        self, program: Path, built: Built, start: Callable[..., Sandbox], lines: Callable[[Sequence[str]], str]
    ) -> None:
        super().__init__(program, built)
        self._open_box, self._lines = start, lines
        self._box: Sandbox | None = None

    @property
    def call_seconds(self) -> float:
        """Wall-clock limit for one call, under the current load."""
        return round((self._box.limits.call if self._box else 60) * patience())

    def _spawn(self, files: Sequence[int]) -> int:
        program = Program(self._program, self._built.library, tuple(files), self._printed.fileno())
        self._box = self._open_box(program=program)
        return self._box.process

    def _status(self, process: int) -> int:
        self._leave_device()
        box, self._box = self._box, None
        box.close()
        return box.status()

    def _ending(self, when: str = WHILE_IT_RAN) -> list[str]:
        box = self._box
        words = super()._ending(when)
        if box and box.ended_because:
            return [box.ended_because]
        return words if when == WHILE_IT_RAN else [*words, self._last_words()]  # no student code has run yet

    def _last_words(self) -> str:
        return os.pread(self._printed.fileno(), 2000, 0).decode(errors="replace")

    @staticmethod
    def _show(words: str) -> None:
        """Ignores what student code prints."""


class SandboxedKernels(InProcess):
    """Calls a task's operators in a sandboxed runner, from this process: the only student code that runs is kernels and
    launchers.

    `more` holds the counters of the last call, the work allowed in it (at_work.allowed), and the bytes that all calls
    read back.
    """

    def __init__(self, task: str, library: Library, runner: SandboxedRunner) -> None:
        super().__init__(RunnerOperators(task, "student", [library], runner))
        self._runner, self._read_back = runner, 0

    def call(self, case: Case, inputs: dict[str, Tensor], around: Around = POISONED) -> Called:
        """See Caller.call."""
        out = None
        try:
            self._runner.begin()
            called = super().call(case, inputs, around)
            out = called.out
            return called
        except NotLoaded as error:
            raise CallFailed(ERROR, str(error).splitlines(), ended=True) from None
        finally:
            counts = self._runner.counts
            self._read_back += counts["read_back"]
            most = allowed(inputs, out, case.in_place)
            self.more = {**counts, "read_back": self._read_back, "allowed": most}

    def close(self) -> None:
        """Ends its sandbox."""
        self._runner.close()
