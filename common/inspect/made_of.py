"""The lines that compute a value, a backward slice from its store, also into functions: made_of(place, files).

Like origins.py, but for values instead of addresses: all lines that assign a name that contributes to the stored value,
changes by functions that such a name is passed to, returned values, and the loops and conditions around these lines.
The slice ends at values stored by other kernels.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tree_sitter import Node

from common.inspect.origins import read_at
from common.inspect.source_lines import Place
from common.source.reader import (
    Call,
    Change,
    Function,
    Source,
    calls_in,
    condition_of,
    indices_in,
    line_of,
    names_in,
    read,
    walk,
)

MOST_STEPS = 400  # followed names
OF_HEAD, OF_INDEX, OF_UNROLLED = 0.5, 2, 3  # added distance of such lines in the order


def made_of(place: Place, files: Iterable[str]) -> list[Place]:
    """The lines that compute the value stored at `place`, most relevant first.

    Lines are ordered by distance from the store along the slice; lines that only affect indices, unrolled loops, and
    lines where the source is inconclusive come last.

    Args:
        place: the store.
        files: files whose functions are entered, in addition to the store's own.
    """
    source, around, statement = read_at(place)
    if statement is None:
        return []
    chain = tuple(one.at for one in (*place.callers, *place.outer))
    search = _Search(
        [source, *(one for file in dict.fromkeys(files) if file != place.file and (one := read(file)))], chain
    )
    where = _Where(source, around, chain, line=place.line)
    search.add(where, place.line, 0)
    stored = [one for one in around.changes if one.line == place.line]
    for change in stored:
        search.follow_change(change, where, 1)
    if not stored:
        search.follow(statement, where, 1)
    search.run()
    nearest = sorted(search.found, key=lambda one: (search.found[one], one[0], -one[1]))  # ties: last line first
    return [Place(file, line) for file, line in nearest]


def is_head(place: Place) -> bool:
    """Whether a line starts a loop or condition that extends beyond it."""
    source = read(place.file)
    heads = [one for one in source.heads(place.line) if line_of(one) == place.line] if source else []
    bodies = [one.child_by_field_name("body") or one.child_by_field_name("consequence") for one in heads]
    return bool(heads) and not any(one and one.end_point.row + 1 == place.line for one in bodies)


@dataclass(frozen=True)
class _Where:
    """A function in which names are followed, the known call chain to it, and the line of the current node."""

    source: Source
    function: Function
    chain: tuple[tuple[str, int], ...] = ()
    line: int = 0


class _Search:
    """The lines found so far, with their distance from the store."""

    def __init__(self, sources: list[Source], calls: tuple[tuple[str, int], ...]) -> None:
        self.sources = sources
        self.after = set(calls)  # assignments by the enclosing calls come after the store
        self.structs = [fields for one in sources for fields in one.structs.values()]
        self.found: dict[tuple[str, int], float] = {}
        self.seen: set[tuple] = set()
        self.todo: list[tuple[float, int, str, _Where]] = []
        self.order = itertools.count()

    def add(self, where: _Where, line: int, far: float) -> None:
        """Adds a line and the loops and conditions around it."""
        key = (where.source.file, line)
        if self.found.get(key, 1e9) <= far:
            return
        self.found[key] = far
        for head in where.source.heads(line):
            at = line_of(head)
            there = far + (0 if at == line else OF_UNROLLED if where.source.is_unrolled(head) else OF_HEAD)
            if at == line or self.found.get((where.source.file, at), 1e9) > there:
                self.found[where.source.file, at] = there
                for part in condition_of(head):
                    self.follow(part, replace(where, line=at), there + 1)

    def follow_change(self, change: Change, where: _Where, far: float, member: str = "") -> None:
        """Follows the new value of a name, and indices that only select an element."""
        if change.right is not None:
            self.follow(change.right, where, far, member, with_indices=False)
        for index in [*indices_in(change.right), *(change.indices if change.keeps else ())]:
            self.follow(index, where, far + OF_INDEX)
        if change.keeps:
            self._push(change.name, change.member, where, far)

    def follow(self, node: Node, where: _Where, far: float, member: str = "", with_indices: bool = True) -> None:
        """Follows the names in a node and the functions it calls; with `member`, only that member of a struct value."""
        node, member = self._of_braces(node, member)
        for call in calls_in(node):
            target = self._defined(call.name)
            if target is None or target.function is where.function:
                continue
            inside = replace(target, chain=((where.source.file, where.line), *where.chain)) if where.line else target
            for result in (one for one in walk(target.function.body) if one.type == "return_statement"):
                line = line_of(result)
                self.add(inside, line, far)
                key = (target.source.file, target.function.name, f"return {line} {member}", where.line)
                if key not in self.seen:
                    self.seen.add(key)
                    for part in result.named_children:
                        self.follow(part, replace(inside, line=line), far + 1, member)
        for name in names_in(node, with_indices):
            base, _, own = name.partition(".")
            self._push(base, own if own and self._is_member(own) else "" if own else member, where, far)

    def _push(self, base: str, member: str, where: _Where, far: float) -> None:
        name = f"{base}.{member}" if member else base
        heapq.heappush(self.todo, (far, next(self.order), name, where))

    def _is_member(self, name: str) -> bool:
        return any(name in fields for fields in self.structs)

    def _of_braces(self, node: Node, member: str) -> tuple[Node, str]:
        """For `{a, b}` or `State{a, b}`, the initializer of a member; any other node unchanged, with the member."""
        braces = node.child_by_field_name("value") if node.type == "compound_literal_expression" else node
        given = braces.named_children if member and braces and braces.type == "initializer_list" else []
        for fields in self.structs if given else ():
            if member in fields and len(fields) == len(given):
                return given[fields.index(member)], ""
        return node, member

    def run(self) -> None:
        """Follows all names, nearest first."""
        while self.todo and len(self.seen) < MOST_STEPS:
            far, _, name, where = heapq.heappop(self.todo)
            key = (where.source.file, where.function.name, name, where.chain[:1])
            if key not in self.seen:
                self.seen.add(key)
                self._name(name, where, far)

    def _name(self, name: str, where: _Where, far: float) -> None:
        base, _, member = name.partition(".")
        around = {where.line, *map(line_of, where.source.heads(where.line))}
        for change in where.function.changes:
            if change.name != base or (member and change.member and change.member != member):
                continue
            if (where.source.file, change.line) in self.after or (change.loop and line_of(change.loop) not in around):
                continue  # the variable of a loop that does not contain the current node
            self.add(where, change.line, far)
            is_whole = member and not change.member
            self.follow_change(change, replace(where, line=change.line), far + 1, member if is_whole else "")
        for call in where.function.calls:
            if (where.source.file, call.line) not in self.after:
                self._handed_over(base, member, call, where, far)
        if where.chain:  # a parameter, even if assigned, starts as the argument
            self._argument(base, member, where, far)

    def _handed_over(self, base: str, member: str, call: Call, where: _Where, far: float) -> None:
        """Follows the assignments of a function to an argument."""
        target = self._defined(call.name)
        if target is None or target.function is where.function:
            return
        inside = replace(target, chain=((where.source.file, call.line), *where.chain))
        for parameter, given in zip(target.function.parameters, call.arguments, strict=False):
            names = [one.partition(".")[0] for one in names_in(given)[:1]]
            if names == [base] and parameter.is_seen_outside and _is_assigned(parameter.name, member, target.function):
                self.add(where, call.line, far)
                self._push(parameter.name, member, inside, far + 0.5)

    def _argument(self, base: str, member: str, where: _Where, far: float) -> None:
        """Follows the caller's argument for a parameter."""
        (file, line), *rest = where.chain
        names = [one.name for one in where.function.parameters]
        caller = next((one for one in self.sources if one.file == file), None)
        around = caller.function_at(line) if caller and base in names else None
        for call in around.calls if around else ():
            if call.name == where.function.name and call.line == line and names.index(base) < len(call.arguments):
                outside = _Where(caller, around, tuple(rest), line)
                self.add(outside, line, far)
                self.follow(call.arguments[names.index(base)], outside, far + 1, member)

    def _defined(self, name: str) -> _Where | None:
        return next((_Where(one, found) for one in self.sources if (found := one.function(name))), None)


def _is_assigned(name: str, member: str, function: Function) -> bool:
    """Whether a function assigns a parameter or passes it on."""
    if any(one.name == name and (not member or one.member in ("", member)) for one in function.changes):
        return True
    return any(
        name in (word.partition(".")[0] for word in names_in(given))
        for one in function.calls
        for given in one.arguments
    )
