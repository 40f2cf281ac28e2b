"""What Linux says of a process: stat_of(process)."""

from __future__ import annotations

from pathlib import Path


def stat_of(process: int) -> list[str]:
    """The fields of /proc/N/stat after the name, which may hold blanks: [0] its state, [3] its session, see proc(5).

    Raises:
        OSError: there is no such process, or no /proc.
    """
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
