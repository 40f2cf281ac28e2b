"""A task's mutants as operators: all those in .cu and .cuh files in one library, those in Python one at a time.

    with TaskMutants("task2", mutants) as planted:
        planted.choose(mutant)                  or None: the solution as it is
        judge(case, planted.plain)

Both workers load the same text, one in the plain build and one in the simulator's checked build.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import mmap
import os
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from code_tree import without_comments
from mutants import Mutant
from planting import SWITCH, planted_text, spots_of, widened
from torch import Tensor

from common.cli.test import TaskTest
from common.compiling.gaps import with_own_headers
from common.compiling.load import load
from common.compiling.operators import Library, Operators
from common.compiling.places import places_of
from common.compiling.request import BuildRequest
from common.compiling.variant import Variant
from common.console.files import SHOWN, write_whole
from common.console.paths import build_root
from common.inspect.checked_library import CHECK, CheckedCaller
from common.inspect.checked_run import small_size
from common.inspect.own_lines import own_lines
from common.inspect.source_lines import _lines, text_of
from common.testing.calling import POISONED, InProcess
from common.testing.case import Case
from common.testing.worker.child import Served
from common.testing.worker.worker import Worker

# Seconds without progress before the simulator gives up on a kernel; mutants run on small cases.
SIMULATOR_SECONDS = 4
HUGE = 1 << 40
MOST_KEPT = 1 << 17  # total input elements of cached answers: more takes too much memory


class TaskMutants:
    """The two workers of a task, and the mutant they run.

    Create it before this process starts threads, see Worker.

    Args:
        task: "task2".
        mutants: all that can be chosen.

    Attributes:
        test: what `python -m taskN.test` runs.
        cases: its cases that the simulator runs.
        sizes: the number of input elements of each case, HUGE if it is slow.
    """

    def __init__(self, task: str, mutants: Sequence[Mutant]) -> None:
        self.task, self.mutants = task, list(mutants)
        self.test: TaskTest = importlib.import_module(f"{task}.test").TEST
        self.folder = build_root() / "mutants" / task
        place = places_of(task, Variant.SOLUTION)[0]
        self._kernels, self._binding = place.kernels, place.binding
        self._chosen = mmap.mmap(-1, 8)  # shared with the workers, including those that replace a crashed one
        os.environ["SIMULATOR_TIMEOUT"] = str(SIMULATOR_SECONDS)
        self.plain = Worker(Served(lambda: self._load(False), self._cases, lambda _: {"warnings": []}, self._caller))
        self.checked = Worker(Served(lambda: self._load(True), self._cases, caller=self._checked_caller))
        # the code below uses tensors, which may start threads
        self.cases = [with_kept_answers(one) for one in self._cases() if not one.gpu_only]
        self.sizes = {case: small_size(case) or HUGE for case in self.cases}

    @property
    def operators(self) -> types.SimpleNamespace:
        """The attributes of operators that the source reader uses; it sees only the chosen mutant."""
        sources = (*(self.folder / file.name for file in self._kernels), self._binding)
        return types.SimpleNamespace(task=self.task, libraries=[Library("mutants", self.folder, sources)])

    def __enter__(self) -> TaskMutants:
        return self

    def __exit__(self, *_) -> None:
        self.plain.close()
        self.checked.close()

    def choose(self, mutant: Mutant | None) -> None:
        """Makes the workers run this mutant from now on; None: the solution. The source reader sees only this one, as
        in a student's file, not the text with all of them."""
        number = 0 if mutant is None else 1 + self.mutants.index(mutant)
        self._chosen[:8] = number.to_bytes(8, "little")
        for file in with_own_headers(self._kernels):
            SHOWN[self.folder / file.name] = mutated(file.read_text(), mutant, file.name)
        for cached in (text_of, _lines, own_lines):
            cached.cache_clear()

    def _cases(self) -> Sequence[Case]:
        return self.test.cases(Variant.SOLUTION)

    def _load(self, checked: bool) -> Operators:
        """The task's operators with all mutants in them, rebuilt if something changed."""
        SHOWN.clear()  # in the worker: the text with all mutants is compiled
        self.folder.mkdir(parents=True, exist_ok=True)
        edits = [(number, *edit) for number, one in enumerate(self.mutants, 1) for edit in one.edits]
        for file in with_own_headers(self._kernels):
            plain = without_comments(file.read_text())
            mine = [(number, start, end, new) for number, name, start, end, new in edits if name == file.name]
            text = planted_text(plain, spots_of(widened(mine, plain)))
            if file.suffix == ".cu":  # its first line was a comment
                text = '#include "planting.h"' + text[text.index("\n") :]
            write_whole(self.folder / file.name, text)
        write_whole(self.folder / "planting.h", "#pragma once\n#include <cuda_runtime.h>\n" + SWITCH)
        sources = [self.folder / file.name for file in self._kernels]
        return load(BuildRequest(self.task, backend="simulator", sources=sources, checked=checked, label="mutants"))

    def _caller(self, ops: Operators) -> InProcess:
        return _Planted(self, ops, InProcess(ops))

    def _checked_caller(self, ops: Operators) -> InProcess:
        return _Planted(self, ops, CheckedCaller(ops, CHECK))


class _Planted(InProcess):
    """A caller that selects the chosen mutant before each call."""

    def __init__(self, owner: TaskMutants, ops: Operators, inner: InProcess) -> None:
        super().__init__(ops)
        self._owner, self._inner = owner, inner
        self._plant = ctypes.CDLL(str(ops.libraries[0].path)).plant
        self._replaced: dict[str, types.ModuleType] = {}

    def call(self, case, inputs, around=POISONED):
        number = int.from_bytes(self._owner._chosen[:8], "little")
        self._plant(number)
        sys.modules.update(self._replaced)
        self._replaced.clear()
        if number and self._owner.mutants[number - 1].file.endswith(".py"):
            self._replace(self._owner.mutants[number - 1])
        try:
            return self._inner.call(case, inputs, around)
        finally:
            self.more = self._inner.more

    def _replace(self, mutant: Mutant) -> None:
        """Replaces the solution's module with the mutant's."""
        name = f"{mutant.task}.solution.{mutant.file.removesuffix('.py')}"
        right = importlib.import_module(name)
        self._replaced[name] = right
        module = types.ModuleType(name)
        module.__file__, module.__package__ = right.__file__, right.__package__
        sys.modules[name] = module
        text = mutated(Path(right.__file__).read_text(), mutant, mutant.file)
        exec(compile(text, right.__file__, "exec"), module.__dict__)


def mutated(text: str, mutant: Mutant | None, file: str) -> str:
    """The text of a solution's file with the mutant in it; C++ keeps its number of lines."""
    edits = [one for one in (mutant.edits if mutant else ()) if one[0] == file]
    for _, start, end, new in sorted(edits, key=lambda one: -one[1]):
        lines = text.count("\n", start, end)
        if not file.endswith(".py"):
            new = " ".join(new.split()) if new.count("\n") > lines else new
            new += "\n" * (lines - new.count("\n"))
        text = text[:start] + new + text[end:]
    return text


def with_kept_answers(case: Case) -> Case:
    """The case with cached results of its reference, its mistakes and its stages for equal inputs: every mutant's
    output is compared with the same answers."""
    return replace(
        case,
        reference=_kept(case.reference),
        mistakes=_kept(lambda **x: [one.remembered() for one in case.mistakes(**x)]) if case.mistakes else None,
        stages=_kept(case.stages) if case.stages else None,
    )


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """Caches a function of tensors, keyed by name and tensor values."""
    given = {}

    def kept(**inputs: Tensor) -> Any:
        every = inputs.values()
        if any(x.requires_grad for x in every) or sum(x.numel() for x in every) > MOST_KEPT:
            return function(**inputs)
        whole = hashlib.sha256(repr([(name, x.dtype, x.shape) for name, x in inputs.items()]).encode())
        for x in every:
            whole.update(x.contiguous().numpy())
        if whole.digest() not in given:
            given[whole.digest()] = function(**inputs)
        return given[whole.digest()]

    return kept
