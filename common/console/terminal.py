"""What is printed while something works, and how wide.

say(console, text)        prints text as it is
wide(console)             room for tables where the output is no terminal
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
    """The same console; where it is no terminal, with room for tables."""
    return console if console.is_terminal else Console(file=console.file, width=max(console.width, 120))


def say(console: Console, text: object, style: str = "", indent: int | None = None) -> None:
    """Prints text as it is: brackets are no markup, and numbers get no colors.

    On a terminal a sentence breaks between words, so that paths stay whole; what has lines of its own, such as a
    compiler's output, keeps them. Elsewhere nothing is broken: a file can be searched.

    Args:
        console: where to.
        text: what; an error's words.
        style: of rich.
        indent: for a paragraph of a report: blanks before each of its lines; it breaks at the width anywhere.
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
