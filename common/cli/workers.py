"""The processes in which `python -m taskN.test` runs kernels: one for the plain build, one for the checked build.

    with workers_of(test, options, arguments) as workers:
        workers.plain.load()

Neither does anything until requested. In the simulator, kernels run in the runner (common/cli/runner.py), without
Python; on a GPU and on systems other than Linux they run in a worker. Student Python always runs in a worker.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

from rich.console import Console

from common.cli.options import command_of, request_of
from common.cli.runner import KernelsApart, described
from common.compiling import toolchain
from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.plan import plans_of
from common.console.terminal import wide
from common.testing.calling import InProcess
from common.testing.measurement import TestRun
from common.testing.worker.child import Served
from common.testing.worker.here import Here
from common.testing.worker.worker import NotLoaded, Worker

if TYPE_CHECKING:
    from common.cli.test import TaskTest


class Workers:
    """The two processes.

    Attributes:
        plain: the build requested by the options.
        compiles: whether the plain build has kernels to compile.
    """

    def __init__(self, plain: Worker | Here, checked: Worker | Here, compiles: bool = True) -> None:
        self.plain, self.compiles = plain, compiles
        self._checked, self._loading = checked, None

    @property
    def checked(self) -> Worker | Here:
        """The same kernels in the simulator's checked build."""
        if self._loading is not None:
            self._loading.join()
        return self._checked

    def load_checked(self) -> None:
        """Starts building and loading the checked build in the background, once."""
        if self._loading is not None:
            return

        def load() -> None:
            with suppress(NotLoaded):  # checked.load() raises it again when needed
                self._checked.load()

        self._loading = Thread(target=load)
        self._loading.start()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_) -> None:
        self.plain.close()
        self.checked.close()


def workers_of(test: TaskTest, options: argparse.Namespace, arguments: Sequence[str]) -> Workers:
    """Creates both. Call it before this process does anything else: see common.testing.worker.nursery."""
    apart = not options.in_process and hasattr(os, "fork")
    cases = partial(test.cases, options.variant)
    compiles = not options.parts or any(part not in test.in_python for part in options.parts)
    about = described if apart else lambda ops: {}

    def load_plain() -> Operators:
        if compiles:
            return load(request_of(test.task, options))
        # parts that call no kernels need only the variant of the Python and the device
        return Operators(test.task, options.variant, toolchain.choose_backend(options.backend).name, ())

    plain = Served(
        load_plain,
        cases,
        lambda ops: {
            "warnings": [warning for one in getattr(ops, "libraries", ()) for warning in one.warnings],
            "rebuilt": any(one.rebuilt for one in getattr(ops, "libraries", ())),
            **about(ops),
        },
        answer=partial(_measure, test, options, arguments),
    )

    def load_checked() -> Operators:
        return load(request_of(test.task, options, "simulator", checked=True))

    def caller(ops: Operators) -> InProcess:
        from common.inspect.checked_library import CHECK, PROFILE, REPLAY, CheckedCaller  # only when needed

        return CheckedCaller(ops, PROFILE if options.profile else REPLAY if options.replay else CHECK)

    checked = Served(load_checked, cases, about, caller=caller)
    if not apart:
        return Workers(Here(plain), Here(checked), compiles)
    whose = test.task, options.variant
    return Workers(KernelsApart(*whose, plain), KernelsApart(*whose, checked, caller), compiles)


def is_edited(task: str, options: argparse.Namespace) -> bool:
    """Whether a .cu file was saved after the simulator's library was built from it, so that both builds will be new.
    False if none was built yet and there are gaps: perhaps nothing has been written, and one build is enough."""
    if toolchain.choose_backend(options.backend).name != "simulator":
        return False
    return any(
        plan.library.stat().st_mtime < max(kernel.stat().st_mtime for kernel in plan.place.kernels)
        if plan.library.exists()
        else not plan.gaps
        for plan in plans_of(request_of(task, options))
    )


def _measure(test: TaskTest, options: argparse.Namespace, arguments: Sequence[str], ops, request: Mapping) -> dict:
    """Runs the requested measurement: its lines in the points table, and whether all went well."""
    run = TestRun(wide(Console()), ops, options, request["parts"], command_of(test.program, arguments))
    lines, fine = test.measurements[request["number"]].outcome(run)
    return {"lines": [asdict(line) for line in lines], "fine": fine}
