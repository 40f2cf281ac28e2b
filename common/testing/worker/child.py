"""The code that a worker runs: loads the operators, then answers requests until the connection closes.

{"do": "call", "case": "gemm: K = 1", "around": {...}} and the inputs     -> a Called
{"do": "measure", ...}                                                   -> the result of Served.answer
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from common.testing.calling import Around, CallFailed, InProcess, gpu_is_lost
from common.testing.case import Case
from common.testing.case_choice import full_name
from common.testing.worker.messages import DTYPES, receive, send

LAST = 0.9  # of a call's time limit: then it is recorded where the student's Python is


@dataclass(frozen=True)
class Served:
    """The services of a worker.

    Attributes:
        load: returns the operators.
        cases: returns all cases that may be requested.
        describe: describe(ops) -> information about the operators for the test, as JSON.
        caller: makes a caller for them.
        answer: answer(ops, request) -> the answer to a request other than a call, as JSON.
    """

    load: Callable[[], Any]
    cases: Callable[[], Sequence[Case]]
    describe: Callable[[Any], dict] = lambda ops: {}
    caller: Callable[[Any], InProcess] = InProcess
    answer: Callable[[Any, Mapping], dict] | None = None

    def start(self) -> tuple[InProcess, dict]:
        """Loads the operators: (their caller, information about them as JSON). Raises what `load` raises."""
        ops = self.load()
        caller = self.caller(ops)
        about = {"backend": ops.backend, "libraries": [str(path) for path in caller.libraries]}
        return caller, {**about, **self.describe(ops)}


def work(served: Served, connection: Connection) -> None:
    """Serves one test; returns when it closes the connection."""
    torch.set_num_threads(torch.get_num_threads())  # replaces the thread pool, which does not survive a fork
    try:
        caller, about = served.start()
        send(connection, {"loaded": True, **about})
    except (Exception, SystemExit) as error:
        send(connection, {"loaded": False, "words": str(CallFailed.because(error)), "kind": type(error).__name__})
        return
    for simulator in caller.simulators:
        simulator.ask("simulator_tell_crashes")
    cases = {full_name(case): case for case in served.cases()}
    while True:
        try:
            request, tensors = receive(connection)
        except (EOFError, OSError):
            return
        if request["do"] == "call":
            case = cases[request["case"]]
            if case.python:
                faulthandler.dump_traceback_later(LAST * request["seconds"], file=2)
            _call(connection, caller, case, tensors, Around(**request["around"]))
            faulthandler.cancel_dump_traceback_later()
        else:
            send(connection, _answer(served, caller.ops, request))
        sys.stdout.flush()


def _call(connection: Connection, caller: InProcess, case: Case, inputs: dict[str, Tensor], around: Around) -> None:
    """Calls one case and sends the result."""
    try:
        called = caller.call(case, inputs, around)
    except CallFailed as failed:
        told = {"status": failed.status, "words": failed.words, "file_line": failed.file_line, "more": caller.more}
        told["endless"] = failed.is_endless
        send(connection, {"called": False, **told, "lost": caller.backend == "cuda" and gpu_is_lost()})
        return
    returned, tensors = called.returned, {}
    if called.out is not None and str(called.out.dtype) not in DTYPES:
        returned = f"a tensor of dtype {called.out.dtype}"
    elif called.out is not None:
        tensors = {"out": called.out}
    form = {"returned": returned, "device": called.device, "problems": called.problems}
    send(connection, {"called": True, **form, "more": caller.more}, tensors)


def _answer(served: Served, ops, request: Mapping) -> dict:
    try:
        return {"answered": True, **served.answer(ops, request)}
    except (Exception, SystemExit) as error:
        return {"answered": False, "words": CallFailed.because(error).words}
