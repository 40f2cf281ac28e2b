"""The student's lines that read or write an array, and at which nothing was recorded: silent(run)."""

from __future__ import annotations

from common.inspect.flow.run import Run
from common.inspect.own_lines import owned
from common.inspect.source_lines import Place
from common.source.reader import Function, Source, arrays_in, line_of, read, walk

MOST = 4
STATEMENT_LINES = 3


def silent(run: Run) -> list[Place]:
    """These lines, at most MOST, of the functions that the launched kernels are made of, in the order of the text."""
    places = [entry.place for launch in run.trace.launches for entry in launch.entries if entry.place]
    recorded = {(one.file, one.line) for one in places}
    kernels = {launch.kernel.split("<")[0] for launch in run.trace.launches}
    found = []
    for file in run.files:
        source = read(file)
        for function in _behind(kernels, source) if source else ():
            lines = _accesses(function, source)
            found += [Place(file, number) for number in lines if not _is_near(file, number, recorded)]
    return owned(sorted(set(found), key=lambda one: (one.file, one.line)))[:MOST]


def _behind(kernels: set[str], source: Source) -> list[Function]:
    """The kernels among a file's functions, and those that they call."""
    todo, found = [one for name in kernels if (one := source.function(name))], {}
    while todo:
        one = todo.pop()
        if one.name not in found:
            found[one.name] = one
            todo += [other for call in one.calls if (other := source.function(call.name))]
    return list(found.values())


def _accesses(function: Function, source: Source) -> list[int]:
    """The lines of a function that index one of its pointers."""
    pointers = {one.name for one in function.parameters if one.is_seen_outside and not one.is_reference}
    pointers |= {one.name for one in function.changes if "*" in source.lines[one.line - 1].split("=")[0]}
    subscripts = [one for one in walk(function.body) if one.type == "subscript_expression"]
    return [line_of(one) for one in subscripts if arrays_in(one)[:1] and arrays_in(one)[0] in pointers]


def _is_near(file: str, number: int, recorded: set[tuple[str, int]]) -> bool:
    """Whether something was recorded at a line, or where its statement may go on."""
    return any((file, number + more) in recorded for more in range(STATEMENT_LINES))
