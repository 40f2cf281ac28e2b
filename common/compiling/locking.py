"""One build at a time in a folder, whose compilers are killed when the process that started them ends, in whatever way.

    with locked(folder):
        ... ninja, whose compilers run in process groups of their own ...

A killed process cannot clean up, and ninja would keep running. So a watcher process waits on a pipe that closes when
this process ends, and then kills all processes with a marker in their environment. Linux only; elsewhere a no-op.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

MARK = "ATTENTION_BUILD_MARK"
_watched: set[int] = set()  # this process's id while it is watched
_WATCHER = """
import os, sys, time
if not sys.stdin.buffer.read(1):  # closed without a word: whoever held the other end was killed, or interrupted
    mark = os.fsencode(sys.argv[1])
    for _ in range(200):
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/environ", "rb") as environment:
                    if mark in environment.read().split(b"\\0"):
                        found.append(int(name))
            except OSError:
                pass
        if not found:
            break
        for one in found:
            try:
                os.kill(one, 9)
            except OSError:
                pass
        time.sleep(0.02)
"""


@contextlib.contextmanager
def ends_with_us() -> Iterator[None]:
    """Kills processes started in the block if this process is killed, or if an interrupt leaves the block."""
    me = os.getpid()
    if me in _watched or not Path("/proc/self/environ").exists():
        yield
        return
    mark = f"{MARK}={secrets.token_hex(8)}"
    watcher = subprocess.Popen(  # in its own session: not reached by signals to this process's group
        [sys.executable, "-I", "-S", "-c", _WATCHER, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    before, said = os.environ.get(MARK), b"."
    os.environ[MARK] = mark.partition("=")[2]
    _watched.add(me)
    try:
        yield
    except Exception:  # ninja and the compilers have ended
        raise
    except BaseException:
        said = b""
        raise
    finally:
        _watched.discard(me)
        if before is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = before
        watcher.communicate(said)


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
