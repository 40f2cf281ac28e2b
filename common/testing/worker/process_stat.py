"""Reads Linux's status of a process: stat_of(process)."""

from __future__ import annotations

from pathlib import Path


def stat_of(process: int) -> list[str]:
    """The fields of /proc/N/stat after the name (which may contain blanks): [0] state, [3] session, see proc(5).

    Raises:
        OSError: there is no such process, or no /proc.
    """
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
