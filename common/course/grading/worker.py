"""The grader's end of a worker in a sandbox."""

from __future__ import annotations

import contextlib

from common.console.words import error_words
from common.course.grading.sandbox import Sandbox, patience
from common.testing.worker.messages import send
from common.testing.worker.nursery import Nursery
from common.testing.worker.worker import NotLoaded, Worker

MOST_BYTES = 1 << 28  # of an answer: the largest output of a case has 16 MB


class SandboxedWorker(Worker):
    """Calls one task's operators there.

    Args:
        box: a sandbox that runs.
        nursery: the one in it.
        task: "task2".
        compiled: whether its kernels are built and loaded; False: for a part in Python alone.

    Attributes:
        hide: the next calls get inputs that only kernels can see, see common.testing.hidden_inputs.
        watch: the next calls say which of PyTorch's operators they use.
    """

    most_bytes = MOST_BYTES

    def __init__(self, box: Sandbox, nursery: Nursery, task: str, compiled: bool = True) -> None:
        super().__init__(None, nursery)
        self._box, self.task, self.compiled = box, task, compiled
        self.hide = self.watch = False

    @property
    def load_seconds(self) -> float:
        """Of wall clock, as things are now."""
        return round(self._box.limits.load * patience())

    @property
    def call_seconds(self) -> dict[str, float]:
        """The same of one call, by backend."""
        return {"simulator": round(self._box.limits.call * patience())}

    def load(self) -> None:
        """See Worker.load."""
        try:
            super().load()
        except (OSError, KeyError, TypeError) as error:
            self.end_process()
            words = f"No process can be started in the sandbox: {error_words(error)}. {self._box.said}".strip()
            raise NotLoaded(self._box.ended_because or words, "ended") from None
        if self.backend != "simulator" or not isinstance(self.about.get("log"), str):
            self.end_process()
            raise NotLoaded("The process that loaded the code gave no answer that can be read.", "ended")

    def close(self) -> None:
        """Ends the process; the nursery stays."""
        self.end_process()
        self._printed.close()

    def _begin(self) -> None:
        send(self._connection, {"do": "begin", "task": self.task, "compiled": self.compiled})

    def _further(self) -> dict:
        return {"hide": self.hide, "watch": self.watch}

    def _no_more(self) -> str:
        return self._box.ended_because or f"No process can be started in the sandbox. {self._box.said}".strip()

    def _ending(self, when: str = "while it ran your code") -> list[str]:
        words = super()._ending(when)
        return [self._box.ended_because] if self._box.ended_because else words

    def _new_words(self) -> str:
        return super()._new_words()[-4000:]

    @staticmethod
    def _show(words: str) -> None:
        """What student code prints counts for nothing."""

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._printed.close()
