"""The origin of the addresses that a line uses: origins(place), the lines above it that compute them.

An access fails in one line, but the mistake is often in another, which computed the index or the pointer. The search
goes to the last line above that declares or assigns a name used by the access, then continues with the names in that
line. It ends at parameters; `calls` continues from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tree_sitter import Node

from common.inspect.source_lines import Place
from common.source.reader import (
    Call,
    Function,
    Source,
    arrays_in,
    calls_in,
    condition_of,
    indices_in,
    line_of,
    names_in,
    read,
    text_of,
    walk,
)

MOST = 4  # listed lines
MOST_DECIDING = 6
MOST_WRITERS = 2
MOST_TERNARY = 3
MOST_CALLS = 2  # in addition to the launch
MOST_LEAVING = 3
SMALL = 12  # largest function, in lines, whose result is followed
_LEAVING = ("return_statement", "continue_statement", "break_statement")


def origins(place: Place, variable: str = "") -> list[Place]:
    """The lines that compute the addresses accessed by the line at `place`, nearest first, at most MOST.

    Empty if the file or function cannot be read, or if the line is self-contained. If one of the line's pointers is
    derived from `variable`, the others are left out.
    """
    source, around, here = read_at(place)
    if here is None:
        return []
    found: list[int] = []
    arrays = arrays_in(here)
    set_at = {name: around.set_at(name, place.line) for name in arrays}
    made = [name for name, one in set_at.items() if one and variable in _bases(one.right)]
    others = set(arrays) - set(made) if re.fullmatch(r"\w+", variable) and made else set()
    wanted = [(name, place.line) for name in _addresses(here, arrays) if name not in others]
    seen: set[str] = set()
    while wanted and len(found) < MOST:
        name, below = wanted.pop(0)
        change = None if name in seen else around.set_at(name, below)
        seen.add(name)
        is_stored = change is not None and change.is_element  # the stored value is not an address
        if change is None or (is_stored and (change.line == place.line or (variable in arrays and name in arrays))):
            continue
        if change.line != place.line and change.line not in found:
            found.append(change.line)
        later = (one for one in around.changes if one.name == name and one.line > place.line and not one.loop)
        found += [one.line for one in later if one.keeps and not one.is_element and one.line not in found][:1]
        if change.line != place.line:
            found += [one for one in _returned(change.right, source) if one not in found]
        wanted += [(other, change.line) for other in _bases(change.right)]
    return [Place(place.file, line, place.function) for line in found[:MOST]]


def deciding(place: Place, caller: Place | None = None) -> list[Place]:
    """The lines that decide whether the line at `place` runs, and how often, at most MOST_DECIDING.

    Loops and conditions around it, and earlier ones in its function that exit, nearest first; then the lines that
    compute their bounds, including those before the call at `caller` if a bound is passed there.
    """
    source, around, here = read_at(place)
    if here is None:
        return []
    heads = source.heads(place.line)
    choices = _of_ternary(here, around)
    found = list(dict.fromkeys([*choices, *map(line_of, heads)]))
    passed: list[Place] = []
    names = [(name, line_of(head)) for head in heads for part in condition_of(head) for name in _bases(part)]
    if caller:
        chosen = [one.right for one in around.changes if one.line in choices]
        passed = [one for right in chosen for name in _bases(right) for one in _passed_for(name, around, caller)]
    further = []
    for name, line in names:
        change = around.set_at(name, line)
        if change:
            made = [change.line, *_returned(change.right, source)]
            found += [one for one in made if one not in found and one != place.line]
            further += [around.set_at(one, change.line - 1) for one in _bases(change.right)]
        elif caller:
            passed += _passed_for(name, around, caller)
    found += [one.line for one in further if one and one.line not in found]
    own = [Place(place.file, line, place.function) for line in found]
    return list(dict.fromkeys([*passed, *own]))[:MOST_DECIDING]


def _passed_for(name: str, function: Function, caller: Place) -> list[Place]:
    """The lines that compute the argument for a parameter in the line of a call."""
    _, around, here = read_at(caller)
    names = [one.name for one in function.parameters]
    if here is None or name not in names:
        return []
    given = [one.arguments for one in around.calls if one.line == caller.line and one.name == function.name]
    bases = _bases(given[0][names.index(name)]) if given and names.index(name) < len(given[0]) else []
    changes = [around.set_at(one, caller.line) for one in bases]
    return [Place(caller.file, one.line, caller.function) for one in changes if one]


def loops_with_barrier(file: str, kernel: str) -> list[Place]:
    """The headers of loops with a barrier in a kernel and the functions it calls: one that does not end makes threads
    wait forever. Innermost first."""
    source = read(file)
    around = source.function(kernel) if source else None
    called = [source.function(one.name) for one in around.calls] if around else []
    loops = [one for each in (around, *called) if each for one in each.heads if one.type != "if_statement"]
    waiting = {line_of(one) for one in loops if any(call.name.startswith("__sync") for call in calls_in(one))}
    return [Place(file, line, kernel) for line in sorted(waiting, reverse=True)]


def _of_ternary(here: Node, around: Function) -> list[int]:
    """The lines that compute the condition under which the line reads something (`weight != 0 ? row[k] : 0`)."""
    choices = [one for one in walk(here) if one.type == "conditional_expression"]
    names = []
    for one in choices:
        if arrays_in(one.child_by_field_name("consequence") or one):
            names += [(name, line_of(here) - 1) for name in _bases(one.child_by_field_name("condition"))]
    found: list[int] = []
    while names and len(found) < MOST_TERNARY:
        name, below = names.pop(0)
        change = around.set_at(name, below)
        if change and change.line not in found:
            found.append(change.line)
            names += [(one, change.line - 1) for one in _bases(change.right)]
    return found


def writers(place: Place, variable: str = "") -> list[Place]:
    """The lines of the file that store to an array read by the line at `place`, by its name there or `variable`."""
    source, around, here = read_at(place)
    if here is None:
        return []
    stored = {one.name for one in around.changes if one.line == place.line and one.is_element and not one.keeps}
    names = [name for name in arrays_in(here) if name not in stored]
    names = list(dict.fromkeys([variable, *names] if re.fullmatch(r"\w+", variable) else names))
    found = [line for name in names for line in _stores(name, source.functions) if line != place.line]
    for name in () if found else names:  # passed to a function, which has another name for it
        for function, parameter, _ in _receivers(name, source):
            found += _stores(parameter, [function])
    return [Place(place.file, number) for number in dict.fromkeys(found)][:MOST_WRITERS]


def _stores(name: str, functions: Iterable[Function]) -> list[int]:
    """The lines of the functions that assign an element of an array."""
    every = (one for function in functions for one in function.changes)
    return [one.line for one in every if one.name == name and one.indices and not one.keeps]


def _receivers(array: str, source: Source) -> Iterator[tuple[Function, str, Call]]:
    """The functions of the file that are called with an array, their parameter's name, and the first such call."""
    made = [call for function in source.functions for call in function.calls]
    for function in source.functions:
        for call in made:
            at = next((i for i, one in enumerate(call.arguments) if _bases(one)[:1] == [array]), None)
            if call.name == function.name and at is not None and at < len(function.parameters):
                yield function, function.parameters[at].name, call
                break


def calls(place: Place, launch: Place | None) -> list[Place]:
    """The calls that passed the code at `place` its arguments, innermost first: those on the device, the launch, and
    the calls of the launching function in its file. Each with its whole statement; empty if they cannot be read."""
    found = []
    on_host = [launch, *_calls_of_launcher(launch)] if launch else []
    for one in dict.fromkeys([*place.callers[:MOST_CALLS], *place.outer[:MOST_CALLS], *on_host]):
        _, around, statement = read_at(one)
        if statement is not None:
            every = [each for each in walk(around.body) if one == launch and line_of(each) == one.line]
            launches = (each for each in every if each.type == "expression_statement" and "<<<" in text_of(each))
            found.append(replace(one, statement=" ".join(text_of(next(launches, statement)).split())))
    return found


def leaving(place: Place) -> list[Place]:
    """The lines by which a thread may leave the function around a place, or one of its loops, before the others; at
    most MOST_LEAVING, nearest first."""
    _, around, _ = read_at(place)
    if around is None:
        return []
    found = [line_of(one) for one in walk(around.body) if one.type in _LEAVING]
    last = [one for one in around.body.named_children if one.type != "comment"][-1:]
    found = [line for line in found if not (last and last[0].type == "return_statement" and line_of(last[0]) == line)]
    return [Place(place.file, n) for n in sorted(found, key=lambda n: abs(n - place.line))[:MOST_LEAVING]]


def loop_waits(place: Place, within_a_warp: bool = False) -> bool:
    """Whether the innermost loop around a line has an unconditional barrier; within_a_warp: a warp barrier suffices."""
    source, around, _ = read_at(place)
    heads = source.heads(place.line) if around else []
    loop = next((one for one in heads if one.type in ("for_statement", "while_statement")), None)
    body = loop.child_by_field_name("body") if loop else None
    names = ("__syncthreads", "__syncwarp") if within_a_warp else ("__syncthreads",)
    statements = (body.named_children if body.type == "compound_statement" else [body]) if body else []
    simple = [one for one in statements if one.type == "expression_statement"]
    made = [call for one in simple for call in calls_in(one) if source.is_compiled_with(call.line, [place.line])]
    return any(call.name in names for call in made)


def piece_of(place: Place, variable: str) -> str:
    """The pointer through which the line at `place` accesses an array, by its name in the outermost function; "" if
    that is the array itself or unknown."""
    source, around, here = read_at(place)
    if here is None:
        return ""
    names = arrays_in(here)
    for caller in place.callers:
        called = [call for call in calls_in(read_at(caller)[2] or here) if call.name == around.name]
        if not called:
            return ""
        passed = dict(zip((one.name for one in around.parameters), called[0].arguments, strict=False))
        names = [(_bases(passed[name]) or [""])[0] for name in names if name in passed]
        around = source.function_at(caller.line) or around
    every = (one for function in source.functions for one in function.changes)
    pieces = {one.name for one in every if not one.is_element and variable in _bases(one.right)[:1]} & set(names)
    return pieces.pop() if len(pieces) == 1 else ""


def handed_to_before(array: str, launch: Place) -> list[Place]:
    """The calls that received an array before the call that leads to the launch, in the function that makes both."""
    found = []
    for call in _calls_of_launcher(launch):
        _, around, here = read_at(call)
        if here is None or array not in _bases(here):
            continue
        earlier = [one.line for one in around.calls if any(array in _bases(given) for given in one.arguments)]
        found += [
            Place(call.file, line, call.function) for line in sorted(set(earlier), reverse=True) if line < call.line
        ]
    return found[:MOST_WRITERS]


def _calls_of_launcher(launch: Place) -> list[Place]:
    """The lines of the file that call the function in which a kernel is launched, at most MOST_CALLS."""
    source, around, _ = read_at(launch)
    if around is None:
        return []
    others = [one for one in source.functions if one is not around]
    lines = [call.line for one in others for call in one.calls if call.name == around.name]
    return [Place(launch.file, line) for line in lines][:MOST_CALLS]


def _returned(right: Node | None, source: Source) -> list[int]:
    """The lines where a small function of the file, called in this node, computes its return value."""
    found = []
    for call in calls_in(right) if right else ():
        function = source.function(call.name)
        if function is None or function.last - function.line > SMALL:
            continue
        results = [one for one in walk(function.body) if one.type == "return_statement"]
        if results:
            names = _bases(results[-1])
            change = function.set_at(names[0], line_of(results[-1]) - 1) if names else None
            found.append(change.line if change else line_of(results[-1]))
            found += [one.line for one in function.changes if names and one.name == names[0] and one.member]
    return found


def read_at(place: Place) -> tuple[Source | None, Function | None, Node | None]:
    """The file of a place, the enclosing function and the statement; None for what cannot be read."""
    source = read(place.file)
    around = source.function_at(place.line) if source else None
    return source, around, source.statement_at(place.line) if around else None


def _bases(node: Node | None) -> list[str]:
    """The names of values in a node; structs without their members."""
    return list(dict.fromkeys(one.partition(".")[0] for one in names_in(node)))


def _addresses(here: Node, arrays: list[str]) -> list[str]:
    """The names in the indices of a statement's accesses, then the arrays themselves; without arrays, the arguments of
    its calls."""
    inside = [name for one in indices_in(here) for name in _bases(one)]
    made = calls_in(here) if not indices_in(here) else ()
    given = [name for call in made for one in call.arguments for name in _bases(one)]
    return list(dict.fromkeys([*inside, *arrays, *given]))
