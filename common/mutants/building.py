"""The mutants of a task as operators: all those of its .cu and .cuh files in one library, those in Python one by one.

    with TaskMutants("task2", mutants) as planted:
        planted.choose(mutant)                  or None: the solution as it is
        judge(case, planted.plain)

Both workers load the same text, the one plain, the other in the simulator's checked build.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common.cli.test import TaskTest
from common.compiling.gaps import with_own_headers
from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.places import places_of
from common.compiling.planting import SWITCH, planted_text, spots_of, widened
from common.compiling.request import BuildRequest
from common.compiling.variant import Variant
from common.console.files import SHOWN, write_whole
from common.console.paths import build_root
from common.inspect.checked_library import CHECK, CheckedCaller
from common.inspect.checked_run import small_size
from common.inspect.made_of import _read
from common.inspect.own_lines import own_lines
from common.inspect.source_lines import _lines, text_of
from common.mutants.c_code import without_comments
from common.mutants.kept_answers import with_kept_answers
from common.mutants.mutation import Mutant
from common.testing.calling import POISONED, InProcess
from common.testing.worker.child import Served
from common.testing.worker.worker import Worker

# Seconds without progress after which the simulator gives up on a kernel; mutants are run on small cases.
SIMULATOR_SECONDS = 4
HUGE = 1 << 40


def task_test(task: str) -> TaskTest:
    """What `python -m taskN.test` tests. The task is known by its name alone, as a command line knows it."""
    return importlib.import_module(f"{task}.test").TEST


class TaskMutants:
    """The two workers of a task, and which mutant they run.

    To be made before this process starts threads, see Worker.

    Args:
        task: "task2".
        mutants: all that may be chosen.

    Attributes:
        test: what `python -m taskN.test` tests.
        cases: its cases that the simulator runs.
        sizes: how many elements the inputs of each have, HUGE if it takes long.
    """

    def __init__(self, task: str, mutants: Sequence[Mutant]) -> None:
        self.task, self.mutants = task, list(mutants)
        self.test = task_test(task)
        self._chosen = mmap.mmap(-1, 8)  # shared with the workers, also with those that follow one that crashed
        os.environ["SIMULATOR_TIMEOUT"] = str(SIMULATOR_SECONDS)
        self.plain = Worker(Served(lambda: self._load(False), self._cases, self._about, self._caller))
        self.checked = Worker(Served(lambda: self._load(True), self._cases, caller=self._checked_caller))
        # what follows computes with tensors, which may start threads
        self.cases = [with_kept_answers(one) for one in self.test.cases(Variant.SOLUTION) if not one.gpu_only]
        self.sizes = {case: small_size(case) or HUGE for case in self.cases}

    def __enter__(self) -> TaskMutants:
        return self

    def __exit__(self, *_) -> None:
        self.plain.close()
        self.checked.close()

    def choose(self, mutant: Mutant | None) -> None:
        """From now on the workers run this one; None: the solution."""
        number = 0 if mutant is None else 1 + self.mutants.index(mutant)
        self._chosen[:8] = number.to_bytes(8, "little")
        self._show(mutant)

    def _show(self, mutant: Mutant | None) -> None:
        """Lets what reads sources see this mutant alone, as a student has it, and not the text with all of them."""
        for file in with_own_headers(places_of(self.task, Variant.SOLUTION)[0].kernels):
            text = file.read_text()
            is_here = mutant is not None and mutant.file == file.name
            SHOWN[build_root() / "mutants" / self.task / file.name] = mutated_lines(text, mutant) if is_here else text
        for cached in (text_of, _lines, own_lines, _read):
            cached.cache_clear()

    def text_of(self, mutant: Mutant) -> str:
        """The whole file with the mutant in it, as a student would have it."""
        return mutated(self._file(mutant.file).read_text(), mutant)

    def _cases(self):
        return self.test.cases(Variant.SOLUTION)

    @staticmethod
    def _about(ops: Operators) -> dict:
        return {"warnings": []}

    def _file(self, name: str) -> Path:
        return places_of(self.task, Variant.SOLUTION)[0].kernels[0].parent / name

    def _load(self, checked: bool) -> Operators:
        """The task's operators with all mutants in them, built where something changed."""
        SHOWN.clear()  # in the worker: what is compiled is the text with all of them
        folder = build_root() / "mutants" / self.task
        folder.mkdir(parents=True, exist_ok=True)
        kernels = places_of(self.task, Variant.SOLUTION)[0].kernels
        for file in with_own_headers(kernels):
            plain = without_comments(file.read_text())
            text = planted_text(plain, spots_of(widened(self._replaced(file.name), plain)))
            if file.suffix == ".cu":  # its first line was a comment
                text = '#include "planting.h"' + text[text.index("\n") :]
            write_whole(folder / file.name, text)
        write_whole(folder / "planting.h", "#pragma once\n#include <cuda_runtime.h>\n" + SWITCH)
        sources = [folder / file.name for file in kernels]
        return load(BuildRequest(self.task, backend="simulator", sources=sources, checked=checked, label="mutants"))

    def _replaced(self, name: str) -> list[tuple[int, int, int, str]]:
        every = enumerate(self.mutants, 1)
        return [(i, one.mutation.start, one.mutation.end, one.mutation.new) for i, one in every if one.file == name]

    def _caller(self, ops: Operators) -> InProcess:
        return _Planted(self, ops, InProcess(ops))

    def _checked_caller(self, ops: Operators) -> InProcess:
        return _Planted(self, ops, CheckedCaller(ops, CHECK))


class _Planted(InProcess):
    """A caller that plants the chosen mutant before each call."""

    def __init__(self, owner: TaskMutants, ops: Operators, inner: InProcess) -> None:
        super().__init__(ops)
        self._owner, self._inner = owner, inner
        self._plant = ctypes.CDLL(str(ops.libraries[0].path)).plant
        self._replaced: dict[str, types.ModuleType] = {}

    def call(self, case, inputs, around=POISONED):
        number = int.from_bytes(self._owner._chosen[:8], "little")
        self._plant(number)
        mutant = self._owner.mutants[number - 1] if number else None
        self._restore()
        if mutant is not None and mutant.file.endswith(".py"):
            self._replace(mutant)
        try:
            return self._inner.call(case, inputs, around)
        finally:
            self.more = self._inner.more

    def _replace(self, mutant: Mutant) -> None:
        """The mutant's module takes the place of the solution's."""
        name = f"{mutant.task}.solution.{mutant.file.removesuffix('.py')}"
        right = importlib.import_module(name)
        self._replaced[name] = right
        module = types.ModuleType(name)
        module.__file__, module.__package__ = right.__file__, right.__package__
        sys.modules[name] = module
        text = mutated(Path(right.__file__).read_text(), mutant)
        exec(compile(text, right.__file__, "exec"), module.__dict__)

    def _restore(self) -> None:
        sys.modules.update(self._replaced)
        self._replaced.clear()


def mutated(text: str, mutant: Mutant) -> str:
    """A solution's text with the mutant in it."""
    one = mutant.mutation
    return text[: one.start] + one.new + text[one.end :]


def mutated_lines(text: str, mutant: Mutant) -> str:
    """The same, as long in lines as before."""
    one = mutant.mutation
    more = one.old.count("\n") - one.new.count("\n")
    if more < 0:
        return mutated(text, replace(mutant, mutation=replace(one, new=" ".join(one.new.split()))))
    return mutated(text, replace(mutant, mutation=replace(one, new=one.new + "\n" * more)))
