"""Reports that the simulator's checked build collects while kernels run.

    caller = CheckedCaller(load(BuildRequest("task2", backend="simulator", checked=True)), CHECK)
    caller.call(case, inputs)               caller.more has the libraries' reports
    Collected(caller).findings()            the same with source lines

common/simulator/README.md describes the reports. A caller's process may be gone when its reports are read
(common/testing/worker), so they are plain data, and reading them needs only the library files.
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
    """The reporting functions of a library, called in this process or in the one that has loaded it."""

    def __init__(self, library: Path | Simulator) -> None:
        self._library = Simulator(library) if isinstance(library, Path) else library

    def begin(self, mode: int) -> None:
        """Clears all data and starts collecting for `mode`: CHECK, PROFILE, REPLAY, or 0 for nothing."""
        self._library.ask("simulator_check_begin", CHECK if mode == REPLAY else mode)
        self._library.ask("simulator_replay_begin", MOST_EVENTS if mode == REPLAY else 0)

    def sample(self, blocks: int) -> None:
        """From the next begin(PROFILE) on, run only `blocks` sample blocks of each grid; 0: all; negative: none."""
        self._library.ask("simulator_sample_begin", blocks)

    def report(self) -> dict:
        """{"findings": [...], "kernels": [...]} since begin()."""
        return json.loads(self._library.ask("simulator_check_report").decode())

    def recording(self) -> bytes:
        """The recording since begin(REPLAY), see replay/recording.py."""
        return self._library.ask("simulator_replay_report")


class CheckedCaller(InProcess):
    """Calls operators of a checked build; `more` is {"reports": one per library}, or with REPLAY {"recordings": one per
    library}.

    Args:
        ops: the operators.
        mode: CHECK, PROFILE or REPLAY.
    """

    def __init__(self, ops: Operators, mode: int) -> None:
        super().__init__(ops)
        self.mode = mode
        self._collecting = [CheckedLibrary(one) for one in self.simulators]

    def call(self, case: Case, inputs: dict[str, Tensor], around: Around = POISONED) -> Called:
        """See Caller.call. Collects data for this call only."""
        self.more = {}
        lives = True
        for library in self._collecting:
            library.begin(self.mode)
        try:
            return super().call(case, inputs, around)
        except CallFailed as failed:
            lives = not failed.ended
            raise
        finally:
            if lives:
                self.more = {"reports": [library.report() for library in self._collecting]}
                if self.mode == REPLAY:
                    self.more["recordings"] = [_packed(library.recording()) for library in self._collecting]
                for library in self._collecting:
                    library.begin(0)


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 1)).decode()


class Collected:
    """Reads the reports of a caller (a CheckedCaller, or a Worker around one) and adds source lines."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._paths = caller.libraries
        self._lines = [SourceLines(path) for path in self._paths]

    @property
    def problem(self) -> str:
        """Why source lines are missing; "" if they are available."""
        return next((lines.problem for lines in self._lines if lines.problem), "")

    def findings(self) -> list[Finding]:
        """Findings of the last call; [] if its process died before reporting."""
        both = zip(self._caller.more.get("reports", []), self._lines, strict=False)
        return [one for report, lines in both for one in read_findings(report, lines)]

    def kernels(self) -> list[KernelProfile]:
        """Profiles of the kernels of the last call."""
        every = zip(self._caller.more.get("reports", []), self._lines, self._paths, strict=False)
        return [one for report, lines, path in every for one in read_kernels(report, lines, path)]

    def launches(self) -> tuple[list[Launch], bool]:
        """The last call's launches, access by access, and whether the recording is complete."""
        found: list[Launch] = []
        whole = True
        for packed, lines in zip(self._caller.more.get("recordings", []), self._lines, strict=False):
            launches, fits = read_launches(zlib.decompress(base64.b64decode(packed)), lines)
            found += launches
            whole &= fits
        return found, whole
