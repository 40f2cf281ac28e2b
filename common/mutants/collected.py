"""All mutants of a task: collected("task2")."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container
from functools import cache
from pathlib import Path
from types import ModuleType

from common.compiling.manifest import tasks
from common.compiling.skeletons import solution_files
from common.mutants import c_rules, c_rules_fresh, python_rules, python_rules_fresh
from common.mutants.c_code import without_comments
from common.mutants.mutation import Mutant

_BEGIN, _END = re.compile(r"^\s*(?://|#) BEGIN SOLUTION"), re.compile(r"^\s*(?://|#) END SOLUTION")
MOST_ALIKE = 2  # of one rule in one gap, in the sets of each round
HALF = 0.5  # of the mutants: those whose share is below belong to development, the others are held out
SPLIT_SEED = 16
# Of one rule in one gap the first MOST_ALIKE, in the order of their texts' hashes, fall into the first two sets, the
# next MOST_ALIKE into the third and the fourth, and all others into the fourth.
# The last set is made by rules of its own, written when the diagnosis was built and without a look at it: of one rule
# in one gap at most MOST_FRESH, and none whose text is that of a mutant in another set.
MOST_FRESH = 3
SETS = DEVELOPMENT, HELD_OUT, SECOND, UNSEEN, FRESH = "development", "held-out", "second", "unseen", "fresh"


def set_of(mutant: Mutant, number: int) -> str:
    """Which of the SETS a mutant is in, the `number`-th of its rule in its gap."""
    kept_back = mutant.share(SPLIT_SEED) >= HALF
    if number < MOST_ALIKE:
        return HELD_OUT if kept_back else DEVELOPMENT
    return UNSEEN if kept_back or number >= 2 * MOST_ALIKE else SECOND


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
def mutants_of_file(
    task: str, file: Path, in_c: ModuleType = c_rules, in_py: ModuleType = python_rules
) -> tuple[Mutant, ...]:
    """Every mutant of a solution's file by the rules of one of these modules; equal ones once."""
    text = file.read_text()
    in_python = file.suffix == ".py"
    plain = text if in_python else without_comments(text)
    found = []
    for number, (start, end) in enumerate(gaps_of(text), 1):
        name, head = _function(plain, start, in_python)
        around = (text.count("\n", 0, start) + 1, text.count("\n", 0, end))
        if in_python:
            mutations = in_py.mutations(text, start, end)
        else:
            mutations = in_c.mutations(plain, start, end, plain[head:end])
        found += [Mutant(task, file.name, number, name, *around, mutation) for mutation in mutations]
    return tuple({one.key: one for one in found}.values())


@cache
def fresh_of_file(task: str, file: Path) -> tuple[Mutant, ...]:
    """The mutants of a solution's file that are in FRESH."""
    text, found, counts = file.read_text(), [], Counter()
    text = text if file.suffix == ".py" else without_comments(text)
    seen = {_as_changed(text, one) for one in mutants_of_file(task, file)}
    candidates = mutants_of_file(task, file, c_rules_fresh, python_rules_fresh)
    for one in sorted(candidates, key=lambda one: one.share(0)):
        changed, place = _as_changed(text, one), (one.gap, one.mutation.kind)
        if changed not in seen and counts[place] < MOST_FRESH:
            counts[place] += 1
            found.append(one)
        seen.add(changed)
    return tuple(found)


def _as_changed(text: str, mutant: Mutant) -> str:
    """The text, which has no comments of C++, with a mutant in it and without its spaces."""
    one = mutant.mutation
    return "".join((text[: one.start] + one.new + text[one.end :]).split())


def _function(text: str, at: int, in_python: bool) -> tuple[str, int]:
    """The name of the function around a place, and where it begins."""
    if in_python:
        *_, last = re.finditer(r"^\s*def (\w+)", text[:at], re.MULTILINE)
        return last[1], last.start()
    heads = list(
        re.finditer(r"^(?![ #/}\n])[^;{}]*?\b(\w+)\s*\((?:[^(){};]|\([^(){};]*\))*\)\s*\{", text[:at], re.MULTILINE)
    )
    return (heads[-1][1], heads[-1].start()) if heads else ("", 0)


def collected(task: str | None = None, chosen: Container[str] = (DEVELOPMENT, HELD_OUT)) -> list[Mutant]:
    """The mutants of a task, or of all, that belong to the chosen SETS."""
    found = []
    for name in [task] if task else tasks():
        for file in solution_files(name):
            counts: Counter = Counter()
            every = mutants_of_file(name, file)
            for one in sorted(every, key=lambda one: one.share(0)):
                number = counts[one.gap, one.mutation.kind]
                counts[one.gap, one.mutation.kind] += 1
                if set_of(one, number) in chosen:
                    found.append(one)
            if FRESH in chosen:
                found += fresh_of_file(name, file)
    return sorted(found, key=lambda one: (one.task, one.file, one.mutation.start, one.mutation.end, one.key))
