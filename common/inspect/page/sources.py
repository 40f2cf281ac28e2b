"""The source files that a page shows, and numbered places in them.

sources = Sources()
sources.number(place)       -> its number in the page's data; -1 for None
sources.data()              -> {"files": [...], "places": [...]}
"""

from __future__ import annotations

from pathlib import Path

from pygments.lexers import CudaLexer  # Pygments is a dependency of rich
from pygments.token import Comment, Keyword, Name, Number, String

from common.console.paths import shown_path
from common.inspect.source_lines import Place, text_of

# The data refers to a kind by number; assets/source.js maps it to a color. The first match counts.
KINDS = (Comment.Preproc, Comment, Keyword, Name.Builtin, Name.Function, String, Number)


class Sources:
    """Collects places; each place and each file is stored once."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._places: dict[Place, int] = {}

    def number(self, place: Place | None) -> int:
        """The number of a place."""
        if place is None:
            return -1
        for one in (place, *place.callers):
            self._files.setdefault(one.file, len(self._files))
        return self._places.setdefault(place, len(self._places))

    def data(self) -> dict[str, list]:
        """The files, {"name", "lines", "kinds"}; the places, {"file", "lines"}, outermost call first."""
        files = [
            {"name": shown_path(Path(file)), "lines": text_of(file).splitlines(), "kinds": kinds_of(text_of(file))}
            for file in self._files
        ]
        places = [
            {
                "file": self._files[place.file],
                "lines": [one.line for one in (*reversed(place.callers), place)],
            }
            for place in self._places
        ]
        return {"files": files, "places": places}


def kinds_of(text: str) -> list[list[int]]:
    """The tokens of each line as [kind, length, kind, length, ...]; kind 0 is none of KINDS."""
    lines: list[list[int]] = [[]]
    for token, words in CudaLexer(stripnl=False, ensurenl=False).get_tokens(text):
        kind = next((number for number, one in enumerate(KINDS, 1) if token in one), 0)
        for place, piece in enumerate(words.split("\n")):
            if place:
                lines.append([])
            if piece and lines[-1] and lines[-1][-2] == kind:
                lines[-1][-1] += len(piece)
            elif piece:
                lines[-1] += [kind, len(piece)]
    return lines
