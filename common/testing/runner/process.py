"""RunnerProcess: the test's interface to a runner.

    process = RunnerProcess(program, libraries)
    process.begin()                                      frees the memory; starts a process if there is none
    x = process.empty(3, torch.float32)                  a tensor in the shared memory
    process.call("task2::softmax", [Argument(TENSOR, x)], outputs=1)      -> [y], a copy
    process.ask(0, "simulator_refused")                  a function of the first library's simulator

Answers come from a process that runs student code: they are validated before use.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor

from common.testing.calling import CallFailed
from common.testing.case import ERROR
from common.testing.worker import nursery
from common.testing.worker.child_process import WHILE_IT_RAN, ChildProcess
from common.testing.worker.worker import CALL_SECONDS, NotLoaded

MEMORY_BYTES = 1 << 32  # for inputs and outputs together; untouched pages take no memory
KEPT_BYTES = 1 << 26  # not released before the next case
MOST_BYTES = 1 << 16  # per message
MOST_DIMENSIONS = 64
ALIGNMENT = 64  # of tensors, as in PyTorch's allocator
NOTHING, TENSOR, INTEGER, NUMBER, TRUTH, OPTIONAL = 0, 1, 2, 3, 4, 0x80  # argument tags, see runner.cpp
DTYPES = dict(enumerate((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)))  # c10::ScalarType numbers
DTYPES |= {5: torch.float16, 6: torch.float32, 7: torch.float64, 11: torch.bool, 15: torch.bfloat16}
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_ERRORS = {one.__name__: one for one in (ValueError, IndexError, MemoryError)}  # any other is a RuntimeError
PATIENCE = "2.5"  # seconds of CPU time without progress: an endless loop is reported within 10
_SOCKET, _MEMORY, _FREE = 3, 4, 10  # file descriptors in the runner; the passed ones are different
Answer = TypeVar("Answer")


def is_available() -> bool:
    """Whether runners work on this machine: Linux only."""
    return hasattr(os, "memfd_create")


@dataclass(frozen=True)
class Argument:
    """An argument of an operator.

    Attributes:
        kind: TENSOR, INTEGER, NUMBER or TRUTH.
        value: the operator's argument; None only if optional.
        optional: its type in the schema is optional, such as "float?".
        written: the operator writes into it.
    """

    kind: int
    value: Tensor | float | None
    optional: bool = False
    written: bool = False


class Message:
    """Decodes an answer piece by piece. ValueError if it is truncated."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, form: str) -> tuple:
        """Numbers in a format of the struct module."""
        try:
            values = struct.unpack_from(f"={form}", self._data, self._at)
        except struct.error:
            raise ValueError("it ends too early") from None
        self._at += struct.calcsize(f"={form}")
        return values

    def text(self) -> str:
        """A length-prefixed text."""
        (size,) = self.take("I")
        (data,) = self.take(f"{min(size, MOST_BYTES)}s")
        return data.decode(errors="replace")


def _text(value: str) -> bytes:
    return struct.pack("=I", len(value.encode())) + value.encode()


class RunnerProcess(ChildProcess):
    """A runner and the memory it shares with the test; see the module docstring.

    Args:
        program: the runner.
        libraries: the libraries to load, in this order.
        environment: additional environment variables.

    Attributes:
        schemas: schemas of the registered operators, "task2::softmax(Tensor x) -> Tensor", once a process has started.
    """

    def __init__(
        self, program: Path, libraries: Sequence[Path], environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        import fcntl  # not available everywhere, see is_available
        import resource

        super().__init__()
        self._program, self._libraries, self._environment = program, tuple(libraries), environment
        self.schemas: list[str] = []
        self._size = MEMORY_BYTES
        if (most := resource.getrlimit(resource.RLIMIT_FSIZE)[0]) != resource.RLIM_INFINITY:
            self._size = min(self._size, most)
        file = os.memfd_create("tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(file, self._size)
        # otherwise the runner could shrink the file, and the test would crash reading it
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._file = file
        self._memory = mmap.mmap(file, self._size)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._used = 0

    def begin(self) -> None:
        """Call before each case: frees the memory, and starts a process if there is none.

        Raises:
            NotLoaded: no process could be started, or it could not load the libraries.
        """
        if self._used > KEPT_BYTES:
            self._memory.madvise(mmap.MADV_REMOVE, 0, self._size)
        self._used = 0
        if self._process is not None:
            return
        try:
            self._process, self._connection = self._started()
            self.schemas = [schema for library in self._libraries for schema in self._loaded(library)]
        except CallFailed as failed:
            raise NotLoaded("\n".join(failed.words), "ended") from None
        except (OSError, RuntimeError) as error:
            self.end_process()
            raise NotLoaded(str(error), type(error).__name__) from None

    def _started(self) -> tuple[int, Connection]:
        import fcntl

        ours, theirs = socket.socketpair()
        files = {2: self._printed.fileno(), _SOCKET: theirs.fileno(), _MEMORY: self._file}
        copies = {to: fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _FREE) for to, file in files.items()}
        theirs.close()
        sys.stdout.flush()
        try:
            process = os.posix_spawn(
                self._program,
                [str(self._program), str(os.getpid())],
                {"SIMULATOR_TIMEOUT": PATIENCE, **os.environ, **self._environment},
                file_actions=[(os.POSIX_SPAWN_DUP2, file, to) for to, file in copies.items()],
                setsid=True,  # its children can be killed with it
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
            )
        finally:
            for file in copies.values():
                os.close(file)
        return process, Connection(ours.detach())

    def _loaded(self, library: Path) -> list[str]:
        def schemas(answer: Message) -> list[str]:
            return [answer.text() for _ in range(answer.take("I")[0])]

        return self._asked(b"L" + _text(str(library)), schemas, "while your code was loaded")

    @property
    def call_seconds(self) -> float:
        """The time limit of a call."""
        return CALL_SECONDS["simulator"]

    def close(self) -> None:
        """Ends the process for good."""
        super().close()
        os.close(self._file)

    # ---- the memory

    def empty(self, count: int, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
        """A tensor of `count` elements, not initialized, in the memory that the runner sees; valid for one case."""
        begin = -(-self._used // ALIGNMENT) * ALIGNMENT
        end = begin + count * dtype.itemsize
        if end > self._size:
            raise MemoryError(f"inputs and outputs have more than {self._size:,} bytes")
        self._used = end
        return self._view(begin, count, dtype)

    def _view(self, offset: int, count: int, dtype: torch.dtype) -> Tensor:
        if not count:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset)

    def _offset(self, x: Tensor) -> int | None:
        """A tensor's offset in the memory; None if it is elsewhere."""
        offset = x.data_ptr() - self._start
        return offset if 0 <= offset < self._used else None

    def _shared(self, x: Tensor) -> Tensor:
        """The tensor in shared memory, with its strides: itself, or a copy of the memory that it spans."""
        if not x.numel() or self._offset(x) is not None:
            return x
        span = _span(x.shape, x.stride())
        copied = self.empty(span, x.dtype).copy_(x.as_strided((span,), (1,)))
        return copied.as_strided(x.shape, x.stride())

    # ---- requests

    def call(self, operator: str, arguments: Sequence[Argument], outputs: int) -> list[Tensor]:
        """Calls an operator, "task2::softmax". Its outputs are copies, which the runner cannot modify.

        New tensors are filled according to torch.utils.deterministic.fill_uninitialized_memory.

        Raises:
            CallFailed: the process ended or timed out. ValueError, IndexError, MemoryError, RuntimeError: raised by
            the operator.
        """
        before = self._used
        given = [self._shared(one.value) if isinstance(one.value, Tensor) else one.value for one in arguments]
        packed = b"".join(self._packed(one, value) for one, value in zip(arguments, given, strict=True))
        poison = torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory
        head = struct.pack("=BQII", poison, self._used, outputs, len(given))

        def copies(answer: Message) -> list[Tensor]:
            if answer.take("I") != (outputs,):
                raise ValueError(f"it does not give {outputs} outputs")
            return [self._taken(answer) for _ in range(outputs)]

        try:
            self._ready()
            return self._asked(b"C" + _text(operator) + head + packed, copies)
        finally:
            for one, value in zip(arguments, given, strict=True):
                if one.written and value is not one.value:
                    one.value.copy_(value)
            self._used = before

    def _ready(self) -> None:
        """Hook: called just before an operator is called."""

    def _packed(self, one: Argument, value: Tensor | float | None) -> bytes:
        kind = one.kind | OPTIONAL * one.optional
        if value is None:
            return struct.pack("=B", NOTHING | OPTIONAL)
        if isinstance(value, Tensor):
            numbers = self._offset(value) or 0, *value.shape, *value.stride()
            return struct.pack(f"=BiIQ{2 * value.dim()}q", kind, _NUMBERS[value.dtype], value.dim(), *numbers)
        return struct.pack({INTEGER: "=Bq", NUMBER: "=Bd", TRUTH: "=BB"}[one.kind], kind, value)

    def _taken(self, answer: Message) -> Tensor:
        """A copy of a tensor described in an answer. ValueError if the description is invalid."""
        number, rank, offset = answer.take("iIQ")
        if number not in DTYPES or rank > MOST_DIMENSIONS:
            raise ValueError(f"a tensor of dtype {number} and {rank} dimensions")
        dtype, shape, strides = DTYPES[number], answer.take(f"{rank}q"), answer.take(f"{rank}q")
        if min((*shape, *strides), default=0) < 0:
            raise ValueError(f"a tensor of shape {shape} and strides {strides}")
        span = _span(shape, strides)
        if offset % dtype.itemsize or offset + max(span, math.prod(shape)) * dtype.itemsize > self._size:
            raise ValueError(f"a tensor of {span:,} elements at byte {offset:,}")
        return self._view(offset, span, dtype).as_strided(shape, strides).clone()

    def ask(self, library: int, function: str, argument: int = 0) -> bytes:
        """Calls a function of a library's simulator, see runner.cpp; its result. CallFailed: the process ended."""

        def told(answer: Message) -> bytes:
            offset, size = answer.take("QQ")
            if offset + size > self._size:
                raise ValueError(f"{size:,} bytes at byte {offset:,}")
            return self._memory[offset : offset + size]

        head = struct.pack("=IQ", library, self._used)
        return self._asked(b"F" + head + _text(function) + struct.pack("=Q", argument), told)

    def _asked(self, request: bytes, read: Callable[[Message], Answer], when: str = WHILE_IT_RAN) -> Answer:
        """Sends a request and decodes the answer with `read`. Raises the runner's error, or CallFailed."""
        if self._process is None:  # an earlier call of this case ended it
            raise CallFailed(ERROR, ["The process that runs your code has ended."], ended=True)

        def receive(connection: Connection) -> Answer | Exception:
            answer = Message(connection.recv_bytes(MOST_BYTES))
            if answer.take("B") == (0,):
                return read(answer)
            kind, words = answer.text(), answer.text()
            return _ERRORS.get(kind, RuntimeError)(words)

        answer = self._exchanged(lambda connection: connection.send_bytes(request), receive, self.call_seconds, when)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _status(self, process: int) -> int:
        return nursery.end(process)


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last, inclusive."""
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
