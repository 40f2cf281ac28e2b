"""Compiles kernels/*.cu with the checked simulator and runs single cases: the result and the findings.

    library = CaseLibrary(compile_library(SOURCES, folder, checked=True))
    outcome = library.outcome(case)

Needs no pytest, so compare_sanitizer.py can use it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from checked_cases import Case
from checked_library import CHECK, CheckedLibrary

from common.inspect.source_lines import Place, SourceLines, place_of

RESULT_SIZE = 256  # as in kernels/case.h


@dataclass(frozen=True)
class Found:
    """A finding from the report, with its source locations.

    Attributes:
        kind, variable, offset, actions, kernel, count: as reported.
        places: ("shared_races.cu", 34) for each access, or for the host call.
        launch: the number of the kernel's launch.
    """

    kind: str
    places: frozenset[tuple[str, int]]
    variable: str
    offset: int
    actions: tuple[str, ...]
    kernel: str
    launch: tuple[str, int]
    count: int


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case: its numbers, the checker's findings, the error's text ("" if none)."""

    result: np.ndarray
    found: list[Found]
    error: str


class CaseLibrary(CheckedLibrary):
    """A loaded library of cases."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lines = SourceLines(path)

    def outcome(self, case: Case) -> Outcome:
        """Runs the case under the checker."""
        result = np.full(RESULT_SIZE, np.nan, np.float32)
        error, report = self.run(case.name, CHECK, ctypes.c_void_p(result.ctypes.data))
        pcs = [access["pc"] for finding in report["findings"] for access in finding["accesses"]]
        places = self.lines.places(pcs)
        return Outcome(result, [_found(one, places) for one in report["findings"]], error or "")


def _found(finding: dict, places: dict[int, Place | None]) -> Found:
    launch = _short(place_of(finding["launch"]))
    return Found(
        kind=finding["kind"],
        places=frozenset(
            _short(place_of(access["at"]) if "at" in access else places[access["pc"]]) for access in finding["accesses"]
        )
        or frozenset([launch]),
        variable=finding["variable"],
        offset=finding["byte_offset"],
        actions=tuple(access["action"] for access in finding["accesses"]),
        kernel=finding["kernel"],
        launch=launch,
        count=finding["count"],
    )


def _short(place: Place | None) -> tuple[str, int]:
    """The innermost line within the case itself: it may call headers in common/cuda."""
    if place is None:
        return "", 0
    own = next((one for one in (place, *place.callers) if Path(one.file).parent.name == "kernels"), place)
    return Path(own.file).name, own.line


def _shown(places: frozenset[tuple[str, int]]) -> str:
    return ", ".join(f"{file}:{line}" for file, line in sorted(places))


def objections(case: Case, outcome: Outcome) -> list[str]:
    """How the outcome differs from what the case states; empty if it does not."""
    expected = {
        (one.kind, frozenset((case.file, case.line(comment)) for comment in one.lines)): one for one in case.findings
    }
    said = []
    for found in outcome.found:
        key = (found.kind, found.places)
        shown = f"{found.kind} at {_shown(found.places)}"
        if key not in expected:
            if found.kind not in case.consequences:
                said.append(f"unexpected: {shown} ({found.variable}, byte {found.offset})")
            continue
        one = expected[key]
        if one.variable and found.variable != one.variable:
            said.append(f"{shown}: variable is {found.variable!r}, not {one.variable!r}")
        if one.offset is not None and found.offset != one.offset:
            said.append(f"{shown}: byte offset is {found.offset}, not {one.offset}")
    missing = expected.keys() - {(found.kind, found.places) for found in outcome.found}
    for kind, places in missing:
        said.append(f"missed: {kind} at {_shown(places)}")
    if bool(outcome.error) != case.raises:
        said.append(f"error: {outcome.error}" if outcome.error else "no error")
    if case.error not in outcome.error:
        said.append(f"the error does not say {case.error!r}: {outcome.error}")
    for comment in case.error_lines:
        if f"{case.file}:{case.line(comment)}" not in outcome.error:
            said.append(f"the error does not name line {case.line(comment)} ({comment}): {outcome.error}")
    if case.result is not None and not case.is_result(outcome.result):
        said.append(f"computes {outcome.result[: case.result.size]}, not {case.result}")
    return said
