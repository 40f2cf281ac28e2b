"""What the simulator's checked build collects while kernels run.

    caller = CheckedCaller(load(BuildRequest("task2", backend="simulator", checked=True)), CHECK)
    caller.call(case, inputs)               caller.more is what the libraries collected
    Collected(caller).findings()            the same with source lines

common/simulator/README.md tells what a library reports. A caller may run in a process that is gone when its reports are
read (common/testing/worker), so these are plain data and the libraries' files are enough to read them.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

from torch import Tensor

from common.compiling.operators import Operators
from common.inspect.findings.model import Finding, read_findings
from common.inspect.profile.model import KernelProfile, read_kernels
from common.inspect.replay.limits import MOST_EVENTS
from common.inspect.replay.recording import Launch, read_launches
from common.inspect.source_lines import SourceLines
from common.testing.calling import POISONED, Around, Called, Caller, CallFailed, InProcess, Simulator
from common.testing.case import Case

CHECK, PROFILE, REPLAY = 1, 2, 3


class CheckedLibrary:
    """The collecting functions of a library: loaded in this process, or asked for where it is loaded."""

    def __init__(self, library: Path | Simulator) -> None:
        self._library = Simulator(library) if isinstance(library, Path) else library

    def begin(self, mode: int) -> None:
        """Forgets everything and collects what `mode` asks for: CHECK, PROFILE or REPLAY, or nothing: 0."""
        self._library.ask("simulator_check_begin", CHECK if mode == REPLAY else mode)
        self._library.ask("simulator_replay_begin", MOST_EVENTS if mode == REPLAY else 0)

    def sample(self, blocks: int) -> None:
        """From the next begin(PROFILE) on, that many blocks of a grid represent all; 0: all run; below: none."""
        self._library.ask("simulator_sample_begin", blocks)

    def report(self) -> dict:
        """{"findings": [...], "kernels": [...]} since begin()."""
        return json.loads(self._library.ask("simulator_check_report").decode())

    def recording(self) -> bytes:
        """What was recorded since begin(REPLAY), see replay/recording.py."""
        return self._library.ask("simulator_replay_report")


class CheckedCaller(InProcess):
    """Calls operators of a checked build; `more` is {"reports": what each library collected}, and with REPLAY
    {"recordings": what each recorded}.

    Args:
        ops: the operators.
        mode: CHECK, PROFILE or REPLAY.
    """

    def __init__(self, ops: Operators, mode: int) -> None:
        super().__init__(ops)
        self.mode = mode
        self._collecting = [CheckedLibrary(one) for one in self.simulators]

    def call(self, case: Case, inputs: dict[str, Tensor], around: Around = POISONED) -> Called:
        """See Caller.call. What is collected is that of this call."""
        self.more = {}
        mode, lives = REPLAY if around.recorded else self.mode, True
        for library in self._collecting:
            library.begin(mode)
        try:
            return super().call(case, inputs, around)
        except CallFailed as failed:
            lives = not failed.ended
            raise
        finally:
            if lives:
                self.more = {"reports": [library.report() for library in self._collecting]}
                if mode == REPLAY:
                    self.more["recordings"] = [_packed(library.recording()) for library in self._collecting]
                for library in self._collecting:
                    library.begin(0)


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 1)).decode()


class Collected:
    """Reads what the libraries of a caller collected, with source lines: a CheckedCaller, or a Worker around one."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._paths = caller.libraries
        self._lines = [SourceLines(path) for path in self._paths]

    @property
    def problem(self) -> str:
        """Why source lines are missing; "" if they are not."""
        return next((lines.problem for lines in self._lines if lines.problem), "")

    def findings(self) -> list[Finding]:
        """What was found in the last call; nothing if its process did not live to tell."""
        both = zip(self._caller.more.get("reports", []), self._lines, strict=False)
        return [one for report, lines in both for one in read_findings(report, lines)]

    def kernels(self) -> list[KernelProfile]:
        """What the kernels of the last call did."""
        every = zip(self._caller.more.get("reports", []), self._lines, self._paths, strict=False)
        return [one for report, lines, path in every for one in read_kernels(report, lines, path)]

    def launches(self) -> tuple[list[Launch], bool]:
        """What the kernels of the last call did, access by access, and whether all of it found room."""
        found: list[Launch] = []
        whole = True
        for packed, lines in zip(self._caller.more.get("recordings", []), self._lines, strict=False):
            launches, fits = read_launches(zlib.decompress(base64.b64decode(packed)), lines)
            found += launches
            whole &= fits
        return found, whole
