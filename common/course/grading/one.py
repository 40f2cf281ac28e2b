"""Grades one submission: grade(submission, workshop) -> Outcome.

For each part a process of its own in the sandbox; inputs go in, bytes come out, and what they are worth is decided
here. A part earns its cases' points if all of its required cases pass (the hidden ones are required), and if its
kernels did the work: one hidden case runs once more with inputs that host code cannot see
(common/testing/hidden_inputs.py).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import math
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile

import torch

from common.compiling.manifest import Manifest, read_manifest, tasks
from common.compiling.skeletons import skeleton_of
from common.console.words import counted
from common.course.grading.at_work import idle_blocks, too_few
from common.course.grading.clean_tree import with_submission
from common.course.grading.hidden import HiddenCase, hidden_cases
from common.course.grading.outcome import CaseOutcome, Outcome, PartOutcome, TaskOutcome
from common.course.grading.salt import mark_of, seed_of
from common.course.grading.sandbox import FairClock, Limits, Sandbox
from common.course.grading.speed import NotTimed, has_speed, implausible, part_of, time_all
from common.course.grading.submissions import Submission
from common.course.grading.worker import SandboxedWorker
from common.testing.calling import CallFailed
from common.testing.case import ERROR, NOT_RUN, Case, Verdict
from common.testing.hidden_inputs import WORK
from common.testing.judging import judge
from common.testing.points import points_of
from common.testing.worker.messages import send
from common.testing.worker.nursery import Nursery
from common.testing.worker.worker import NotLoaded

FEWEST_THREADS = 32  # of a part's largest launch: less is no parallel program
COUNTS = ("launches", "threads", "read_back", *WORK)
PART_SECONDS = 400  # of a FairClock
STALLED = 25  # of one; after an error that took longer the part's other cases are not tried
MOST_BOXES = 12  # sandboxes in a row for one submission; each is ended by its watcher before there is a next one
PYTORCHS_OWN = ("scaled_dot_product", "multi_head_attention", "flex_attention", "_transformer_encoder")
GRADER_FAILED = "The grader failed at this case; please tell your instructor."
MOST_LINES, MOST_CHARACTERS = 12, 600  # of a diagnosis that is kept


@dataclass(frozen=True)
class Workshop:
    """What all submissions of a class share.

    Attributes:
        folder: a temporary one that other users may enter; base and runtime lie in it.
        base: the clean tree, see clean_tree.py.
        runtime: the simulator's compiled runtime.
        kind: of sandbox.
        salt: the class's secret.
        course: a hash of all that decides a grade beside the submission.
        tasks: those that are graded.
        parts: of their parts, only these; None: all.
        limits: see sandbox.Limits.
        speed: speed points are given, too; needs a GPU.
    """

    folder: Path
    base: Path
    runtime: Path
    kind: str
    salt: bytes
    course: str
    tasks: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    parts: tuple[str, ...] | None = None
    speed: bool = False

    def key(self, submission: Submission) -> str:
        """Two gradings with the same key give the same points."""
        digest = hashlib.sha256(f"{mark_of(self.salt)} {self.course} {self.tasks}{' speed' * self.speed}".encode())
        for name, text in sorted(submission.files.items()):
            digest.update(f"{name} {len(text)} ".encode() + text.encode())
        return digest.hexdigest()[:24]


def grade(submission: Submission, source: str, workshop: Workshop) -> Outcome:
    """Grades it. Whatever the submission does, the outcome is complete; errors are the grader's own."""
    torch.set_num_threads(1)  # several submissions share the cores, and threads that wait would count as work
    begun, cpu = time.monotonic(), _cpu()
    outcome = Outcome(submission.name, source, sandbox=workshop.kind, key=workshop.key(submission))
    outcome.flags, outcome.notes = [*submission.flags, *submission.notes], list(submission.notes)
    boxes = _Boxes(submission, workshop)
    shown: dict[str, bool] = {}  # "task6 update": whether its kernels were found to do the work
    try:
        for task in workshop.tasks:
            outcome.tasks.append(_task(task, submission, workshop, boxes, shown))
            for part in outcome.tasks[-1].parts:
                outcome.flags += idle_blocks(f"{task} {part.part}", part.kernel)
                outcome.flags += [f"{task} {part.part}: {GRADER_FAILED}" for case in part.cases if _failed_here(case)]
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
    """Seconds of CPU of this process; those of the sandbox its watcher counts."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class _Boxes:
    """The sandbox that runs; a new one after it was ended."""

    def __init__(self, submission: Submission, workshop: Workshop) -> None:
        self._workshop = workshop
        self._tree = workshop.folder / f"tree-{id(self)}-{time.monotonic_ns()}"
        files = {**_skeletons(), **submission.files}
        with_submission(workshop.base, self._tree, files, copy=workshop.kind == "trusted")
        self._clock = FairClock()
        self._box: Sandbox | None = None
        self._nursery: Nursery | None = None
        self._made = 0
        self.peak_bytes, self.cpu_seconds = 0, 0.0
        self.marks: list[str] = []

    def worker(self, task: str, compiled: bool = True) -> SandboxedWorker:
        """A worker, in a new process once it is used.

        Raises:
            NotLoaded: too many sandboxes were ended, or the submission's time is over.
        """
        self.check()
        if self._box is None:
            if self._made >= MOST_BOXES:
                raise NotLoaded(f"The code's sandbox was ended {MOST_BOXES} times; it gets no further one.", "ended")
            self._made += 1
            limits, shop = self._workshop.limits, self._workshop
            if (left := limits.seconds - self._clock.seconds()) <= 0:
                raise NotLoaded(f"The submission took longer than {limits.seconds:g} seconds.", "not in time")
            limits = replace(limits, seconds=round(left, 1))
            self._box = Sandbox(self._tree, shop.runtime, shop.kind, shop.tasks, limits)
            self.marks.append(self._box.mark)
            self._nursery = Nursery(None, elsewhere=self._box.socket)
        return SandboxedWorker(self._box, self._nursery, task, compiled)

    def check(self) -> None:
        """Takes a sandbox away that was ended, or whose nursery does not answer any more."""
        if self._box is not None and (self._box.ended_because or not self._box.alive()):
            self.leave()

    @property
    def ended_because(self) -> str:
        return self._box.ended_because if self._box else ""

    def leave(self) -> None:
        """Ends the sandbox that runs."""
        box, self._box, self._nursery = self._box, None, None
        if box is not None:
            box.close()
            self.peak_bytes = max(self.peak_bytes, box.peak_bytes)
            self.cpu_seconds += box.cpu_seconds

    @contextlib.contextmanager
    def timed(self, task: str, whose: str) -> Iterator[Connection]:
        """The connection to a process that serves timed rounds, in a sandbox that may use the GPU."""
        shop = self._workshop
        limits = replace(shop.limits, memory=3 * shop.limits.memory)  # what CUDA maps is counted as well
        tree = self._tree if whose == "ours" else shop.base
        with Sandbox(tree, shop.runtime, shop.kind, [task], limits, gpu=True) as box, TemporaryFile() as printed:
            self.marks.append(box.mark)
            _, connection = Nursery(None, elsewhere=box.socket).fork(printed.fileno())
            with connection:
                send(connection, {"do": "begin", "task": task, "timed": whose})
                yield connection
        self.cpu_seconds += box.cpu_seconds

    def close(self) -> None:
        self.leave()
        shutil.rmtree(self._tree, ignore_errors=True)


def _speed(task: TaskOutcome, workshop: Workshop, boxes: _Boxes) -> list[str]:
    """Adds the part that is timed; what a human should look at."""
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


@functools.cache
def _skeletons() -> dict[str, str]:
    """What stands for a missing file: the one with gaps."""
    found = {}
    for manifest in map(read_manifest, tasks()):
        for name in manifest.files:
            solution = manifest.folder / "solution" / name
            if solution.is_file():
                found[f"{manifest.task}/{name}"] = skeleton_of(solution.read_text(encoding="utf-8"), name)
            elif (manifest.folder / name).is_file():
                found[f"{manifest.task}/{name}"] = (manifest.folder / name).read_text(encoding="utf-8")
    return found


def _not_graded(task: str) -> dict[str, tuple[float, str]]:
    """The parts that are measured and not compared."""
    test = importlib.import_module(f"{task}.test").TEST
    graded = {case.part for case in getattr(importlib.import_module(f"{task}.cases"), "graded", list)()}
    return {
        f"{task} {part}": (points, "it needs a GPU")
        for one in test.measurements
        for part, points in one.points.items()
        if part not in graded
    }


def left_behind(marks: Sequence[str]) -> list[str]:
    """Processes that began in one of these sandboxes and still run: their numbers. There must be none."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdigit() and any(
                f"GRADING_BOX={mark}".encode() in (place / "environ").read_bytes() for mark in marks
            ):
                found.append(place.name)
    return found


# ---- a task


def _task(task: str, submission: Submission, workshop: Workshop, boxes: _Boxes, shown: dict[str, bool]) -> TaskOutcome:
    manifest = read_manifest(task)
    module = importlib.import_module(f"{task}.cases")
    public = module.cases()
    hidden = hidden_cases(task, public, seed_of(workshop.salt, f"{task} shapes"))
    every = [case for case in [*public, *getattr(module, "graded", list)()] if not case.gpu_only]
    parts = [part for part in dict.fromkeys(c.part for c in every) if sum(c.points for c in every if c.part == part)]
    if workshop.parts is not None:
        parts = [part for part in parts if part in workshop.parts]
    outcome = TaskOutcome(task, files=_problems(manifest, submission))
    python = getattr(importlib.import_module(f"{task}.cases.hidden"), "IN_PYTORCH", ()) if hidden else ()
    not_loaded = ""
    for part in parts:
        cases = [case for case in every if case.part == part]
        of_part = [one for one in hidden if one.case.part == part]
        shown[f"{task} {part}"] = False
        if why := _not_begun(manifest, submission, part in python) or ("" if part in python else not_loaded):
            outcome.parts.append(_nothing(part, cases, why))
            continue
        try:
            with boxes.worker(task, part not in python) as worker:
                worker.load()
                outcome.log = outcome.log or worker.about["log"]
                outcome.parts.append(_part(task, part, cases, of_part, worker, workshop, shown))
        except NotLoaded as error:
            words = _cut([boxes.ended_because or str(error)])
            outcome.parts.append(_nothing(part, cases, words[0]))
            if error.kind == "BuildError":
                not_loaded = outcome.problem = words[0]
                outcome.log = outcome.log or str(error)[:60_000]
        boxes.check()
    return outcome


def _problems(manifest: Manifest, submission: Submission) -> dict[str, str]:
    names = [f"{manifest.task}/{name}" for name in manifest.files]
    return {name: submission.problems[name] for name in names if name in submission.problems}


def _not_begun(manifest: Manifest, submission: Submission, python: bool) -> str:
    """Why there is nothing to run of a part, in Python or in kernels: its files are as they were given out. Or ""."""
    names = [f"{manifest.task}/{name}" for name in manifest.with_gaps if name.endswith(".py") == python]
    given = _skeletons()
    if any(submission.files.get(name, given[name]).split() != given[name].split() for name in names):
        return ""
    return f"Not implemented: {' and '.join(names)}."


def _nothing(part: str, cases: Sequence[Case], why: str) -> PartOutcome:
    listed = [CaseOutcome(case.name, NOT_RUN, case.points, case.required) for case in cases]
    return PartOutcome(part, 0.0, round(sum(case.points for case in cases), 6), why, cases=listed)


# ---- a part


def _part(
    task: str,
    part: str,
    cases: Sequence[Case],
    hidden: Sequence[HiddenCase],
    worker: SandboxedWorker,
    workshop: Workshop,
    shown: dict[str, bool],
) -> PartOutcome:
    """Every case of a part, public ones first; then the run that shows who did the work."""
    clock = FairClock()
    listed = [(case, case.name, False) for case in cases] + [(one.case, one.title, True) for one in hidden]
    verdicts, outcomes, stopped = [], [], ""
    for case, title, is_hidden in listed:
        begun = clock.seconds()
        if not stopped and begun > PART_SECONDS:
            stopped = "The part took too long."
        if stopped:
            verdict = Verdict(case, NOT_RUN, diagnosis=[stopped])
        else:
            verdict = _judged(case, worker, seed_of(workshop.salt, f"{task} {title}"))
            stopped = _stopped_by(verdict, clock.seconds() - begun)
        verdicts.append(verdict)
        outcomes.append(_case_outcome(verdict, title, is_hidden))
    earned, possible = points_of(verdicts)
    why, kernel = "", {}
    if earned:
        why, kernel = _who_did_the_work(task, part, hidden, worker, workshop, shown)
    shown[f"{task} {part}"] = bool(earned) and not why
    return PartOutcome(part, 0.0 if why else round(earned, 6), round(possible, 6), why, kernel, outcomes)


def _judged(case: Case, worker: SandboxedWorker, seed: int, bare: bool = False) -> Verdict:
    """As judge(); an answer that the grader cannot deal with costs its case, not the submission."""
    try:
        return judge(case, worker, seed, bare)
    except Exception as error:
        return Verdict(case, ERROR, diagnosis=[f"{GRADER_FAILED} {type(error).__name__}: {error}"])


def _failed_here(case: CaseOutcome) -> bool:
    return any(line.startswith(GRADER_FAILED) for line in case.diagnosis)


def _stopped_by(verdict: Verdict, seconds: float) -> str:
    """Why the rest of the part is not run: every further case might take as long as this one, which took `seconds`."""
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
    """As much of it as is kept; without characters that are none for a page."""
    clean = ["".join(c if c.isprintable() or c == "\n" else "?" for c in line[:MOST_CHARACTERS]) for line in lines]
    return clean[:MOST_LINES]


def _who_did_the_work(
    task: str,
    part: str,
    hidden: Sequence[HiddenCase],
    worker: SandboxedWorker,
    workshop: Workshop,
    shown: dict[str, bool],
) -> tuple[str, dict[str, int]]:
    """(why the part earns nothing although its outputs are right; "" if kernels did it, what was counted)."""
    secrets = importlib.import_module(f"{task}.cases.hidden") if hidden else None
    for other in getattr(secrets, "RESTS_ON", {}).get(part, ()):
        if not shown.get(other, True):
            return f"It stands on the kernels of {other}, which earned nothing or were not seen at work.", {}
    if part in getattr(secrets, "IN_PYTORCH", ()):
        return _without_pytorchs_attention(task, hidden[0], worker, workshop), {}
    total: dict[str, int] = {}
    for one in hidden:
        if one.closed:
            why, counts = _kernels_alone(task, one, worker, workshop)
            total = {name: counts.get(name, 0) + total.get(name, 0) for name in COUNTS}
            if why:
                return why, total
    return "", total


def _kernels_alone(task: str, one: HiddenCase, worker: SandboxedWorker, workshop: Workshop) -> tuple[str, dict]:
    worker.hide = True
    try:
        verdict = _judged(one.case, worker, seed_of(workshop.salt, f"{task} {one.title} closed"), bare=True)
    finally:
        worker.hide = False
    counts = {name: value for name, value in worker.more.items() if isinstance(value, int)}
    if verdict.ended:
        return (
            "With inputs that only kernels can see (as on a GPU) the process ended, as it does where host code reads "
            f"or writes the tensors itself. {verdict.diagnosis[0] if verdict.diagnosis else ''}"
        ), counts
    if not counts.get("launches"):
        return "No kernel was launched.", counts
    if (threads := counts.get("threads", 0)) < FEWEST_THREADS:
        return f"The largest launch has {counted(threads, 'thread')}; at least {FEWEST_THREADS} are expected.", counts
    if counts.get("read_back"):
        return f"{counts['read_back']:,} bytes of the inputs were copied to the host.", counts
    if idle := too_few(counts):
        return idle, counts
    if not verdict.ok:
        words = verdict.diagnosis[0] if verdict.diagnosis else verdict.status
        return (
            f"With inputs that only kernels can see, and outputs that nobody filled, the answer is wrong: {words}",
            counts,
        )
    return "", counts


def _without_pytorchs_attention(task: str, one: HiddenCase, worker: SandboxedWorker, workshop: Workshop) -> str:
    worker.watch = True
    try:
        _judged(one.case, worker, seed_of(workshop.salt, f"{task} {one.title} watched"))
        used = [str(name) for name in worker.more.get("operators", ["no answer"])]
    except (CallFailed, TypeError, AttributeError):
        used = ["no answer"]
    finally:
        worker.watch = False
    found = [name for name in used if name == "no answer" or any(own in name for own in PYTORCHS_OWN)]
    return f"The attention is PyTorch's own: {found[0]} was called." if found else ""


def course_hash(base: Path) -> str:
    """Of the clean tree and the hidden cases: what decides grades beside submission and salt."""
    digest = hashlib.sha256()
    for file in sorted(path for path in base.rglob("*") if path.is_file()):
        digest.update(str(file.relative_to(base)).encode() + file.read_bytes())
    for task in tasks():
        with contextlib.suppress(OSError):
            digest.update((read_manifest(task).folder / "cases" / "hidden.py").read_bytes())
    return digest.hexdigest()
