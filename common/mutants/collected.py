"""All mutants of a task: collected("task2")."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from common.compiling.manifest import tasks
from common.compiling.skeletons import solution_files
from common.mutants import c_rules, python_rules
from common.mutants.c_code import without_comments
from common.mutants.mutation import Mutant

_BEGIN, _END = re.compile(r"^\s*(?://|#) BEGIN SOLUTION"), re.compile(r"^\s*(?://|#) END SOLUTION")
MOST_ALIKE = 2  # of one rule in one gap; as many again are fresh, see collected


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


def mutants_of_file(task: str, file: Path) -> list[Mutant]:
    """Every mutant of a solution's file."""
    text = file.read_text()
    in_python = file.suffix == ".py"
    plain = text if in_python else without_comments(text)
    found = []
    for number, (start, end) in enumerate(gaps_of(text), 1):
        name, head = _function(plain, start, in_python)
        around = (text.count("\n", 0, start) + 1, text.count("\n", 0, end))
        if in_python:
            mutations = python_rules.mutations(text, start, end)
        else:
            mutations = c_rules.mutations(plain, start, end, plain[head:end])
        found += [Mutant(task, file.name, number, name, *around, mutation) for mutation in mutations]
    return found


def _function(text: str, at: int, in_python: bool) -> tuple[str, int]:
    """The name of the function around a place, and where it begins."""
    if in_python:
        *_, last = re.finditer(r"^\s*def (\w+)", text[:at], re.MULTILINE)
        return last[1], last.start()
    heads = list(
        re.finditer(r"^(?![ #/}\n])[^;{}]*?\b(\w+)\s*\((?:[^(){};]|\([^(){};]*\))*\)\s*\{", text[:at], re.MULTILINE)
    )
    return (heads[-1][1], heads[-1].start()) if heads else ("", 0)


def collected(task: str | None = None, fresh: bool = False) -> list[Mutant]:
    """The mutants of a task, or of all; of one rule MOST_ALIKE at most in a gap, chosen by their text.

    fresh: the next MOST_ALIKE of each, which no one has looked at while the diagnosis was built.
    """
    found = []
    for name in [task] if task else tasks():
        for file in solution_files(name):
            counts: Counter = Counter()
            every = {one.key: one for one in mutants_of_file(name, file)}  # equal texts once
            for one in sorted(every.values(), key=lambda one: one.share(0)):
                counts[one.gap, one.mutation.kind] += 1
                if (counts[one.gap, one.mutation.kind] - 1) // MOST_ALIKE == int(fresh):
                    found.append(one)
    return sorted(found, key=lambda one: (one.task, one.file, one.mutation.start, one.mutation.end, one.key))
