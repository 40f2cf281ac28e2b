"""Grade submissions: each runs in a sandbox, on secret inputs and hidden cases; points are decided outside it.

A submission is a folder, a zip, a tar or a git repository. Only the files named by the tasks are read. When you run
it again, after a deadline or an interruption, it grades only what changed: the salt in DIR stays the same.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from common.compiling.manifest import tasks
from common.console.paths import ROOT
from common.console.terminal import say
from common.console.words import error_words
from common.course.grading.gathered import print_class
from common.course.grading.gradebook import read_adjustments, read_roster, read_settings, write_class
from common.course.grading.outcome import Outcome
from common.course.grading.running import grade_all, grade_on_slurm, workshop
from common.course.grading.salt import salt_in
from common.course.grading.sandbox import (
    KINDS,
    Limits,
    NoSandbox,
    choose_kind,
    closed_to_others,
    why_no_bubblewrap,
    why_readable,
)
from common.course.grading.submissions import is_address

FINE, PROBLEMS, NOTHING = 0, 1, 2  # exit statuses
WARNING = {
    "user": "the submissions run as another user; the network is not shut off: {why}",
    "trusted": "NO SANDBOX. The submissions' code runs with your own rights: it can read and change all that you can, "
    "these results and the salt included. {why}",
}
READABLE = (
    "Other users can read {root}, so the submissions can, its solutions and hidden cases included: "
    "`chmod -R go-rwx {root}`"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    add = parser.add_argument
    add(
        "submissions",
        nargs="+",
        metavar="SUBMISSION",
        help="folder, .zip, .tar(.gz), .bundle or address of a repository",
    )
    add("--out", required=True, metavar="DIR", type=Path, help="where the results go, and the secret salt")
    add("--task", action="append", dest="tasks", choices=tasks(), help="only this task; can be repeated")
    add("--jobs", type=int, default=1, metavar="N", help="how many at a time (default 1)")
    add("--slurm", action="store_true", help="run as a job array, through submitit")
    add("--slurm-partition", metavar="NAME", help="with --slurm: the partition")
    add("--sandbox", choices=KINDS, help="require this kind (default: the strongest that works)")
    add("--speed", action="store_true", help="also measure the speed points: needs a GPU, one submission at a time")
    add("--trusted", action="store_true", help="if no sandbox is available, grade without one")
    add("--likeness", action="store_true", help="compare the submissions with each other, using copydetect")


def run(options: argparse.Namespace) -> int:
    """0: all graded. 1: some could not be graded. 2: none graded."""
    console = Console()
    if options.jobs < 1:
        say(console, f"--jobs is {options.jobs}; it must be at least 1", "red")
        return NOTHING
    if options.speed and (options.jobs > 1 or options.slurm):
        say(console, "--speed times one submission at a time: leave --jobs and --slurm out", "red")
        return NOTHING
    if options.speed and (why := _why_no_gpu()):
        say(console, f"--speed needs a GPU: {why}", "red")
        return NOTHING
    names = tuple(options.tasks or tasks())
    try:
        if missing := [task for task in names if not (ROOT / task / "cases" / "hidden.py").is_file()]:
            raise ValueError(f"{missing[0]}/cases/hidden.py is missing: the student edition cannot grade")
        kind = choose_kind(options.trusted, options.sandbox)
        if kind in WARNING:
            why = why_no_bubblewrap() or f"--sandbox {kind} was requested"
            say(console, WARNING[kind].format(why=why), "bold red" if kind == "trusted" else "yellow")
        if kind == "user" and not closed_to_others(ROOT):
            say(console, READABLE.format(root=ROOT), "bold red")
        readable = [why for folder in (ROOT, options.out) if (why := why_readable(folder))]
        if kind == "bubblewrap" and readable:
            raise ValueError(readable[0])
        if missing := [one for one in options.submissions if not (is_address(one) or os.path.lexists(one))]:
            raise ValueError(f"{missing[0]}: no such file or folder")
        options.out.mkdir(parents=True, exist_ok=True)
        os.chmod(options.out, 0o700)
        with FileLock(options.out / ".lock", timeout=0):
            read_settings(options.out)
            read_adjustments(options.out)
            read_roster(options.out)
            return _graded(console, options, names, kind, salt_in(options.out))
    except Timeout:
        say(console, f"{options.out}: another grader is using this folder; start this one when that is done", "red")
    except (NoSandbox, ValueError) as error:
        say(console, error, "red")
    except OSError as error:
        say(console, f"{error_words(error)}. What has been graded is kept; run the same command to continue", "red")
    return NOTHING


def _graded(console: Console, options: argparse.Namespace, names: tuple[str, ...], kind: str, salt: bytes) -> int:
    sources = list(dict.fromkeys(options.submissions))
    parent = options.out if options.slurm else None
    try:
        with workshop(kind, salt, names, Limits(), parent, options.speed) as shop:
            if options.slurm:
                partition = {"slurm_partition": options.slurm_partition} if options.slurm_partition else {}
                running = grade_on_slurm(sources, options.out, shop, options.jobs, **partition)
            else:
                running = grade_all(sources, options.out, shop, options.jobs)
            outcomes = _with_bar(console, running, len(sources))
    except KeyboardInterrupt:
        say(console, "\ninterrupted; what has been graded is kept; run the same command to continue", "yellow")
        return PROBLEMS
    print_class(console, outcomes, names)
    for words in write_class(options.out, names):
        say(console, words, "yellow")
    if options.likeness:
        from common.course.grading.likeness import compare

        compare(console, options.out, [one.name for one in outcomes])
    say(
        console,
        f"\n{options.out}/grades.csv, and {options.out}/NAME/ with report.html, feedback.html, results.json, build.log",
    )
    return PROBLEMS if any(one.problem for one in outcomes) else FINE


def _why_no_gpu() -> str:
    """Why nothing can be timed on this machine; "" if it can."""
    import torch

    from common.compiling.toolchain import choose_backend

    if not torch.cuda.is_available():
        return "torch sees none"
    return "" if choose_backend("auto").name == "cuda" else "nvcc is missing: python -m common.doctor says more"


def _with_bar(console: Console, running, total: int) -> list[Outcome]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    outcomes: list[Outcome] = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("grading", total=total)
        for outcome, new in running:
            outcomes.append(outcome)
            progress.update(bar, description=outcome.name[:30])
            progress.advance(bar)
            if not console.is_terminal:
                words = f"{outcome.earned:g} of {outcome.possible:g}"
                if outcome.problem:
                    words = outcome.problem.splitlines()[-1]
                say(console, f"[{len(outcomes)}/{total}] {outcome.name}: {words}" + ("" if new else " (graded before)"))
    return outcomes
