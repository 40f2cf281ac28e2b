"""Tests a task: starts `python -m taskN.test` with the rest of the command line.

course test 2
course test 2 --softmax
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from common.course.arguments import add_task_and_flags as add_arguments

__all__ = ["add_arguments", "run"]


def run(options: argparse.Namespace, *more: str) -> NoReturn:
    """Replaces this process with the test; `more` are additional flags."""
    os.execv(sys.executable, [sys.executable, "-m", f"{options.task}.test", *more, *options.flags])
