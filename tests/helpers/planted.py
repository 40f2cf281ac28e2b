"""Plants mistakes in a real solution: exact replacements in its text, all mistakes of a file in one build.

    TASK4 = Planted("task4", {"no_rescale": [("state.l[r] *= rescale;", "")], ...})
    ops = TASK4.operators("no_rescale", "simulator")        # or operators(None, ...): nothing planted

All are compiled into one library, and a number selects one at run time; tests/helpers/planting.py says what can be
replaced.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from checked_findings import findings_of
from planting import SWITCH, changed_sources, planted_text, spots_of

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest
from common.console.paths import build_root
from common.testing.case import ERROR, FAIL, Case, Verdict
from common.testing.judging import judge

# (text in the solution, planted text, number of occurrences if not one). If only part of the first text is replaced
# and the rest identifies the place, the replaced part is between « and ».
Replacement = tuple[str, str] | tuple[str, str, int]
FILE_MARK = "\f"


def places(text: str, replacement: Replacement) -> list[tuple[int, int]]:
    """The location of the replaced part; AssertionError unless it occurs as often as the replacement says."""
    old, _, times = (*replacement, 1)[:3]
    before, part, after = re.fullmatch("(.*)«(.*)»(.*)", old, re.DOTALL).groups() if "«" in old else ("", old, "")
    found = [match.start() + len(before) for match in re.finditer(re.escape(before + part + after), text)]
    assert len(found) == times, f"{old!r} occurs {len(found)} times in the solution, not {times}"
    return [(start, start + len(part)) for start in found]


def text_with(source: Path, replacements: Sequence[Replacement]) -> str:
    """The source with the replacements made one after another, without a switch: for Python."""
    text = source.read_text()
    for replacement in replacements:
        for start, end in reversed(places(text, replacement)):
            text = text[:start] + replacement[1] + text[end:]
    return text


def switched_texts(texts: Sequence[str], mistakes: Sequence[Sequence[Replacement]]) -> list[str]:
    """The texts of a .cu (the last one) and its headers with all mistakes in them; planted(1) selects the first."""
    # searched as if the texts were one
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
        label: distinguishes two sets of mistakes in one task.
        file: which of the task's .cu files, if there are several; the others are built unchanged.
    """

    def __init__(
        self, task: str, mistakes: Mapping[str, Sequence[Replacement]], label: str = "mistakes", file: str = ""
    ) -> None:
        self.task = task
        self.mistakes = mistakes
        self.label = label
        self.file = file

    def operators(self, name: str | None, backend: str, checked: bool = False) -> Operators:
        """The solution's operators with this mistake planted, valid until the next call; None: no mistake.

        Args:
            name: of the mistake.
            backend: "cuda" or "simulator".
            checked: the simulator's checked build.
        """
        ops, plant = self._built(backend, checked)
        plant(0 if name is None else 1 + list(self.mistakes).index(name))
        return ops

    @functools.cache  # noqa: B019 - bounded by the number of tasks
    def _built(self, backend: str, checked: bool) -> tuple[Operators, ctypes._NamedFuncPointer]:
        folder, label = build_root() / "planted" / self.task / self.label, f"planted_{self.label}"
        mistakes = list(self.mistakes.values())
        sources = changed_sources(
            self.task, self.file, folder, lambda files: switched_texts([one.read_text() for one in files], mistakes)
        )
        ops = load(BuildRequest(self.task, backend=backend, sources=sources, checked=checked, label=label))
        return ops, ctypes.CDLL(str(ops.libraries[0].path)).plant


def plant_python(monkeypatch: pytest.MonkeyPatch, name: str, file: Path, replacements: Sequence[Replacement]) -> None:
    """Replaces the module of that name by the file's text with the replacements made, until the test ends."""
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader=None))
    module.__file__ = str(file)
    exec(compile(text_with(file, replacements), module.__file__, "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, name, module)


def assert_told(verdict: Verdict, words: str) -> None:
    """The case failed, and the diagnosis matches this regular expression."""
    told = " ".join(verdict.diagnosis)
    assert verdict.status == FAIL and re.search(words, told), told


def assert_named(verdict: Verdict, name: str | None, words: str) -> None:
    """The case failed with this named mistake, or with no known one, and the diagnosis contains these words."""
    assert_told(verdict, words)
    assert verdict.mistakes[:1] == ([name] if name else []), verdict.diagnosis


def assert_error(verdict: Verdict, words: str) -> None:
    """The case ended in an error that matches this regular expression."""
    told = " ".join(verdict.diagnosis)
    assert verdict.status == ERROR and re.search(words, told), told


def assert_all_pass(cases: Iterable[Case], ops: Operators) -> None:
    """Every case passes on these operators, except GPU cases in the simulator."""
    for case in cases:
        verdict = judge(case, ops)
        assert verdict.ok or (case.gpu_only and ops.backend == "simulator"), (case.name, verdict.diagnosis)


# ---- table-driven tests: test_a_mistake_is_caught = named(TASK4, CASES, PLANTED)


def named(solution: Planted, cases: Mapping[str, Case], rows: Sequence[tuple]) -> Callable:
    """A test over (mistake, case, its name or None, words of the diagnosis)."""

    @pytest.mark.parametrize(("planted", "case", "name", "words"), rows)
    def test(backend: str, planted: str, case: str, name: str | None, words: str) -> None:
        assert_named(judge(cases[case], solution.operators(planted, backend)), name, words)

    return test


def told_in_the_simulator(solution: Planted, cases: Mapping[str, Case], rows: Sequence[tuple]) -> Callable:
    """A test over (mistake, case, words): races, and reads of uninitialized or foreign memory. The outcome in the
    simulator is deterministic; a GPU may happen to give the right result."""

    @pytest.mark.parametrize(("planted", "case", "words"), rows)
    def test(planted: str, case: str, words: str) -> None:
        assert_told(judge(cases[case], solution.operators(planted, "simulator")), words)

    return test


def found_by_the_checked_build(solution: Planted, cases: Mapping[str, Case], rows: Sequence[tuple]) -> Callable:
    """A test over (mistake, case, kind and variable of the findings)."""

    @pytest.mark.parametrize(("planted", "case", "kind", "variable"), rows)
    def test(planted: str, case: str, kind: str, variable: str) -> None:
        findings = findings_of(solution.operators(planted, "simulator", checked=True), cases[case])
        assert {one.kind for one in findings} == {kind}, findings
        assert any(re.fullmatch(variable, one.variable) for one in findings), findings

    return test


def clean_in_the_checked_build(solution: Planted, cases: Mapping[str, Case], names: Sequence[str]) -> Callable:
    """A test of the solution built with no mistake selected."""

    def test() -> None:
        ops = solution.operators(None, "simulator", checked=True)
        for name in names:
            assert findings_of(ops, cases[name]) == [], name

    return test


def all_pass(task: str, cases: Iterable[Case]) -> Callable:
    """A test of the unmodified solution."""

    def test(solution: Callable[[str], Operators]) -> None:
        assert_all_pass(cases, solution(task))

    return test
