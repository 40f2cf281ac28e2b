"""A made-up class: correct, unfinished, wrong and hostile submissions.

    for one in made_up(100, hostile=30): one.write(folder / one.name)

All are for the task that the submissions in tests/hostile/ target. Needs tests/, so it requires the full course.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from common.compiling.skeletons import parse
from common.console.paths import ROOT
from common.course.grading.attacking import KERNELS, PYTHON, TASK, attacks_in, solution, writes

HOSTILE, RIGHT, VARIANT, UNFINISHED, MISTAKEN = "hostile", "right", "right but different", "unfinished", "mistaken"
FULL = (RIGHT, VARIANT)  # these earn full points
Kind = tuple[str, str, Callable[[Path], "Path | None"]]  # kind, words, write


@dataclass(frozen=True)
class MadeUp:
    """A submission. write(folder) writes it and may return an archive's path instead; kind: one of the kinds above."""

    name: str
    kind: str
    write: Callable[[Path], Path | None]


def made_up(number: int, hostile: int) -> list[MadeUp]:
    """`number` submissions, `hostile` of them hostile; each hostile kind is used once before any repeats.

    Raises:
        ValueError: hostile > number. FileNotFoundError: tests/ is missing.
    """
    if not 0 <= hostile <= number or not number:
        raise ValueError(f"of {number} submissions {hostile} cannot be hostile")
    attacks = [attack for _, attack in attacks_in("hostile")]
    step = max(1.0, len(attacks) / max(1, hostile))
    picked = [attacks[int(i * step) % len(attacks)] for i in range(hostile)]
    found = [_named(i, HOSTILE, attack.name, attack.write) for i, attack in enumerate(picked)]
    kinds = itertools.zip_longest(_different(), _unfinished(), _mistaken())  # so that a small class has some of each
    others = itertools.cycle([one for three in kinds for one in three if one])
    for i in range(hostile, number):  # half of the class is correct
        kind, words, write = (RIGHT, "the solution", writes(solution())) if i % 2 else next(others)
        found.append(_named(i, kind, words, functools.partial(_signed, write, str(i))))
    return found


def _named(number: int, kind: str, words: str, write: Callable[[Path], Path | None]) -> MadeUp:
    return MadeUp(f"{number:03}-{re.sub(r'[^a-z0-9]+', '-', f'{kind} {words}'.lower())[:50].strip('-')}", kind, write)


def _signed(write: Callable[[Path], Path | None], words: str, folder: Path) -> None:
    """Writes the submission with `words` appended to every file, so that no two are identical."""
    write(folder)
    for name in (KERNELS, PYTHON):
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(f"{'#' if name == PYTHON else '//'} {words}\n")


def _different() -> Iterator[Kind]:
    for _, attack in attacks_in("variants"):
        if attack.task == TASK and not attack.name.endswith("the solution"):
            yield VARIANT, attack.name, attack.write


def _unfinished() -> Iterator[Kind]:
    """Submissions with no gap filled, the first gap, the first two, ..."""
    parts = {name: parse(text, name) for name, text in solution().items()}
    gaps = [(name, i) for name in sorted(parts) for i, part in enumerate(parts[name]) if part.is_gap]
    for filled in range(len(gaps)):
        texts = {
            name: "\n".join(
                line
                for i, part in enumerate(of_file)
                for line in (part.lines if (name, i) in gaps[:filled] else part.skeleton())
            )
            for name, of_file in parts.items()
        }
        yield UNFINISHED, f"{filled} of {len(gaps)} gaps", writes(texts)


@functools.cache
def _planted():
    spec = importlib.util.spec_from_file_location("planted_mistakes", ROOT / "tests" / TASK / "test_planted.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _mistaken() -> Iterator[Kind]:
    """Submissions with the mistakes that the project's own tests plant."""
    from planted import text_with

    right, here = solution(), ROOT / TASK / "solution"
    kernels = [
        (name, {KERNELS: text_with(here / Path(KERNELS).name, replacements)})
        for name, replacements in _planted().KERNELS.mistakes.items()
    ]
    algorithm = [
        (name, {PYTHON: functools.reduce(lambda text, pair: text.replace(*pair), pairs, right[PYTHON])})
        for name, pairs in _planted().ALGORITHM.items()
    ]
    for name, changed in (one for pair in zip(kernels, algorithm, strict=False) for one in pair):
        yield MISTAKEN, name, writes({**right, **changed})
