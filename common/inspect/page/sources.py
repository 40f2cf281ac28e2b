"""The source files that a page shows, and places in them by number.

sources = Sources()
sources.number(place)       -> the number that stands for it in the page's data; -1 for none
sources.data()              -> {"files": [...], "places": [...]}
"""

from __future__ import annotations

from pathlib import Path

from pygments.lexers import CudaLexer  # rich brings Pygments along
from pygments.token import Comment, Keyword, Name, Number, String

from common.console.paths import shown_path
from common.inspect.source_lines import Place, text_of

# The number of each is the data's; assets/source.js gives it a color. The first that holds a token counts.
KINDS = (Comment.Preproc, Comment, Keyword, Name.Builtin, Name.Function, String, Number)


class Sources:
    """Collects places; each of them, and each of their files, stands in the data once."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._places: dict[Place, int] = {}

    def number(self, place: Place | None) -> int:
        """Its number."""
        if place is None:
            return -1
        for one in (place, *place.callers):
            self._files.setdefault(one.file, len(self._files))
        return self._places.setdefault(place, len(self._places))

    def data(self) -> dict[str, list]:
        """The files, {"name", "lines", "kinds"}; the places, {"file", "function", "lines"}, outermost call first."""
        files = [
            {"name": shown_path(Path(file)), "lines": text_of(file).splitlines(), "kinds": kinds_of(text_of(file))}
            for file in self._files
        ]
        places = [
            {
                "file": self._files[place.file],
                "function": place.function,
                "lines": [one.line for one in (*reversed(place.callers), place)],
            }
            for place in self._places
        ]
        return {"files": files, "places": places}


def kinds_of(text: str) -> list[list[int]]:
    """Of each line its words, as [kind, length, kind, length, ...]; kind 0 is none of KINDS."""
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
