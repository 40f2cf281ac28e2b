"""What the commands of a student's day have in common on their command lines."""

from __future__ import annotations

import argparse

from rich.console import Console

from common.compiling.manifest import tasks
from common.compiling.skeletons import SkeletonError
from common.console.terminal import say

BAD_INPUT = 2  # exit status
EXPECTED = (SkeletonError, ValueError, OSError)  # what the student's files may cause


def add_task(parser: argparse.ArgumentParser) -> None:
    """The task, as the first argument."""
    parser.add_argument("task", choices=tasks(), metavar="taskN", help=f"one of {', '.join(tasks())}")


def refused(error: Exception) -> int:
    """Says what was wrong with what was asked for; the exit status."""
    say(Console(), error, "red")
    return BAD_INPUT
