"""Worker: runs the student's operators in a separate process.

    with Worker(Served(load, cases)) as worker:
        judge(case, worker)

A crash, an exit or a hang there raises CallFailed here, and the next call starts a new process.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from common.testing.calling import POISONED, Around, Called, Caller, CallFailed
from common.testing.case import ERROR, Case
from common.testing.case_choice import full_name
from common.testing.worker.child import Served, work
from common.testing.worker.child_process import NO_ANSWER, ChildProcess, answers, limit_waits
from common.testing.worker.messages import MOST_BYTES, receive, send
from common.testing.worker.nursery import Nursery

LOAD_SECONDS = 1800  # for building and loading: nvcc on a loaded machine takes minutes, a stuck compiler forever
CALL_SECONDS = {"simulator": 120, "cuda": 60}  # for one call; the simulator itself gives up on a kernel much earlier
ANSWER_SECONDS = 7200  # for requests other than calls: training and benchmarks take minutes
NO_MORE = (
    "No further process can be started: the one that starts them does not answer, or was ended, by your code or for "
    "want of memory."
)


class NotLoaded(Exception):
    """The operators could not be built or loaded; has the error's message, and its type's name as `kind`."""

    def __init__(self, words: str, kind: str) -> None:
        super().__init__(words)
        self.kind = kind


class Worker(ChildProcess, Caller):
    """Calls operators in another process.

    Create it before this process starts threads or uses CUDA: workers are forked from the process's state at that time.

    Args:
        served: the workers' services.
        nursery: a nursery that runs elsewhere and has its own services; `served` is then unused.

    Attributes:
        about: the result of Served.describe for the operators.
    """

    load_seconds: float = LOAD_SECONDS
    call_seconds: Mapping[str, float] = CALL_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    most_bytes = MOST_BYTES  # size limit of an answer

    def __init__(self, served: Served | None, nursery: Nursery | None = None) -> None:
        super().__init__()
        self._nursery = nursery or Nursery(partial(work, served))
        self.about: dict = {}
        self.more: dict = {}

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def load(self) -> None:
        """Starts a process and loads the operators in it, unless already done.

        Raises:
            NotLoaded: they could not be loaded.
        """
        if self._process is not None:
            return
        try:
            self._process, self._connection = self._nursery.fork(self._printed.fileno())
        except OSError:
            raise NotLoaded(self._no_more(), "ended") from None
        try:
            limit_waits(self._connection, self.load_seconds)
            self._begin()
            if not answers(self._connection, seconds := self.load_seconds):
                self.end_process()
                raise NotLoaded(f"Your code was not built and loaded within {seconds:g} seconds.", "not in time")
            self.about, _ = receive(self._connection, self.most_bytes)
        except (EOFError, OSError):
            raise NotLoaded("\n".join(self._ending("while your code was loaded")), "ended") from None
        except ValueError as error:
            self.end_process()
            raise NotLoaded(str(error), "ended") from None
        except BaseException:  # Ctrl-C
            self.end_process()
            raise
        if not self.about["loaded"]:
            self.end_process()
            raise NotLoaded(self.about["words"], self.about["kind"])
        self.backend, self.libraries = self.about["backend"], [Path(one) for one in self.about["libraries"]]
        self.device = torch.device("cuda" if self.backend == "cuda" else "cpu")

    def call(self, case: Case, inputs: dict[str, Tensor], around: Around = POISONED) -> Called:
        """See Caller.call. Also raises CallFailed if the process ends or times out."""
        self._load_for_call()
        self.more = {}
        seconds = self.call_seconds[self.backend]
        request = {"do": "call", "case": full_name(case), "around": asdict(around), "seconds": seconds}
        answer, tensors = self._ask(request, inputs, seconds)
        try:
            self.more = answer["more"]
            if not answer["called"]:
                if answer["lost"]:
                    self.end_process()
                words, is_endless = [*map(str, answer["words"])], bool(answer["endless"])
                raise CallFailed(answer["status"], words, answer["file_line"], is_endless=is_endless)
            out = tensors["out"].to(self.device) if "out" in tensors else None
            return Called(out, str(answer["returned"]), str(answer["device"]), [*map(str, answer["problems"])])
        except (KeyError, TypeError) as error:
            self.end_process()
            raise CallFailed(ERROR, [f"{NO_ANSWER}: {error}."], ended=True) from None

    def answer(self, request: Mapping[str, object]) -> dict:
        """Sends a request other than a call, which may take ANSWER_SECONDS.

        Raises:
            CallFailed: the process ended, or the request raised an error. NotLoaded: see load.
        """
        self.load()
        answer, _ = self._ask(request, {}, self.answer_seconds)
        if not answer["answered"]:
            raise CallFailed(ERROR, answer["words"])
        return answer

    def _load_for_call(self) -> None:
        try:
            self.load()
        except NotLoaded as error:
            raise CallFailed(ERROR, str(error).splitlines(), ended=True) from None

    def _no_more(self) -> str:
        """The message if the nursery cannot start a process."""
        return NO_MORE

    def _begin(self) -> None:
        """Hook: sends a new process additional information before it loads the operators."""

    def close(self) -> None:
        """Ends the process and its descendants."""
        super().close()
        self._nursery.close()

    def _ask(self, request, tensors: Mapping[str, Tensor], seconds: float) -> tuple[dict, dict[str, Tensor]]:
        return self._exchanged(
            lambda connection: send(connection, request, tensors),
            lambda connection: receive(connection, self.most_bytes),
            seconds,
        )

    def _status(self, process: int) -> int:
        try:
            return self._nursery.status(process)
        except OSError:  # the nursery is gone with its workers, or does not answer
            return int(signal.SIGKILL)
