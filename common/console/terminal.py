"""Printing, width and progress.

say(console, text)        prints text verbatim
wide(console)             makes room for tables if the output is not a terminal
working(console, "...")   a spinner on a terminal, one line elsewhere
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from common.console.words import error_words


def wide(console: Console) -> Console:
    """The same console, with room for tables if it is not a terminal."""
    return console if console.is_terminal else Console(file=console.file, width=max(console.width, 120))


def say(console: Console, text: object, style: str = "", indent: int | None = None) -> None:
    """Prints text verbatim: no markup in brackets, no colored numbers.

    On a terminal, a sentence wraps between words, so that paths stay whole; multi-line text such as a compiler's output
    keeps its lines. Elsewhere nothing is wrapped, so that a file can be searched.

    Args:
        console: where to print.
        text: the text, or an error.
        style: a rich style.
        indent: for a paragraph of a report: indentation of each line; it wraps at the width on any output.
    """
    text, margin = error_words(text) if isinstance(text, BaseException) else str(text), " " * (indent or 0)
    if (console.is_terminal or indent is not None) and "\n" not in text.strip():
        margins = {"initial_indent": margin, "subsequent_indent": margin}
        before = "\n" * (len(text) - len(text.lstrip("\n")))
        text = before + textwrap.fill(
            text.lstrip("\n"), console.width, break_long_words=False, break_on_hyphens=False, **margins
        )
    console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def working(console: Console, what: str) -> Iterator[None]:
    """A spinner on a terminal, one line elsewhere."""
    if console.is_terminal:
        with console.status(escape(what)):
            yield
    else:
        console.print(what, markup=False)
        yield
