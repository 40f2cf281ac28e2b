"""Tests a task: starts `python -m taskN.test`, and the rest of the command line is for that.

course test 2
course test 2 --softmax
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from common.course.arguments import add_task_and_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task and the test's flags."""
    add_task_and_flags(parser)


def run(options: argparse.Namespace) -> NoReturn:
    """The test takes over this process."""
    start(options.task, options.flags)


def start(task: str, flags: Sequence[str]) -> NoReturn:
    """Replaces this process by the task's test."""
    os.execv(sys.executable, [sys.executable, "-m", f"{task}.test", *flags])
