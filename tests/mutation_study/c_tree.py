"""The code of a gap as a tree of CUDA C++, read by tree-sitter: gap_of(text, start, end).

What tree-sitter does not understand becomes a node without parts: a rule finds nothing there, and nothing goes wrong.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tree_sitter import Node as Syntax

from common.source.reader import parsed, walk

_KINDS = {
    "identifier": "name", "qualified_identifier": "name", "field_expression": "name", "template_function": "name",
    "number_literal": "number", "string_literal": "string", "unary_expression": "unary", "update_expression": "unary",
    "pointer_expression": "unary", "binary_expression": "binary", "assignment_expression": "binary",
    "init_declarator": "binary", "conditional_expression": "ternary", "call_expression": "call",
    "subscript_expression": "index", "initializer_list": "braced", "compound_literal_expression": "braced",
    "parenthesized_expression": "brackets", "cast_expression": "cast", "expression_statement": "simple",
    "declaration": "declaration", "return_statement": "return", "break_statement": "jump", "continue_statement": "jump",
    "if_statement": "if", "while_statement": "if", "for_statement": "for", "compound_statement": "block",
    "true": "name", "false": "name",
}  # fmt: skip
STATEMENTS = ("simple", "declaration", "return", "jump", "if", "for", "block")
_CASTS = ("static_cast<", "reinterpret_cast<")


def without_comments(text: str) -> str:
    """The text with its // comments made of spaces: as long, on the same lines."""
    return re.sub(r"//[^\n]*", lambda match: " " * len(match[0]), text)


@dataclass(eq=False)
class Node:
    """A stretch of code, source[start:end].

    Attributes:
        kind: of expressions "name", "number", "string", "unary", "binary", "ternary", "call", "cast", "index",
            "brackets", "braced"; of statements one of STATEMENTS; "gap" is the whole, "" what is not understood.
        op: the operator; the name that is called; the type of a cast or a declaration; a name itself.
        parts: the expressions in it, in order; of a launch first those between <<< and >>>; of a for its begin,
            condition and step, or none.
        body: the statements in it.
        launch: how many of the parts are the launch's; 0 for a plain call.
        head: what stands between the brackets of an if or a for.
    """

    kind: str
    start: int
    end: int
    source: str
    op: str = ""
    parts: list[Node] = field(default_factory=list)
    body: list[Node] = field(default_factory=list)
    launch: int = 0
    head: str = ""
    parent: Node | None = None
    syntax: Syntax | None = None

    @property
    def text(self) -> str:
        return self.source[self.start : self.end]

    @property
    def place(self) -> tuple[int, int]:
        return self.start, self.end

    def walk(self) -> Iterator[Node]:
        """This node and all in it, outer ones first."""
        yield self
        for part in (*self.parts, *self.body):
            yield from part.walk()

    def parents(self) -> Iterator[Node]:
        """What encloses it, innermost first."""
        one = self.parent
        while one is not None:
            yield one
            one = one.parent

    @property
    def statement(self) -> Node | None:
        """The statement around an expression."""
        return next((one for one in self.parents() if one.kind in STATEMENTS), None)

    @property
    def whole(self) -> tuple[int, int]:
        """The place of a statement, with the pragmas before it."""
        start = self.start
        while match := re.search(r"\n[ \t]*#[^\n]*\n[ \t]*$", self.source[:start]):
            start = match.start()
        return start, self.end

    def with_(self, node: Node, new: str) -> str:
        """Its text with another one in place of a node in it."""
        return self.source[self.start : node.start] + new + self.source[node.end : self.end]

    @property
    def words(self) -> str:
        """The whole statement, or head of a statement, that it is in, on one line."""
        for one in (self, *self.parents()):
            if one.kind in ("simple", "declaration", "return", "jump"):
                return " ".join(one.text.split())
            if one.kind in ("if", "for"):
                return " ".join(
                    one.source[one.start : one.source.index(one.head, one.start) + len(one.head) + 1].split()
                )
        return ""

    @functools.cached_property
    def known(self) -> dict[str, str]:
        """Name -> type of the variables and parameters that are known here: "int" (int64_t and size_t, too), "float",
        "const float*", "shared float[TILE]"."""
        found: dict[str, str] = {}
        chain = []
        syntax = next(one.syntax for one in (self, *self.parents()) if one.syntax is not None)
        while syntax is not None:
            chain.append(syntax)
            syntax = syntax.parent
        for inner, outer in zip(chain[-2::-1], chain[:0:-1], strict=True):
            if outer.type == "function_definition":
                function = next((one for one in walk(outer) if one.type == "function_declarator"), None)
                for one in function.child_by_field_name("parameters").named_children if function else ():
                    found.update(_declared(one))
            for one in outer.named_children:
                if one.start_byte >= inner.start_byte:
                    break
                if one.type == "declaration" and outer.type != "translation_unit":
                    found.update(_declared(one))
        return found

    @property
    def function(self) -> str:
        """The text of the function that it is in, up to the node."""
        syntax = next(one.syntax for one in (self, *self.parents()) if one.syntax is not None)
        while syntax.parent is not None and syntax.type != "function_definition":
            syntax = syntax.parent
        return self.source[syntax.start_byte : self.end]

    @property
    def is_address(self) -> bool:
        """Whether it is an index, a position or a pointer, and no number that is computed with."""
        for inner, outer in zip([self, *self.parents()], self.parents(), strict=False):
            if outer.kind == "index" and outer.parts[1] is inner:
                return True
        around = self.statement
        if around is None or any(one.kind == "call" and not one.launch for one in self.parents()):
            return False
        if around.kind == "simple" and (target := re.match(r"(\w+) [-+*|]?= ", around.text)):
            return self.known.get(target[1]) in ("int", "unsigned")
        if around.kind == "declaration":
            return bool(re.search(r"\b(int|int64_t|size_t|unsigned)\b|[*&]", around.op))
        return around.kind in ("for", "if")

    @property
    def is_written(self) -> bool:
        """Whether a value is given to it, or its address is taken."""
        outer = self.parent
        if outer is None or outer.kind not in ("unary", "binary"):
            return False
        assigned = re.fullmatch(r"(?:[-+*/%|&]|<<|>>)?=", outer.op) and outer.parts[0] is self
        return bool(assigned) or (outer.op in ("++", "--", "&") and outer.kind == "unary")

    @property
    def is_variable(self) -> bool:
        """Whether it is a name of its own that is read."""
        return (
            self.kind == "name" and bool(re.fullmatch(r"\w+", self.op)) and not self.is_member and not self.is_written
        )

    @property
    def is_member(self) -> bool:
        """Whether it is a part of a longer name."""
        return self.parent is not None and self.parent.kind == "name"


def _declared(syntax: Syntax) -> dict[str, str]:
    """What a declaration or a parameter declares."""
    text = syntax.text.decode()
    kind = syntax.child_by_field_name("type")
    if kind is None:
        return {}
    base = " ".join(kind.text.decode().split())
    qualifiers = {one.text.decode() for one in syntax.named_children if one.type == "type_qualifier"}
    found = {}
    for one in syntax.children_by_field_name("declarator"):
        value = one.child_by_field_name("declarator") if one.type == "init_declarator" else one
        if value.type == "structured_binding_declarator":
            return {name.text.decode(): "int" for name in value.named_children}
        stars = "*" if any(part.type == "pointer_declarator" for part in walk(value)) else ""
        sizes = "".join(re.findall(r"\[[^\]]*\]", value.text.decode()))
        name = next((part.text.decode() for part in walk(value) if part.type == "identifier"), "")
        named = "int" if base in ("int", "int64_t", "size_t") else base
        if stars or sizes:
            named = ("const " if "const" in qualifiers else "") + base + stars + sizes
        if "__shared__" in text:
            named = f"shared {named}"
        if base != "auto":
            found[name] = named
    return found


_parsed = functools.lru_cache(maxsize=8)(parsed)


def gap_of(text: str, start: int, end: int) -> Node:
    """A node of kind "gap" whose body is the statements of text[start:end], and whose text is that of the file."""
    outer = _parsed(text).named_descendant_for_byte_range(start, end - 1)
    while outer.type not in ("compound_statement", "translation_unit"):
        outer = outer.parent
    gap = Node("gap", start, end, text, syntax=outer)
    for one in outer.named_children:
        if start <= one.start_byte < end and (node := _node(one, text)) and node.kind in STATEMENTS:
            gap.body.append(node)
    _adopt(gap)
    return gap


def _adopt(node: Node) -> None:
    for part in (*node.parts, *node.body):
        part.parent = node
        _adopt(part)


def _node(syntax: Syntax, text: str) -> Node:
    node = Node(_KINDS.get(syntax.type, ""), syntax.start_byte, syntax.end_byte, text, syntax=syntax)
    if syntax.has_error or not node.kind:
        node.kind = ""
        return node

    def of(*fields: str) -> list[Node]:
        return [_node(one, text) for name in fields if (one := syntax.child_by_field_name(name)) is not None]

    operator = syntax.child_by_field_name("operator")
    node.op = operator.text.decode() if operator is not None else ""
    if node.kind == "name":
        node.op, node.parts = node.text, of("argument") if syntax.type == "field_expression" else []
    elif node.kind == "unary":
        node.parts = of("argument")
    elif syntax.type == "init_declarator":
        value = syntax.child_by_field_name("value")
        target = syntax.child_by_field_name("declarator")
        while target.type in ("pointer_declarator", "reference_declarator"):
            target = target.named_children[-1]
        node.op, node.start = "=", target.start_byte
        node.kind = "binary" if "=" in text[target.end_byte : value.start_byte] else ""
        node.parts = [Node("name", *target.byte_range, text, text[slice(*target.byte_range)]), *of("value")]
    elif node.kind == "binary":
        node.parts = of("left", "right")
    elif node.kind == "ternary":
        node.op, node.parts = "?", of("condition", "consequence", "alternative")
    elif node.kind == "call":
        called, given = syntax.child_by_field_name("function"), syntax.child_by_field_name("arguments")
        node.op = called.text.decode()
        configured = [one for one in syntax.named_children if one.type == "kernel_call_syntax"]
        launch = [_node(one, text) for one in (configured[0].named_children if configured else ())]
        node.launch, node.parts = len(launch), launch + [_node(one, text) for one in given.named_children]
        node.kind = "cast" if node.op.startswith(_CASTS) and len(node.parts) == 1 else "call"
    elif node.kind == "index":
        node.op = "["
        indices = syntax.child_by_field_name("indices").named_children
        node.parts = [*of("argument"), *(_node(one, text) for one in indices[:1])]
        node.kind = "index" if len(indices) == 1 else ""
    elif node.kind == "braced":
        values = syntax.child_by_field_name("value") or syntax
        kind = syntax.child_by_field_name("type")
        node.op, node.parts = kind.text.decode() if kind else "{", [_node(one, text) for one in values.named_children]
        node.kind = "cast" if re.fullmatch(r"u?int\d+_t", node.op) and len(node.parts) == 1 else "braced"
    elif node.kind == "cast":
        node.op, node.parts = syntax.child_by_field_name("type").text.decode(), of("value")
    elif node.kind in ("brackets", "simple", "return"):
        node.op = "(" if node.kind == "brackets" else ""
        node.parts = [_node(one, text) for one in syntax.named_children]
        node.kind = "jump" if node.kind == "return" and not node.parts else node.kind
        node.op = "return" if node.kind == "jump" else node.op
    elif node.kind == "jump":
        node.op = syntax.type.removesuffix("_statement")
    elif node.kind == "declaration":
        node.parts = [_node(one, text) for one in syntax.named_children if one.type == "init_declarator"]
        first = syntax.child_by_field_name("declarator")
        name = next((one for one in walk(first) if one.type == "identifier"), first)
        node.op = text[node.start : name.start_byte].strip()
    elif node.kind == "block":
        node.body = [_node(one, text) for one in syntax.named_children]
    elif node.kind in ("if", "for"):
        _branching(node, syntax, text, of)
    return node


def _branching(node: Node, syntax: Syntax, text: str, of) -> None:
    """The parts, the head and the body of an if, a while or a for."""
    body = syntax.child_by_field_name("consequence") or syntax.child_by_field_name("body")
    node.body = [_node(body, text)]
    node.head = text[text.index("(", node.start) + 1 : text.rindex(")", node.start, body.start_byte)]
    if node.kind == "for":
        begin = of("initializer")
        if begin and begin[0].kind == "declaration":
            begin = begin[0].parts[:1]
        node.parts = [*begin, *of("condition", "update")]
        node.parts = node.parts if len(node.parts) == 3 and all(one.kind for one in node.parts) else []
        return
    condition = syntax.child_by_field_name("condition")
    node.parts = [_node(one, text) for one in condition.named_children]
    if other := syntax.child_by_field_name("alternative"):
        node.body.append(_node(other.named_children[-1], text))
