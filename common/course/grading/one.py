"""Grades one submission: grade(submission, workshop) -> Outcome.

Each part runs in its own sandboxed process: inputs go in, bytes come out, and this process judges them. A part earns
its cases' points if all of its required cases pass (hidden ones are required) and its kernels did the work: host code
never sees device memory, and work on the device is counted there (common/testing/runner/apart.py).
"""

from __future__ import annotations

import contextlib
import importlib
import math
import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from common.compiling.manifest import Manifest, read_manifest
from common.course.grading.at_work import idle_blocks, share, too_few
from common.course.grading.boxes import Boxes
from common.course.grading.hidden import HiddenCase, hidden_cases
from common.course.grading.outcome import CaseOutcome, Outcome, PartOutcome, TaskOutcome
from common.course.grading.salt import seed_of
from common.course.grading.sandbox import FairClock
from common.course.grading.speed import NotTimed, has_speed, implausible, part_of, time_all
from common.course.grading.submissions import MISSING, Submission, given, safe
from common.course.grading.worker import SandboxedKernels, SandboxedWorker
from common.course.grading.workshop import Workshop
from common.testing.calling import Caller
from common.testing.case import ERROR, NOT_RUN, Case, Verdict
from common.testing.judging import judge
from common.testing.points import points_of
from common.testing.runner.apart import COPIED_BACK, COUNTS
from common.testing.worker.worker import NotLoaded

FEWEST_THREADS = 32  # in a part's largest launch: fewer is not a parallel program
PART_SECONDS = 400  # by FairClock
STALLED = 25  # seconds by FairClock; after an error that took longer, the part's remaining cases are skipped
GRADER_FAILED = "The grader failed here; please tell your instructor."
MOST_LINES, MOST_CHARACTERS = 12, 600  # kept from a diagnosis: lines, and characters per line
_TREE = re.compile(r"/[\w./-]*/tree-\d+-\d+/course/")  # the path of the course inside a sandbox


def grade(submission: Submission, source: str, workshop: Workshop) -> Outcome:
    """Grades a submission. Whatever it does, the outcome is complete; exceptions are errors of the grader itself."""
    torch.set_num_threads(1)  # several submissions share the cores, and spinning threads would count as work
    begun, cpu = time.monotonic(), _cpu()
    outcome = Outcome(submission.name, source, sandbox=workshop.kind, key=workshop.key(submission))
    refused = [f"{name}: {why}" for name, why in submission.problems.items() if why != MISSING]
    if not submission.files:
        refused.append("It has none of the files that the tasks name.")
    outcome.flags, outcome.notes = [*refused, *submission.notes], list(submission.notes)
    boxes = Boxes({**given(), **submission.files}, workshop)
    shown: dict[str, bool] = {}  # "task6 update" -> whether its kernels were found to do the work
    try:
        tried = [_task(task, submission, workshop, boxes, shown) for task in workshop.tasks]
        for one in tried:
            next(one)
        boxes.leave()  # nothing whose output students see runs after a hidden case: it could read the clock
        outcome.tasks += [next(one) for one in tried]
        for task in outcome.tasks:
            for part in task.parts:
                name = f"{task.task} {part.part}"
                outcome.flags += idle_blocks(name, part.kernel)
                failed = [part.why, *(line for case in part.cases for line in case.diagnosis)]
                outcome.flags += [f"{name}: {GRADER_FAILED}" for line in failed if line.startswith(GRADER_FAILED)]
        if workshop.speed:
            boxes.leave()
            for task in outcome.tasks:
                if has_speed(task.task):
                    outcome.flags += _speed(task, workshop, boxes)
    finally:
        boxes.close()
    graded = {f"{task.task} {part.part}" for task in outcome.tasks for part in task.parts}
    for task in workshop.tasks:
        outcome.not_graded |= {name: why for name, why in _not_graded(task).items() if name not in graded}
    outcome.peak_bytes, outcome.left_behind = boxes.peak_bytes, left_behind(boxes.marks)
    outcome.cpu_seconds, outcome.wall_seconds = (
        round(_cpu() - cpu + boxes.cpu_seconds, 2),
        round(time.monotonic() - begun, 2),
    )
    return outcome


def _cpu() -> float:
    """CPU seconds of this process; the watcher counts those of the sandbox."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _speed(task: TaskOutcome, workshop: Workshop, boxes: Boxes) -> list[str]:
    """Adds the timed part; returns flags for a human."""
    part, most = next((name.split(" ", 1)[1], points) for name, (points, _) in _not_graded(task.task).items())
    points_for = importlib.import_module(f"{task.task}.cases.speed").points_for
    try:
        timed = time_all(
            task.task,
            lambda what: seed_of(workshop.salt, f"{task.task} {what}"),
            lambda: boxes.timed(task.task, "ours"),
            lambda: boxes.timed(task.task, "peers"),
        )
    except NotTimed as error:
        task.parts.append(PartOutcome(part, 0.0, most, str(error)))
        return [f"{task.task}: the speed was not measured: {error}"]
    task.parts.append(part_of(part, timed, points_for, most))
    return implausible(task.task, timed)


def _not_graded(task: str) -> dict[str, tuple[float, str]]:
    """The parts that are measured rather than compared."""
    test = importlib.import_module(f"{task}.test").TEST
    graded = {case.part for case in getattr(importlib.import_module(f"{task}.cases"), "graded", list)()}
    return {
        f"{task} {part}": (points, "it needs a GPU")
        for one in test.measurements
        for part, points in one.points.items()
        if part not in graded
    }


def left_behind(marks: Sequence[str]) -> list[str]:
    """PIDs of processes started in one of these sandboxes that are still running. There must be none."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdigit() and any(
                f"GRADING_BOX={mark}".encode() in (place / "environ").read_bytes() for mark in marks
            ):
                found.append(place.name)
    return found


# ---- a task


def _task(
    task: str, submission: Submission, workshop: Workshop, boxes: Boxes, shown: dict[str, bool]
) -> Iterator[TaskOutcome | None]:
    """Yields None once the public cases have run, then the task's outcome."""
    manifest = read_manifest(task)
    module = importlib.import_module(f"{task}.cases")
    public = module.cases()
    hidden = hidden_cases(task, public, seed_of(workshop.salt, f"{task} shapes"))
    every = [case for case in [*public, *getattr(module, "graded", list)()] if not case.gpu_only]
    parts = [part for part in dict.fromkeys(c.part for c in every) if sum(c.points for c in every if c.part == part)]
    if workshop.parts is not None:
        parts = [part for part in parts if part in workshop.parts]
    outcome = TaskOutcome(task, files=_problems(manifest, submission))
    secrets = importlib.import_module(f"{task}.cases.hidden") if hidden else None
    python = getattr(secrets, "IN_PYTORCH", ())

    def tried(part: str) -> Iterator[PartOutcome | None]:
        """The same for a part; only its outcome if nothing of it runs."""
        cases = [case for case in every if case.part == part]
        of_part = [one for one in hidden if one.case.part == part]
        shown[f"{task} {part}"] = False
        if why := _not_begun(manifest, submission, part in python) or ("" if part in python else outcome.problem):
            yield _nothing(part, cases, why)
            return
        try:
            if part not in python:
                outcome.log = outcome.log or safe(boxes.kernels(task))
            rests_on = getattr(secrets, "RESTS_ON", {}).get(part, ())
            kind = "python" if part in python else "model" if rests_on else "kernels"
            with contextlib.closing(_Callers(boxes, task, kind)) as callers:
                yield from _part(task, part, cases, of_part, callers, workshop, shown, rests_on)
        except NotLoaded as error:
            words = _cut([str(error)])
            if error.kind == "BuildError":
                outcome.problem = words[0]
                outcome.log = outcome.log or safe(str(error)[:60_000])
            yield _nothing(part, cases, words[0])

    runs = [tried(part) for part in parts]
    begun = [next(one) for one in runs]
    yield None
    for one, half in zip(runs, begun, strict=True):
        with contextlib.closing(one):  # also closes its sandboxes
            outcome.parts.append(next(one, half))
    yield outcome


def _problems(manifest: Manifest, submission: Submission) -> dict[str, str]:
    names = [f"{manifest.task}/{name}" for name in manifest.files]
    return {name: submission.problems[name] for name in names if name in submission.problems}


def _not_begun(manifest: Manifest, submission: Submission, python: bool) -> str:
    """Why a part has nothing to run, in Python or in kernels: its files are still as released. "" if it has."""
    names = [f"{manifest.task}/{name}" for name in manifest.with_gaps if name.endswith(".py") == python]
    if any(submission.files.get(name, given()[name]).split() != given()[name].split() for name in names):
        return ""
    return f"Not implemented: {' and '.join(names)}."


def _nothing(part: str, cases: Sequence[Case], why: str) -> PartOutcome:
    listed = [CaseOutcome(case.name, NOT_RUN, case.points, case.required) for case in cases]
    return PartOutcome(part, 0.0, round(sum(case.points for case in cases), 6), why, cases=listed)


# ---- a part


class _Callers:
    """The callers for a part's cases: the runner for pure kernel parts, a worker for the rest. A hidden case shares no
    process and no file with a public one, and no process with another hidden one.

    Args:
        kind: "kernels"; "python": a part without kernels; "model": a part whose calls go through provided Python.
    """

    def __init__(self, boxes: Boxes, task: str, kind: str) -> None:
        self._boxes, self._task, self.kind = boxes, task, kind
        self._open: dict[tuple[bool, bool], SandboxedWorker | SandboxedKernels] = {}

    def of(self, case: Case, hidden: bool) -> SandboxedWorker | SandboxedKernels:
        """The caller for this case. NotLoaded: no sandbox is available."""
        in_python = self.kind != "kernels" or case.python is not None
        key = in_python, hidden
        if hidden and key in self._open:
            self._open.pop(key).close()
        if key not in self._open:
            box = self._boxes
            compiled = self.kind != "python"
            made = box.in_python(self._task, compiled, hidden) if in_python else box.in_runner(self._task)
            self._open[key] = made
        return self._open[key]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


def _part(
    task: str,
    part: str,
    cases: Sequence[Case],
    hidden: Sequence[HiddenCase],
    callers: _Callers,
    workshop: Workshop,
    shown: dict[str, bool],
    rests_on: Sequence[str],
) -> Iterator[PartOutcome | None]:
    """Yields None after the public cases, then the outcome. Kernels' work is counted in hidden cases without Python."""
    clock, before = FairClock(), 0.0
    verdicts, outcomes, stopped, why = [], [], "", ""
    kernel: dict[str, int] = {}
    for one in (*cases, None, *hidden):
        if one is None:  # what follows may depend on other tasks' hidden cases, even if this part has none
            callers.close()
            public_why = why
            before = clock.seconds()
            yield None
            clock = FairClock()
            continue
        is_hidden = isinstance(one, HiddenCase)
        case, title = (one.case, one.title) if is_hidden else (one, one.name)
        counts = is_hidden and callers.kind == "kernels"
        begun = before + clock.seconds()
        if not stopped and begun > PART_SECONDS:
            stopped = "The part took too long."
        if not stopped:
            try:
                caller = callers.of(case, is_hidden)
            except NotLoaded as error:
                if not is_hidden:
                    raise
                stopped = str(error)
        if stopped:
            verdict = Verdict(case, NOT_RUN, said=[stopped])
        else:
            # outputs are not pre-filled with NaN: this exposes a kernel that checks for NaN
            verdict = _judged(case, caller, seed_of(workshop.salt, f"{task} {title}"), bare=counts)
            stopped = _stopped_by(verdict, before + clock.seconds() - begun)
            if counts and verdict.ok:
                more = caller.more if one.bounded else {**caller.more, "allowed": sys.maxsize}
                most = max(share(more), kernel.get("share", 0))
                kernel = {name: more[name] + kernel.get(name, 0) for name in COUNTS} | {"share": most}
                why = why or _no_kernel(task, more)
            elif verdict.ok and caller.more.get("read_back"):
                why = why or COPIED_BACK
        verdicts.append(verdict)
        outcomes.append(_case_outcome(verdict, title, is_hidden))
    earned, possible = points_of(verdicts)
    if missing := [other for other in rests_on if not shown.get(other, True)]:
        why = f"It depends on the kernels of {missing[0]}, which earned nothing or did no work."
    elif callers.kind == "kernels" and not kernel:
        why = why or f"{GRADER_FAILED} The work of the part's kernels was counted in no hidden case."
    why = why if earned else ""
    shown[f"{task} {part}"] = bool(earned) and not why
    in_hidden = bool(why) and not public_why and not missing
    yield PartOutcome(part, 0.0 if why else round(earned, 6), round(possible, 6), why, kernel, outcomes, in_hidden)


MOST_ALLOCATED = 1 << 16  # bytes, if the handout forbids a workspace


def _no_kernel(task: str, counts: Mapping[str, int]) -> str:
    """Why a part earns nothing despite correct outputs, from the device process's counters; "" if kernels did the
    work."""
    if not counts["launches"]:
        return "No kernel was launched."
    if counts["threads"] < FEWEST_THREADS:
        return f"The largest launch has fewer than {FEWEST_THREADS} threads."
    if counts["read_back"]:
        return COPIED_BACK
    if counts["allocated"] > MOST_ALLOCATED and not read_manifest(task).workspace:
        return "It takes device memory of its own: the handout asks for attention without a workspace."
    return too_few(counts)


def _judged(case: Case, worker: Caller, seed: int, bare: bool = False) -> Verdict:
    """Like judge(), but an answer that the grader cannot handle fails the case, not the submission."""
    try:
        return judge(case, worker, seed, bare)
    except Exception as error:
        return Verdict(case, ERROR, said=[f"{GRADER_FAILED} {type(error).__name__}: {error}"])


def _stopped_by(verdict: Verdict, seconds: float) -> str:
    """Why the rest of the part is skipped: each further case might take as long as this one, which took `seconds`."""
    if verdict.status == ERROR and (verdict.is_endless or seconds > STALLED):
        return "An earlier case of this part did not end, or took too long."
    return ""


def _case_outcome(verdict: Verdict, title: str, hidden: bool) -> CaseOutcome:
    case = verdict.case
    error = verdict.max_error if verdict.max_error is None or math.isfinite(verdict.max_error) else None
    return CaseOutcome(
        title, verdict.status, case.points, case.required, hidden, _cut(verdict.diagnosis), error, verdict.bound
    )


def _cut(lines: Sequence[str]) -> list[str]:
    """Truncates a diagnosis; removes characters that a page cannot show and paths inside the sandbox."""
    # truncate first: the search is quadratic in the line's length
    lines = [_TREE.sub("", line[: 2 * MOST_CHARACTERS])[:MOST_CHARACTERS] for line in lines[:MOST_LINES]]
    return ["".join(c if c.isprintable() or c == "\n" else "?" for c in line) for line in lines]
