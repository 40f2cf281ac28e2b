"""What rules ask of a node of the tree (c_code.py), and made_by: what a set of rules makes of a gap.

A rule looks at one node and yields (kind, place, what stands there instead). Places are whole expressions or whole
statements, as common.compiling.planting wants them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from common.mutants.c_code import Node, gap_tree
from common.mutants.mutation import Mutation

Found = tuple[str, tuple[int, int], str]  # kind, place, new text
Rule = Callable[[Node, str, str], Iterator[Found]]  # of a node, the file's text and that of the function
FACTORS = re.compile(r"rescale|weight|exp|inverse|factor|scale|log2_e", re.IGNORECASE)


def statement_words(node: Node, text: str) -> str:
    """The whole statement, or head of a statement, that a node is in, on one line."""
    for one in (node, *node.parents()):
        if one.kind in ("simple", "declaration", "return", "jump"):
            return " ".join(text[one.start : one.end].split())
        if one.kind in ("if", "for"):
            return " ".join(text[one.start : one.head[1] + 1].split())
    return ""


def text_of(node: Node, text: str) -> str:
    """The node's text."""
    return text[node.start : node.end]


def place_of(node: Node) -> tuple[int, int]:
    """Where it begins and ends."""
    return node.start, node.end


def whole_of(node: Node, text: str) -> tuple[int, int]:
    """The place of a statement, with the pragmas before it."""
    start = node.start
    while match := re.search(r"\n[ \t]*#[^\n]*\n[ \t]*$", text[:start]):
        start = match.start()
    return start, node.end


def text_with(around: Node, node: Node, new: str, text: str) -> str:
    """The text of a statement with another text in place of a node in it."""
    return text[around.start : node.start] + new + text[node.end : around.end]


def statement_around(node: Node) -> Node | None:
    """The statement around an expression."""
    kinds = ("simple", "declaration", "return", "if", "for", "block")
    return next((one for one in node.parents() if one.kind in kinds), None)


def is_address(node: Node, text: str) -> bool:
    """Whether an expression is an index, a position or a pointer, and no number that is computed with."""
    for inner, outer in pairwise([node, *node.parents()]):
        if outer.kind == "index" and outer.parts[1] is inner:
            return True
    around = statement_around(node)
    if around is None or any(one.kind == "call" and not one.launch for one in node.parents()):
        return False
    if around.kind == "simple" and (target := re.match(r"(\w+) [-+*|]?= ", text_of(around, text))):
        return bool(re.search(rf"\b(?:int|int64_t|unsigned)\b[^;(){{}}]*\b{target[1]}\b", text[: around.start]))
    if around.kind == "declaration":
        return bool(re.search(r"\b(int|int64_t|size_t|unsigned)\b|[*&]", around.op))
    return around.kind in ("for", "if")


def is_target(node: Node) -> bool:
    """Whether something is assigned to it."""
    outer = node.parent
    return outer is not None and outer.kind == "binary" and outer.op.endswith("=") and outer.parts[0] is node


def made_by(rules: Iterable[Rule], text: str, start: int, end: int, function: str) -> list[Mutation]:
    """What the rules make of the gap text[start:end], in the order of the text.

    Args:
        rules: what to try on every node.
        text: of the file, without comments.
        start, end: the gap.
        function: the text of its function, from its head to the gap's end.
    """
    found = []
    for node in gap_tree(text, start, end).walk():
        for rule in rules:
            for kind, (begin, stop), new in rule(node, text, function):
                old = text[begin:stop]
                if old.strip() == new.strip():
                    continue
                begin_code = begin + len(old) - len(old.lstrip())
                line = text.count("\n", 0, begin_code) + 1
                if re.match(r"\s*#", old):  # the pragmas before a loop
                    line += len(re.match(r"(?:\s*#[^\n]*\n)+", old)[0].splitlines())
                found.append(Mutation(kind, begin, stop, old.strip(), new, line, statement_words(node, text)))
    return sorted(set(found), key=lambda one: (one.start, one.end, one.kind, one.new))
