"""For notebooks: `%load_ext common.course.notebook`.

A cell that begins with `%%gap task1 scores_kernel 1` puts what is below that line into the gap of the student's
file. `%page FILE` shows a page of --replay, --profile or --check below the cell. docs/colab.py makes the notebooks.
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
    """Puts code into a gap of the student's file, and says where it is now.

    Raises:
        ValueError: no such task or gap, or the gap can no longer be found.
        OSError: the file cannot be written.
    """
    gap = chosen_gap(gaps_of(task), name)
    write_whole(gap.file, filled_with(gap, code))
    gap = chosen_gap(gaps_of(task), name)
    return f"{shown_path(gap.file)}:{gap.first}: {gap.name} is {'filled' if gap.filled else 'still open'}"


PAGE_HEIGHT = 900  # pixels


def framed(file: Path) -> str:
    """A page as HTML that holds all of it, since a notebook elsewhere cannot reach the file.

    Raises:
        OSError: it cannot be read.
    """
    inside = html.escape(file.read_text(encoding="utf-8"), quote=True)
    return f'<iframe title="{html.escape(file.name)}" srcdoc="{inside}" width="100%" height="{PAGE_HEIGHT}"></iframe>'


def load_ipython_extension(shell: InteractiveShell) -> None:
    """What %load_ext calls."""

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
