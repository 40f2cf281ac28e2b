"""Small words that many messages need."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """ "1 case", "12 cases"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
