"""Tests a task in a build that watches every memory access: starts `python -m taskN.test --check`.

course check 2
course check 2 --softmax
"""

from __future__ import annotations

import argparse
from typing import NoReturn

from common.course.arguments import add_task_and_flags
from common.course.test import start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task and the test's flags."""
    add_task_and_flags(parser)


def run(options: argparse.Namespace) -> NoReturn:
    """The test takes over this process."""
    start(options.task, ["--check", *options.flags])
