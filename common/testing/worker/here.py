"""Here: a Worker's interface in this process, for debuggers and for tests of the command line."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from common.testing.calling import POISONED, Around, Called, Caller, CallFailed, InProcess
from common.testing.case import ERROR, Case
from common.testing.worker.child import Served
from common.testing.worker.worker import NotLoaded


class Here(Caller):
    """Like Worker, but calls operators in this process. A crash ends the test."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._caller: InProcess | None = None
        self.about: dict = {}

    def load(self) -> None:
        """See Worker.load."""
        if self._caller is None:
            try:
                self._caller, self.about = self._served.start()
            except Exception as error:
                raise NotLoaded(str(CallFailed.because(error)), type(error).__name__) from error
            self.backend = self.about["backend"]
            self.device, self.libraries = self._caller.device, self._caller.libraries

    def call(self, case: Case, inputs: dict[str, Tensor], around: Around = POISONED) -> Called:
        """See Caller.call."""
        self.load()
        try:
            return self._caller.call(case, inputs, around)
        finally:
            self.more = self._caller.more

    def answer(self, request: Mapping[str, object]) -> dict:
        """See Worker.answer."""
        self.load()
        try:
            return self._served.answer(self._caller.ops, request)
        except CallFailed:
            raise
        except Exception as error:
            raise CallFailed(ERROR, CallFailed.because(error).words) from error

    def close(self) -> None:
        """Does nothing."""
