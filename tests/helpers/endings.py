"""Whether processes end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], otherwise: str, seconds: float = 60) -> None:
    """Raises AssertionError if the condition doesn't become true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def has_ended(process: int, states: str = "") -> bool:
    """Whether the process is gone, or in one of these states: "Z" is a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in [*states]
    except (FileNotFoundError, ProcessLookupError):
        return True


def assert_ends_with(script: str, by: int, root: Path, *arguments: object, states: str = "") -> None:
    """Runs a Python script that starts a process and prints its ID, and sends the script a signal: both end.

    `states`: see has_ended. A process that nobody waits for remains a zombie in some containers.
    """
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ours = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    child = int(ours.stdout.readline())
    assert not has_ended(child, "ZX")
    ours.send_signal(by)
    ours.wait(60)
    wait_until(lambda: has_ended(child, states), "it goes on", 20)
