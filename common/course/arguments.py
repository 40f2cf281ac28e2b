"""Command-line arguments shared by the students' commands."""

from __future__ import annotations

import argparse

from rich.console import Console

from common.compiling.manifest import tasks
from common.compiling.skeletons import SkeletonError
from common.console.terminal import say

BAD_INPUT = 2  # exit status
EXPECTED = (SkeletonError, ValueError, OSError)  # errors that a student's files can cause


def task_name(said: str) -> str:
    """Converts "2" or "task2" to "task2"."""
    return f"task{said}" if said.isdigit() else said


def add_task(parser: argparse.ArgumentParser, **more: str) -> None:
    """Adds the task argument: a number or a name."""
    more.setdefault("help", f"one of {', '.join(tasks())}, or its number")
    parser.add_argument("task", type=task_name, choices=tasks(), metavar="taskN", **more)


def add_task_and_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the task argument; everything after it is passed to the task's test."""
    add_task(parser)
    parser.add_argument("flags", nargs=argparse.REMAINDER, metavar="...", help="flags of python -m taskN.test")


def refused(error: Exception) -> int:
    """Prints the error and returns the exit status."""
    say(Console(), error, "red")
    return BAD_INPUT
