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


def wide(console: Console) -> Console:
    """The same console; where it is no terminal, with room for tables."""
    return console if console.is_terminal else Console(file=console.file, width=max(console.width, 120))


def say(console: Console, text: object, style: str = "") -> None:
    """Prints text as it is: brackets are no markup, and numbers get no colours.

    On a terminal a sentence breaks between words, so that paths stay whole; what has lines of its own, such as a
    compiler's output, keeps them. Elsewhere nothing is broken: a file can be searched.
    """
    text = str(text)
    if console.is_terminal and "\n" not in text.strip():
        text = textwrap.fill(text, console.width, break_long_words=False, break_on_hyphens=False)
    console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def working(console: Console, what: str) -> Iterator[None]:
    """A spinner on a terminal, one line elsewhere."""
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        console.print(what)
        yield
