"""course, or python -m common.course: commands for students who write kernels, and for instructors who run a class."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from common.console.terminal import say

HERE = Path(__file__).parent
OF_UNIX = ("resource", "fcntl", "termios")  # modules that Windows does not have
# Command name -> its line in the list of commands. The module is common.course.NAME.
FOR_STUDENTS: dict[str, str] = {
    "test": "test a task: every case, with points",
    "watch": "build and test on every save; shows the first wrong case",
    "check": "test a task in a build that watches every memory access",
    "hint": "the next hint for the first gap that is open or fails",
    "progress": "gaps filled, points, the next step",
    "reset": "restore a file or a gap; keeps a copy of yours",
    "report": "every test and benchmark so far on one page",
    "update": "install a newer release in this checkout; keeps your gaps",
}
FOR_INSTRUCTORS: dict[str, str] = {
    "grade": "grade submissions, each in a sandbox; a table, grades.csv, a page for each",
    "gradebook": "points, late days and comments by hand: grades.csv, Canvas's CSV, feedback pages",
    "rehearse": "grade a made-up class, including hostile submissions",
    "attack": "run every known attack on the grader",
    "release": "write the student edition to a folder",
    "autograder": "write the zip file for Gradescope",
}
# The student edition does not include the instructors' modules.
FOR_INSTRUCTORS = {name: words for name, words in FOR_INSTRUCTORS.items() if (HERE / f"{name}.py").is_file()}


def _listed(commands: dict[str, str]) -> list[str]:
    return [f"    {name:<12}{words}" for name, words in commands.items()]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    commands = [*FOR_STUDENTS, *FOR_INSTRUCTORS]
    lines = ["for students", *_listed(FOR_STUDENTS)]
    lines += ["", "for instructors", *_listed(FOR_INSTRUCTORS)] if FOR_INSTRUCTORS else []
    parser = argparse.ArgumentParser(
        prog="python -m common.course",
        description="\n".join([__doc__.split(": ", 1)[1].strip(), "", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=commands, metavar="NAME", help="NAME --help says more")
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = parser.parse_args(arguments[:1]).command
    if name is None:
        parser.print_help()
        return 0
    try:
        module = importlib.import_module(f"common.course.{name}")
    except ModuleNotFoundError as error:
        if error.name not in OF_UNIX:
            raise
        words = f"common.course {name} runs on Linux: this Python has no module {error.name}. On Windows, use WSL2."
        say(Console(), words, "red")
        return 2
    own = argparse.ArgumentParser(
        prog=f"python -m common.course {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(own)
    return module.run(own.parse_args(arguments[1:]))


if __name__ == "__main__":
    raise SystemExit(main())
