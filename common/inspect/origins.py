"""Where what a line uses comes from: origins(place), the lines above it that compute its addresses and its values.

An access goes wrong in one line, and the mistake is often in another: the index was computed there, or the pointer.
The text of the function tells which: the last line above that declares or assigns a name that the access uses, and so
on for the names in that line. Names that come in as arguments end the search; `calls` goes on from there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from common.compiling.gaps import Function, functions_of
from common.console.files import read_source
from common.inspect.source_lines import Place
from common.simulator.rewriter import blanked

MOST = 4  # lines that are told
MOST_DECIDING = 6
MOST_WRITERS = 2
MOST_USES = 4
MOST_TERNARY = 3
MOST_CALLS = 2  # besides the launch
MOST_LEAVING = 3
SMALL = 12  # lines of a function whose result is followed
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w*\s*(?:::|\())")
_WORDS = """
    int int64_t int32_t uint32_t unsigned size_t float float2 float4 double bool const constexpr static auto void
    reinterpret_cast static_cast for if while return threadIdx blockIdx blockDim gridDim INFINITY true false
"""
_NO_VALUES = frozenset(_WORDS.split())


def origins(place: Place, variable: str = "") -> list[Place]:
    """The lines that compute the addresses of what the line at `place` accesses, the nearest first, at most MOST.

    Empty if the file or the function cannot be read, or if the line says it all. Where one of the line's pointers is
    made of `variable`, the others are left out.
    """
    around = _around(place)
    if around is None:
        return []
    text, lines, first = around
    found: list[int] = []
    here = _statement(lines, place.line)
    arrays = list(dict.fromkeys(re.findall(r"(\w+)\s*\[", here)))
    set_in = {name: _set_in(name, lines, first, place.line) for name in arrays}
    made = [name for name, at in set_in.items() if at and re.search(rf"\b{variable}\b", _statement(lines, at))]
    others = set(arrays) - set(made) if re.fullmatch(r"\w+", variable) and made else set()
    wanted = [(name, place.line) for name in _indices(here) if name not in others]
    seen: set[str] = set()
    while wanted and len(found) < MOST:
        name, below = wanted.pop(0)
        if name in seen:
            continue
        seen.add(name)
        line = _set_in(name, lines, first, below)
        if line is None:
            continue
        if line != place.line and line not in found:
            found.append(line)
        found += [one for one in _changed_below(name, text, lines, place) if one not in found]
        right = _right_of(name, _statement(lines, line))
        found += [one for one in _returned(right, text, Path(place.file)) if one not in found and line != place.line]
        wanted += [(other, line) for other in _names(right)]
    return [Place(place.file, line, place.function) for line in found[:MOST]]


def _changed_below(name: str, text: str, lines: list[str], place: Place) -> list[int]:
    """The lines below a place, in its function, that change what a name holds: for the next turn of a loop."""
    around = next((one for one in functions_of(text, Path(place.file)) if _is_in(one, place.line)), None)
    change = re.compile(rf"^\s*(?:\w[^;=]*\)\s*)?{name}\s*(?:[-+*/%|&]|<<|>>)=(?!=)|(?:\+\+|--){name}\s*;")
    last = around.line + around.body.count("\n") if around else place.line
    return [number for number in range(place.line + 1, last + 1) if change.search(lines[number - 1])][:1]


def _is_in(function: Function, line: int) -> bool:
    return function.line <= line <= function.line + function.body.count("\n")


def deciding(place: Place) -> list[Place]:
    """The lines that decide whether the line at `place` runs, and how often, at most MOST_DECIDING.

    Loops and conditions around it, and those before it in its function that leave, the nearest first; then the lines
    that compute their bounds.
    """
    around = _around(place)
    if around is None:
        return []
    text, lines, first = around
    heads = _heads(lines, first, place.line)
    found = _of_ternary(lines, first, place.line)
    found += [head for head in heads if head not in found]
    for head in heads:
        statement = _statement(lines, head)
        for name in _names(statement):
            line = _set_in(name, lines, first, head)
            if line is None:
                continue
            made = [line, *_returned(_right_of(name, _statement(lines, line)), text, Path(place.file))]
            found += [one for one in made if one not in found and one != place.line]
    return [Place(place.file, line, place.function) for line in found[:MOST_DECIDING]]


def _of_ternary(lines: list[str], first: int, line: int) -> list[int]:
    """Where a value is computed by which the line reads something or not (`weight != 0 ? row[k] : 0`), and what that is
    made of."""
    before, mark, after = _statement(lines, line).partition("?")
    depth, begin = 0, len(before)
    while mark and begin and depth >= 0 and not re.search(r"(?<![=!<>])=\s?$", before[:begin]):
        begin -= 1
        depth += (before[begin] in ")]") - (before[begin] in "([")
    found: list[int] = []
    names = [(name, line - 1) for name in _names(before[begin:])] if "[" in after.split(":")[0] else []
    while names and len(found) < MOST_TERNARY:
        name, below = names.pop(0)
        at = _set_in(name, lines, first, below)
        if at is not None and at not in found and at != line:
            found.append(at)
            names += [(one, at - 1) for one in _names(_right_of(name, _statement(lines, at)))]
    return found


def used_in(name: str, kernel: str, launch: Place) -> list[Place]:
    """The last lines of a kernel that mention an argument of this name, or a pointer that is made of it, at most
    MOST_USES, in their order; else of another function of its file."""
    file = Path(launch.file)
    try:
        text = read_source(file)
    except (OSError, ValueError):
        return []
    lines = blanked(text).split("\n")
    every = sorted(functions_of(text, file), key=lambda one: one.name != kernel)
    for one in every:
        names, found = {name}, []
        for number in range(one.line, one.line + one.body.count("\n") + 1):
            line = lines[number - 1]
            if number == launch.line or not any(re.search(rf"(?<![\w.]){re.escape(each)}\b", line) for each in names):
                continue
            found.append(Place(launch.file, number, one.name))
            if pointer := _POINTER.search(line):
                names.add(pointer[1])
        if found:
            found = found[-MOST_USES:]
            return found + _read_for(found[-1], names, text, lines)
    return []


def _read_for(call: Place, names: Iterable[str], text: str, lines: list[str]) -> list[Place]:
    """Where a function reads what it is handed one of these names for in the line at `call`."""
    for name in names:
        for function, parameter in _receivers(name, text, Path(call.file)):
            if not re.search(rf"\b{function.name}\b", _statement(lines, call.line)):
                continue
            for number in range(function.line, function.line + function.body.count("\n") + 1):
                if re.search(rf"(?<![\w.]){parameter}\s*\[", lines[number - 1]):
                    return [Place(call.file, number, function.name, (call,))]
    return []


_POINTER = re.compile(r"\*\s*(?:__restrict__\s+)?(\w+)\s*=(?!=)")
_HEAD = re.compile(r"^\s*(?:\}\s*)?(?:else\s+)?(?:for|if|while)\b")
_LEAVES = re.compile(r"\b(?:return|continue|break)\b[^;]*;")


def _heads(lines: list[str], first: int, line: int) -> list[int]:
    """The loops and conditions around a line, and those before it in the same blocks that leave; the nearest first."""
    open_: list[list[int]] = [[]]  # of each open block the heads in it that still count
    for number in range(first, line + 1):
        text = lines[number - 1]
        is_head = bool(_HEAD.search(text))
        if is_head and (number == line or text.rstrip().endswith("{")):
            head = [number]
        elif is_head and _LEAVES.search(text):
            open_[-1].append(number)
            head = []
        else:
            head = []
        if number == line:
            open_[-1] += head
            break
        for char in text:
            if char == "{":
                open_.append(head)
                head = []
            elif char == "}" and len(open_) > 1:
                open_.pop()
        if is_head and not text.rstrip().endswith(("{", ";")) and number + 1 == line:
            open_[-1].append(number)
    return sorted((number for block in open_ for number in block), reverse=True)


def writers(place: Place, variable: str = "") -> list[Place]:
    """The lines of the file that store into an array that the line at `place` reads, under its name there or this."""
    try:
        lines = blanked(read_source(Path(place.file))).split("\n")
    except (OSError, ValueError):
        return []
    here = _statement(lines, place.line)
    names = [
        name for name in dict.fromkeys(re.findall(r"(\w+)\s*\[", here)) if not re.search(rf"\b{name}\[[^=]*\] =", here)
    ]
    names = list(dict.fromkeys([variable, *names] if re.fullmatch(r"\w+", variable) else names))
    found = [number for name in names for number in _stores(name, lines, 1, len(lines)) if number != place.line]
    text = "\n".join(lines)
    for name in () if found else names:  # handed to a function, which knows it under another name
        for function, parameter in _receivers(name, text, Path(place.file)):
            found += _stores(parameter, lines, function.line, function.line + function.body.count("\n"))
    return [Place(place.file, number) for number in dict.fromkeys(found)][:MOST_WRITERS]


def _stores(name: str, lines: list[str], first: int, last: int) -> list[int]:
    """The lines among these that assign an element of an array."""
    store = re.compile(rf"(?<![\w.]){name}\s*\[[^=]*\]\s*=(?!=)")
    return [number for number in range(first, last + 1) if store.search(lines[number - 1])]


def _receivers(array: str, text: str, file: Path) -> Iterator[tuple[Function, str]]:
    """The functions of the file that are called with an array, and what they call it."""
    for function in functions_of(text, file):
        heads = re.findall(rf"\b{function.name}\s*\(((?:[^(){{}};]|\([^()]*\))*)\)\s*\{{", text)
        for call in re.finditer(rf"\b{function.name}\s*(?:<[^;()]*>)?\s*\(([^;{{}}]*)\)\s*;", text):
            arguments = [one.strip() for one in call[1].split(",")]
            at = next((i for i, one in enumerate(arguments) if re.match(rf"{array}\b(?!\.)", one)), None)
            if at is not None and heads:
                parameters = heads[0].split(",")
                names = (
                    re.findall(r"[A-Za-z_]\w*", re.sub(r"\[[^\]]*\]", "", parameters[at]))
                    if at < len(parameters)
                    else []
                )
                if names:
                    yield function, names[-1]
                    break


def calls(place: Place, launch: Place | None) -> list[tuple[Place, str]]:
    """The calls through which the code at `place` got its arguments, from the inside out: those on the device, the
    launch, and those of the function of the file that launches. Each with its whole statement; empty where they cannot
    be read."""
    found = []
    on_host = [launch, *_calls_of_launcher(launch)] if launch else []
    for one in dict.fromkeys([*place.callers[:MOST_CALLS], *place.outer[:MOST_CALLS], *on_host]):
        with contextlib.suppress(OSError, ValueError):
            text = read_source(Path(one.file)).split("\n")
            if 0 < one.line <= len(text) and (statement := " ".join(_statement(text, one.line).split())):
                found.append((one, statement))
    return found


def launches_of(kernel: str, file: str) -> tuple[list[Place], str] | None:
    """Where a kernel that did not run is launched in its file, with the calls of the function around that, and what is
    missing of the two, in words; None if it is no kernel."""
    try:
        text = blanked(read_source(Path(file)))
    except (OSError, ValueError):
        return None
    if not re.search(rf"__global__[^;{{}}]*?\b{kernel}\s*\(", text):
        return None
    launch = re.compile(rf"(?<![\w.]){kernel}\s*(?:<[^;(){{}}]*>)?\s*<<<")
    found = [Place(file, number) for number, line in enumerate(text.split("\n"), 1) if launch.search(line)]
    if not found:
        return [], f"{kernel} is launched nowhere."
    around = next((one.name for one in functions_of(text, Path(file)) if _is_in(one, found[0].line)), "")
    called = _calls_of_launcher(found[0])
    is_called = bool(called) or not around or len(found) > 1
    return [found[0], *called], "" if is_called else f"{around}, which launches it, is called nowhere in this file."


def leaving(place: Place) -> list[Place]:
    """The lines of the function around a place by which a thread leaves it, or a loop of it, before the others; at most
    MOST_LEAVING, the nearest first."""
    around = _around(place)
    if around is None:
        return []
    text, lines, first = around
    function = next(one for one in functions_of(text, Path(place.file)) if _is_in(one, place.line))
    last = first + function.body.count("\n")
    found = [number for number in range(first, last + 1) if _LEAVES.search(lines[number - 1])]
    rest = "".join(lines[found[-1] - 1 : last]) if found else ""
    if re.fullmatch(r"\s*return\b[^;]*;[\s}]*", rest):  # the end of the function
        found.pop()
    return [Place(place.file, n) for n in sorted(found, key=lambda n: abs(n - place.line))[:MOST_LEAVING]]


def loop_waits(place: Place, within_a_warp: bool = False) -> bool:
    """Whether the innermost loop around a line has a barrier that stands under no condition; one of the warp counts
    where that is enough."""
    around = _around(place)
    if around is None:
        return False
    _, lines, first = around
    loop = next((n for n in _heads(lines, first, place.line) if re.search(r"\b(?:for|while)\b", lines[n - 1])), None)
    if loop is None:
        return False
    deep = len(lines[loop - 1]) - len(lines[loop - 1].lstrip())
    inside = [lines[loop - 1]]
    for line in lines[loop:]:
        if line.strip() and len(line) - len(line.lstrip()) <= deep:
            break
        inside.append(line)
    barrier = r"\s*__sync(?:threads|warp)\(" if within_a_warp else r"\s*__syncthreads\("
    return any(re.match(barrier, line) for line in inside)


def piece_of(place: Place, variable: str) -> str:
    """The pointer into an array by which the line at `place` accesses it, as the outermost function calls it; "" where
    that is the array itself, or cannot be told."""
    pointer = re.compile(rf"\*\s*(\w+)\s*=\s*&?{re.escape(variable)}\b")
    around = _around(place)
    if around is None:
        return ""
    text, lines, _ = around
    names = re.findall(r"(\w+)\s*\[", _statement(lines, place.line))
    for caller in place.callers:
        function = next((one for one in functions_of(text, Path(place.file)) if _is_in(one, place.line)), None)
        if function is None:
            return ""
        call = re.search(rf"\b{function.name}\s*(?:<[^;()]*>)?\s*\(([^;]*)\)", _statement(lines, caller.line))
        heads = re.findall(rf"\b{function.name}\s*\(((?:[^(){{}};]|\([^()]*\))*)\)\s*\{{", text)
        given = [one.strip() for one in call[1].split(",")] if call else []
        taken = [re.findall(r"\w+", re.sub(r"\[[^\]]*\]", "", one)) for one in (heads[0].split(",") if heads else [])]
        passed = {words[-1]: value for words, value in zip(taken, given, strict=False) if words}
        names = [re.match(r"\w*", passed.get(name, ""))[0] for name in names]
        place = caller
    pieces = set(pointer.findall(text)) & set(names)
    return pieces.pop() if len(pieces) == 1 else ""


def handed_to_before(array: str, launch: Place) -> list[Place]:
    """The calls that an array was handed to before the one that ends in a launch, in the function that makes both."""
    found = []
    for call in _calls_of_launcher(launch):
        around = _around(call)
        if around is None or not re.fullmatch(r"\w+", array):
            continue
        _, lines, first = around
        if not re.search(rf"\b{array}\b", _statement(lines, call.line)):
            continue
        passed = re.compile(rf"\w\s*\([^;]*(?<![\w.]){array}\b")
        earlier = [number for number in _upwards(first, call.line - 1) if passed.search(lines[number - 1])]
        found += [Place(call.file, number, call.function) for number in earlier]
    return found[:MOST_WRITERS]


def _calls_of_launcher(launch: Place) -> list[Place]:
    """The lines of the file that call the function in which a kernel is launched, at most MOST_CALLS."""
    file = Path(launch.file)
    try:
        text = blanked(read_source(file))
    except (OSError, ValueError):
        return []
    around = [one for one in functions_of(text, file) if 0 <= launch.line - one.line <= one.body.count("\n")]
    if not around:
        return []
    call = re.compile(rf"(?<![\w.]){around[-1].name}\s*(?:<[^;()]*>)?\s*\(")
    inside = [one for one in functions_of(text, file) if one is not around[-1]]
    lines = text.split("\n")
    return [
        Place(launch.file, number)
        for one in inside
        for number in range(one.line, one.line + one.body.count("\n") + 1)
        if call.search(lines[number - 1])
    ][:MOST_CALLS]


def _returned(right: str, text: str, file: Path) -> list[int]:
    """Where a small function of the file that is called there computes what it returns."""
    found = []
    lines = blanked(text).split("\n")
    for function in functions_of(text, file):
        size = function.body.count("\n")
        if size > SMALL or not re.search(rf"\b{function.name}\s*\(", right):
            continue
        last = function.line + size
        result = next((n for n in _upwards(function.line, last) if re.search(r"\breturn\b", lines[n - 1])), None)
        if result is None:
            continue
        names = _names(_statement(lines, result).replace("return", ""))
        found += [_set_in(name, lines, function.line, result - 1) or result for name in names[:1]] or [result]
        members = re.compile(rf"\b{names[0]}\.\w+\s*=(?!=)") if names else None
        found += [n for n in range(function.line, result) if members and members.search(lines[n - 1])]
    return found


def _around(place: Place) -> tuple[str, list[str], int] | None:
    """The text of a place's file, its lines without comments, and the line in which the function around it begins; None
    if the file or the function cannot be read."""
    file = Path(place.file)
    try:
        text = read_source(file)
    except (OSError, ValueError):
        return None
    first = _function_start(text, file, place.line)
    return None if first is None else (text, blanked(text).split("\n"), first)


def _function_start(text: str, file: Path, line: int) -> int | None:
    """The line in which the body of the function around a line begins."""
    for function in functions_of(text, file):
        if function.line <= line <= function.line + function.body.count("\n"):
            return function.line
    return None


def _statement(lines: list[str], number: int) -> str:
    """The text from this line on to the end of its statement."""
    said = ""
    for line in lines[number - 1 : number + 3]:
        said += line + " "
        if re.search(r"[;{]\s*$", line):
            break
    return said


def _names(text: str) -> list[str]:
    """The names of values in it, each once, in their order."""
    return [name for name in dict.fromkeys(_NAME.findall(text)) if name not in _NO_VALUES]


def _indices(statement: str) -> list[str]:
    """The names that the indices of a line's accesses are made of, then the arrays themselves."""
    inside, arrays = "", []
    for match in re.finditer(r"(\w+)\s*\[", statement):
        arrays.append(match[1])
        depth, at = 1, match.end()
        while depth and at < len(statement):
            depth += {"[": 1, "]": -1}.get(statement[at], 0)
            at += 1
        inside += statement[match.end() : at - 1] + " "
    called = re.findall(r"\w+\s*(?:<[^;()]*>)?\s*\(([^;]*)\)", statement) if not arrays else []
    return list(dict.fromkeys([*_names(inside), *arrays, *(name for one in called for name in _names(one))]))


def _assignments(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.]){name}\s*(?:\[[^;=]*\]\s*)?(?:[-+*/%|&]|<<|>>)?=(?!=)|(?<![\w.]){name}\s*\{{")


def _set_in(name: str, lines: list[str], first: int, below: int) -> int | None:
    """The last line from `below` upwards, within the function, that declares or assigns the name."""
    pattern = _assignments(name)
    for number in _upwards(first, below):
        if pattern.search(lines[number - 1]):
            return number
    return None


def _upwards(first: int, below: int) -> Iterator[int]:
    yield from range(below, first - 1, -1)


def _right_of(name: str, statement: str) -> str:
    """What the name is assigned, up to the next declarator's end or the statement's."""
    match = _assignments(name).search(statement)
    rest = statement[match.end() :] if match else ""
    depth = 0
    for at, char in enumerate(rest):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(char, 0)
        if depth < 0 or (depth == 0 and char in ",;"):
            return rest[:at]
    return rest
