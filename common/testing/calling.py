"""Calls a case's operator, in poisoned and guarded memory.

    caller = InProcess(ops)
    called = caller.call(case, inputs)      the output, and what the call did that it should not

So that nothing passes by luck: outputs and workspaces are filled with NaN before the call, by PyTorch's allocator;
inputs are between guards of NaN: a read past an input shows as NaN, a write past it is reported; inputs must be
unchanged after the call, unless the case names them in `in_place`. Around says how, and what else can be had.
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
from common.testing.python_side import python_side
from common.testing.stack import readable
from common.testing.watching import Watched

MOST_WORDS = 4000  # characters of an error that are kept
GUARD = 4096  # elements of NaN before and after every input
OUTSIDE = -7.0  # in place of such a NaN, where it is to be told from another one
REFUSED = re.compile(r"kernel launch: (?:invalid (?:configuration )?argument|too many resources requested for launch)$")
CAN_BE_REFUSED = (
    "a GPU rejects a grid of 0 blocks, a block of 0 or over 1024 threads, over 65,535 blocks along y or z, "
    "and no more shared memory than it has"
)
NO_PROGRESS = "no progress for a long time"  # of the simulator, see runtime/report.cpp
NAN_BYTE, LARGE_BYTE = 0xFF, 0x7F  # floats of such bytes are NaN and 3.4e38


@dataclass(frozen=True)
class Around:
    """What a call finds in memory that holds nothing for it.

    Attributes:
        bare: no guards around the inputs and nothing filled, for tools that watch the memory themselves.
        finite: the guards, and with `unused` the parts of inputs that must not be read, hold OUTSIDE and not NaN: what
            is NaN then did not come from there.
        unused: see finite.
        large: fresh shared memory holds large numbers and not NaN, which fmaxf and fminf swallow, and the threads of a
            block run from the last to the first (simulator).
        recorded: every access is recorded, by a checked build.
        watched: what the functions of the case's Python were given and gave is kept, see watching.py.
    """

    bare: bool = False
    finite: bool = False
    unused: bool = False
    large: bool = False
    recorded: bool = False
    watched: bool = False


POISONED = Around()
BARE = Around(bare=True)


@dataclass(frozen=True)
class Called:
    """What a call gave.

    Attributes:
        out: the tensor that the operator returned; None if it returned none.
        returned: the type of what it returned: "Tensor".
        device: of the tensor, "cpu"; `out` itself is on the caller's device.
        problems: what the call did to its inputs that it should not, a sentence each.
    """

    out: Tensor | None
    returned: str = "Tensor"
    device: str = ""
    problems: list[str] = field(default_factory=list)


class CallFailed(Exception):
    """The call gave no output.

    Attributes:
        status: NOT_IMPLEMENTED, or ERROR.
        words: why, a line each.
        file_line: "file.cu:57" where they name one.
        ended: the process that ran the operator is gone.
        is_endless: it did not end in time, or did not get on.
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
        """What a raised error means: a gap, or what the simulator, CUDA, the binding or Python complains of."""
        said = error_words(error)
        if len(said) > MOST_WORDS:
            said = f"{said[:MOST_WORDS]}\n... and {len(said) - MOST_WORDS:,} more characters"
        words = re.split(r"\nException raised from|\nC\+\+ CapturedTraceback|\nCUDA kernel errors might be", said)
        words = words[0].replace(f"{Path.cwd()}/", "")
        status = NOT_IMPLEMENTED if isinstance(error, NotImplementedError) else ERROR
        place = re.search(r"[\w./-]+\.(?:cuh?|py|cpp|h):\d+", words)
        file_line = place[0] if place else None
        if status == NOT_IMPLEMENTED and not place:  # a gap in Python: `raise NotImplementedError` on its own
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
        device: where the operators want their tensors.
        libraries: the files that the operators were loaded from.
        more: what else is known of the last call, as JSON: what the checked build collected.
    """

    backend: str
    device: torch.device
    libraries: list[Path]
    more: dict

    def call(self, case: Case, inputs: dict[str, Tensor], around: Around = POISONED) -> Called:
        """Calls the case's operator once.

        Args:
            case: whose call.
            inputs: by name, on any device; they are copied.
            around: what unused memory holds.

        Raises:
            CallFailed: it gave no output.
        """
        raise NotImplementedError


class InProcess(Caller):
    """Calls operators from this process: anything with the operators as attributes and `.device`.

    Operators that run in a runner (common/testing/runner) have `.memory`, in which their inputs are, and `.simulators`.
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
        watched = nullcontext()
        if around.watched and case.python:
            watched = Watched(python_side(self.ops, case.python.module), case.python.right)
        try:
            with nullcontext() if around.bare else poisoned_memory(), torch.no_grad(), watched:
                out = case.call(self.ops, **{name: x.tensor for name, x in guarded.items()})
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
        except CallFailed:  # of a process that runs the kernels for this one
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
        if type(out) is not Tensor:  # another class may compute its contents when they are read
            return Called(None, type(out).__name__, "", problems)
        return Called(out.clone() if case.in_place else out, "Tensor", str(out.device), problems)

    def _with_refusal(self, failed: CallFailed) -> CallFailed:
        """With what the launch was that the GPU refused, which the error code does not tell."""
        if failed.words and REFUSED.search(failed.words[0]):
            said = [simulator.ask("simulator_refused").decode() for simulator in self.simulators]
            failed.words[0] += ": " + (next(filter(None, said), "") or CAN_BE_REFUSED)
        return failed


def caller_of(ops) -> Caller:
    """The operators' caller: itself if they are one."""
    return ops if isinstance(ops, Caller) else InProcess(ops)


class Simulator:
    """The functions of a library that the simulator made, loaded in this process; see common/simulator/README.md.

    Raises:
        OSError, AttributeError: it made another one.
    """

    TEXTS = ("simulator_refused", "simulator_check_report")

    def __init__(self, library: Path) -> None:
        self._functions = ctypes.CDLL(str(library))
        for name in self.TEXTS[: 1 + hasattr(self._functions, self.TEXTS[1])]:
            getattr(self._functions, name).restype = ctypes.c_char_p

    @classmethod
    def of(cls, libraries: list[Path]) -> list[Simulator]:
        """One for each that the simulator made."""
        found = []
        for library in libraries:
            with contextlib.suppress(OSError, AttributeError):
                found.append(cls(library))
        return found

    def ask(self, name: str, argument: int = 0) -> bytes:
        """Calls a function of at most one integer; what it tells."""
        function = getattr(self._functions, name)
        if name in self.TEXTS:
            return function()
        if name == "simulator_replay_report":
            size, function.restype = ctypes.c_uint64(), ctypes.c_void_p
            return ctypes.string_at(function(ctypes.byref(size)), size.value)
        function(ctypes.c_uint64(argument))
        return b""


def gpu_is_lost() -> bool:
    """Whether an earlier CUDA error sticks to this process: after an illegal access every later call fails as well."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


class Guarded:
    """A copy of an input that is between two guards, and whether it or they were written to.

    `empty(size, dtype=, device=)` makes the memory for all three.
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
        """Whether the input itself was written to."""
        return not self._same(1)

    def overrun(self) -> bool:
        """Whether something before or after the input was written to."""
        return not (self._same(0) and self._same(2))

    def _same(self, part: int) -> bool:
        where = self._parts[part]
        return _same_bits(self._buffer[where], self._before[where])


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, every tensor that PyTorch allocates is filled with NaN (the largest value, for integers)."""
    mode, fill = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            # as use_deterministic_algorithms(True, warn_only=True), without its import of torch._inductor: seconds
            torch.set_deterministic_debug_mode("warn")
            torch.utils.deterministic.fill_uninitialized_memory = True
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = fill
