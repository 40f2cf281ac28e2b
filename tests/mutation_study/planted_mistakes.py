"""The mistakes that tests/taskN plants by hand, as mutants: planted_of("task2").

What counts as right is what the tables of these tests say of each.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutants import Mutant, Mutation, function_at

from common.compiling.gaps import with_own_headers
from common.compiling.places import places_of
from common.compiling.variant import Variant
from common.console.paths import ROOT

sys.path[:0] = [str(ROOT / "tests" / "helpers")]
from planted import FILE_MARK, Planted, places  # noqa: E402


@dataclass(frozen=True)
class PlantedMutant(Mutant):
    """A mistake of several edits.

    Attributes:
        name: in the table of its test.
        every: its edits.
        told: (the name of the known mistake or None, words of the report) of each row of the tables about it.
    """

    name: str = ""
    every: tuple[tuple[str, int, int, str], ...] = ()
    told: tuple[tuple[str | None, str], ...] = ()

    @property
    def edits(self) -> tuple[tuple[str, int, int, str], ...]:
        return self.every

    @property
    def key(self) -> str:
        return f"{self.task}/{self.file} | planted: {self.name}"


def planted_of(task: str) -> list[PlantedMutant]:
    """All that are planted in a task's kernels."""
    found: dict[str, PlantedMutant] = {}
    for file in sorted((ROOT / "tests" / task).glob("test_planted*.py")):
        module = _loaded(file)
        tables = [table for table in vars(module).values() if isinstance(table, list)]
        rows = [row for table in tables for row in table if isinstance(row, tuple) and len(row) > 2]
        for planted in vars(module).values():
            if isinstance(planted, Planted):
                for one in _mutants(planted, rows):
                    found[one.key] = one
    return list(found.values())


def _loaded(file: Path):
    spec = importlib.util.spec_from_file_location(f"planted_{file.parent.name}_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _mutants(planted: Planted, rows: list[tuple]) -> Iterator[PlantedMutant]:
    kernels = places_of(planted.task, Variant.SOLUTION)[0].kernels
    files = with_own_headers([next(one for one in kernels if planted.file in one.name)])
    texts = [file.read_text() for file in files]
    whole = FILE_MARK.join(texts)
    for name, replacements in planted.mistakes.items():
        edits = []
        for replacement in replacements:
            for start, end in places(whole, replacement):
                at = whole.count(FILE_MARK, 0, start)
                begin = whole.rfind(FILE_MARK, 0, start) + 1
                edits.append((files[at].name, start - begin, end - begin, replacement[1]))
        file, start, end, new = edits[0]
        text = texts[[one.name for one in files].index(file)]
        line = text.count("\n", 0, start) + 1
        statement = " ".join(text[text.rfind("\n", 0, start) + 1 : text.find("\n", end)].split())
        mutation = Mutation("planted", start, end, text[start:end].strip(), new, line, statement)
        told = tuple((row[2], str(row[3]) if len(row) > 3 else "") for row in rows if row[0] == name)
        function = function_at(text, start, in_python=False)
        yield PlantedMutant(planted.task, file, 0, function, line - 5, line + 5, mutation, name, tuple(edits), told)
