"""The rules behind a report, and where each is in the source: rules(), rule_of(name, sentence).

A rule is a known mistake or a conclusion (an entry of a words.json), a wrong line or wrong index from some formulas, or
a kind of finding from the checked build.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass

from common.console.paths import ROOT
from common.inspect.findings.model import EDIT
from common.inspect.findings.words import TITLES

_VALUE = re.compile(r"\\\{[^{}]*\\\}")  # in a pattern
_FORMULAS = {
    "a wrong index": r"The output matches what you get if .* is read at .*",
    "a wrong line": r"The output matches (?:`|what you get without).*",
}


@dataclass(frozen=True)
class Rule:
    """Where it is, "task5/cases/block_mistakes.py" or "the checked build", and its name; patterns for the names of its
    claims and for its sentence."""

    place: str
    name: str
    names: str = ".*"
    says: str = ""

    def __str__(self) -> str:
        return f"{self.place}  {self.name}"


@functools.cache
def rules() -> tuple[Rule, ...]:
    """All rules."""
    found = [Rule("the checked build", kind, kind) for kind in TITLES if kind != EDIT]
    for file in (*sorted(ROOT.glob("common/**/words.json")), *sorted(ROOT.glob("task?/cases/words.json"))):
        for module, says in json.loads(file.read_text()).items() if "inspect" not in file.parts else ():
            place = f"{file.parent.relative_to(ROOT)}/{module}.py"
            found += [Rule(place, key, _pattern(key.split(" (")[0]), _pattern(one)) for key, one in says.items()]
    return (
        *found,
        *(Rule("common/diagnosis/mistakes/formulas.py", name, says=says) for name, says in _FORMULAS.items()),
    )


def _pattern(text: str) -> str:
    """A pattern for a text with {values}."""
    return _VALUE.sub(".*", re.escape(text))


@functools.cache
def rule_of(name: str, says: str = "", task: str = "") -> Rule:
    """The rule of this name behind this sentence in a task's report, the task's own rules before shared ones; if none
    matches, the first of that name."""
    named = [one for one in rules() if re.fullmatch(one.names, name)]
    named = [one for one in named if not task or one.place[:4] != "task" or one.place.startswith(task)]
    named.sort(key=lambda one: not task or not one.place.startswith(task))
    told = [one for one in named if one.says and re.fullmatch(one.says, says)]
    return (told or [one for one in named if one.names != ".*"] or [Rule("", name)])[0]
