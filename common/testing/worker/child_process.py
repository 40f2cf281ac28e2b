"""ChildProcess: a process that runs student code and answers requests, with error messages for when it does not.

A crash, an exit, a timeout or an invalid answer raises CallFailed here, and the process is ended.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TypeVar

from common.testing.calling import CallFailed
from common.testing.case import ERROR
from common.testing.worker.endings import lines_at_the_end, words_of
from common.testing.worker.nursery import stat_of

LOOK_UP = 0.5  # seconds between checks for an interrupt
NO_ANSWER = "The process that runs your code sent an answer that can't be read"
NOT_IN_TIME = "an endless loop, threads that wait for each other, or far too much work"
WHILE_IT_RAN = "while it ran your code"
Answer = TypeVar("Answer")


def answers(connection: Connection, seconds: float) -> bool:
    """Waits until there is something to receive; False after a timeout.

    A signal that arrives just before the wait does not interrupt it, and Python handles it only afterward. So it waits
    in short steps, and Ctrl-C is never lost.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if connection.poll(min(left, LOOK_UP)):
            return True
    return connection.poll(0)


def limit_waits(connection: Connection, seconds: float) -> None:
    """Sets a timeout: a message that is not read, or arrives only in part, then raises BlockingIOError."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            same.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds) + 1, 0))


class ChildProcess:
    """Manages at most one process at a time, and its stderr."""

    def __init__(self) -> None:
        self._process: int | None = None
        self._connection: Connection | None = None
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._read = 0

    def _status(self, process: int) -> int:
        """Ends a process and its descendants; returns its wait status, see os.WIFSIGNALED."""
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        """CPU seconds that the process has used; 0 if there is none."""
        with suppress(OSError):
            if self._process is not None:
                return sum(map(int, stat_of(self._process)[11:13])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def end_process(self) -> None:
        """Ends the process, if there is one; the next call starts a new one."""
        if self._process is not None:
            self._kill()

    def close(self) -> None:
        """Ends the process and its descendants."""
        self.end_process()
        self._printed.close()

    def _exchanged(
        self,
        send: Callable[[Connection], None],
        receive: Callable[[Connection], Answer],
        seconds: float,
        when: str = WHILE_IT_RAN,
    ) -> Answer:
        """Sends a request and returns the answer. CallFailed: the process is gone; `when` is used in the message."""
        try:
            limit_waits(self._connection, seconds)
            send(self._connection)
            if not answers(self._connection, seconds):
                raise BlockingIOError
            answer = receive(self._connection)
        except BlockingIOError:
            _, printed = self._kill()
            words = [f"No answer within {seconds:g} seconds: {NOT_IN_TIME}.", *lines_at_the_end(printed)]
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
        """The message about a process that has closed the connection."""
        return words_of(*self._kill(), when)

    def _kill(self) -> tuple[int, str]:
        """Ends the process and its descendants: (its wait status, its last output)."""
        process, self._process = self._process, None
        self._connection.close()
        return self._status(process), self._new_words()

    def _new_words(self) -> str:
        """New output on stderr since the last call."""
        end = os.fstat(self._printed.fileno()).st_size
        words = os.pread(self._printed.fileno(), max(0, end - self._read), self._read).decode(errors="replace")
        self._read = end
        return words

    @staticmethod
    def _show(words: str) -> None:
        if words:
            print(words, end="", file=sys.stderr, flush=True)
