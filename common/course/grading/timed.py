"""The process whose calls are timed: serve_rounds(make, connection). It has no clock: the grader keeps time.

    {"do": "round", "configuration": 0} and the inputs      -> {"ready": true}
    {"do": "go"}                                            -> {"done": true, "sum": 3.25}
    {"do": "show"} or {"do": "next"}                        -> the output, after "show"

All rounds are identical up to the last message: the process learns whether an output will be compared only after
computing it. The output's sum is computed before "done" is sent, so work cannot be deferred until the output is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from common.testing.calling import CallFailed
from common.testing.worker.messages import receive, send

Prepare = Callable[[int, Mapping[str, Tensor]], Callable[[], Tensor]]
NOTHING = "nothing"  # stands for a configuration whose call does nothing


def serve_rounds(make: Callable[[], Prepare], connection: Connection, device: torch.device) -> None:
    """Serves until the other side closes the connection or something fails, which it answers with {"problem": why}.

    Args:
        make: loads the code to be timed and returns prepare(configuration, inputs on the device) -> the call.
        connection: to the grader.
        device: where the inputs go.
    """
    prepare = None
    while True:
        try:
            request, tensors = receive(connection)
            prepare = prepare or make()
            inputs = {name: x.to(device) for name, x in tensors.items()}
            if request["configuration"] == NOTHING:
                call = partial(next, iter([*inputs.values()]))
            else:
                call = prepare(request["configuration"], inputs)
            del tensors, inputs
            _synchronize(device)
            send(connection, {"ready": True})
            receive(connection)
            out = call()
            total = float(out.sum(dtype=torch.float64))
            _synchronize(device)
            send(connection, {"done": True, "sum": total})
            if receive(connection)[0]["do"] == "show":
                send(connection, {"shown": True}, {"out": out})
            del out, call
        except (EOFError, ConnectionError):
            return
        except (Exception, SystemExit) as error:
            send(connection, {"problem": "\n".join(CallFailed.because(error).words)})
            return


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
