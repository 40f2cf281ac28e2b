"""Writes the students' files from the solutions: every gap becomes a TODO that reports itself as not implemented.

    python -m common.skeleton          write every student file that differs
    python -m common.skeleton task2    one task only (a student who wants to start over)
    python -m common.skeleton --compare  compare, write nothing, exit 1 if any differs

A file that would be overwritten is kept next to it as <name>.bak (.bak2, .bak3, ...).
common/compiling/skeletons.py says what a gap looks like. Standard library only.
"""

from __future__ import annotations

import argparse
import sys

from common.compiling.manifest import tasks
from common.compiling.skeletons import SkeletonError, skeleton_of, solution_files, student_file
from common.console.files import keep_old, read_source, write_whole
from common.console.paths import ROOT


def main(argv: list[str] | None = None) -> int:
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m common.skeleton", description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", choices=tasks(), help="default: all", metavar="taskN")
    parser.add_argument("--compare", action="store_true", help="compare only; exit 1 if a student file differs")
    options = parser.parse_args(argv)
    differing = 0
    for solution in solution_files(options.task):
        target = student_file(solution)
        name = target.relative_to(ROOT)
        try:
            text = skeleton_of(read_source(solution), str(solution.relative_to(ROOT)))
        except SkeletonError as error:
            print(error, file=sys.stderr)
            return 2
        if target.exists() and target.read_bytes() == text.encode():
            print(f"{name}: up to date")
            continue
        differing += 1
        if options.compare:
            print(f"{name}: differs from the skeleton of {solution.relative_to(ROOT)}")
            continue
        kept = f" (the old one is {keep_old(target).name})" if target.exists() else ""
        write_whole(target, text)
        print(f"{name}: written{kept}")
    return 1 if options.compare and differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
