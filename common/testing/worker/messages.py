"""What a worker and its test say to each other: a JSON object, then the bytes of its tensors. Nothing is unpickled.

send(connection, {"do": "call"}, {"x": tensor})
message, tensors = receive(connection)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection

import torch
from torch import Tensor

DTYPES = {str(one): one for one in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}
DTYPES |= {str(one): one for one in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}


def send(connection: Connection, message: Mapping[str, object], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Sends both. The tensors may live anywhere and have any strides; what arrives is contiguous and on the CPU.

    Raises:
        OSError: the other side is gone.
    """
    kept = {name: x.detach().cpu().contiguous() for name, x in (tensors or {}).items()}
    forms = {name: {"dtype": str(x.dtype), "shape": list(x.shape)} for name, x in kept.items()}
    connection.send_bytes(json.dumps({"message": message, "tensors": forms}).encode())
    for x in kept.values():
        if x.numel():
            connection.send_bytes(x.reshape(-1).view(torch.uint8).numpy())


def receive(connection: Connection) -> tuple[dict, dict[str, Tensor]]:
    """What send() sent.

    Raises:
        EOFError: the other side is gone. ValueError: what came is no message.
    """
    whole = json.loads(connection.recv_bytes())
    tensors = {}
    for name, form in whole["tensors"].items():
        if form["dtype"] not in DTYPES:
            raise ValueError(f"tensor {name} has dtype {form['dtype']!r}; it must be one of {', '.join(DTYPES)}")
        dtype, shape = DTYPES[form["dtype"]], form["shape"]
        empty = torch.empty(shape, dtype=dtype)
        if empty.numel():
            data = connection.recv_bytes()
            if len(data) != empty.numel() * empty.element_size():
                raise ValueError(f"tensor {name} has {len(data)} bytes; {shape} of {dtype} has {empty.nbytes}")
            empty = torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
        tensors[name] = empty
    return whole["message"], tensors
