"""Which lines a number is made in: made_of(place, files), from the line that stores it upwards, also into functions.

By the text of the functions, as in origins.py, but of values and not of addresses: every line that assigns a name which
the stored value is made of, what a function does to such a name that it is handed, what one returns, and the loops and
conditions around these lines. The way ends at what other
kernels stored.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from common.compiling.gaps import Function, functions_of
from common.console.files import read_source
from common.inspect.origins import _heads, _names, _statement
from common.inspect.source_lines import Place
from common.simulator.rewriter import blanked

MOST_STEPS = 400  # names that are followed
MOST_PARAMETERS = 24
HEAD_LINES = 8  # of a function, before its body
OF_HEAD, OF_INDEX, OF_UNROLLED = 0.5, 2, 3  # how much later than their number such lines come
_HEAD = re.compile(r"^[\s}]*(?:else\s+)?(?:(?:for|if|while)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)*(?=[^\s{])")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<[^;()]*>)?\s*\(")


@dataclass(frozen=True)
class _Text:
    """A source file, for searching."""

    file: str
    text: str
    lines: tuple[str, ...]
    functions: tuple[Function, ...]

    @functools.cached_property
    def structs(self) -> dict[str, list[str]]:
        """The structs of several members that are defined in it, with the names of these in their order."""
        found = {}
        for match in re.finditer(r"\bstruct\s+(\w+)\s*\{([^{}]*)\}", "\n".join(self.lines)):
            fields = re.findall(r"^\s*[\w:<>]+[\s*&]+(\w+)\s*(?:\[[^;]*)?;", match[2], re.MULTILINE)
            if len(fields) > 1:
                found[match[1]] = fields
        return found


def made_of(place: Place, files: Iterable[str], member: str = "") -> list[Place]:
    """The lines in which the number is made that the line at `place` stores, those that matter most first.

    A line comes the later the more others stand between it and the store; what only indices are made of, loops that
    are unrolled, and lines at which nothing can be told from the text come last.

    Args:
        place: of the store.
        files: whose functions are entered, beside that of the place.
        member: where a struct is stored, of which of its members; "" for all.
    """
    texts = [one for file in dict.fromkeys([place.file, *files]) if (one := _read(file))]
    if not texts or texts[0].file != place.file:
        return []
    here = _function_at(texts[0], place.line)
    if here is None:
        return []
    chain = tuple((one.file, one.line) for one in (*place.callers, *place.outer))
    search = _Search(texts, chain)
    where = _Where(texts[0], here, chain, line=place.line)
    statement = _statement(list(texts[0].lines), place.line)
    search.add(where, place.line, 0)
    values, indices = _stored(_HEAD.sub("", statement))
    search.follow(values, where, 1, member)
    search.follow(indices, where, 1 + OF_INDEX)
    search.run()
    return [Place(file, line) for file, line in sorted(search.found, key=lambda one: (search.found[one], one))]


def members_at(place: Place) -> list[str]:
    """The members of the struct that the line at `place` stores into an array; none if it is another type."""
    text = _read(place.file)
    array = re.search(r"(\w+)\s*\[", _HEAD.sub("", text.lines[place.line - 1])) if text else None
    lines = "\n".join(text.lines) if text else ""
    types = re.findall(rf"\b(\w+)\s+{array[1]}\s*\[", lines) if array else []
    return next((text.structs[one] for one in types if one in text.structs), [])


def function_begin(place: Place) -> int:
    """The line in which the body of the function around a place begins; 0 if it cannot be read."""
    text = _read(place.file)
    around = text and _function_at(text, place.line)
    return around.line if around else 0


@dataclass(frozen=True)
class _Where:
    """A function in which names are followed, through which calls it was come to, as far as that is known, and the line
    of the words that are looked at."""

    text: _Text
    function: Function
    chain: tuple[tuple[str, int], ...] = ()
    line: int = 0

    @property
    def numbers(self) -> range:
        return range(self.function.line, self.function.line + self.function.body.count("\n") + 1)

    def statement(self, line: int) -> str:
        return _statement(list(self.text.lines), line)


class _Search:
    """The lines found so far, each with how far it is from the store."""

    def __init__(self, texts: list[_Text], calls: tuple[tuple[str, int], ...]) -> None:
        self.texts = texts
        self.after = set(calls)  # what the calls assign in which the store is made comes after it
        self.structs = [fields for one in texts for fields in one.structs.values()]
        self.found: dict[tuple[str, int], float] = {}
        self.seen: set[tuple] = set()
        self.todo: list[tuple[float, int, str, _Where]] = []
        self.order = itertools.count()

    def add(self, where: _Where, line: int, far: float) -> None:
        """A line, and the loops and conditions around it."""
        key = (where.text.file, line)
        if self.found.get(key, 1e9) <= far:
            return
        self.found[key] = far
        for head in _heads(list(where.text.lines), where.function.line, line):
            key = (where.text.file, head)
            unrolled = "#pragma unroll" in where.text.lines[head - 2]
            there = far + (0 if head == line else OF_UNROLLED if unrolled else OF_HEAD)
            if head == line or self.found.get(key, 1e9) > there:
                self.found[key] = there
                self.follow(_condition(where.statement(head)), replace(where, line=head), there + 1)

    def follow(self, words: str, where: _Where, far: float, member: str = "") -> None:
        """The names in these words, and the functions that they call; where only a member of what they give is wanted,
        that one of what stands there whole."""
        words, member = self._of_braces(words, member)
        entered = set()
        for call in _CALL.finditer(words):
            if (target := self._defined(call[1])) and target.function is not where.function:
                inside = replace(target, chain=((where.text.file, where.line), *where.chain)) if where.line else target
                for number in target.numbers:
                    if match := re.search(r"\breturn\b", target.text.lines[number - 1]):
                        entered.add(call[1])
                        self.add(inside, number, far)
                        key = (target.text.file, target.function.name, f"return {number} {member}", where.line)
                        if key not in self.seen:
                            self.seen.add(key)
                            result = target.statement(number)[match.end() :].rsplit("}", 1)[0]
                            self.follow(result, replace(inside, line=number), far + 1, member)
        for name in self._members(words, member):
            heapq.heappush(self.todo, (far, next(self.order), name, where))

    def _of_braces(self, words: str, member: str) -> tuple[str, str]:
        """Of `{a, b}`, or `State{a, b}`, what a member is given; other words as they are, with the member."""
        match = re.match(r"\s*\w*\s*\{(.*)\}?\s*;?\s*$", words)
        given = _arguments(match[1], 0) if match and member else []
        for fields in self.structs if given else ():
            if member in fields and len(fields) == len(given):
                return given[fields.index(member)], ""
        return words, member

    def _members(self, words: str, member: str) -> list[str]:
        """The names of values in these words, with the member that is meant, where one of a struct is."""
        found = []
        for name in _names(words):
            pattern = rf"(?<![\w.]){name}\b(?:\s*\[[^\[\]]*\])*(?:\s*\.\s*(\w+))?"
            for match in re.finditer(pattern, words):
                known = match[1] and any(match[1] in fields for fields in self.structs)
                wanted = match[1] if known else "" if match[1] else member
                found.append(f"{name}.{wanted}" if wanted else name)
        return list(dict.fromkeys(found))

    def run(self) -> None:
        """Follows every name, the nearest first."""
        while self.todo and len(self.seen) < MOST_STEPS:
            far, _, name, where = heapq.heappop(self.todo)
            key = (where.text.file, where.function.name, name, where.chain[:1])
            if key not in self.seen:
                self.seen.add(key)
                self._name(name, where, far)

    def _name(self, name: str, where: _Where, far: float) -> None:
        base, _, member = name.partition(".")
        pattern = _assignments(base, member)
        around = {where.line, *_heads(list(where.text.lines), where.function.line, where.line)}
        for number in where.numbers:
            here, of_loop = replace(where, line=number), rf"\bfor\s*\((?:\w+[\s*&]+)+{base}\s*="
            if (where.text.file, number) in self.after or (
                re.search(of_loop, where.text.lines[number - 1]) and number not in around
            ):
                continue  # a loop that the words looked at do not stand in has a variable of its own
            for match in pattern.finditer(where.text.lines[number - 1]):  # a line may hold several
                self.add(where, number, far)
                values, indices = _stored(where.statement(number)[match.start() :])
                is_whole = member and not re.search(rf"\.{member}\b", match[0])
                self.follow(values, here, far + 1, member if is_whole else "")
                self.follow(indices, here, far + 1 + OF_INDEX)
            for call in _CALL.finditer(where.text.lines[number - 1]):
                self._handed_over(name, call, number, where, far)
        if where.chain:  # a parameter that is assigned, too, still begins as what is passed for it
            self._argument(name, where, far)

    def _handed_over(self, name: str, call: re.Match, number: int, where: _Where, far: float) -> None:
        """What a function does to a name that it is called with, if it assigns it."""
        target, (base, _, member) = self._defined(call[1]), name.partition(".")
        if target is None or target.function is where.function:
            return
        given = _arguments(_joined(where.text, number), call.end())
        inside = replace(target, chain=((where.text.file, number), *where.chain))
        for at, argument in enumerate(given):
            parameter = _parameter(target, at) if re.match(rf"[&*\s]*{base}\b", argument) else ""
            if parameter and _is_assigned(parameter, member, target, at):
                self.add(where, number, far)
                called = f"{parameter}.{member}" if member else parameter
                heapq.heappush(self.todo, (far + 0.5, next(self.order), called, inside))

    def _argument(self, name: str, where: _Where, far: float) -> None:
        """What the caller passes for a parameter."""
        (file, line), *rest = where.chain
        base, _, member = name.partition(".")
        caller = next((one for one in self.texts if one.file == file), None)
        around = caller and _function_at(caller, line)
        at = next((i for i in range(MOST_PARAMETERS) if _parameter(where, i) == base), None)
        if not caller or not around or at is None:
            return  # it is no parameter
        outside = _Where(caller, around, tuple(rest), line)
        call = re.search(rf"\b{where.function.name}\s*(?:<[^;()]*>)?\s*\(", caller.lines[line - 1])
        given = _arguments(_joined(caller, line), call.end()) if call else []
        if at < len(given):
            self.add(outside, line, far)
            self.follow(given[at], outside, far + 1, member)

    def _defined(self, name: str) -> _Where | None:
        return next((_Where(one, f) for one in self.texts for f in one.functions if f.name == name), None)


@functools.lru_cache(maxsize=16)
def _read(file: str) -> _Text | None:
    try:
        text = read_source(Path(file))
    except (OSError, ValueError):
        return None
    return _Text(file, text, tuple(blanked(text).split("\n")), functions_of(text, Path(file)))


def _function_at(text: _Text, line: int) -> Function | None:
    return next((f for f in text.functions if f.line <= line <= f.line + f.body.count("\n")), None)


def _condition(statement: str) -> str:
    """What a loop or a condition decides by: its bracket; of a statement that has none nothing."""
    return match[0] if (match := _HEAD.match(statement + "x")) else ""


def _joined(text: _Text, line: int) -> str:
    """A line with those after it on which its call may go on."""
    return " ".join(text.lines[line - 1 : line + 4])


def _assignments(name: str, member: str = "") -> re.Pattern[str]:
    """What gives a name, or an element or a member of it, a value; with a member this one, or the whole."""
    part = r"(?:\.\w+|\s*\[[^;=]*?\])*"
    if member:
        part = rf"(?:\s*\[[^;=]*?\])*(?:\.{member}\b(?:\s*\[[^;=]*?\])*)?"
    return re.compile(
        rf"(?<![\w.]){name}{part}\s*(?:[-+*/%|&^]|<<|>>)?=(?!=)"
        rf"|(?<![\w.])(?:\w[\w:]*(?:<[^;<>]*>)?[&*]?)\s+{name}\s*\{{"
        rf"|(?:\+\+|--){name}\b|(?<![\w.]){name}(?:\+\+|--)"
    )


def _stored(statement: str) -> tuple[str, str]:
    """What an assignment stores, and what it only indexes with: the right-hand side, and the left one of += as well."""
    match = re.search(r"(?<![=!<>])=(?!=)", statement)
    if not match:
        return statement, ""
    left, right = statement[: match.start()], _to_bracket(re.split(r";", statement[match.end() :])[0])
    whole = f"{left} {right}" if left and left[-1] in "+-*/|&^" else right
    values = whole
    while (shorter := re.sub(r"\[[^\[\]]*\]", " ", values)) != values:
        values = shorter
    return values, " ".join(re.findall(r"\[([^;]*?)\]", whole))


def _to_bracket(words: str) -> str:
    """The words up to a bracket that closes none of theirs: that of a loop whose step they are."""
    depth = 0
    for at, char in enumerate(words):
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            return words[:at]
    return words


def _arguments(text: str, start: int) -> list[str]:
    """The arguments of a call whose bracket opens just before `start`."""
    depth, found, now = 0, [], ""
    for char in text[start:]:
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            break
        if char == "," and depth == 0:
            found.append(now.strip())
            now = ""
        else:
            now += char
    return [*found, now.strip()]


def _parameters(where: _Where) -> list[str]:
    """A function's parameters as they are declared."""
    head = "\n".join(where.text.lines[max(0, where.function.line - HEAD_LINES) : where.function.line])
    begins = list(re.finditer(rf"\b{where.function.name}\s*\(", head))
    return _arguments(head, begins[-1].end()) if begins else []


def _parameter(where: _Where, at: int) -> str:
    """The name of a function's parameter; "" if there is none."""
    given = _parameters(where)
    if at >= len(given):
        return ""
    if array := re.search(r"\(&\s*(\w+)\)", given[at]):
        return array[1]
    names = re.findall(r"[A-Za-z_]\w*", re.sub(r"<[^<>]*>|\[[^\]]*\]|=.*", "", given[at]))
    return names[-1] if names else ""


def _is_assigned(name: str, member: str, where: _Where, at: int) -> bool:
    """Whether a function assigns its parameter in a way that its caller sees, or hands it on."""
    if not re.search(r"[&*\[]", _parameters(where)[at]):
        return False
    function = where.function
    return bool(
        _assignments(name, member).search(function.body) or re.search(rf"[\w>]\s*\([^;]*\b{name}\b", function.body)
    )
