"""What is printed while something works, and how wide.

wide(console)             room for tables where the output is no terminal
working(console, "...")   a spinner on a terminal, one line elsewhere
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console


def wide(console: Console) -> Console:
    """The same console; where it is no terminal, with room for tables."""
    return console if console.is_terminal else Console(file=console.file, width=max(console.width, 120))


@contextlib.contextmanager
def working(console: Console, what: str) -> Iterator[None]:
    """A spinner on a terminal, one line elsewhere."""
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        console.print(what)
        yield
