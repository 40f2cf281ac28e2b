"""The study's mistakes: those made by rule in the solutions' gaps, and those planted by hand in tests/taskN."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from code_tree import without_comments
from planted import FILE_MARK, Planted, places
from rules import mutations

from common.compiling.gaps import with_own_headers
from common.compiling.places import places_of
from common.compiling.skeletons import solution_files
from common.compiling.variant import Variant
from common.console.paths import ROOT

PLANTED = "planted"  # the kind of hand-planted mistakes
MOST_ALIKE = 6  # of one kind in one gap
_BEGIN, _END = re.compile(r"^\s*(?://|#) BEGIN SOLUTION"), re.compile(r"^\s*(?://|#) END SOLUTION")
Edit = tuple[str, int, int, str]  # file, start, end, new text


@dataclass(frozen=True)
class Mutant:
    """A mistake in a solution.

    Attributes:
        task, file, function: where it is: "task2", "attention_kernel.cu", ...
        first_line, last_line: of the gap's code.
        kind: of the mistake, a key of judge.OF_KIND.
        old, new: the text before and after.
        line: its line number in the file.
        statement: the whole statement, or the statement head, that contains it, on one line.
        edits: everything that changes.
        gap: its number in the file; 0 if planted by hand.
        name: its name in the test's table if planted by hand.
        told: (the known mistake's name or None, words of the report) for each table row about it.
    """

    task: str
    file: str
    function: str
    first_line: int
    last_line: int
    kind: str
    old: str
    new: str
    line: int
    statement: str
    edits: tuple[Edit, ...]
    gap: int = 0
    name: str = ""
    told: tuple[tuple[str | None, str], ...] = ()

    @property
    def key(self) -> str:
        """An identifier from its text alone, so that it survives edits elsewhere in the file."""
        if self.kind == PLANTED:
            return f"{self.task}/{self.file} | planted: {self.name}"
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.task}/{self.file} | {self.function} | {self.statement} | {old} -> {new or 'nothing'}"

    def share(self, seed: int) -> float:
        """A number in 0 ... 1 determined by its text and the seed, used to choose samples."""
        return int(hashlib.sha256(f"{seed} {self.key}".encode()).hexdigest()[:12], 16) / 16**12


def mutants_of(task: str) -> list[Mutant]:
    """All mutants that the rules make in a task, in source order."""
    return [one for file in sorted(solution_files(task)) for one in _mutants_of_file(task, file)]


def gaps_of(text: str) -> list[tuple[int, int]]:
    """Where the code of each gap starts and ends in a solution's text."""
    found, at, begin = [], 0, -1
    for line in text.split("\n"):
        if _BEGIN.match(line):
            begin = at + len(line) + 1
        elif _END.match(line):
            found.append((begin, at))
        at += len(line) + 1
    return found


@cache
def _mutants_of_file(task: str, file: Path) -> list[Mutant]:
    """At most MOST_ALIKE of each kind in each gap, each changed text once."""
    text, found, counts, seen = file.read_text(), [], Counter(), set()
    in_python = file.suffix == ".py"
    plain = text if in_python else without_comments(text)
    for number, (start, end) in enumerate(gaps_of(text), 1):
        where = (task, file.name, _function_at(plain, start, in_python))
        lines = text.count("\n", 0, start) + 1, text.count("\n", 0, end)
        for begin, stop, kind, new, statement in mutations(plain, start, end, in_python):
            old = plain[begin:stop]
            line = text.count("\n", 0, begin + re.match(r"(?:\s*#[^\n]*\n)*\s*", old).end()) + 1  # after pragmas
            edits = ((file.name, begin, stop, new),)
            found.append(Mutant(*where, *lines, kind, old.strip(), new, line, statement, edits, number))
    chosen = []
    for one in sorted(found, key=lambda one: one.share(0)):
        _, start, end, new = one.edits[0]
        changed, place = "".join((plain[:start] + new + plain[end:]).split()), (one.gap, one.kind)
        if not {changed, one.key} & seen and counts[place] < MOST_ALIKE:
            counts[place] += 1
            seen |= {changed, one.key}
            chosen.append(one)
    return sorted(chosen, key=lambda one: (*one.edits[0][1:3], one.key))


def _function_at(text: str, at: int, in_python: bool = False) -> str:
    """The name of the enclosing function, "" if there is none."""
    head = r"^\s*def (\w+)" if in_python else (
        r"^(?![ #/}\n])[^;{}]*?\b(\w+)\s*\((?:[^(){};]|\([^(){};]*\))*\)\s*\{"
    )  # fmt: skip
    names = re.findall(head, text[:at], re.MULTILINE)
    return names[-1] if names else ""


def equivalent() -> dict[str, str]:
    """Mutant.key -> why no input tells it from the solution, or why the contract allows it; reviewed by hand."""
    return json.loads(Path(__file__).with_name("equivalent.json").read_text(encoding="utf-8"))


# ---- mistakes planted by hand


def planted_of(task: str) -> list[Mutant]:
    """All mistakes planted in a task's kernels."""
    found: dict[str, Mutant] = {}
    for file in sorted((ROOT / "tests" / task).glob("test_planted*.py")):
        spec = importlib.util.spec_from_file_location(f"planted_{task}_{file.stem}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        tables = [table for table in vars(module).values() if isinstance(table, list)]
        rows = [row for table in tables for row in table if isinstance(row, tuple) and len(row) > 2]
        for planted in vars(module).values():
            found |= {one.key: one for one in _planted(planted, rows)} if isinstance(planted, Planted) else {}
    return list(found.values())


def _planted(planted: Planted, rows: list[tuple]) -> Iterator[Mutant]:
    kernels = places_of(planted.task, Variant.SOLUTION)[0].kernels
    files = with_own_headers([next(one for one in kernels if planted.file in one.name)])
    whole = FILE_MARK.join(file.read_text() for file in files)
    for name, replacements in planted.mistakes.items():
        edits = []
        for replacement in replacements:
            for start, end in places(whole, replacement):
                begin = whole.rfind(FILE_MARK, 0, start) + 1
                file = files[whole.count(FILE_MARK, 0, start)].name
                edits.append((file, start - begin, end - begin, replacement[1]))
        file, start, end, new = edits[0]
        text = next(one for one in files if one.name == file).read_text()
        line = text.count("\n", 0, start) + 1
        statement = " ".join(text[text.rfind("\n", 0, start) + 1 : text.find("\n", end)].split())
        told = tuple((row[2], str(row[3]) if len(row) > 3 else "") for row in rows if row[0] == name)
        where = (planted.task, file, _function_at(text, start), line - 5, line + 5)
        old = text[start:end].strip()
        yield Mutant(*where, PLANTED, old, new, line, statement, tuple(edits), name=name, told=told)
