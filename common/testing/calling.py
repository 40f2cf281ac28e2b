"""Calls a case's operator in poisoned and guarded memory.

    caller = InProcess(ops)
    called = caller.call(case, inputs)      the output, and illegal side effects of the call

So that nothing passes by luck, PyTorch's allocator fills outputs and workspaces with NaN before the call. Inputs sit
between guard bands of NaN: an out-of-bounds read yields NaN, an out-of-bounds write is reported. Inputs must be
unchanged after the call unless the case names them in `in_place`. Around has the options.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from common.console.paths import shown_path
from common.console.words import error_words
from common.diagnosis.locating import GUARD_BITS, UNUSED_BITS, holds, nan_of
from common.testing.case import ERROR, NOT_IMPLEMENTED, Case
from common.testing.python_side import python_side, running_as
from common.testing.stack import readable
from common.testing.watching import Watched

MOST_WORDS = 4000  # characters kept of an error message
GUARD = 4096  # elements of NaN before and after every input
OUTSIDE = -7.0  # replaces the guards' NaN, to distinguish them from other NaN
REFUSED = re.compile(r"kernel launch: (?:invalid (?:configuration )?argument|too many resources requested for launch)$")
CAN_BE_REFUSED = (
    "a GPU rejects a grid of 0 blocks, a block of 0 or over 1024 threads, over 65,535 blocks along y or z, "
    "and no more shared memory than it has"
)
NO_PROGRESS = "no progress for a long time"  # the simulator's message, see runtime/report.cpp
NAN_BYTE, LARGE_BYTE = 0xFF, 0x7F  # as floats, these bytes are NaN and 3.4e38


@dataclass(frozen=True)
class Around:
    """The contents of unused memory around a call, and what else is special about it.

    Attributes:
        bare: no guards around the inputs and no filling, for tools that check memory themselves.
        finite: the guards, and with `unused` also the parts of inputs that must not be read, contain OUTSIDE instead of
            NaN: NaN in the output then comes from elsewhere.
        unused: see finite.
        large: fresh shared memory contains large numbers instead of NaN, which fmaxf and fminf drop, and the threads of
            a block run from last to first (simulator).
        watched: arguments and results of the case's Python functions are recorded, see watching.py.
        edited: another text of the case's Python file, which runs in its place; "": the file's own.
    """

    bare: bool = False
    finite: bool = False
    unused: bool = False
    large: bool = False
    watched: bool = False
    edited: str = ""


POISONED = Around()
BARE = Around(bare=True)


@dataclass(frozen=True)
class Called:
    """The result of a call.

    Attributes:
        out: the returned tensor; None if the operator did not return one.
        returned: the name of the returned type: "Tensor".
        device: of the tensor, "cpu"; `out` itself is on the caller's device.
        problems: illegal side effects on the inputs, a sentence each.
    """

    out: Tensor | None
    returned: str = "Tensor"
    device: str = ""
    problems: list[str] = field(default_factory=list)


class CallFailed(Exception):
    """The call produced no output.

    Attributes:
        status: NOT_IMPLEMENTED, or ERROR.
        words: why, line by line.
        file_line: "file.cu:57" if they name one.
        ended: the process that ran the operator is gone.
        is_endless: it timed out or made no progress.
    """

    def __init__(
        self,
        status: str,
        words: list[str],
        file_line: str | None = None,
        ended: bool = False,
        is_endless: bool = False,
    ) -> None:
        super().__init__("\n".join(words))
        self.status, self.words, self.file_line, self.ended = status, words, file_line, ended
        self.is_endless = is_endless

    @classmethod
    def because(cls, error: BaseException) -> CallFailed:
        """Interprets an exception: an unfilled gap, or an error from the simulator, CUDA, the binding or Python."""
        said = error_words(error)
        if len(said) > MOST_WORDS:
            said = f"{said[:MOST_WORDS]}\n... and {len(said) - MOST_WORDS:,} more characters"
        words = re.split(r"\nException raised from|\nC\+\+ CapturedTraceback|\nCUDA kernel errors might be", said)
        words = words[0].replace(f"{Path.cwd()}/", "")
        status = NOT_IMPLEMENTED if isinstance(error, NotImplementedError) else ERROR
        place = re.search(r"[\w./-]+\.(?:cuh?|py|cpp|h):\d+", words)
        file_line = place[0] if place else None
        if status == NOT_IMPLEMENTED and not place:  # a gap in Python: a bare `raise NotImplementedError`
            frame = traceback.extract_tb(error.__traceback__)[-1]
            file_line = f"{shown_path(Path(frame.filename))}:{frame.lineno}"
            words = f"{frame.name} is not implemented yet: {file_line}"
        if isinstance(error, SystemExit):
            words = f"sys.exit({'' if error.code is None else error.code}) was called."
        elif status == ERROR and not isinstance(error, (RuntimeError, ValueError)):
            words = f"{type(error).__name__}: {words}"
        return cls(status, readable(words.strip().splitlines()), file_line, is_endless=NO_PROGRESS in words)


class Caller:
    """Where operators are called: in this process, or in another (common/testing/worker).

    Attributes:
        backend: "cuda" or "simulator".
        device: where the operators expect their tensors.
        libraries: the files that the operators were loaded from.
        more: additional data on the last call, as JSON: the records of a checked build.
    """

    backend: str
    device: torch.device
    libraries: list[Path]
    more: dict

    def call(self, case: Case, inputs: dict[str, Tensor], around: Around = POISONED) -> Called:
        """Calls the case's operator once.

        Args:
            case: the case to call.
            inputs: by name, on any device; they are copied.
            around: contents of unused memory.

        Raises:
            CallFailed: it produced no output.
        """
        raise NotImplementedError


class InProcess(Caller):
    """Calls operators from this process: any object that has the operators as attributes, and `.device`.

    Operators in a runner (common/testing/runner) also have `.memory`, which holds their inputs, and `.simulators`.
    """

    def __init__(self, ops) -> None:
        self.ops = ops
        self.device = ops.device
        self.backend = "cuda" if self.device.type == "cuda" else "simulator"
        self.libraries = [library.path for library in getattr(ops, "libraries", ())]
        self.more = {}
        self.simulators = getattr(ops, "simulators", None)
        if self.simulators is None:
            self.simulators = [] if self.device.type == "cuda" else Simulator.of(self.libraries)

    def call(self, case: Case, inputs: dict[str, Tensor], around: Around = POISONED) -> Called:
        """See Caller.call."""
        empty = self.ops.memory.empty if hasattr(self.ops, "memory") else torch.empty
        guarded = {name: Guarded(x, self.device, around, empty) for name, x in inputs.items()}
        for simulator in self.simulators:
            simulator.ask("simulator_fill_shared", LARGE_BYTE if around.large else NAN_BYTE)
        watched = edited = nullcontext()
        if around.watched and case.python:
            watched = Watched(python_side(self.ops, case.python.module), case.python.right)
        if around.edited and case.python:
            edited = running_as(python_side(self.ops, case.python.module), around.edited)
        try:
            with nullcontext() if around.bare else poisoned_memory(), torch.no_grad(), watched, edited:
                out = case.call(self.ops, **{name: x.tensor for name, x in guarded.items()})
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
        except CallFailed:  # from the process that runs the kernels
            raise
        except (Exception, SystemExit) as error:
            self.more = {"python": watched.calls} if isinstance(watched, Watched) else self.more
            raise self._with_refusal(CallFailed.because(error)) from error
        if isinstance(watched, Watched):
            self.more = {"python": watched.calls}
        changed = [name for name, x in guarded.items() if name not in case.in_place and x.changed()]
        overrun = [name for name, x in guarded.items() if x.overrun()]
        problems = [f"The input {name} was changed; the operator must only read it." for name in changed]
        problems += [
            f"Memory before or after the input {name} was written to: an index is out of bounds." for name in overrun
        ]
        if type(out) is not Tensor:  # a subclass could compute its contents lazily, when read
            return Called(None, type(out).__name__, "", problems)
        return Called(out.clone() if case.in_place else out, "Tensor", str(out.device), problems)

    def _with_refusal(self, failed: CallFailed) -> CallFailed:
        """Adds the parameters of the launch that the GPU rejected, which the error code does not include."""
        if failed.words and REFUSED.search(failed.words[0]):
            said = [simulator.ask("simulator_refused").decode() for simulator in self.simulators]
            failed.words[0] += ": " + (next(filter(None, said), "") or CAN_BE_REFUSED)
        return failed


def caller_of(ops) -> Caller:
    """The operators' caller; `ops` itself if it is a Caller."""
    return ops if isinstance(ops, Caller) else InProcess(ops)


class Simulator:
    """The functions of a library built for the simulator, loaded in this process; see common/simulator/README.md.

    Raises:
        OSError, AttributeError: it is not such a library.
    """

    TEXTS = ("simulator_refused", "simulator_check_report")

    def __init__(self, library: Path) -> None:
        self._functions = ctypes.CDLL(str(library))
        for name in self.TEXTS[: 1 + hasattr(self._functions, self.TEXTS[1])]:
            getattr(self._functions, name).restype = ctypes.c_char_p

    @classmethod
    def of(cls, libraries: list[Path]) -> list[Simulator]:
        """One for each library built for the simulator."""
        found = []
        for library in libraries:
            with contextlib.suppress(OSError, AttributeError):
                found.append(cls(library))
        return found

    def ask(self, name: str, argument: int = 0) -> bytes:
        """Calls a function of at most one integer and returns its result."""
        function = getattr(self._functions, name)
        if name in self.TEXTS:
            return function()
        if name == "simulator_replay_report":
            size, function.restype = ctypes.c_uint64(), ctypes.c_void_p
            return ctypes.string_at(function(ctypes.byref(size)), size.value)
        function(ctypes.c_uint64(argument))
        return b""


def gpu_is_lost() -> bool:
    """Whether this process has a sticky CUDA error: after an illegal access, every later call fails as well."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


class Guarded:
    """A copy of an input between two guards; tells whether any of the three was written to.

    `empty(size, dtype=, device=)` allocates the memory for all three.
    """

    def __init__(
        self,
        value: Tensor,
        device: torch.device,
        around: Around = POISONED,
        empty: Callable[..., Tensor] = torch.empty,
    ) -> None:
        guard = 0 if around.bare else GUARD
        fill = nan_of(GUARD_BITS) if value.is_floating_point() else torch.tensor(torch.iinfo(value.dtype).min)
        if around.finite and value.is_floating_point():
            fill = torch.tensor(OUTSIDE)
        if around.unused and value.dtype == torch.float32:
            value = torch.where(holds(value, UNUSED_BITS), OUTSIDE, value)
        size = value.numel() + 2 * guard
        self._buffer = empty(size, dtype=value.dtype, device=device).copy_(fill.to(device, value.dtype))
        self._parts = (slice(guard), slice(guard, guard + value.numel()), slice(guard + value.numel(), None))
        self.tensor = self._buffer[self._parts[1]].view(value.shape)
        self.tensor.copy_(value)
        self._before = self._buffer.clone()

    def changed(self) -> bool:
        """Whether the input was written to."""
        return not self._same(1)

    def overrun(self) -> bool:
        """Whether memory before or after the input was written to."""
        return not (self._same(0) and self._same(2))

    def _same(self, part: int) -> bool:
        where = self._parts[part]
        return torch.equal(self._buffer[where].view(torch.uint8), self._before[where].view(torch.uint8))


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, PyTorch fills every tensor that it allocates with NaN (integers: with the largest value)."""
    mode, fill = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            # like use_deterministic_algorithms(True, warn_only=True), but without importing torch._inductor (seconds)
            torch.set_deterministic_debug_mode("warn")
            torch.utils.deterministic.fill_uninitialized_memory = True
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = fill
