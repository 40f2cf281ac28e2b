"""What the students' commands have in common on their command lines."""

from __future__ import annotations

import argparse

from rich.console import Console

from common.compiling.manifest import tasks
from common.compiling.skeletons import SkeletonError
from common.console.terminal import say

BAD_INPUT = 2  # exit status
EXPECTED = (SkeletonError, ValueError, OSError)  # what the student's files may cause


def task_name(said: str) -> str:
    """The task that "2" or "task2" names."""
    return f"task{said}" if said.isdigit() else said


def add_task(parser: argparse.ArgumentParser, **more: str) -> None:
    """The task, by its number or its name."""
    more.setdefault("help", f"one of {', '.join(tasks())}, or its number")
    parser.add_argument("task", type=task_name, choices=tasks(), metavar="taskN", **more)


def add_task_and_flags(parser: argparse.ArgumentParser) -> None:
    """The task; everything after it belongs to its test."""
    add_task(parser)
    parser.add_argument("flags", nargs=argparse.REMAINDER, metavar="...", help="flags of python -m taskN.test")


def refused(error: Exception) -> int:
    """Prints what was wrong with the request; the exit status."""
    say(Console(), error, "red")
    return BAD_INPUT
