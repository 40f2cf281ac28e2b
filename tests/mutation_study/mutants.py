"""Mistakes made by rule in the gaps of the solutions: mutants_of("task2")."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from c_tree import without_comments

from common.compiling.manifest import tasks
from common.compiling.skeletons import solution_files

# What the rules do, in the order of the table
KINDS = {
    "barrier": "a barrier dropped, moved, or not for all threads",
    "loop": "a loop's beginning, bound or step",
    "bound": "a comparison or a condition",
    "guard": "a guard dropped",
    "index": "another index",
    "offset": "a stride or offset dropped",
    "head": "a wrong head or batch entry",
    "operands": "another variable, array or size",
    "thread": "another thread's number or value",
    "launch": "a launch dimension",
    "adding": "= for +=, += for =, added twice, reset",
    "sign": "a sign",
    "extremum": "min for max, one side alone, another reduction",
    "initial": "an initial value or constant",
    "constant": "1 for 0 and the like",
    "rescale": "a factor dropped, twice, or divided by",
    "function": "another function, or none",
    "cast": "a cast dropped",
    "store": "a result not kept",
    "order": "statements in the wrong order",
    "call": "a call left out",
    "leaving": "a return, break or continue in the wrong place",
    "planted": "planted by hand",
}
MOST_ALIKE = 6  # of one kind in one gap
_BEGIN, _END = re.compile(r"^\s*(?://|#) BEGIN SOLUTION"), re.compile(r"^\s*(?://|#) END SOLUTION")


@dataclass(frozen=True)
class Mutation:
    """text[start:end] of a solution's file becomes another text.

    Attributes:
        kind: a key of KINDS.
        start, end: the place.
        old, new: what is there, and what will be.
        line: its number in the file.
        statement: the whole statement, or head of a statement, that it is in, on one line.
    """

    kind: str
    start: int
    end: int
    old: str
    new: str
    line: int
    statement: str


@dataclass(frozen=True)
class Mutant:
    """A mutation in a gap.

    Attributes:
        task, file: "task2", "attention_kernel.cu".
        gap: its number in the file.
        function: that the gap is in.
        first_line, last_line: of the gap's code.
        mutation: what changes.
    """

    task: str
    file: str
    gap: int
    function: str
    first_line: int
    last_line: int
    mutation: Mutation

    @property
    def edits(self) -> tuple[tuple[str, int, int, str], ...]:
        """(file, start, end, new text) of all that changes."""
        return ((self.file, self.mutation.start, self.mutation.end, self.mutation.new),)

    @property
    def key(self) -> str:
        """Names it by its text alone, so that it survives edits elsewhere in the file."""
        one = self.mutation
        old, new = (" ".join(text.split()) for text in (one.old, one.new))
        return f"{self.task}/{self.file} | {self.function} | {one.statement} | {old} -> {new or 'nothing'}"

    def share(self, seed: int) -> float:
        """A number in 0 ... 1 that its text and the seed decide: what samples are chosen by."""
        return int(hashlib.sha256(f"{seed} {self.key}".encode()).hexdigest()[:12], 16) / 16**12


def gaps_of(text: str) -> list[tuple[int, int]]:
    """Where the code of each gap begins and ends in a solution's text."""
    found, at, begin = [], 0, -1
    for line in text.split("\n"):
        if _BEGIN.match(line):
            begin = at + len(line) + 1
        elif _END.match(line):
            found.append((begin, at))
        at += len(line) + 1
    return found


@cache
def mutants_of_file(task: str, file: Path) -> tuple[Mutant, ...]:
    """The mutants of a solution's file: of one kind in one gap MOST_ALIKE, each changed text once."""
    text, found, counts, seen = file.read_text(), [], Counter(), set()
    in_python = file.suffix == ".py"
    plain = text if in_python else without_comments(text)
    rules = importlib.import_module("python_rules" if in_python else "c_rules")
    for number, (start, end) in enumerate(gaps_of(text), 1):
        name = function_at(plain, start, in_python)
        around = (text.count("\n", 0, start) + 1, text.count("\n", 0, end))
        found += [Mutant(task, file.name, number, name, *around, one) for one in rules.mutations(plain, start, end)]
    chosen = []
    for one in sorted(found, key=lambda one: one.share(0)):
        _, start, end, new = one.edits[0]
        changed, place = "".join((plain[:start] + new + plain[end:]).split()), (one.gap, one.mutation.kind)
        if not {changed, one.key} & seen and counts[place] < MOST_ALIKE:
            counts[place] += 1
            seen |= {changed, one.key}
            chosen.append(one)
    return tuple(sorted(chosen, key=lambda one: (one.mutation.start, one.mutation.end, one.key)))


def function_at(text: str, at: int, in_python: bool) -> str:
    """The name of the function around a place, "" if there is none."""
    head = r"^\s*def (\w+)" if in_python else (
        r"^(?![ #/}\n])[^;{}]*?\b(\w+)\s*\((?:[^(){};]|\([^(){};]*\))*\)\s*\{"
    )  # fmt: skip
    names = re.findall(head, text[:at], re.MULTILINE)
    return names[-1] if names else ""


def mutants_of(task: str | None = None) -> list[Mutant]:
    """All of a task, or of all tasks, in the order of their texts."""
    names = [task] if task else tasks()
    return [one for name in names for file in sorted(solution_files(name)) for one in mutants_of_file(name, file)]


def equivalent() -> dict[str, str]:
    """Mutant.key -> why no input can tell it from the solution, or why the contract allows it, reviewed by hand."""
    return json.loads(Path(__file__).with_name("equivalent.json").read_text(encoding="utf-8"))
