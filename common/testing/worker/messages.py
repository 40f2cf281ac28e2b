"""Messages between a worker and its test: a JSON object, then the bytes of its tensors. Nothing is unpickled.

send(connection, {"do": "call"}, {"x": tensor})
message, tensors = receive(connection)

A worker runs student code: its messages are validated before use.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from multiprocessing.connection import Connection

import torch
from torch import Tensor

DTYPES = {str(one): one for one in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}
DTYPES |= {str(one): one for one in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)}

MOST_BYTES = 1 << 32
TEXT = 64  # the JSON is limited to 1/64 of the bytes, since its objects take 26 times as much memory as the text


def send(connection: Connection, message: Mapping[str, object], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Sends a message and its tensors. Tensors may have any device and strides; they arrive contiguous and on the CPU.

    Raises:
        OSError: the other side is gone.
    """
    # not x.detach(), which a subclass may override
    kept = {name: Tensor.detach(x).cpu().contiguous() for name, x in (tensors or {}).items()}
    forms = {name: {"dtype": str(x.dtype), "shape": list(x.shape)} for name, x in kept.items()}
    connection.send_bytes(json.dumps({"message": message, "tensors": forms}).encode())
    for x in kept.values():
        if x.numel():
            connection.send_bytes(x.reshape(-1).view(torch.uint8).numpy())


def receive(connection: Connection, most: int = MOST_BYTES) -> tuple[dict, dict[str, Tensor]]:
    """Receives a message sent by send().

    Args:
        connection: to the other side.
        most: limit on the total bytes of its tensors; the JSON text may have most / TEXT bytes.

    Raises:
        EOFError, OSError: the other side is gone or exceeds the limit. ValueError: not a valid message.
    """
    try:
        whole = json.loads(connection.recv_bytes(most // TEXT))
        message, forms = whole["message"], whole["tensors"]
        read = {name: (DTYPES[form["dtype"]], [int(size) for size in form["shape"]]) for name, form in forms.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"what came is no message: {type(error).__name__}: {str(error)[:200]}") from None
    if not isinstance(message, dict) or any(size < 0 for _, shape in read.values() for size in shape):
        raise ValueError("what came is no message")
    total = sum(math.prod(shape) * dtype.itemsize for dtype, shape in read.values())
    if total > most:
        raise ValueError(f"its tensors have {total:,} bytes; at most {most:,} are allowed")
    tensors = {}
    for name, (dtype, shape) in read.items():
        empty = torch.empty(shape, dtype=dtype)
        if empty.numel():
            data = connection.recv_bytes(empty.nbytes)
            if len(data) != empty.nbytes:
                raise ValueError(f"tensor {name} has {len(data)} bytes; {shape} of {dtype} has {empty.nbytes}")
            empty = torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
        tensors[name] = empty
    return message, tensors
