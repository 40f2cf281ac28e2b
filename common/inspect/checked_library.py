"""What the simulator's checked build collects while kernels run.

    checked = CheckedOperators(load(BuildRequest("task2", backend="simulator", checked=True)))
    checked.begin(CHECK)
    ...                                     call operators
    checked.findings()

common/simulator/README.md tells what a library reports.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

from common.compiling.operators import Operators
from common.inspect.findings.model import Finding, read_findings
from common.inspect.profile.model import KernelProfile, read_kernels
from common.inspect.source_lines import SourceLines

CHECK, PROFILE = 1, 2


class CheckedLibrary:
    """The collecting functions of one loaded library."""

    def __init__(self, library: Path) -> None:
        self._functions = ctypes.CDLL(str(library))
        self._functions.simulator_check_report.restype = ctypes.c_char_p

    def begin(self, mode: int) -> None:
        """Forgets everything and collects what `mode` asks for: CHECK or PROFILE, or nothing: 0."""
        self._functions.simulator_check_begin(mode)

    def report(self) -> dict:
        """{"findings": [...], "kernels": [...]} since begin()."""
        return json.loads(self._functions.simulator_check_report().decode())


class CheckedOperators:
    """All libraries of some operators, read with their source lines."""

    def __init__(self, ops: Operators) -> None:
        self._paths = [library.path for library in ops.libraries]
        self._libraries = [CheckedLibrary(path) for path in self._paths]
        self._lines = [SourceLines(path) for path in self._paths]

    @property
    def problem(self) -> str:
        """Why source lines are missing; "" if they are not."""
        return next((lines.problem for lines in self._lines if lines.problem), "")

    def begin(self, mode: int) -> None:
        """See CheckedLibrary.begin."""
        for library in self._libraries:
            library.begin(mode)

    def findings(self) -> list[Finding]:
        """What was found since begin(CHECK)."""
        both = zip(self._libraries, self._lines, strict=True)
        return [one for library, lines in both for one in read_findings(library.report(), lines)]

    def kernels(self) -> list[KernelProfile]:
        """What the kernels did since begin(PROFILE)."""
        every = zip(self._libraries, self._lines, self._paths, strict=True)
        return [one for library, lines, path in every for one in read_kernels(library.report(), lines, path)]
