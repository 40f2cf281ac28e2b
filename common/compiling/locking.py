"""A lock that allows one build at a time in a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from common.compiling.ending import ends_with_us


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Creates the folder and holds its lock, which the operating system releases when the process ends.

    Processes started meanwhile are killed with this one, see ends_with_us.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"), ends_with_us():
        # torch's own lock file outlives a killed build and would block forever. No other process is building here.
        (folder / "lock").unlink(missing_ok=True)
        yield
