"""Finds a single edit of the student's Python that makes the failing cases pass: add_edits(...) adds it to verdicts.

Like tried_edits.py for kernels: the edits of common/diagnosis/python_edits.py, lines that other findings name first,
each run on the smallest failing case; those with a correct output are then run on the part's other failing cases and
on some passing ones.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from common.cli.failing_cases import recognized
from common.cli.tried_edits import (
    MOST_HELPING,
    MOST_OF_LINE,
    Helped,
    Run,
    chosen,
    is_right,
    order,
    runs,
    said,
)
from common.compiling.student_gaps import GapError
from common.console.files import read_source
from common.console.paths import ROOT
from common.console.terminal import say, working
from common.diagnosis.diagnose import Diagnosis
from common.diagnosis.python_edits import edited, edits_in
from common.diagnosis.single_edits import KINDS, Edit
from common.inspect.findings.model import EDIT
from common.inspect.own_lines import own_lines
from common.testing.calling import Around, CallFailed
from common.testing.case import ERROR, FAIL, NOT_RUN, Case, Verdict
from common.testing.failures import TELLING, causes_of, failed, failed_stages, of_first_step
from common.testing.worker.worker import Worker

MOST_EDITS = 2400
MOST_WRONG = 6  # wrong outputs; the one that is computed fastest is computed with every edit
MOST_SECONDS, MOST_IN_ALL = 6.0, 9.0  # CPU seconds: to try the edits; including further cases
MOST_ENDED = 4  # processes that edits may end
CALL_SECONDS = 3.0  # for one call
LATE = ("constant", "name", "unit", "more")  # kinds with many edits, tried after the others; the last two rarely help


def add_edits(
    console: Console,
    verdicts: Sequence[Verdict],
    caller: Worker,
    task: str,
    variant: str,
    seed: int,
    built_of: Mapping[str, Sequence[str]],
) -> None:
    """Adds the edit that repairs the first failing part of the student's Python, if one does, to that part's verdicts.

    Args:
        console: shows what is being tried.
        verdicts: all verdicts.
        caller: calls the cases.
        task, variant: whose Python is edited: "task1", "student" or "solution".
        seed: seed of the inputs.
        built_of: part -> the parts that test its stages separately.
    """
    wrong = {one.case.part for one in verdicts if failed(one)}
    failing: dict[str, list[Verdict]] = {}
    for one in verdicts:
        is_wrong = one.status in (FAIL, ERROR, NOT_RUN) and not failed_stages(one.case.part, wrong, built_of)
        if one.case.python and is_wrong:
            failing.setdefault(one.case.part, []).append(one)
    part = next((name for name, every in failing.items() if any(one.status != NOT_RUN for one in every)), None)
    mine = sorted(failing.get(part, ()), key=lambda one: (one.is_endless, 0 < one.elements < TELLING, one.elements))
    if not mine:
        return
    module = mine[0].case.python.module
    source = ROOT / task / ("" if variant == "student" else "solution") / f"{module}.py"
    with working(console, f"{part}: trying single edits of {source.name} ..."), _quick(caller):
        try:
            helped = _tried(source, mine, failing, verdicts, caller, seed)
        except (
            ArithmeticError,
            AttributeError,
            GapError,
            LookupError,
            OSError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            # a failure here must not lose the rest of the report
            say(console, f"{part}: edits could not be tried: {type(error).__name__}: {error}", "dim")
            return
    if helped is None:
        return
    detail, place = helped.finding.detail, helped.finding.lines[0]
    lines = [f"-> {place.shown}", f"      {place.text}"]
    known = {name: recognized(failing[name]) for name in helped.parts}
    if known[part]:
        first = causes_of(of_first_step(failing[part]))[0].verdicts[0].found
        first.tried, first.python = [*lines, detail], []
    for one in (one for name in helped.parts for one in failing[name]):
        one.said = one.said[:1]
        if not known[one.case.part]:
            one.change_found(
                lambda found: Diagnosis(exact=[detail], possible={EDIT: detail}, tried=lines, where=found.where)
            )


@contextmanager
def _quick(caller: Worker) -> Iterator[None]:
    """Inside, calls end after CALL_SECONDS. The process that ran edits ends with them."""
    caller.call_seconds = dict.fromkeys(caller.call_seconds, CALL_SECONDS)
    try:
        yield
    finally:
        del caller.call_seconds
        caller.end_process()


def _tried(
    source: Path,
    mine: Sequence[Verdict],
    failing: Mapping[str, Sequence[Verdict]],
    verdicts: Sequence[Verdict],
    caller: Worker,
    seed: int,
) -> Helped | None:
    text, file, begun = read_source(source), str(source), time.process_time() + caller.seconds
    lines = list(dict.fromkeys(line for one in mine for _, line in one.python_lines))
    suspects = {(file, line): number for number, line in enumerate(lines)}
    edits = sorted(edits_in(text, file, own_lines(file)), key=lambda one: _rank(one, suspects))[:MOST_EDITS]
    ended = 0

    def seconds() -> float:
        return time.process_time() + caller.seconds - begun

    def passes(edit: Edit | None, run: Run) -> bool:
        nonlocal ended
        around = Around(large=run.draw % 2 == 1, edited=edited(text, edit) if edit else "")
        try:
            return is_right(caller.call(run.case, run.inputs, around), run)
        except CallFailed as failure:
            ended += failure.ended
            return False

    part, took = mine[0].case.part, {}
    for run in (run for one in of_first_step(mine) for run in runs(one.case, seed)):
        start = seconds()
        if not passes(None, run):
            took[run] = seconds() - start
        if len(took) == MOST_WRONG:
            break
    run = min(took, key=took.get, default=None)
    helping: list[Edit] = []
    for edit in edits if run else ():
        if seconds() > MOST_SECONDS or len(helping) > MOST_HELPING or ended > MOST_ENDED:
            break
        helping += [edit] if passes(edit, run) else []
    runs_of = functools.cache(lambda case: list(runs(case, seed)))

    def passes_all(edit: Edit, several: Sequence[Case]) -> bool:
        return seconds() < MOST_IN_ALL and all(passes(edit, run) for case in several for run in runs_of(case))

    passing = [one.case for one in verdicts if one.ok and one.case.python]
    others = {name: [one.case for one in every] for name, every in failing.items() if name != part}
    of_line: dict[int, list[Edit]] = {}
    for edit in sorted(helping, key=order):
        several = of_line.setdefault(edit.line, [])
        if len(several) < MOST_OF_LINE and passes_all(edit, [one.case for one in mine]):
            several.append(edit)
    checked = dict.fromkeys([*(one for one in passing if one.part == part), *chosen(passing, part, seed)])
    sure = [edit for several in of_line.values() for edit in several if passes_all(edit, checked)]
    found = {edit: [name for name, every in others.items() if passes_all(edit, every)] for edit in sure}
    counts = {name: len(every) for name, every in others.items()}
    return said(found, mine, len(mine), suspects, counts)


def _rank(edit: Edit, suspects: Mapping[tuple[str, int], int]) -> tuple[bool, bool, int, int]:
    """Sort key, smallest first: edits of suspected lines, and kinds with few edits."""
    suspect = suspects.get((edit.file, edit.line))
    late = LATE.index(edit.kind) + 1 if edit.kind in LATE else 0
    return late > 2, suspect is None, late or KINDS.index(edit.kind) - len(KINDS), suspect or 0
