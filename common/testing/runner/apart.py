"""ApartProcess: a runner for grading, whose host code runs in a process without access to device memory.

    process = ApartProcess(program, Built(library, kernels, variables))
    process.begin(); process.call(...); process.counts["launches"]

One process runs the binding and the launchers, another runs the kernels, and a relay between them counts the bytes that
return to the host (common/simulator/runtime/apart.cpp). Counters and failures arrive here over a separate socket.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from torch import Tensor

from common.testing.calling import CallFailed
from common.testing.case import ERROR
from common.testing.runner.process import Argument, RunnerProcess
from common.testing.worker.child_process import NO_ANSWER

WORK = ("work", "most_work", "work_of_block", "most_of_block")  # see common/simulator/runtime/work.cpp
COUNTS = ("launches", "threads", "read_back", "allocated", *WORK)
COPIED_BACK = "Device memory was copied to the host."
MOST_TEXT = 1 << 13  # bytes of a failed kernel's message
DEVICE_SECONDS = 30  # for an answer from the device process, which is idle at that point
NEW_BYTES = 0xFF  # fill byte of fresh shared memory


_SCHEMA = re.compile(r'm\.def\(\s*((?:"[^"\n]*"\s*)+)\)')


@dataclass(frozen=True)
class Built:
    """A library for grading.

    Attributes:
        library: its path.
        kernels: for each kernel, its offset in the library, the maximum threads per block, and registers per thread.
        variables: device variables, each as (offset in the library, bytes).
        blocks: for each basic block, (return address of its counting call) << 32 | its size in bytes.
        schemas: its operators' schemas, from the provided binding; what host code reports is not trusted.
    """

    library: Path
    kernels: tuple[tuple[int, int, int], ...]
    variables: tuple[tuple[int, int], ...]
    blocks: tuple[int, ...]
    schemas: tuple[str, ...]

    @classmethod
    def of(cls, library: Path, about: Mapping, binding: Path) -> Built:
        """From the description by common.course.grading.build and the task's binding.cpp."""
        texts = ["".join(re.findall(r'"([^"]*)"', one)) for one in _SCHEMA.findall(binding.read_text(encoding="utf-8"))]
        variables = tuple((start, size) for start, size in about["variables"])
        kernels, blocks = tuple(map(tuple, about["kernels"])), tuple(about["blocks"])
        return cls(library, kernels, variables, blocks, tuple(f"{about['name']}::{one}" for one in texts))


class ApartProcess(RunnerProcess):
    """A runner in two processes; see the module docstring.

    Attributes:
        counts: COUNTS over all calls since begin(): sums, except for threads, a maximum over launches. Allocations are
            in bytes of device memory, including the library's own variables and the device heap, without the outputs.
    """

    cpu_seconds = 600

    def __init__(self, program: Path, built: Built) -> None:
        super().__init__(program, [built.library])
        self._built = built
        self.schemas = list(built.schemas)
        self._device: socket.socket | None = None
        self._fresh, self._refused = NEW_BYTES, ""
        self.counts = dict.fromkeys(COUNTS, 0)

    def begin(self) -> None:
        """See RunnerProcess.begin."""
        self.counts = dict.fromkeys(COUNTS, 0) | {"allocated": sum(size for _, size in self._built.variables)}
        super().begin()
        self.schemas = list(self._built.schemas)  # not those reported by host code

    def call(self, operator: str, arguments: Sequence[Argument], outputs: int) -> list[Tensor]:
        """See RunnerProcess.call. A kernel's own failure message takes precedence over host code's."""
        failed: Exception | None = None
        made: list[Tensor] = []
        try:
            made = super().call(operator, arguments, outputs)
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            failed = error
        words, overrun = self._counted(outputs=sum(one.numel() * one.itemsize for one in made))
        if words:
            what, at, more = words.partition("\n  at 0x")
            addresses, _, rest = more.partition("\n")
            raise RuntimeError(f"{what}{self._lines(f'0x{addresses}'.split())}\n{rest}" if at else what)
        if failed:
            raise failed
        if overrun:
            raise RuntimeError("Memory past the end of an output was written to: an index is out of bounds.")
        return made

    def ask(self, library: int, function: str, argument: int = 0) -> bytes:
        """Emulates the functions of the simulator; see RunnerProcess.ask."""
        if function == "simulator_fill_shared":
            self._fresh = argument
        return self._refused.encode() if function == "simulator_refused" else b""

    def _lines(self, addresses: Sequence[str]) -> str:
        """The source lines of these addresses in the library, one line of text each."""
        return ""

    def _started(self) -> tuple[int, Connection]:
        (ours, theirs), (device, its) = socket.socketpair(), socket.socketpair()
        sys.stdout.flush()
        with theirs, its:
            process = self._spawn([theirs.fileno(), self._file, its.fileno()])
        device.settimeout(DEVICE_SECONDS)
        self._device = device
        kernels, variables, blocks = self._built.kernels, self._built.variables, self._built.blocks
        table = (number for one in (*kernels, *variables) for number in one)
        numbers = len(kernels), len(variables), len(blocks), *table, *blocks
        with contextlib.suppress(OSError):  # it has ended: the first request will report how
            device.sendall(struct.pack(f"={len(numbers)}Q", *numbers))
        return process, Connection(ours.detach())

    def _spawn(self, files: Sequence[int]) -> int:
        """Starts the program with these files: requests, the tensors' memory, the device process."""
        for file in files:
            os.set_inheritable(file, True)
        try:
            return os.posix_spawn(
                self._program,
                [*map(str, (self._program, self._built.library, *files, self.cpu_seconds))],
                {**os.environ, "LD_LIBRARY_PATH": str(self._program.parent)},  # it can find them only via /proc
                file_actions=[(os.POSIX_SPAWN_DUP2, self._printed.fileno(), 2)],
                setsid=True,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        finally:
            for file in files:
                os.set_inheritable(file, False)

    def _status(self, process: int) -> int:
        self._leave_device()
        return super()._status(process)

    def _leave_device(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None

    def _ready(self) -> None:
        first = -(-self._used // mmap.PAGESIZE) * mmap.PAGESIZE  # discard data of earlier calls
        self._memory[self._used : first] = bytes(first - self._used)
        self._memory.madvise(mmap.MADV_REMOVE, first, self._size - first)
        self._counted(0)  # include what host code has done since it answered

    def _counted(self, what: int = 1, outputs: int = 0) -> tuple[str, bool]:
        """(why a kernel failed, or ""; whether memory past an output was written to); updates the counters.

        Args:
            what: 0 before a call, 1 after it.
            outputs: the bytes of its outputs, which don't count as allocated.
        """
        state, self._refused, words = self._question(what)
        for name, value in zip(COUNTS, state, strict=False):
            value = max(0, value - outputs) if name == "allocated" else value
            self.counts[name] = max(self.counts[name], value) if name == "threads" else self.counts[name] + value
        return words, bool(state[len(COUNTS)])

    def _question(self, what: int) -> tuple[tuple[int, ...], str, str]:
        if self._device is None:
            raise CallFailed(ERROR, ["The process that runs your code has ended."], ended=True)
        try:
            self._device.sendall(struct.pack("=3Q", what, self._used, self._fresh))
            state = struct.unpack("=9Q", self._received(72))
            sizes = struct.unpack("=2I", self._received(8))
            if max(sizes) > MOST_TEXT:
                raise ValueError(f"{max(sizes):,} bytes of words")
            refused, words = (self._received(size).decode(errors="replace") for size in sizes)
        except (OSError, EOFError):
            raise CallFailed(ERROR, self._ending(), ended=True) from None
        except ValueError as error:
            self.end_process()
            raise CallFailed(ERROR, [f"{NO_ANSWER}: {error}."], ended=True) from None
        return state, refused, words

    def _received(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._device.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data
