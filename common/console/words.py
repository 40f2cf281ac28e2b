"""Helpers for messages, and the sentences of a module (words.json)."""

from __future__ import annotations

import json
from pathlib import Path

from common.console.paths import shown_path


class Sentences:
    """The sentences of a module, from words.json next to it, under its name: {"key": "sentence with {values}"}."""

    def __init__(self, module: str) -> None:
        file = Path(module)
        self._says: dict[str, str] = json.loads(file.with_name("words.json").read_text("utf-8"))[file.stem]

    def __call__(self, key: str, default: str | None = None, **values: object) -> str:
        """The sentence with this key, filled with the values; KeyError if there is neither a sentence nor a default."""
        return self._says[key].format(**values) if default is None or key in self._says else default


def counted(number: int, what: str) -> str:
    """ "1 case", "12 cases"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def error_words(error: BaseException) -> str:
    """An error's message; for an OSError "task3/x.cu: Permission denied", without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    files = [shown_path(Path(name)) for name in (error.filename, error.filename2) if isinstance(name, str) and name]
    return ": ".join([" -> ".join(files), error.strerror] if files else [error.strerror])


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type's name if it is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
