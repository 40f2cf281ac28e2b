"""Forks workers from a pristine process: no threads, no CUDA, no student code.

So a worker starts in milliseconds with torch imported, and one started after a crash is as clean as the first. That
process, the nursery, only forks and reports how its children ended; it ends with its test.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import struct
import sys
import time
import weakref
from collections.abc import Callable, Set
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

_PR_SET_PDEATHSIG = 1
NURSERY_SECONDS = 60  # for a fork, or for a killed process to end
MOST_ROUNDS = 100  # of killing a worker's descendants
_FORK, _STATUS = b"f", b"s"
_NUMBER = struct.Struct("q")
_STALLED = struct.pack("ll", 60, 0)  # a struct timeval: seconds that a message may stall


class Nursery:
    """Forks workers.

    Args:
        work: what a worker does with its end of the connection; the worker ends when it returns.
        elsewhere: socket to a nursery run by another process with serve(); `work` is then unused.

    Raises:
        OSError: no process can be started.
    """

    _sockets: ClassVar[weakref.WeakSet[socket.socket]] = weakref.WeakSet()  # of all nurseries of this process

    def __init__(self, work: Callable[[Connection], None] | None, elsewhere: socket.socket | None = None) -> None:
        self._process = 0
        if elsewhere is not None:
            self._socket = elsewhere
            return
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(NURSERY_SECONDS)
        self._sockets.add(self._socket)
        sys.stdout.flush()
        sys.stderr.flush()
        self._process = os.fork()
        if not self._process:
            for one in list(self._sockets):  # a nursery does not end while another process holds its socket
                one.close()
            with contextlib.suppress(BaseException):
                serve(theirs, work)
            os._exit(0)
        theirs.close()

    def fork(self, stderr: int) -> tuple[int, Connection]:
        """Forks a worker: (its PID, the connection to it). Its stderr goes to the given file descriptor."""
        ours, theirs = socket.socketpair()
        for what in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # a message that stalls halfway raises OSError
            ours.setsockopt(socket.SOL_SOCKET, what, _STALLED)
        with theirs:
            socket.send_fds(self._socket, [_FORK], [theirs.fileno(), stderr])
        return self._number(), Connection(ours.detach())

    def status(self, process: int) -> int:
        """Ends a worker and its descendants; returns its wait status, see os.WIFSIGNALED."""
        self._socket.sendall(_STATUS + _NUMBER.pack(process))
        return self._number()

    def close(self) -> None:
        """Ends the nursery and its workers."""
        self._socket.close()
        if self._process:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._process, 0)
            self._process = 0

    def _number(self) -> int:
        try:
            data = self._socket.recv(_NUMBER.size)
        except TimeoutError:
            self._socket.close()  # a late answer would be mistaken for the answer to the next request
            raise
        if len(data) < _NUMBER.size:
            raise OSError("no worker can be started: the process that starts them is gone")
        return _NUMBER.unpack(data)[0]


def serve(requests: socket.socket, work: Callable[[Connection], None]) -> None:
    """Runs a nursery until the other end of the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test decides what Ctrl-C ends
    with contextlib.suppress(PermissionError):  # already a session leader
        os.setsid()
    workers: set[int] = set()
    while True:
        data, files, _, _ = socket.recv_fds(requests, 1 + _NUMBER.size, 2)
        if not data:
            for process in workers:  # including the compilers they started: the test itself may have been killed
                end(process)
            return
        if data[:1] == _STATUS:
            (process,) = _NUMBER.unpack(data[1:])
            workers.discard(process)
            status = end(process)
            _end_strays(workers)
            requests.sendall(_NUMBER.pack(status))
            continue
        process = os.fork()
        if not process:
            requests.close()
            _begin_worker(*files, work)
        workers.add(process)
        for file in files:
            os.close(file)
        requests.sendall(_NUMBER.pack(process))


def end(process: int) -> int:
    """Ends a child of this process and its descendants; returns its wait status, even if it had already ended."""
    for kill in (os.killpg, os.kill):  # it may not have its own process group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(process, signal.SIGKILL)
    for _ in range(MOST_ROUNDS):
        others = _of_session(process)  # ninja puts its compilers into separate process groups
        if not others:
            break
        for one in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitpid(process, 0)[1]


def _end_strays(workers: Set[int]) -> None:
    """Ends orphans that left a worker's session, if this process is their subreaper (inside.py)."""
    for _ in range(MOST_ROUNDS):
        with contextlib.suppress(OSError):
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
            if strays := {*map(int, children.split())} - workers:
                for one in strays:
                    os.kill(one, signal.SIGKILL)
                    os.waitpid(one, 0)
                continue
        return


def stat_of(process: int) -> list[str]:
    """The fields of /proc/N/stat after the name (which may contain blanks): [0] state, [3] session, see proc(5).

    Raises:
        OSError: there is no such process, or no /proc.
    """
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _of_session(leader: int) -> list[int]:
    """The other processes in the session of `leader`; [] without /proc."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            process = int(place.name)
            state, _, _, session, *_ = stat_of(process)
            if int(session) == leader != process and state not in "ZX":
                found.append(process)
    return found


def _begin_worker(connection: int, stderr: int, work: Callable[[Connection], None]) -> None:
    os.setsid()  # so that its compilers can be ended with it
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.disable()  # crashes are reported by the parent
    os.dup2(stderr, 2)
    os.close(stderr)
    try:
        work(Connection(connection))
        sys.stdout.flush()
    finally:
        os._exit(0)
