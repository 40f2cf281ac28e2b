"""The student's lines that read or write an array, and at which nothing was recorded: silent(run)."""

from __future__ import annotations

import re
from pathlib import Path

from common.compiling.gaps import Function, functions_of
from common.console.files import read_source
from common.inspect.flow.run import Run
from common.inspect.own_lines import owned
from common.inspect.source_lines import Place
from common.simulator.rewriter import blanked

MOST = 4
HEAD_LINES = 10  # of a function, before its body
STATEMENT_LINES = 3
_POINTER = re.compile(r"\*\s*(?:const\s+)?(?:__restrict__\s+)?(\w+)\s*[,)=]")


def silent(run: Run) -> list[Place]:
    """These lines, at most MOST, of the functions that the launched kernels are made of, in the order of the text."""
    places = [entry.place for launch in run.trace.launches for entry in launch.entries if entry.place]
    recorded = {(one.file, one.line) for one in places}
    kernels = {launch.kernel.split("<")[0] for launch in run.trace.launches}
    found = []
    for file in run.files:
        try:
            text = read_source(Path(file))
        except (OSError, ValueError):
            continue
        lines, functions = blanked(text).split("\n"), functions_of(text, Path(file))
        for function in _behind(kernels, functions):
            found += [Place(file, number) for number in _accesses(function, lines, file, recorded)]
    return owned(sorted(set(found), key=lambda one: (one.file, one.line)))[:MOST]


def _behind(kernels: set[str], functions: tuple[Function, ...]) -> list[Function]:
    """The kernels among these functions, and those that they call."""
    by_name = {one.name: one for one in functions}
    todo, found = [by_name[name] for name in kernels if name in by_name], {}
    while todo:
        one = todo.pop()
        if one.name not in found:
            found[one.name] = one
            todo += [by_name[name] for name in set(re.findall(r"\w+", one.body)) & set(by_name)]
    return list(found.values())


def _accesses(function: Function, lines: list[str], file: str, recorded: set[tuple[str, int]]) -> list[int]:
    """The lines of a function that index one of its pointers, without those at which something was recorded."""
    last = function.line + function.body.count("\n")
    head = "\n".join(lines[max(0, function.line - HEAD_LINES) : function.line])
    head = head[max(0, head.rfind(f"{function.name}(")) :]
    names = set(_POINTER.findall(head)) | set(_POINTER.findall("\n".join(lines[function.line - 1 : last])))
    found = []
    for number in range(function.line, last + 1):
        uses = any(re.search(rf"(?<![\w.]){name}\s*\[", lines[number - 1]) for name in names)
        if uses and not any((file, number + more) in recorded for more in range(STATEMENT_LINES)):
            found.append(number)
    return found
