"""Restores a task's files, one file, or one gap to the released version; keeps yours next to it as .bak.

python -m common.course reset task2                    every file of the task
python -m common.course reset task2 attention_kernel.cu
python -m common.course reset task2 softmax_kernel 2   one gap, by its function or its number
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from common.compiling.student_gaps import chosen_gap, files_with_gaps, gaps_of, given_out, reset
from common.console.files import keep_old, read_source, write_whole
from common.console.paths import shown_path
from common.console.terminal import say
from common.course.arguments import EXPECTED, add_task, refused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the task and the file or gap to restore."""
    add_task(parser)
    parser.add_argument("gap", nargs="*", metavar="GAP", help="one file, or one gap by its number or function")


def run(options: argparse.Namespace) -> int:
    """Restores what was requested and returns the exit status."""
    console, wanted = Console(), " ".join(options.gap)
    try:
        files = files_with_gaps(options.task)
        if wanted and wanted not in {file.name for file in files}:
            gap = chosen_gap(gaps_of(options.task), wanted)
            _put(console, gap.file, reset(gap), f"gap {gap.number}, {gap.name}, is a TODO again")
            return 0
        for file in files:
            if wanted in ("", file.name):
                _put(console, file, given_out(file), "is the original")
    except EXPECTED as error:
        return refused(error)
    return 0


def _put(console: Console, file: Path, text: str, what: str) -> None:
    if file.is_file() and read_source(file) == text:
        say(console, f"{shown_path(file)}: {what} already; nothing was written")
        return
    kept = f"; yours is {keep_old(file).name}" if file.exists() else ""
    write_whole(file, text)
    say(console, f"{shown_path(file)}: {what}{kept}")
