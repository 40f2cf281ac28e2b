"""Small words that many messages need."""

from __future__ import annotations

from pathlib import Path

from common.console.paths import shown_path


def counted(number: int, what: str) -> str:
    """ "1 case", "12 cases"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def error_words(error: BaseException) -> str:
    """What an error says; of one of the operating system "task3/x.cu: Permission denied", without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    files = [shown_path(Path(name)) for name in (error.filename, error.filename2) if isinstance(name, str) and name]
    return ": ".join([" -> ".join(files), error.strerror] if files else [error.strerror])


def first_line(error: BaseException) -> str:
    """Of what it says; its type if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
