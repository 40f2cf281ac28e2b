"""Builds and tests a task on every save, and shows only the first failed case. Ctrl-C ends it.

course watch 2
course watch 2 --softmax      the rest of the command line goes to `python -m task2.test`
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.rule import Rule

from common.compiling.manifest import read_manifest
from common.console.paths import ROOT
from common.console.terminal import say
from common.course.arguments import BAD_INPUT
from common.course.arguments import add_task_and_flags as add_arguments
from common.testing.kept import digests

__all__ = ["add_arguments", "run"]

CALM_MS = 200  # debounce: an editor may write a file in several steps
LOOK_MS = 500  # a save while a test runs raises no event; the next poll notices it
INTERRUPTED = 130  # exit status


def run(options: argparse.Namespace) -> int:
    """Runs until interrupted and returns the exit status of the last test."""
    console = Console()
    try:
        from watchfiles import watch
    except ImportError:
        say(console, "watch needs the package watchfiles: pip install -e . -c constraints.txt", "red")
        return BAD_INPUT
    manifest = read_manifest(options.task)
    files = [manifest.folder / name for name in manifest.files]
    wakes = watch(
        manifest.folder,
        watch_filter=lambda _, path: Path(path) in files,
        debounce=CALM_MS,
        rust_timeout=LOOK_MS,
        yield_on_timeout=True,
        raise_interrupt=False,
        recursive=False,
    )
    try:
        return follow(
            console, options.task, wakes, partial(digests, files), partial(one_test, options.task, options.flags)
        )
    except KeyboardInterrupt:  # while a test ran
        return INTERRUPTED


def follow(
    console: Console,
    task: str,
    wakes: Iterable[object],
    state: Callable[[], Mapping[str, str]],
    test: Callable[[], int],
) -> int:
    """Tests now and whenever the files differ from those last tested, including saves made while a test ran.

    Args:
        console: where to print.
        task: "task2".
        wakes: an iterator; each step is a time to check the files.
        state: name -> digest of each file.
        test: runs the test and returns its exit status.

    Returns:
        The exit status of the last test.
    """
    tested = state()
    _begin(console, f"{task}: tested as it is; save one of its files to test again, Ctrl-C quits")
    status = test()
    for _ in wakes:
        now = state()
        if changed := [name for name in now if now[name] != tested.get(name)]:
            _begin(console, f"{datetime.now():%H:%M:%S}  {', '.join(changed)} saved")
            tested, status = now, test()
    return status


def one_test(task: str, flags: Sequence[str] = ()) -> int:
    """Runs `python -m taskN.test --first` in a new process, so that modules load afresh; returns its exit status.

    The process is forked from one that has imported torch and the test's modules but none of the task's.
    """
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["common.cli.test"])
    process = forks.Process(target=_test, args=(task, flags))
    process.start()
    process.join()
    return process.exitcode


def _test(task: str, flags: Sequence[str]) -> None:
    os.chdir(ROOT)
    sys.argv = [f"{task}.test", "--first", *flags]
    runpy.run_module(f"{task}.test", run_name="__main__")


def _begin(console: Console, title: str) -> None:
    if console.is_terminal:
        console.clear()
    console.print(Rule(title, align="left", style="dim"))
