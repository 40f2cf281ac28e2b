"""The code of a gap as a tree: statements and expressions with their places. CUDA C++, as much as gaps hold.

    statements(text, start, end)    the statements of text[start:end], comments blanked (see without_comments)

What is not understood becomes a node without parts: a rule finds nothing there, and nothing goes wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<space>\s+|^[ \t]*\#[^\n]*)
      | (?P<number>0x[0-9a-fA-F]+[uUlL]*|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?[fFuUlL]*)
      | (?P<name>[A-Za-z_]\w*(?:::\w+)*)
      | (?P<string>"[^"\n]*")
      | (?P<op><<<|>>>|<<=|>>=|\+\+|--|->|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%<>=!?:;,.&|^~(){}\[\]])""",
    re.VERBOSE | re.MULTILINE,
)
_TEMPLATE = re.compile(r"<(?:[\w:\s,*]|<[\w:\s,*]*>)*>(?=\s*[({]|<<<)")
_PRECEDENCE = {
    **dict.fromkeys(("=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "<<=", ">>="), 1),
    "?": 2, "||": 3, "&&": 4, "|": 5, "^": 6, "&": 7, "==": 8, "!=": 8,
    **dict.fromkeys(("<", ">", "<=", ">="), 9),
    **dict.fromkeys(("<<", ">>"), 10),
    **dict.fromkeys(("+", "-"), 11),
    **dict.fromkeys(("*", "/", "%"), 12),
}  # fmt: skip
_DECLARATION = re.compile(
    r"(?:const\s+|static\s+|unsigned\s+)*(?:auto|[A-Za-z_][\w:]*)(?:<[^;=()]*>)?(?:\s*[*&]+\s*|\s+)(?=\w+\s*(?:=|;|,|\[|\{|\())"
)
_KEYWORDS = ("return", "else", "continue", "break", "throw", "case", "delete", "goto")


def without_comments(text: str) -> str:
    """The text with its // comments made of spaces: as long, on the same lines."""
    return re.sub(r"//[^\n]*", lambda match: " " * len(match[0]), text)


@dataclass
class Node:
    """A stretch of code, text[start:end].

    Attributes:
        kind: of expressions "name", "number", "unary", "binary", "ternary", "call", "cast", "index", "braced"; of
            statements "simple", "declaration", "return", "if", "for", "block", "jump"; "gap" is the whole.
        op: the operator; the name that is called; the type of a cast.
        op_start: where the operator stands.
        parts: the expressions in it, in order; of a launch first those between <<< and >>>.
        body: the statements in it.
        launch: how many of the parts are the launch's; 0 for a plain call.
        head: (start, end) of what stands between the brackets of an if or a for.
    """

    kind: str
    start: int
    end: int
    op: str = ""
    op_start: int = -1
    parts: list[Node] = field(default_factory=list)
    body: list[Node] = field(default_factory=list)
    launch: int = 0
    head: tuple[int, int] = (0, 0)
    parent: Node | None = None

    def walk(self) -> Iterator[Node]:
        """This node and all in it, outer ones first."""
        yield self
        for part in (*self.parts, *self.body):
            yield from part.walk()

    def parents(self) -> Iterator[Node]:
        """What it stands in, innermost first."""
        one = self.parent
        while one is not None:
            yield one
            one = one.parent


class _Unreadable(Exception):
    pass


class _Expressions:
    """Reads text[start:end] by precedence."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.tokens, at = text, [], start
        while at < end:
            after_name = self.tokens and self.tokens[-1][0] == "name" and text[at] == "<"
            if after_name and (template := _TEMPLATE.match(text, at, end)):
                kind, begin, _ = self.tokens.pop()
                self.tokens.append((kind, begin, template.end()))
                at = template.end()
                continue
            token = _TOKEN.match(text, at, end)
            if not token:
                raise _Unreadable(text[at : at + 20])
            if token.lastgroup != "space":
                self.tokens.append((token.lastgroup, at, token.end()))
            at = token.end()
        self.at = 0

    def _peek(self) -> str:
        return self.text[self.tokens[self.at][1] : self.tokens[self.at][2]] if self.at < len(self.tokens) else ""

    def _next(self) -> tuple[str, int, int]:
        if self.at >= len(self.tokens):
            raise _Unreadable("end")
        self.at += 1
        return self.tokens[self.at - 1]

    def _expect(self, what: str) -> int:
        _, start, end = self._next()
        if self.text[start:end] != what:
            raise _Unreadable(what)
        return end

    def whole(self) -> list[Node]:
        """Everything, as a list between commas."""
        found = [self.expression()]
        while self._peek() == ",":
            self._next()
            found.append(self.expression())
        if self.at < len(self.tokens):
            raise _Unreadable(self._peek())
        return found

    def expression(self, least: int = 1) -> Node:
        left = self._unary()
        while (level := _PRECEDENCE.get(self._peek(), 0)) >= least and level:
            _, op_start, op_end = self._next()
            op = self.text[op_start:op_end]
            if op == "?":
                middle = self.expression()
                self._expect(":")
                right = self.expression(2)
                left = Node("ternary", left.start, right.end, "?", op_start, [left, middle, right])
            else:
                right = self.expression(1 if level == 1 else level + 1)
                left = Node("binary", left.start, right.end, op, op_start, [left, right])
        return left

    def _unary(self) -> Node:
        if self._peek() in ("-", "+", "!", "~", "*", "&", "++", "--"):
            _, start, end = self._next()
            inner = self._unary()
            return Node("unary", start, inner.end, self.text[start:end], start, [inner])
        return self._postfix(self._primary())

    def _primary(self) -> Node:
        kind, start, end = self._next()
        if kind in ("number", "string"):
            return Node(kind, start, end)
        if kind == "name":
            return Node("name", start, end, self.text[start:end], start)
        if self.text[start:end] == "(":
            inner = self.expression()
            inner_end = self._expect(")")
            return Node("brackets", start, inner_end, "(", start, [inner])
        if self.text[start:end] == "{":
            parts, end = self._list("}")
            return Node("braced", start, end, "{", start, parts)
        raise _Unreadable(self.text[start:end])

    def _list(self, closing: str) -> tuple[list[Node], int]:
        parts = []
        if self._peek() == closing:
            return parts, self._next()[2]
        while True:
            parts.append(self.expression())
            _, start, end = self._next()
            if self.text[start:end] == closing:
                return parts, end
            if self.text[start:end] != ",":
                raise _Unreadable(self.text[start:end])

    def _postfix(self, node: Node) -> Node:
        while True:
            mark = self._peek()
            if mark == "(":
                self._next()
                parts, end = self._list(")")
                cast = node.op.startswith(("static_cast<", "reinterpret_cast<"))
                kind = "cast" if cast and len(parts) == 1 else "call"
                node = Node(kind, node.start, end, node.op, node.start, parts)
            elif mark == "{" and node.kind == "name":
                self._next()
                parts, end = self._list("}")
                kind = "cast" if re.fullmatch(r"u?int\d+_t", node.op) and len(parts) == 1 else "braced"
                node = Node(kind, node.start, end, node.op, node.start, parts)
            elif mark == "<<<":
                self._next()
                launch, _ = self._list(">>>")
                self._expect("(")
                parts, end = self._list(")")
                node = Node("call", node.start, end, node.op, node.start, [*launch, *parts], launch=len(launch))
            elif mark == "[":
                self._next()
                inner = self.expression()
                end = self._expect("]")
                node = Node("index", node.start, end, "[", inner.start, [node, inner])
            elif mark in (".", "->"):
                self._next()
                end = self._next()[2]
                node = Node("name", node.start, end, self.text[node.start : end], node.start, [node])
            elif mark in ("++", "--"):
                _, start, end = self._next()
                node = Node("unary", node.start, end, mark, start, [node])
            else:
                return node


def expressions(text: str, start: int, end: int) -> list[Node]:
    """The expressions of text[start:end], between commas; none if it is not understood."""
    try:
        return _Expressions(text, start, end).whole()
    except _Unreadable:
        return []


def statements(text: str, start: int, end: int) -> list[Node]:
    """The statements of text[start:end]."""
    found, at = [], _skip(text, start, end)
    while at < end:
        node = _statement(text, at, end)
        found.append(node)
        at = _skip(text, node.end, end)
    for one in found:
        _adopt(one)
    return found


def gap_tree(text: str, start: int, end: int) -> Node:
    """A node of kind "gap" whose body is the statements of text[start:end]."""
    gap = Node("gap", start, end, body=statements(text, start, end))
    for one in gap.body:
        one.parent = gap
    return gap


def _adopt(node: Node) -> None:
    for part in (*node.parts, *node.body):
        part.parent = node
        _adopt(part)


def _skip(text: str, at: int, end: int) -> int:
    """Behind white space and preprocessor lines."""
    while match := re.compile(r"\s+|#[^\n]*").match(text, at, end):
        at = match.end()
    return at


def _statement(text: str, start: int, end: int) -> Node:
    word = re.compile(r"\w*").match(text, start, end)[0]
    if text[start] == "{":
        close = _closing(text, start)
        return Node("block", start, close, body=statements(text, start + 1, close - 1))
    if word in ("if", "for", "while"):
        opening = text.index("(", start)
        closing = _closing(text, opening)
        body = _statement(text, _skip(text, closing, end), end)
        node = Node("for" if word == "for" else "if", start, body.end, head=(opening + 1, closing - 1), body=[body])
        other = _skip(text, body.end, end)
        if word == "if" and text.startswith("else", other):
            node.body.append(_statement(text, _skip(text, other + 4, end), end))
            node.end = node.body[1].end
        if word == "for":
            node.parts = _for_head(text, *node.head)
        else:
            node.parts = expressions(text, *node.head)
        return node
    semicolon = _semicolon(text, start, end)
    if word in ("return", "continue", "break"):
        kind = "return" if word == "return" and text[start + 6 : semicolon].strip() else "jump"
        parts = expressions(text, start + 6, semicolon) if kind == "return" else []
        return Node(kind, start, semicolon + 1, word, start, parts)
    declared = _DECLARATION.match(text, start, semicolon)
    if declared and word not in _KEYWORDS:
        return Node(
            "declaration", start, semicolon + 1, declared[0].strip(), start, _declared(text, declared.end(), semicolon)
        )
    return Node("simple", start, semicolon + 1, parts=expressions(text, start, semicolon))


def _declared(text: str, start: int, end: int) -> list[Node]:
    """`name = expression` of each declarator, as assignments."""
    return [one for one in expressions(text, start, end) if one.kind == "binary" and one.op == "="]


def _for_head(text: str, start: int, end: int) -> list[Node]:
    """[initialisation, condition, step], each an expression; none if one is not understood."""
    first = _semicolon(text, start, end)
    second = _semicolon(text, first + 1, end)
    declared = _DECLARATION.match(text, start, first)
    begin = _declared(text, declared.end() if declared else start, first)
    parts = [*begin[:1], *expressions(text, first + 1, second), *expressions(text, second + 1, end)]
    return parts if len(parts) == 3 else []


def _semicolon(text: str, start: int, end: int) -> int:
    depth = 0
    for at in range(start, end):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if text[at] == ";" and depth == 0:
            return at
    return end - 1


def _closing(text: str, opening: int) -> int:
    """Behind the bracket that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0:
            return at + 1
    return len(text)
