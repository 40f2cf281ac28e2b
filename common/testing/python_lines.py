"""Finds the lines of a Python function that compute a value (a backward slice): made_of(source, first_line, line).

It works on the source text: from the value's names, it goes up to the statements that assign them or call their
methods, and so on, including the enclosing loops and conditions.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass

MOST = 10  # reported lines
MOST_WIDE = 200  # characters per line
MOST_TEXT = 40_000  # characters in a function


@dataclass(frozen=True)
class _Statement:
    """A simple statement, or the header of a loop or condition.

    Attributes:
        line: its first line, relative to the function's source.
        last: its last line.
        sets, uses: the names that it may modify, and those that it reads.
        around: the enclosing headers, as (index, 0 for the body or 1 for the else branch).
        is_loop, is_return: its kind.
    """

    line: int
    last: int
    sets: frozenset[str]
    uses: frozenset[str]
    around: tuple[tuple[int, int], ...]
    is_loop: bool
    is_return: bool


def calls_alone(source: str, first_line: int) -> Iterator[tuple[int, str]]:
    """The lines of a function with a statement that is nothing but the call of a method, without out=, and its name."""
    function = _function(source)
    for node in ast.walk(function) if function else ():
        call = node.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        if call and isinstance(call.func, ast.Attribute) and all(one.arg != "out" for one in call.keywords):
            yield node.lineno + first_line - 1, call.func.attr


def made_of(
    source: str,
    first_line: int,
    line: int | None = None,
    known: Collection[str] = (),
    most: int = MOST,
    ran: Collection[int] | None = None,
    part: str | None = None,
) -> list[tuple[int, str]]:
    """(number, text) of the lines in source order; at most `most`, the nearest ones.

    Args:
        source: the source text of the function.
        first_line: its first line number in the file.
        line: a line number in the file; the slice covers the values it uses and the conditions for it to run. None: the
            return value.
        known: names with correct values; the lines that compute these are left out.
        ran: the numbers of the lines that ran; of others, only the conditions are given. None: unknown.
        part: of the return value: "1" if it is a tuple of which part 1 is wanted, "" if it is none. None: unknown.
    """
    function = _function(source)
    if function is None:
        return []
    for node in ast.walk(function) if part is not None else ():
        if isinstance(node, ast.Return) and node.value:
            node.value = _part_of(node.value, part)
    every = list(_statements(function.body, ()))
    here = len(every) if line is None else _at(every, line - first_line + 1)
    wanted: list[tuple[str, int]] = []
    found: dict[int, None] = {}

    def with_heads(number: int) -> None:
        for one, _ in every[number].around:
            if one not in found:
                found[one] = None
                wanted.extend((name, one) for name in every[one].uses)

    for number in [here] if line is not None else [n for n, one in enumerate(every) if one.is_return]:
        if number < len(every):
            found[number] = None
            wanted += [(name, number) for name in sorted(every[number].uses)]
            with_heads(number)
    seen = set()
    while wanted:
        name, below = wanted.pop(0)
        if name in known or (name, below) in seen:
            continue
        seen.add((name, below))
        for number in _setting(every, name, below):
            if number not in found:
                one = every[number]
                if ran is None or not {*range(first_line + one.line - 1, first_line + one.last)}.isdisjoint(ran):
                    found[number] = None
                    wanted += [(name, number) for name in sorted(one.uses)]
                with_heads(number)
    found.pop(here, None)
    lines = source.split("\n")
    heads = {head for one in every for head, _ in one.around}
    chosen = sorted(found, key=lambda number: number in heads)[:most]  # what makes the value before what decides on it
    told = sorted({every[number].line for number in chosen})
    return [(first_line + one - 1, lines[one - 1].strip()[:MOST_WIDE]) for one in told]


def names_at(source: str, first_line: int, line: int) -> list[str]:
    """The names that a line of a function reads, sorted; source and first_line as in made_of."""
    function = _function(source)
    every = list(_statements(function.body, ())) if function else []
    here = _at(every, line - first_line + 1)
    return sorted(every[here].uses) if here < len(every) else []


def _function(source: str) -> ast.FunctionDef | None:
    try:
        (function,) = ast.parse(textwrap.dedent(source[:MOST_TEXT])).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return function if isinstance(function, ast.FunctionDef) else None


def _part_of(value: ast.expr, part: str) -> ast.expr:
    """The expression of a part of the return value, see made_of."""
    if isinstance(value, ast.IfExp) and isinstance(value.body, ast.Tuple) != isinstance(value.orelse, ast.Tuple):
        value = value.body if isinstance(value.body, ast.Tuple) == part.isdigit() else value.orelse
    is_part = isinstance(value, ast.Tuple) and part.isdigit() and int(part) < len(value.elts)
    return value.elts[int(part)] if is_part else value


def _setting(every: list[_Statement], name: str, below: int) -> list[int]:
    """The statements that may have set a name used in statement `below`, nearest first.

    These are the statements above it, up to one that always runs before it and assigns a new value; in a loop also
    those after it; and for `self`, which outlives the call, all.
    """
    around = every[below].around
    loops = {one for one in around if every[one[0]].is_loop}
    found = []
    for number in range(below - 1, -1, -1):
        one = every[number]
        others = {(head, 1 - part) for head, part in around if not every[head].is_loop}
        if name in one.sets and (name == "self" or not others & set(one.around)):
            found.append(number)
            if set(one.around) <= set(around) and name not in one.uses:
                break
    for number in range(below + 1, len(every)):
        if name in every[number].sets and (name == "self" or loops & set(every[number].around)):
            found.append(number)
    return found


def _at(every: list[_Statement], line: int) -> int:
    """The index of the innermost statement that contains a line of the function."""
    holding = [number for number, one in enumerate(every) if one.line <= line <= one.last]
    return min(holding, key=lambda number: every[number].last - every[number].line, default=len(every))


def _statements(body: list[ast.stmt], around: tuple[tuple[int, int], ...], begin: int = 0) -> Iterator[_Statement]:
    """The statements of a body in source order, numbered from `begin`."""
    number = begin
    for node in body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom | ast.Pass | ast.FunctionDef | ast.ClassDef):
            continue
        inner = getattr(node, "body", []), getattr(node, "orelse", [])
        is_head = any(inner)
        heads = [getattr(node, name) for name in ("target", "iter", "test", "items") if is_head and hasattr(node, name)]
        sets, uses = _names(heads if is_head else [node])
        last = max((one.end_lineno for one in _flat(heads)), default=node.lineno) if is_head else node.end_lineno
        is_loop = isinstance(node, ast.For | ast.While)
        yield _Statement(node.lineno, last, sets, uses, around, is_loop, isinstance(node, ast.Return))
        own, number = number, number + 1
        for which, part in enumerate(inner):
            for one in _statements(part, (*around, (own, which)), number):
                number += 1
                yield one


def _flat(nodes: list) -> list[ast.AST]:
    every = [one for node in nodes for one in (node if isinstance(node, list) else [node])]
    return [part for one in every for part in ast.walk(one) if hasattr(part, "end_lineno")]


def _names(nodes: list) -> tuple[frozenset[str], frozenset[str]]:
    """(the names that are set, the names that are read)."""
    sets, uses = set(), set()
    for one in _flat(nodes):
        if isinstance(one, ast.Name):
            (sets if isinstance(one.ctx, ast.Store) else uses).add(one.id)
        is_part = isinstance(one, ast.Subscript | ast.Attribute)
        if is_part and isinstance(one.ctx, ast.Store):  # x[rows] = ..., x.y = ...
            sets |= _base(one)
        if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name):
            uses.add(one.target.id)
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):  # self.cache.append(key, value), x.add_(y)
            called = one.value.func
            is_own = (
                isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self"
            )
            sets |= set() if is_own or isinstance(called, ast.Name) else _base(called)
    return frozenset(sets), frozenset(uses)


def _base(node: ast.AST) -> set[str]:
    """{"x"} for x.y[z]; empty if the base is not a name."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()
