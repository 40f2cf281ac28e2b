"""Grades many submissions, several at a time on this machine or through Slurm.

    with workshop(folder, ...) as shop:
        for outcome in grade_all(sources, out, shop, jobs=2): ...

Each is graded in its own process, so that a failure affects only that submission.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import errno
import hashlib
import itertools
import multiprocessing
import os
import platform
import shutil
import signal
import stat
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from common.compiling.objects import compile_objects
from common.compiling.plan import plans_of
from common.compiling.request import BuildRequest
from common.compiling.runner import runner_program
from common.compiling.toolchain import ToolchainError, nvcc_for_build
from common.console.words import error_words
from common.course.grading.clean_tree import make_base, modules_of
from common.course.grading.one import grade
from common.course.grading.outcome import Outcome
from common.course.grading.results import FAILED, read_outcome, write_outcome
from common.course.grading.sandbox import Limits
from common.course.grading.submissions import NoSubmission, Submission, name_of, printable, read_submission, safe
from common.course.grading.workshop import Workshop, course_hash

PR_SET_PDEATHSIG = 1
# Of workshop folders: the prefix, a file in each, and for how many seconds a new one counts as in use.
PREFIX, MARK, JUST_MADE = "grading-", ".workshop", 60
# Names under --out that do not belong to a submission.
TAKEN = ("salt", "grades.csv", "adjustments.csv", "gradebook.csv", "likeness.csv", "roster.csv", "class.json", "slurm")
FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def workshop(
    kind: str, salt: bytes, tasks: Sequence[str], limits: Limits, parent: Path | None = None, speed: bool = False
) -> Iterator[Workshop]:
    """Context manager that creates what all submissions share and removes it at the end.

    Args:
        kind, salt, tasks, limits, speed: see Workshop.
        parent: the folder to create it in; for Slurm, on a disk visible to all nodes.
    """
    if why := why_no_kernels():
        raise ValueError(f"kernels cannot be graded here: {why}")
    in_main = threading.current_thread() is threading.main_thread()
    terminated = signal.signal(signal.SIGTERM, _end_tidily) if in_main else None
    _clean(Path(parent or tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    (folder / MARK).touch()
    held = FileLock(folder / ".lock")
    held.acquire()
    runtime = folder / "runtime"
    places = {"ATTENTION_BUILD_DIR": str(runtime), "ATTENTION_CACHE_DIR": str(runtime / "cache")}
    before = {name: os.environ.get(name) for name in places}
    try:
        folder.chmod(0o711)
        base = make_base(folder / "base")
        runtime.mkdir()
        os.environ.update(places)
        for task in tasks:  # compile once for all submissions; nothing from a solution
            for plan in plans_of(BuildRequest(task, "student", "simulator", counted=True)):
                compile_objects(plan.shared_jobs())
        runner = runner_program()
        for path in {*folder.rglob("*")} - {modules_of(base)}:
            path.chmod(0o755 if path.is_dir() or path == runner else 0o644)
        shared = (folder, base, runtime, runner, kind, salt, course_hash(base), tuple(tasks), limits)
        yield Workshop(*shared, speed=speed)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)
        held.release()
        if in_main:
            signal.signal(signal.SIGTERM, terminated)


def why_no_kernels() -> str:
    """Why kernels cannot be graded on this machine; "" if they can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"that needs Linux on x86-64, and this is {platform.system()} on {platform.machine()}"
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if not actions.is_file() or "kill_process" not in actions.read_text():
        return "this Linux has no seccomp, which shuts the system off from graded code"
    try:
        nvcc_for_build()
    except ToolchainError as error:
        return f"nvcc judges what a kernel is, and {error}"
    return ""


def _clean(parent: Path) -> None:
    """Removes workshops left by killed graders: those of this user with the mark, whose lock is free."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, Timeout):
            about = folder.lstat()
            old = time.time() - about.st_mtime > JUST_MADE
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and old and (folder / MARK).is_file():
                with FileLock(folder / ".lock", timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)


def _end_tidily(*_) -> None:
    """SIGTERM handler: running work finishes, no more is started, and nothing is left behind."""
    raise SystemExit(128 + signal.SIGTERM)


def names_of(sources: Sequence[str], out: Path | None = None) -> dict[str, str]:
    """source -> its folder under --out: its name, plus a few hash digits of its path if the name is taken. A submission
    already graded under its plain name keeps it when others share the name, since instructors' edits refer to it."""
    names = [name_of(source) for source in sources]
    number = Counter(names)
    found: dict[str, str] = {}
    for source, name in zip(sources, names, strict=True):
        digits = hashlib.sha256(os.fsencode(source)).hexdigest()
        free = number[name] == 1 and name.lower() not in TAKEN
        graded = read_outcome(out / name) if out and name.lower() not in TAKEN else None
        free = free or bool(graded and graded.source == shown(source))
        found[source] = name if free else f"{name}-{digits[:6]}"
        if not free and found[source] in number:  # another submission has this name
            found[source] = f"{name}-{digits}"
    return found


def shown(source: str) -> str:
    """The source as shown in results."""
    return printable(os.fsencode(source).decode(errors="replace"))


def end_with_parent() -> None:
    """Has this process killed when its parent ends, and its sandbox with it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def grade_one(source: str, name: str, out: str, shop: Workshop) -> tuple[dict, bool]:
    """Grades one submission unless it is already graded: (its outcome as JSON, whether it was graded now)."""
    folder, submission = Path(out) / name, None
    try:
        submission = read_submission(source, shop.tasks, shop.folder)
        known = read_outcome(folder)
        if known is not None and known.key == shop.key(submission) and not known.problem:
            return known.as_json(), False
        (folder / "result.json").unlink(missing_ok=True)
        outcome = grade(submission, shown(source), shop)
        outcome.name = name
        if known is not None and known.source != outcome.source:
            outcome.flags.append(f"This replaces the result of another submission of that name: {known.source}.")
    except NoSubmission as error:
        outcome = Outcome(name, shown(source), problem=str(error))
    except Exception as error:
        if _is_full(error):
            raise
        outcome = Outcome(name, shown(source), problem=f"{FAILED}: {safe(traceback.format_exc(limit=-3))}")
    return _written(folder, outcome, submission).as_json(), True


def _is_full(error: Exception) -> bool:
    """Whether a disk is full, which affects all later submissions as well."""
    return getattr(error, "errno", 0) in FULL


def _written(folder: Path, outcome: Outcome, submission: Submission | None = None) -> Outcome:
    """Writes the outcome, or if that fails, one that says so."""
    try:
        write_outcome(folder, outcome, submission)
    except Exception as error:
        if _is_full(error):
            raise
        outcome = Outcome(outcome.name, outcome.source, problem=f"{FAILED}: {safe(error_words(error))}")
        with contextlib.suppress(Exception):
            write_outcome(folder, outcome, None)
    return outcome


def grade_all(sources: Sequence[str], out: Path, shop: Workshop, jobs: int = 1) -> Iterator[tuple[Outcome, bool]]:
    """Grades all, `jobs` at a time, in order of completion: (outcome, whether it was graded now)."""
    names = names_of(sources, out)
    waiting, tried = list(sources), dict.fromkeys(sources, 0)
    while waiting:
        done: set[str] = set()
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(jobs, context, end_with_parent) as pool:
            todo, futures = iter(waiting), {}
            try:
                while True:  # submits as many as run: one that waits in the pool's queue would run after Ctrl-C
                    for source in itertools.islice(todo, jobs - len(futures)):
                        futures[pool.submit(grade_one, source, names[source], str(out), shop)] = source
                    if not futures:
                        break
                    future = next(concurrent.futures.as_completed(futures))
                    outcome, new = _told(future, names[futures[future]], futures[future], out)
                    done.add(futures.pop(future))
                    yield outcome, new
            except BrokenProcessPool:  # a grading process was killed; submissions in progress are retried one at a time
                jobs = 1
        waiting = [source for source in waiting if source not in done]
        if waiting and jobs == 1:
            first = waiting[0]
            tried[first] += 1
            if tried[first] > 2:
                waiting.remove(first)
                killed = "the process that grades it was killed three times"
                yield _written(out / names[first], Outcome(names[first], shown(first), problem=killed)), True


def _told(future: concurrent.futures.Future, name: str, source: str, out: Path) -> tuple[Outcome, bool]:
    """What grade_one returned, or the outcome that says which error it raised."""
    try:
        data, new = future.result()
        return Outcome.from_json(data), new
    except BrokenProcessPool:
        raise
    except Exception as error:
        if _is_full(error):
            raise
        problem = f"{FAILED}: {type(error).__name__}: {safe(error_words(error))}"
        return _written(out / name, Outcome(name, shown(source), problem=problem)), True


def grade_on_slurm(
    sources: Sequence[str], out: Path, shop: Workshop, jobs: int, cluster: str = "slurm", **parameters
) -> Iterator[tuple[Outcome, bool]]:
    """Like grade_all, through submitit: a job array, `jobs` at a time.

    Args:
        cluster: "slurm"; "local" runs the jobs on this machine.
        parameters: parameters of submitit's executor, such as slurm_partition.

    Raises:
        ValueError: submitit or Slurm is not installed.
    """
    try:
        import submitit
    except ImportError:
        raise ValueError("--slurm needs submitit: pip install -e '.[grade]' -c constraints.txt") from None
    if cluster == "slurm" and not shutil.which("srun"):
        raise ValueError("--slurm needs Slurm's srun and sbatch on this machine: run it where jobs are submitted")
    executor = submitit.AutoExecutor(folder=out / "slurm", cluster=cluster)
    shared = {"timeout_min": 120, "cpus_per_task": 1, "mem_gb": 8, "name": "grading", **parameters}
    if cluster == "slurm":
        shared["slurm_array_parallelism"] = jobs
    executor.update_parameters(**shared)
    names = names_of(sources, out)
    with executor.batch():
        submitted = {source: executor.submit(grade_one, source, names[source], str(out), shop) for source in sources}
    by_job = {job: source for source, job in submitted.items()}
    for job in submitit.helpers.as_completed(list(by_job)):
        error = job.exception()
        if error is None:
            data, new = job.result()
            yield Outcome.from_json(data), new
        else:
            source = by_job[job]
            words = str(error).strip().splitlines()
            problem = safe(f"its job failed: {words[-1] if words else error}")
            yield _written(out / names[source], Outcome(names[source], shown(source), problem=problem)), True
