"""Stores results of `python -m taskN.test` on the student's files for `python -m common.course`.

keep_verdicts(...)      results of parts with cases
keep_lines(...)         results of measurements
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping, Sequence

from rich.console import Console

from common.compiling.manifest import read_manifest
from common.compiling.variant import Variant
from common.console.terminal import say
from common.console.words import error_words
from common.testing.case import NOT_IMPLEMENTED, SKIPPED, Case, Verdict
from common.testing.kept import Failure, KeptPart, digests, keep
from common.testing.points import PartPoints, points_of

MOST_FAILURES = 5  # stored per part


def keep_verdicts(
    console: Console,
    task: str,
    cases: Sequence[Case],
    verdicts: Sequence[Verdict],
    backend: str,
    options: argparse.Namespace,
) -> None:
    """Stores the result of every part that ran completely, and of one where the run stopped at its first failure."""
    if options.variant != Variant.STUDENT or options.cases:
        return
    parts = {}
    for name in dict.fromkeys(one.case.part for one in verdicts):
        of_part = [one for one in verdicts if one.case.part == name]
        chosen = [case for case in cases if case.part == name]
        earned, _ = points_of(of_part)
        complete = len(of_part) == len(chosen)
        parts[name] = KeptPart(
            earned=round(earned, 6) if complete else None,
            possible=round(sum(case.points for case in chosen), 6),
            passed=sum(one.ok for one in of_part),
            cases=len(chosen) - sum(one.status == SKIPPED for one in of_part),
            failures=failures_of(of_part),
            **_of_this_run(task, backend),
        )
    _keep(console, task, parts)


def keep_lines(
    console: Console, task: str, lines: Sequence[PartPoints], backend: str, options: argparse.Namespace
) -> None:
    """Stores the results of measurements that are worth points."""
    if options.variant == Variant.STUDENT:
        run = _of_this_run(task, backend)
        _keep(
            console,
            task,
            {one.part: KeptPart(round(one.earned, 6), round(one.possible, 6), one.why, **run) for one in lines},
        )


def failures_of(verdicts: Sequence[Verdict]) -> tuple[Failure, ...]:
    """The first failures among a part's verdicts, wrong cases before unfilled gaps; only the first has a diagnosis."""
    failures = [one for one in verdicts if not one.ok and one.status != SKIPPED]
    failures.sort(key=lambda one: one.status == NOT_IMPLEMENTED)
    return tuple(
        Failure(
            one.case.name,
            one.status,
            one.status == NOT_IMPLEMENTED,
            *(() if number else (tuple(one.mistakes), tuple(one.diagnosis), bool(one.found.exact or one.found.signs))),
            file_line=one.file_line or "",
        )
        for number, one in enumerate(failures[:MOST_FAILURES])
    )


def _of_this_run(task: str, backend: str) -> dict[str, object]:
    manifest = read_manifest(task)
    return {
        "backend": backend,
        "date": f"{datetime.datetime.now():%Y-%m-%d %H:%M}",
        "files": digests([manifest.folder / name for name in manifest.files]),
    }


def _keep(console: Console, task: str, parts: Mapping[str, KeptPart]) -> None:
    """Stores the parts; a write error is only printed, since the verdicts do not depend on it."""
    try:
        if parts:
            keep(task, parts)
    except OSError as error:
        say(console, f"not kept for `python -m common.course progress`: {error_words(error)}", "dim")
