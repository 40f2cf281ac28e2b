"""Plants mistakes in a real solution: exact replacements in its text, all of a file's in one build.

    TASK4 = Planted("task4", {"no_rescale": [("state.l[r] *= rescale;", "", 1)], ...})
    ops = TASK4.operators("no_rescale", "simulator")        # or operators(None, ...): nothing planted

All are compiled into one library, and a number chooses while it runs: see common/compiling/planting.py for what may be
replaced.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from common.compiling.gaps import with_own_headers
from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.places import places_of
from common.compiling.planting import SWITCH, planted_text, spots_of
from common.compiling.request import BuildRequest
from common.compiling.variant import Variant
from common.console.paths import build_root
from common.testing.case import FAIL, Case, Verdict
from common.testing.judging import judge

# (what stands in the solution, what is planted, how often it stands there). Where only a part of the first text is
# replaced and the rest says which one is meant, the part stands between « and ».
Replacement = tuple[str, str, int]
FILE_MARK = "\f"


def places(text: str, replacement: Replacement) -> list[tuple[int, int]]:
    """Where the replaced part stands; AssertionError unless it does so as often as the replacement says."""
    old, _, times = replacement
    before, part, after = re.fullmatch("(.*)«(.*)»(.*)", old, re.DOTALL).groups() if "«" in old else ("", old, "")
    found = [match.start() + len(before) for match in re.finditer(re.escape(before + part + after), text)]
    assert len(found) == times, f"{old!r} stands {len(found)} times in the solution, not {times}"
    return [(start, start + len(part)) for start in found]


def text_with(source: Path, replacements: Sequence[Replacement]) -> str:
    """The source's text with the replacements made one after the other, without a switch: for Python."""
    text = source.read_text()
    for replacement in replacements:
        for start, end in reversed(places(text, replacement)):
            text = text[:start] + replacement[1] + text[end:]
    return text


def switched_texts(texts: Sequence[str], mistakes: Sequence[Sequence[Replacement]]) -> list[str]:
    """The texts of a .cu (the last one) and its headers with all mistakes in them; planted(1) chooses the first."""
    # looked for as if the texts were one
    whole = FILE_MARK.join(texts)
    replaced = [
        (number, start, end, replacement[1])
        for number, replacements in enumerate(mistakes, 1)
        for replacement in replacements
        for start, end in places(whole, replacement)
    ]
    *headers, source = planted_text(whole, spots_of(replaced)).split(FILE_MARK)
    return [*headers, SWITCH + source]


class Planted:
    """A task's solution and the mistakes that can be planted in it.

    Args:
        task: "task2", ...
        mistakes: name -> its replacements in the task's .cu file and the headers with gaps that it includes.
        label: tells two sets of mistakes of one task apart.
        file: which of the task's .cu files, where there are several; the others are built as they are.
    """

    def __init__(
        self, task: str, mistakes: Mapping[str, Sequence[Replacement]], label: str = "mistakes", file: str = ""
    ) -> None:
        self.task = task
        self.mistakes = mistakes
        self.label = label
        self.file = file

    def operators(self, name: str | None, backend: str, checked: bool = False) -> Operators:
        """The solution's operators with this mistake planted, from now until the next call; None: with none.

        Args:
            name: of the mistake.
            backend: "cuda" or "simulator".
            checked: the simulator's checked build.
        """
        ops, plant = self._built(backend, checked)
        plant(0 if name is None else 1 + list(self.mistakes).index(name))
        return ops

    @functools.cache  # noqa: B019 - as many as there are tasks
    def _built(self, backend: str, checked: bool) -> tuple[Operators, ctypes._NamedFuncPointer]:
        every = places_of(self.task, Variant.SOLUTION)[0].kernels
        source = next(one for one in every if self.file in one.name)
        folder = build_root() / "planted" / self.task / self.label
        folder.mkdir(parents=True, exist_ok=True)
        files = with_own_headers([source])
        texts = switched_texts([file.read_text() for file in files], list(self.mistakes.values()))
        for file, text in zip(files, texts, strict=True):
            planted = folder / file.name
            if not planted.exists() or planted.read_text() != text:
                planted.write_text(text)
        sources = [folder / one.name if one == source else one for one in every]
        ops = load(
            BuildRequest(self.task, backend=backend, sources=sources, checked=checked, label=f"planted_{self.label}")
        )
        return ops, ctypes.CDLL(str(ops.libraries[0].path)).plant


def assert_told(verdict: Verdict, words: str) -> None:
    """The case failed, and the diagnosis holds these words, a regular expression."""
    told = " ".join(verdict.diagnosis)
    assert verdict.status == FAIL and re.search(words, told), told


def assert_all_pass(cases: Iterable[Case], ops: Operators) -> None:
    """Every case passes on these operators, but those for a GPU in the simulator."""
    for case in cases:
        verdict = judge(case, ops)
        assert verdict.ok or (case.gpu_only and ops.backend == "simulator"), (case.name, verdict.diagnosis)
