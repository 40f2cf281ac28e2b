"""The unfilled gaps of a source, and the operators that depend on them.

An unfilled gap contains NOT_IMPLEMENTED(). Reading the source shows, before anything runs, that the operator
`attention` cannot work because binding.cpp's attention() calls custom_attention(), which launches gemm_nt_kernel(),
which has the marker in line 57. The call graph is textual: a function "calls" every known function whose name appears
in its body. Headers that a source includes from its own folder by their bare name (#include "tiles.cuh") are read, too,
and so is given code that calls the student's functions (#include "task4/given/stages.cuh").
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from common.console.files import read_source
from common.console.paths import ROOT, shown_path
from common.simulator.text import blanked, closed

MARKER = "NOT_IMPLEMENTED"
_FUNCTION_HEAD = re.compile(r"(\w+)\s*\((?:[^(){};]|\([^(){};]*\))*\)\s*(?:const|noexcept|override|\s)*$")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"(\w+\.cuh)"', re.MULTILINE)
_GIVEN = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"(task\d+/given/\w+\.cuh)"', re.MULTILINE)
_OPERATOR = re.compile(r'\.impl\s*\(\s*"(\w+)"\s*,\s*TORCH_BOX\s*\(\s*&?\s*([\w:]+)\s*\)')


@dataclass(frozen=True)
class Gap:
    """An unfilled gap: its location and function."""

    file: Path
    line: int
    function: str

    def __str__(self) -> str:
        return f"{shown_path(self.file)}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Function:
    """A function of a source: its body without comments and strings, the body's first line, its gaps."""

    name: str
    body: str
    line: int
    gaps: tuple[Gap, ...]


@functools.lru_cache(maxsize=64)  # every operator asks about the same sources
def functions_of(text: str, file: Path) -> tuple[Function, ...]:
    """All functions with a body, including those in namespaces and classes, but not within function bodies."""
    text = blanked(text)
    found: list[Function] = []
    position = 0
    while (brace := text.find("{", position)) >= 0:
        start = max(text.rfind(mark, 0, brace) for mark in ";{}") + 1
        head = _FUNCTION_HEAD.search(text[start:brace])
        position = brace + 1
        if not head:
            continue
        end = closed(text, brace, "{}")
        if end < 0:
            end = len(text)
        body = text[brace:end]
        lines = [text.count("\n", 0, brace + match.start()) + 1 for match in re.finditer(rf"\b{MARKER}\b", body)]
        begins = text.count("\n", 0, brace) + 1
        found.append(Function(head[1], body, begins, tuple(Gap(file, line, head[1]) for line in lines)))
        position = end
    return tuple(found)


def with_own_headers(sources: Iterable[Path]) -> list[Path]:
    """Each source, preceded by the headers next to it that it includes by their bare name; every file once."""
    found: list[Path] = []
    begun: set[Path] = set()

    def add(file: Path) -> None:
        if file in begun:
            return
        begun.add(file)
        for name in _INCLUDE.findall(read_source(file)):
            if (file.parent / name).is_file():
                add(file.parent / name)
        found.append(file)

    for source in sources:
        add(source)
    return found


def _given_headers(sources: Iterable[Path]) -> list[Path]:
    """The tasks' given .cuh files that the sources include, by their path in the checkout."""
    names = dict.fromkeys(name for source in sources for name in _GIVEN.findall(read_source(source)))
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def find_gaps(sources: Iterable[Path]) -> list[Gap]:
    """All unfilled gaps of the sources and their own headers, in source order."""
    return [gap for source in with_own_headers(sources) for function in _functions_in(source) for gap in function.gaps]


def _functions_in(file: Path) -> tuple[Function, ...]:
    return functions_of(read_source(file), file)


def python_gaps(file: Path) -> list[Gap]:
    """The unfilled gaps of a Python file, in source order; empty if it cannot be read or parsed."""
    try:
        tree = ast.parse(read_source(file))
    except (OSError, ValueError, SyntaxError):
        return []  # the test that needs the file reports the error
    found = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node):
                    found[node.lineno] = Gap(file, node.lineno, function.name)  # the innermost function comes last
    return [found[line] for line in sorted(found)]


def registered_operators(binding: Path) -> set[str]:
    """The names of the operators that a binding.cpp registers."""
    return {name for name, _ in _OPERATOR.findall(read_source(binding))}


def gaps_of_operator(operator: str, sources: Iterable[Path]) -> list[Gap]:
    """The unfilled gaps that the operator reaches. `sources` are the task's .cu files and its binding.cpp.

    An operator that no source registers is assumed to depend on every gap.
    """
    sources = with_own_headers(sources)
    reached = functions_behind(operator, sources)
    functions = [function for source in (*sources, *_given_headers(sources)) for function in _functions_in(source)]
    return [gap for function in functions if not reached or function.name in reached for gap in function.gaps]


def functions_behind(operator: str, sources: Iterable[Path]) -> set[str]:
    """The names of the functions that the operator may call; none if no source registers it."""
    sources = with_own_headers(sources)
    functions = [function for source in (*sources, *_given_headers(sources)) for function in _functions_in(source)]
    entries = {
        name: target.split("::")[-1] for source in sources for name, target in _OPERATOR.findall(read_source(source))
    }
    if operator not in entries:
        return set()
    names = {function.name for function in functions}
    reached: set[str] = set()
    to_visit = [entries[operator]]
    while to_visit:
        name = to_visit.pop()
        if name in reached:
            continue
        reached.add(name)
        for function in functions:
            if function.name == name:
                to_visit += names.intersection(re.findall(r"\w+", function.body))
    return reached
