"""Rewrite a class's files after manual changes, without grading: grades.csv, gradebook.csv, feedback pages.

DIR is where `grade` put the results. In it, adjustments.csv holds late days, points and comments; class.json holds the
late penalty and the assignment's name in Canvas; roster.csv is Canvas's gradebook export.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from common.console.terminal import say
from common.console.words import error_words
from common.course.grading.gradebook import write_class


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("out", metavar="DIR", type=Path, help="the folder that grade --out wrote")


def run(options: argparse.Namespace) -> int:
    """0: written. 1: written, with warnings. 2: not written."""
    console = Console()
    try:
        if not (options.out / "salt").is_file():
            raise ValueError(f"{options.out} holds no results of grade")
        with FileLock(options.out / ".lock", timeout=0):
            said = write_class(options.out)
    except Timeout:
        say(console, f"{options.out}: grade is running there and writes these files itself", "red")
        return 2
    except (ValueError, OSError) as error:
        say(console, error_words(error), "red")
        return 2
    for words in said:
        say(console, words, "yellow")
    files = [name for name in ("grades.csv", "gradebook.csv") if (options.out / name).is_file()]
    say(console, f"{options.out}: {', '.join(files)}, and NAME/feedback.html for each student")
    return 1 if said else 0
