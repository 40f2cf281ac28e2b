"""The rules that a report can rest on, and where each is in the source: rules() and Origins.

A rule is a known mistake (a call of Mistake in common/ or taskN/cases/), the formulas of one call of `varied`,
`varied_by` or `misread` together, a conclusion (a function of common/diagnosis that returns a name and a sentence), or
a kind of finding of the checked build and of common/inspect/flow.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.console.paths import ROOT
from common.diagnosis.mistakes import known
from common.inspect.findings.model import OF_FLOW
from common.inspect.findings.words import TITLES

_DERIVED = ("varied", "varied_by", "misread", "Inference")
_TEXT = (ast.Constant, ast.JoinedStr)
_FORMULAS = str(ROOT / "common" / "diagnosis" / "mistakes" / "formulas.py")


@dataclass(frozen=True)
class Rule:
    """Where it is, "task5/cases/block_mistakes.py:120" or "flow", and what it is called."""

    place: str
    name: str

    def __str__(self) -> str:
        return f"{self.place}  {self.name}"


@functools.cache
def _trees() -> dict[str, ast.Module]:
    files = [file for folder in ("common/diagnosis", "common/testing") for file in (ROOT / folder).rglob("*.py")]
    files += [file for task in sorted(ROOT.glob("task?")) for file in (task / "cases").rglob("*.py")]
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in sorted(files)}


def _of_calls(place: str, tree: ast.Module) -> Iterator[Rule]:
    """The known mistakes that a file makes. Of a helper that is given the name each call is one."""
    helpers = {}
    for function in (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)):
        parameters = [one.arg for one in function.args.args]
        for call in _calls(function):
            if _makes_one(call) and isinstance(call.args[0], ast.Name) and call.args[0].id in parameters:
                helpers[function.name] = call.lineno, parameters.index(call.args[0].id)
    for call in _calls(tree):
        name = _called(call)
        if _makes_one(call) and not place.endswith("formulas.py"):
            if call.lineno not in {line for line, _ in helpers.values()}:
                yield Rule(f"{place}:{call.lineno}", _words(call.args[0]))
        elif name in _DERIVED and not place.endswith(("formulas.py", "known.py")):
            yield Rule(f"{place}:{call.lineno}", f"({name})")
        elif name in helpers and len(call.args) > helpers[name][1]:
            line, at = helpers[name]
            yield Rule(f"{place}:{line}", _words(call.args[at]))


def _makes_one(call: ast.Call) -> bool:
    """Whether it is Mistake(name, ...) or known(key, ...), see common.diagnosis.mistakes.known.Words."""
    return _called(call) in ("Mistake", "known") and bool(call.args)


def _conclusions(place: str, tree: ast.Module) -> Iterator[Rule]:
    for one in ast.walk(tree):
        if isinstance(one, ast.Call) and _called(one) == "says":
            yield Rule(f"{place}:{one.lineno}", _words(one.args[0]))
        pair = one.value.elts if isinstance(one, ast.Return) and isinstance(one.value, ast.Tuple) else []
        if (
            len(pair) == 2
            and isinstance(pair[0], _TEXT)
            and isinstance(pair[1], (*_TEXT, ast.BinOp, ast.Name, ast.Call))
        ):
            yield Rule(f"{place}:{pair[0].lineno}", _words(pair[0]))


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (one for one in ast.walk(tree) if isinstance(one, ast.Call))


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _words(node: ast.expr) -> str:
    """A name as it is written; of one that is put together "{}" for each part that is not known."""
    if isinstance(node, ast.Constant):
        return re.sub(r"\{\w+\}", "{}", str(node.value).split(" #")[0])
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return "{}"


@functools.cache
def rules() -> tuple[Rule, ...]:
    """All of them."""
    found: dict[Rule, None] = {}
    for place, tree in _trees().items():
        found |= dict.fromkeys(_of_calls(place, tree))
        if place.startswith(("common/diagnosis", "task")):
            found |= dict.fromkeys(_conclusions(place, tree))
    of_flow = [Rule("common/inspect/flow", kind) for kind in OF_FLOW]
    checked = [Rule("the checked build", kind) for kind in TITLES if kind not in OF_FLOW]
    return (*found, *of_flow, *checked)


class Origins:
    """Where the known mistakes are made that come up while this program runs, from the moment it is made."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], str] = {}
        plain, places = known.Mistake.__init__, self._places

        @functools.wraps(plain)
        def noted(mistake: known.Mistake, *args, **more) -> None:
            plain(mistake, *args, **more)
            key = mistake.name, mistake.says
            if mistake.name and key not in places:
                frame = sys._getframe(1)
                while frame.f_code.co_filename == _FORMULAS or re.search("comp>|__call__", frame.f_code.co_name):
                    frame = frame.f_back
                file = Path(frame.f_code.co_filename)
                places[key] = f"{file.relative_to(ROOT)}:{frame.f_lineno}" if file.is_relative_to(ROOT) else ""

        known.Mistake.__init__ = noted

    def rule_of(self, name: str, says: str) -> Rule:
        """The rule that told a cause of this name with this sentence."""
        if place := self._places.get((name, re.sub(r"^In [^:]*: ", "", says))):
            here = [one for one in rules() if one.place == place]
            named = [one for one in here if one.name == name]
            return (named or here or [Rule(place, name)])[0]
        return concluded(name)


def concluded(name: str) -> Rule:
    """The rule that concludes something of this name."""
    for one in rules():
        pattern = re.escape(one.name).replace(r"\{\}", ".*")
        if one.name.strip("{}") and re.fullmatch(pattern, name):
            return one
    return Rule("", name)
