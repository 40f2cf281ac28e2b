"""Syntax trees of CUDA C++ by tree-sitter: read(file) -> Source, its functions with their assignments and calls.

Directives are blanked before parsing, and so is syntax that the grammar does not know: __align__(16), macros that
expand to declarations. A macro that expands to a loop is parsed as one. A syntax error affects only its statement.
Scopes, types and macros are not resolved: finding the definition that reaches a line is up to the caller.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

from common.console.files import read_source

_HEADS = ("if_statement", "for_statement", "while_statement", "do_statement", "for_range_loop")
_LEAVE = ("return_statement", "continue_statement", "break_statement")
_STATEMENTS = ("declaration", "expression_statement", "field_declaration", *_LEAVE)
_UNREADABLE = (
    (re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE), " "),
    (re.compile(r"__align__\s*\([^()]*\)"), " "),
    (re.compile(r"^[ \t]*[A-Z_]{3,}(?:\([^;{}()]*\))?[ \t]*$", re.MULTILINE), " "),
    (re.compile(r"^[ \t]+([A-Z_]{3,})(?=\((?:[^(){};]|\([^()]*\))*\)[ \t]*\{)", re.MULTILINE), "while"),
)
_CONDITIONAL = re.compile(r"[ \t]*#[ \t]*(if|el|endif)")
NO_VALUES = {"threadIdx", "blockIdx", "blockDim", "gridDim", "INFINITY", "nullptr"}


@dataclass(frozen=True)
class Parameter:
    """A function's parameter, and whether a caller sees changes to it or to what it points to."""

    name: str
    is_seen_outside: bool
    is_reference: bool


@dataclass(frozen=True)
class Change:
    """An assignment to a variable, or to an element or member of it.

    Attributes:
        name, member: "state", "m" for `state.m[i] = ...`; member is "" for the whole variable.
        line: where it begins.
        right: the assigned expression; None for ++.
        indices: the element's.
        keeps: whether the new value depends on the old one, as with +=.
        is_element: whether an element changes rather than the variable itself.
        loop: the `for` that declares it as its variable.
    """

    name: str
    member: str
    line: int
    right: Node | None
    indices: tuple[Node, ...] = ()
    keeps: bool = False
    is_element: bool = False
    loop: Node | None = None


@dataclass(frozen=True)
class Call:
    """A call, or a launch: its name without template arguments, its line and its arguments."""

    name: str
    line: int
    arguments: tuple[Node, ...]
    is_launch: bool


@dataclass(frozen=True)
class Function:
    """A function with a body; `line` and `last` are the lines of its braces."""

    name: str
    node: Node
    body: Node
    is_kernel: bool

    @property
    def line(self) -> int:
        return line_of(self.body)

    @property
    def last(self) -> int:
        return self.body.end_point.row + 1

    @functools.cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(map(_parameter, _all(self.node, ("parameter_declaration",), self.body)))

    @functools.cached_property
    def changes(self) -> tuple[Change, ...]:
        """Its assignments in source order."""
        return tuple(one for node in walk(self.body) for one in _changes(node))

    @functools.cached_property
    def heads(self) -> tuple[Node, ...]:
        """Its loops and conditions in source order."""
        return tuple(one for one in walk(self.body) if one.type in _HEADS)

    @functools.cached_property
    def calls(self) -> tuple[Call, ...]:
        """Its calls in source order."""
        return tuple(calls_in(self.body))

    def set_at(self, name: str, below: int) -> Change | None:
        """The last change of a name, or of an element, at or above this line; loop variables only in their loop."""
        mine = [one for one in self.changes if one.name == name and not one.member and one.line <= below]
        mine = [one for one in mine if one.loop is None or below <= one.loop.end_point.row + 1]
        return next((one for one in mine if one.line == mine[-1].line), None)


class Source:
    """A source file."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.lines = file, text.split("\n")
        self._root = parsed(text)
        nodes = _all(self._root, ("function_definition",))
        self.functions = tuple(one for node in nodes if (one := _function(node)))

    @functools.cached_property
    def structs(self) -> dict[str, list[str]]:
        """The structs with several members, and the members' names in order."""
        found = {}
        for node in _all(self._root, ("struct_specifier",)):
            name, fields = node.child_by_field_name("name"), _all(node, ("field_identifier",))
            if name and len(fields) > 1:
                found[text_of(name)] = [text_of(one) for one in fields]
        return found

    @functools.cached_property
    def _branches(self) -> list[range]:
        """The lines of each branch of an #if."""
        found, begun = [], []
        for number, line in enumerate(self.lines, 1):
            if word := _CONDITIONAL.match(line):
                found += [range(begun.pop(), number)] if word[1] != "if" and begun else []
                begun += [number] if word[1] != "endif" else []
        return found

    def is_compiled_with(self, line: int, others: Iterable[int]) -> bool:
        """Whether a line is compiled whenever one of the others is: each #if branch around it contains one of them."""
        around = [branch for branch in self._branches if line in branch]
        return all(any(other in branch for other in others) for branch in around)

    def function_at(self, line: int) -> Function | None:
        """The function whose body contains a line."""
        return next((one for one in self.functions if one.line <= line <= one.last), None)

    def function(self, name: str) -> Function | None:
        return next((one for one in self.functions if one.name == name), None)

    def statement_at(self, line: int) -> Node | None:
        """The statement or loop head that begins in a line; else the innermost one that contains it."""
        around = self.function_at(line)
        every = [one for one in walk(around.body) if one.type in (*_STATEMENTS, *_HEADS)] if around else []
        begins = [one for one in every if line_of(one) == line]
        simple = [one for one in begins if one.type in _STATEMENTS and one.parent.type != "for_statement"]
        holds = [one for one in every if line_of(one) <= line <= head_end(one)]
        return next(iter([*simple, *begins, *reversed(holds)]), None)

    def heads(self, line: int) -> list[Node]:
        """The loops and conditions around a line, and earlier ones in the same blocks that leave it; nearest first.
        Omits those that an #if may exclude."""
        around = self.function_at(line)
        found = [one for one in (around.heads if around else ()) if _holds(one, line) or _leaves_before(one, line)]
        sure = [one for one in found if self.is_compiled_with(line_of(one), [line])]
        return sorted(sure, key=line_of, reverse=True)

    def is_unrolled(self, head: Node) -> bool:
        """Whether #pragma unroll precedes a loop."""
        return "#pragma unroll" in self.lines[line_of(head) - 2]


def read(file: str | Path) -> Source | None:
    """Reads the current file; None if that fails."""
    try:
        return _read(str(file), read_source(Path(file)))
    except (OSError, ValueError):
        return None


@functools.lru_cache(maxsize=32)
def _read(file: str, text: str) -> Source:
    return Source(file, text)


_PARSER = Parser(Language(tree_sitter_cuda.language()))


def parsed(text: str) -> Node:
    """The syntax tree of the text; byte offsets equal character offsets."""
    return _PARSER.parse(readable(text).encode(errors="replace")).root_node


def readable(text: str) -> str:
    """The text prepared for parsing: same length, same lines."""
    for pattern, made in _UNREADABLE:
        text = pattern.sub(lambda match, made=made: _in_place(match, made), text)
    return "".join(one if one.isascii() else " " for one in text)  # one byte per character


def _in_place(match: re.Match, made: str) -> str:
    if not match.re.groups:
        return re.sub(r"[^\n]", " ", match[0])
    before = match[0][: match.start(1) - match.start()]
    return before + made.ljust(len(match[1])) if len(match[1]) >= len(made) else match[0]


# ---- nodes


def walk(node: Node) -> Iterator[Node]:
    """A node and all its descendants, in source order."""
    yield node
    for child in node.named_children:
        if child.type != "comment":
            yield from walk(child)


def text_of(node: Node) -> str:
    return node.text.decode()


def code_of(node: Node) -> str:
    """The text of a node without comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text_of(node), flags=re.DOTALL)


def line_of(node: Node) -> int:
    return node.start_point.row + 1


def _all(node: Node, types: tuple[str, ...], but_for: Node | None = None) -> list[Node]:
    """The outermost nodes of these types below a node."""
    found = []
    for child in node.named_children:
        if child == but_for:
            continue
        found += [child] if child.type in types else _all(child, types, but_for)
    return found


def _function(node: Node) -> Function | None:
    body, declarator = node.child_by_field_name("body"), node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        declarator = declarator.child_by_field_name("declarator")
    if body is None or declarator is None:
        return None
    head = node.text[: body.start_byte - node.start_byte].decode()
    name = re.findall(r"\w+", text_of(declarator.child_by_field_name("declarator")))[-1]
    return Function(name, declarator, body, "__global__" in head)


def _parameter(node: Node) -> Parameter:
    declarator = node.child_by_field_name("declarator")
    names = [one for one in walk(declarator) if one.type == "identifier"] if declarator else []
    kinds = " ".join(one.type for one in walk(declarator)) if declarator else ""
    seen = any(f"{kind}_declarator" in kinds for kind in ("pointer", "reference", "array"))
    return Parameter(text_of(names[0]) if names else "", seen, "reference_declarator" in kinds)


def _changes(node: Node) -> Iterator[Change]:
    loop = _loop_of(node)
    if node.type == "assignment_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        keeps = text_of(node.child_by_field_name("operator")) != "="
        yield from _changed(left, right, keeps, line_of(node), loop)
    elif node.type == "update_expression":
        yield from _changed(node.child_by_field_name("argument"), None, True, line_of(node), loop)
    elif node.type == "init_declarator":
        declarator, right = node.child_by_field_name("declarator"), node.child_by_field_name("value")
        names = [one for one in walk(declarator) if one.type == "identifier"]
        for one in names if declarator.type == "structured_binding_declarator" else names[:1]:
            yield Change(text_of(one), "", line_of(node), right, loop=loop)


def _loop_of(node: Node) -> Node | None:
    """The `for` whose head contains the node, if any."""
    while node.parent is not None and node.parent.type not in (*_HEADS, *_STATEMENTS[1:], "compound_statement"):
        node = node.parent
    loop = node.parent if node.parent is not None and node.parent.type == "for_statement" else None
    begin = loop.child_by_field_name("initializer") if loop else None
    declares = begin is not None and begin.type == "declaration"
    return loop if declares and node in (begin, loop.child_by_field_name("update")) else None


def _changed(left: Node, right: Node | None, keeps: bool, line: int, loop: Node | None) -> Iterator[Change]:
    member, indices, node = "", [], left
    while node.type != "identifier":
        if node.type == "subscript_expression":
            indices.append(node.child_by_field_name("indices"))
        if node.type == "field_expression":
            member = text_of(node.child_by_field_name("field"))
        node = node.child_by_field_name("argument") or (node.named_children or [None])[0]
        if node is None:
            return
    yield Change(text_of(node), member, line, right, tuple(indices), keeps, node != left, loop)


def calls_in(node: Node) -> Iterator[Call]:
    """The calls in a node, outer ones first."""
    for one in walk(node):
        if one.type != "call_expression":
            continue
        function, arguments = one.child_by_field_name("function"), one.child_by_field_name("arguments")
        function = function.child_by_field_name("name") if function.type == "template_function" else function
        name = re.findall(r"\w+", text_of(function))[-1:] if function.type != "field_expression" else []
        is_launch = any(child.type == "kernel_call_syntax" for child in one.named_children)
        if name and arguments:
            yield Call(name[0], line_of(one), tuple(arguments.named_children), is_launch)


def names_in(node: Node | None, with_indices: bool = True) -> list[str]:
    """The variables in a node, "x" or with member "state.m", each once, in order."""
    return list(dict.fromkeys(_names(node, with_indices))) if node else []


def _names(node: Node, with_indices: bool) -> Iterator[str]:
    if node.type == "identifier":
        if text_of(node) not in NO_VALUES:
            yield text_of(node)
    elif node.type == "field_expression":
        base, members = node, []
        while base.type in ("field_expression", "subscript_expression"):
            if base.type == "field_expression":
                members.append(text_of(base.child_by_field_name("field")))
            elif with_indices:
                yield from _names(base.child_by_field_name("indices"), with_indices)
            base = base.child_by_field_name("argument")
        names = list(_names(base, with_indices))
        yield from (f"{one}.{members[-1]}" for one in names) if base.type == "identifier" else names
    elif node.type in ("template_argument_list", "qualified_identifier", "type_descriptor", "lambda_expression"):
        return
    elif node.type == "call_expression":
        yield from _names(node.child_by_field_name("arguments"), with_indices)
    else:
        for child in node.named_children:
            if with_indices or child.type != "subscript_argument_list":
                yield from _names(child, with_indices)


def indices_in(node: Node | None) -> list[Node]:
    """The outermost subscripts in a node."""
    if node is None:
        return []
    return [node] if node.type == "subscript_argument_list" else _all(node, ("subscript_argument_list",))


def arrays_in(node: Node) -> list[str]:
    """The names of subscripted arrays in a node, in source order."""
    found = []
    for one in walk(node):
        if one.type == "subscript_expression":
            base = one.child_by_field_name("argument")
            while base.type in ("subscript_expression", "parenthesized_expression"):
                base = base.child_by_field_name("argument") or base.named_children[0]
            found += [text_of(base)] if base.type == "identifier" else []
    return list(dict.fromkeys(found))


def condition_of(head: Node) -> list[Node]:
    """The initializer, condition and update of a loop or condition."""
    return [one for one in (head.child_by_field_name(name) for name in ("initializer", "condition", "update")) if one]


def head_end(node: Node) -> int:
    """The last line of a statement; for a loop or condition, of its head."""
    parts = condition_of(node) if node.type in _HEADS else [node]
    return max((one.end_point.row + 1 for one in parts), default=line_of(node))


def _holds(head: Node, line: int) -> bool:
    return line_of(head) <= line <= head.end_point.row + 1


def _leaves_before(head: Node, line: int) -> bool:
    """Whether `head` is an `if` before the line, in a block around it, whose branch is a lone jump (`_LEAVE`)."""
    branch = head.child_by_field_name("consequence") if head.type == "if_statement" else None
    if branch is None or not head.end_point.row + 1 < line <= head.parent.end_point.row + 1:
        return False
    if branch.type == "compound_statement" and branch.named_child_count == 1:
        branch = branch.named_children[0]
    return branch.type in _LEAVE
