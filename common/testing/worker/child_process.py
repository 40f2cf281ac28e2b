"""ChildProcess: a process that runs the student's code and answers; what to say when it does not.

A crash, an exit, silence, an answer that is none: each is a CallFailed here, and the process is gone.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from common.testing.calling import CallFailed
from common.testing.case import ERROR
from common.testing.worker.endings import words_of

LOOK_UP = 0.5  # seconds between checks for an interrupt
NO_ANSWER = "The process that runs your code sent an answer that can't be read"
NOT_IN_TIME = "an endless loop, or threads that wait for each other"
WHILE_IT_RAN = "while it ran your code"
Answer = TypeVar("Answer")


def answers(connection: Connection, seconds: float) -> bool:
    """Waits until there is something to receive; False: not within these seconds.

    A signal that comes just before the wait begins does not end it, and Python looks at it afterward: so it waits a
    little at a time, and Ctrl-C is never lost.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if connection.poll(min(left, LOOK_UP)):
            return True
    return connection.poll(0)


def limit_waits(connection: Connection, seconds: float) -> None:
    """A message that is not read, or that comes in part, raises BlockingIOError instead of blocking any longer."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            same.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds) + 1, 0))


class ChildProcess:
    """At most one process at a time, and what it prints on stderr."""

    def __init__(self) -> None:
        self._process: int | None = None
        self._connection: Connection | None = None
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._read = 0

    def _status(self, process: int) -> int:
        """Ends a process and what it started; its wait status, see os.WIFSIGNALED."""
        raise NotImplementedError

    def end_process(self) -> None:
        """Ends the process that runs the code, if there is one; the next call begins another."""
        if self._process is not None:
            self._kill()

    def close(self) -> None:
        """Ends the process, and what it started."""
        self.end_process()
        self._printed.close()

    def _exchanged(
        self,
        send: Callable[[Connection], None],
        receive: Callable[[Connection], Answer],
        seconds: float,
        when: str = WHILE_IT_RAN,
    ) -> Answer:
        """What it answers to what is sent. Raises CallFailed: the process is gone then; `when` is for its words."""
        try:
            limit_waits(self._connection, seconds)
            send(self._connection)
            if not answers(self._connection, seconds):
                raise BlockingIOError
            answer = receive(self._connection)
        except BlockingIOError:
            self.end_process()
            words = [f"No answer within {seconds:g} seconds: {NOT_IN_TIME}."]
            raise CallFailed(ERROR, words, ended=True, is_endless=True) from None
        except (EOFError, OSError):
            raise CallFailed(ERROR, self._ending(when), ended=True) from None
        except ValueError as error:
            self.end_process()
            raise CallFailed(ERROR, [f"{NO_ANSWER}: {error}."], ended=True) from None
        except BaseException:  # Ctrl-C
            self.end_process()
            raise
        self._show(self._new_words())
        return answer

    def _ending(self, when: str = WHILE_IT_RAN) -> list[str]:
        """What to say of the process, which has closed the connection: nothing is left to wait for."""
        return words_of(*self._kill(), when)

    def _kill(self) -> tuple[int, str]:
        """Ends the process and what it started: (its wait status, what it printed last)."""
        process, self._process = self._process, None
        self._connection.close()
        return self._status(process), self._new_words()

    def _new_words(self) -> str:
        """What was printed on stderr since the last time."""
        end = os.fstat(self._printed.fileno()).st_size
        words = os.pread(self._printed.fileno(), max(0, end - self._read), self._read).decode(errors="replace")
        self._read = end
        return words

    @staticmethod
    def _show(words: str) -> None:
        if words:
            print(words, end="", file=sys.stderr, flush=True)
