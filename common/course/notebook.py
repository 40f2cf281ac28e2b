"""Notebook magics: `%load_ext common.course.notebook`.

A cell that begins with `%%gap task1 scores_kernel 1` writes the rest of the cell into that gap of the student's file.
`%page FILE` shows a page from --replay, --profile or --check below the cell. docs/colab.py generates the notebooks.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from common.compiling.student_gaps import chosen_gap, filled_with, gaps_of
from common.console.files import write_whole
from common.console.paths import shown_path
from common.console.words import error_words
from common.course.arguments import EXPECTED

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def put(task: str, name: str, code: str) -> str:
    """Writes code into a gap of the student's file and returns a sentence saying where it is now.

    Raises:
        ValueError: no such task or gap, or the gap cannot be found.
        OSError: the file cannot be written.
    """
    gap = chosen_gap(gaps_of(task), name)
    write_whole(gap.file, filled_with(gap, code))
    gap = chosen_gap(gaps_of(task), name)
    return f"{shown_path(gap.file)}:{gap.first}: {gap.name} is {'filled' if gap.filled else 'still open'}"


PAGE_HEIGHT = 900  # pixels


def framed(file: Path) -> str:
    """The page as self-contained HTML: a notebook on another machine cannot reach the file.

    Raises:
        OSError: it cannot be read.
    """
    inside = html.escape(file.read_text(encoding="utf-8"), quote=True)
    return f'<iframe title="{html.escape(file.name)}" srcdoc="{inside}" width="100%" height="{PAGE_HEIGHT}"></iframe>'


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Called by %load_ext."""

    def gap(line: str, cell: str) -> None:
        task, _, name = line.strip().partition(" ")
        try:
            print(put(task, name, cell))
        except EXPECTED as error:
            print(f"nothing was written: {error_words(error)}")

    def page(line: str):
        from IPython.display import HTML

        try:
            return HTML(framed(Path(line.strip())))
        except OSError as error:
            print(f"no page to show: {error_words(error)}")

    shell.register_magic_function(gap, "cell", "gap")
    shell.register_magic_function(page, "line", "page")
