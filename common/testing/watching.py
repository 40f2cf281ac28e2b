"""Records arguments and results of the functions in a student's Python file, in the process where they run.

    watched = Watched(python_side(ops, "ring"), {"merge"})
    with watched: case.call(...)
    watched.calls                       as JSON; read by python_values.py

Tensors are copied when a function starts, since it may modify them.
"""

from __future__ import annotations

import base64
import dis
import inspect
import sys
from collections.abc import Callable, Collection
from types import FrameType, ModuleType

import torch
from torch import Tensor

MOST_CALLS = 200  # recorded calls, over all functions
MOST_ELEMENTS = 1 << 19  # elements of all recorded tensors


class Watched:
    """Context manager that records the calls of some functions of a module.

    Args:
        module: the module whose file defines them.
        functions: their names.

    Attributes:
        calls: the calls that returned, in order of return, up to the limits above.
    """

    def __init__(self, module: ModuleType, functions: Collection[str]) -> None:
        self._file, self._functions = module.__file__, frozenset(functions)
        self._open: dict[FrameType, tuple[dict, int, set[int]]] = {}  # arguments, number, lines that ran
        self._begun: dict[str, int] = {}
        self._left = MOST_ELEMENTS
        self.calls: list[dict] = []
        self._is_full = False

    def __enter__(self) -> Watched:
        self._before = sys.getprofile(), sys.gettrace()
        sys.setprofile(self._event)
        sys.settrace(self._traced)
        return self

    def __exit__(self, *_) -> None:
        sys.setprofile(self._before[0])
        sys.settrace(self._before[1])
        self._open.clear()

    def _traced(self, frame: FrameType, event: str, value: object) -> Callable | None:
        """Records the lines that run."""
        if frame.f_code.co_filename != self._file or frame.f_code.co_name not in self._functions:
            return None
        if event == "line" and frame in self._open:
            self._open[frame][2].add(frame.f_lineno)
        return self._traced

    def _event(self, frame: FrameType, event: str, value: object) -> None:
        code = frame.f_code
        if (
            self._is_full
            or event not in ("call", "return")
            or code.co_name not in self._functions
            or code.co_filename != self._file
        ):
            return
        if event == "call":
            number = self._begun[code.co_name] = self._begun.get(code.co_name, 0) + 1
            arguments = dict(frame.f_locals)
            self._open[frame] = {name: self._kept(one) for name, one in arguments.items()}, number, set()
        elif frame in self._open:
            arguments, number, ran = self._open.pop(frame)
            if not dis.opname[code.co_code[frame.f_lasti]].startswith("RETURN"):  # an exception propagates through it
                return
            own = {name: self._kept(one) for name, one in frame.f_locals.items() if name not in arguments}
            found = {
                "function": code.co_name,
                "number": number,
                "arguments": arguments,
                "values": own,
                "returned": self._kept(value),
                "first_line": code.co_firstlineno,
                "ran": sorted(ran),
                "source": _source_of(code),
            }
            self._is_full |= len(self.calls) == MOST_CALLS
            self.calls += [] if self._is_full else [found]

    def _kept(self, value: object) -> object:
        """A value as JSON: {"shape", "numbers"} for a tensor, {"parts", "names"} for a tuple, otherwise the value."""
        if isinstance(value, bool | int | float | str) or value is None:
            return value
        if isinstance(value, Tensor):
            if value.numel() > self._left:
                self._is_full = True
                return {"is": "something"}
            self._left -= value.numel()
            numbers = Tensor.detach(value).cpu().double().contiguous().numpy().tobytes()
            return {"is": "tensor", "shape": list(value.shape), "numbers": base64.b64encode(numbers).decode()}
        if isinstance(value, tuple | list):
            names = list(getattr(value, "_fields", ()))
            return {"is": "parts", "parts": [self._kept(one) for one in value], "names": names}
        return {"is": "something"}


def _source_of(code) -> str:
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return ""


def read(kept: object) -> object:
    """Decodes a value recorded by Watched: numbers, float64 tensors, {name or index: part} for a tuple; None for
    anything not recorded.

    Raises:
        ValueError: it is not a value recorded by Watched.
    """
    if not isinstance(kept, dict):
        return kept
    if kept.get("is") == "tensor":
        shape = [int(size) for size in kept["shape"]]
        data = bytearray(base64.b64decode(kept["numbers"]))
        flat = torch.frombuffer(data, dtype=torch.float64) if data else torch.empty(0, dtype=torch.float64)
        return flat.view(shape)
    if kept.get("is") == "parts":
        names = kept["names"] or range(len(kept["parts"]))
        return {str(name): read(one) for name, one in zip(names, kept["parts"], strict=True)}
    return None
