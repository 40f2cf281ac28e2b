"""The source files that a page shows, and places in them by number.

sources = Sources()
sources.number(place)       -> the number that stands for it in the page's data; -1 for none
sources.data()              -> {"files": [...], "places": [...]}
"""

from __future__ import annotations

from pathlib import Path

from common.console.paths import shown_path
from common.inspect.source_lines import Place, text_of


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
        """The files, {"name", "lines"}, and the places: {"file", "function", "lines"}, the outermost call first."""
        files = [{"name": shown_path(Path(file)), "lines": text_of(file).splitlines()} for file in self._files]
        places = [
            {
                "file": self._files[place.file],
                "function": place.function,
                "lines": [one.line for one in (*reversed(place.callers), place)],
            }
            for place in self._places
        ]
        return {"files": files, "places": places}
