"""The nursery ends the processes that a worker leaves behind, where it can adopt them."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from common.testing.worker.nursery import Nursery, serve

PR_SET_CHILD_SUBREAPER = 36


def leaves_one_behind(connection: Connection) -> None:
    """A worker that starts a process in its own session, whose parent exits, and sends its process ID."""
    parent = os.fork()
    if not parent:
        os.setsid()
        stray = os.fork()
        if not stray:
            time.sleep(60)
            os._exit(0)
        connection.send(stray)
        os._exit(0)
    os.waitpid(parent, 0)
    connection.recv()


@pytest.mark.skipif(sys.platform != "linux", reason="a process adopts others on Linux only")
def test_a_process_that_left_its_session_ends_with_its_worker() -> None:
    ours, theirs = socket.socketpair()
    process = os.fork()
    if not process:
        ours.close()
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        serve(theirs, leaves_one_behind)
        os._exit(0)
    theirs.close()
    nursery = Nursery(None, elsewhere=ours)
    worker, connection = nursery.fork(2)
    stray = connection.recv()
    assert Path(f"/proc/{stray}").exists()
    nursery.status(worker)
    assert not Path(f"/proc/{stray}").exists()
    connection.close()
    nursery.close()
    os.waitpid(process, 0)
