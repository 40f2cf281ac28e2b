"""Grade a made-up class, hostile submissions included, and check that none is lost and nothing is left behind.

DIR is a new folder: the class is written to DIR/submissions, and the output of `grade` to DIR/grades. Half of the
honest submissions are correct; the others are correct variants, unfinished, or contain the mistakes that the project's
own tests plant. Only task 3 is graded, the task that the hostile submissions target.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from rich.console import Console

from common.console.terminal import say
from common.console.words import counted
from common.course import grade
from common.course.grading.attacking import TASK
from common.course.grading.made_up import FULL, HOSTILE, MadeUp, made_up
from common.course.grading.results import FAILED, read_outcome
from common.course.grading.sandbox import KINDS, memory_below

FINE, FOUND, NOTHING = 0, 1, 2  # exit statuses
LOOK_EVERY = 0.25  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    add = parser.add_argument
    add("folder", metavar="DIR", type=Path, help="a new folder")
    add("--submissions", type=int, default=100, metavar="N", help="how many (default 100)")
    add("--hostile", type=int, default=30, metavar="N", help="how many of them are hostile (default 30)")
    add("--jobs", type=int, default=2, metavar="N", help="how many at a time (default 2)")
    add("--sandbox", choices=KINDS[:2], help="require this kind of sandbox")


def run(options: argparse.Namespace) -> int:
    """0: no submission was lost or harmed, and nothing was left behind. 1: otherwise. 2: nothing ran."""
    console, folder = Console(), options.folder.resolve()
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty; a rehearsal goes into a new folder")
        every = made_up(options.submissions, options.hostile)
    except (ValueError, OSError) as error:
        say(console, error, "red")
        return NOTHING
    sources = {}
    for one in every:
        place = folder / "submissions" / one.name
        sources[one.name] = one.write(place) or place
    temporary, memory, begun = Temporary(), PeakMemory(), time.monotonic()
    parser = argparse.ArgumentParser()
    grade.add_arguments(parser)
    out = folder / "grades"
    more = ["--task", TASK, "--jobs", str(options.jobs)] + (["--sandbox", options.sandbox] if options.sandbox else [])
    with temporary, memory:
        status = grade.run(parser.parse_args([*map(str, sources.values()), "--out", str(out), *more]))
    if not (out / "grades.csv").is_file():  # nothing could be graded, or it was interrupted
        return NOTHING if status == grade.NOTHING else FOUND
    seconds = time.monotonic() - begun
    wrong = [*lost(every, {name: str(path) for name, path in sources.items()}, out), *temporary.left]
    kinds = Counter(one.kind for one in every)
    say(console, f"\n{counted(len(every), 'submission')}: " + ", ".join(f"{n} {kind}" for kind, n in kinds.items()))
    say(
        console,
        f"{seconds / 60:.1f} min with --jobs {options.jobs}; all processes together took at most "
        f"{memory.bytes / 2**20:,.0f} MiB of memory of their own",
    )
    for words in wrong:
        say(console, words, "red")
    if not wrong:
        say(console, "none is lost, none that is right lost a point, and no process, file or mount is left behind")
    return FOUND if wrong else FINE


def lost(every: list[MadeUp], sources: dict[str, str], out: Path) -> list[str]:
    """Submissions that are missing or not graded as expected: a sentence each."""
    with (out / "grades.csv").open(newline="") as opened:
        rows = {row["source"]: row for row in csv.DictReader(opened)}
    wrong = []
    for one in every:
        row = rows.get(sources[one.name])
        if row is None:
            wrong.append(f"{one.name} has no row in grades.csv")
            continue
        folder = out / row["submission"]
        outcome = read_outcome(folder)
        if outcome is None or not all((folder / name).is_file() for name in ("report.html", "results.json")):
            wrong.append(f"{one.name} has no result")
        elif one.kind != HOSTILE and outcome.problem:
            wrong.append(f"{one.name} was not graded: {outcome.problem}")
        elif one.kind in FULL and outcome.earned < outcome.possible:
            wrong.append(f"{one.name} is right and earned {outcome.earned:g} of {outcome.possible:g}")
        elif FAILED in outcome.problem or outcome.left_behind:
            wrong.append(f"{one.name}: {outcome.problem or 'processes are left'}")
    return wrong


class Temporary:
    """Redirects temporary files to a separate folder and reports files and mounts left behind."""

    def __enter__(self) -> Temporary:
        self.left: list[str] = []
        self._mounts = _mounts()
        self._before = os.environ.get("TMPDIR"), tempfile.tempdir
        self._folder = Path(tempfile.mkdtemp(prefix="rehearsal-"))
        self._folder.chmod(0o711)  # other users run in it but need not list it
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._folder)
        return self

    def __exit__(self, *_) -> None:
        variable, tempfile.tempdir = self._before
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable
        found = {"files": sorted(os.listdir(self._folder)), "mounts": sorted(_mounts() - self._mounts)}
        self.left = [f"temporary {what} are left: {', '.join(names[:5])}" for what, names in found.items() if names]
        shutil.rmtree(self._folder, ignore_errors=True)


def _mounts() -> set[str]:
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


class PeakMemory:
    """Peak memory of this process and all its descendants together, sampled several times a second."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            self.bytes = max(self.bytes, memory_below(os.getpid()))
