"""Single edits of CUDA C++, all of them in one text: a number that is chosen while it runs says which one holds.

    edits = edits_in(source, functions, lines)      `<` for `<=`, another name, a term more or less, ...
    text, at = switched(text, edits, {17, 18})      the text with these in it, and the edit that each of its lines holds

Mutant schemata (Untch, Offutt, Harrold 1993): one compilation for all. Whatever is edited keeps its type, and every
edit is on a line of its own, so that a compiler's error tells which one to leave out. Which of them makes a wrong
output right is for common/cli/tried_edits.py to find out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from common.source.reader import Function, Node, Source, code_of, line_of, text_of, walk

CHOSEN = "chosen_edit"  # the variable
HEADER = f"""#pragma once
#include <type_traits>
#undef __forceinline__
#define __forceinline__ inline
inline int {CHOSEN} = 0;
template <typename T>
using edited_type = std::decay_t<T>;
extern "C" __attribute__((visibility("default"), weak)) void choose_edit(int edit) {{ {CHOSEN} = edit; }}
"""
# what is edited: a value, a pointer with a subscript, what is referred to, a statement; what it is put in front of
_VALUE, _POINTER, _REFERENCE, _STATEMENT, _BEFORE = range(5)
_COMPARED = {"<": "<= > >=", "<=": "< >= >", ">": ">= < <=", ">=": "> <= <", "==": "!= >= <=", "!=": "=="}
_OPERATORS = {"+": "- *", "-": "+", "*": "/ +", "/": "* %", "%": "/", "&&": "||", "||": "&&"}
_PRECEDENCE = {"*": 2, "/": 2, "%": 2, "+": 1, "-": 1}
_FUNCTIONS = (
    ("expf", "exp2f"), ("logf", "log2f"), ("fmaxf", "fminf"), ("max", "min"), ("sqrtf", "rsqrtf"), ("Max", "Sum"),
)  # fmt: skip
_NUMBERS = {"0.0f": ("1.0f", "-INFINITY"), "1.0f": ("0.0f", "2.0f"), "0.5f": ("2.0f", "1.0f"), "2.0f": ("0.5f", "1.0f")}
_COORDINATES = ("threadIdx.x", "threadIdx.y", "blockIdx.x", "blockIdx.y", "blockIdx.z", "blockDim.x", "gridDim.x")
_MEMBERS = (("x", "y"), ("y", "x"), ("x", "z"))
_KEPT = (  # what stays as it is: a constant expression, a type, or what is declared
    "template_argument_list", "type_descriptor", "static_assert_declaration", "sizeof_expression", "case_statement",
    "lambda_capture_specifier", "parameter_list", "asm_statement", "attribute_specifier", "ERROR",
)  # fmt: skip
_WHOLE = re.compile(r"(?:const |unsigned |long )*(?:u?int(?:\d+_t)?|size_t|unsigned|long|short)$")
_BARRIER = re.compile(r"__sync\w+\(|CUDA_|cp_async|wait")
_CONSTANT = re.compile(r"^(?:static |inline )*constexpr\s+(\w+)\s+(\w+)\s*=", re.MULTILINE)
MOST_SHOWN = 70  # characters of an expression that is quoted
KINDS = (  # those with few edits first
    "comparison", "condition", "operator", "parentheses", "function", "term", "factor", "names", "arguments",
    "assignment", "statement", "order", "jump", "constant", "name", "more",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """text[start:end], of which that is the code, becomes another; `way` says how it is switched."""

    start: int
    end: int
    new: str
    way: int


@dataclass(frozen=True)
class Edit:
    """One edit: of which kind, in which line of which file, and what it replaces by what, as it is quoted."""

    file: str
    line: int
    kind: str
    old: str
    new: str
    changes: tuple[Change, ...]


def edits_in(source: Source, functions: Collection[str], lines: Collection[int] | None) -> list[Edit]:
    """The edits of these functions, in these lines only unless they are None, in the order of the text."""
    found = []
    for function in source.functions:
        if function.name in functions:
            scope = _Scope(source, function)
            for node in _values(function.body):
                if lines is None or line_of(node) in lines:
                    found += _edits_of(node, scope)
    return [one for one in dict.fromkeys(found) if "".join(one.old.split()) != "".join(one.new.split())]


# ---- what is known of names


class _Scope:
    """The names that a function may use, with their types: "int" for every whole number, "float*", "float[2][3]"."""

    def __init__(self, source: Source, function: Function) -> None:
        self.source, self.function = source, function
        self._text = "\n".join(source.lines)
        whole = function.node.parent.parent
        self.names: list[tuple[int, int, str, str]] = []  # from, to, name, type
        self.as_declared: dict[str, str] = {}  # name -> its type with const, int64_t and the like
        begin, end = function.node.start_byte, function.body.end_byte
        if whole is not None and whole.type == "template_declaration":
            head = text_of(whole.child_by_field_name("parameters"))
            self.names += [(begin, end, name, "int") for name in re.findall(r"\bint (\w+)", head)]
        for kind, name in _CONSTANT.findall(self._text):
            if re.search(rf"\b{name}\b", text_of(function.body)):
                self.names.append((0, len(self._text), name, _plain(kind)))
        for node in itertools.chain(walk(function.node), walk(function.body)):
            if node.type in ("parameter_declaration", "declaration"):
                kind = " ".join(text_of(one) for one in node.named_children if one.type.endswith(("type", "qualifier", "identifier")))
                self.as_declared |= {name: f"{kind} {its}" for name, its in _declared(node)}
            if node.type == "parameter_declaration":
                self.names += [(begin, end, *one) for one in _declared(node)]
            elif node.type == "declaration":
                self.names += [(node.end_byte, node.parent.end_byte, *one) for one in _declared(node)]
        of_types = re.findall(r"\b[A-Z]\w*::[A-Z]\w*\b(?![(<])", text_of(function.body))
        self.names += [(begin, end, name, "int") for name in dict.fromkeys(of_types)]
        self.right_sides = {}  # what is assigned -> to what
        for node in walk(function.body):
            if node.type == "assignment_expression" and text_of(node.child_by_field_name("operator")) == "=":
                left, right = _sides(node)
                self.right_sides.setdefault(_code(right), _code(left))

    def code(self, node: Node) -> str:
        """The code of a node on one line; "" if it is not what was parsed, or holds a directive or a lambda."""
        as_written = self._text[node.start_byte : node.end_byte]
        same = re.sub(r"[^\x00-\x7f]", " ", as_written) == text_of(node)
        return "" if not same or re.search(r"\[[&=]|^\s*#", as_written, re.MULTILINE) else _code(node)

    def at(self, node: Node) -> dict[str, str]:
        """Name -> type, of those declared where a node is."""
        return {name: kind for begin, end, name, kind in self.names if begin <= node.start_byte < end and kind}

    def is_whole(self, node: Node) -> bool:
        """Whether it is a whole number."""
        if node.type == "number_literal":
            return re.fullmatch(r"-?\d+u?", text_of(node)) is not None
        if node.type in ("identifier", "qualified_identifier"):
            return self.at(node).get(text_of(node)) == "int"
        if node.type == "field_expression":
            return text_of(node) in _COORDINATES
        if node.type == "subscript_expression":
            base = node.child_by_field_name("argument")
            return re.match(r"int[*\[]", self.at(node).get(text_of(base), "")) is not None
        if node.type == "call_expression":
            name, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
            if re.match(r"static_cast<(?:u?int|size_t)", text_of(name)):
                return True
            return text_of(name) in ("min", "max") and all(map(self.is_whole, arguments.named_children))
        if node.type == "compound_literal_expression":
            return _plain(text_of(node.child_by_field_name("type"))) == "int"
        parts = node.named_children[node.type == "conditional_expression" :]
        return node.type.endswith("_expression") and bool(parts) and all(map(self.is_whole, parts))


def _plain(kind: str) -> str:
    return "int" if _WHOLE.match(kind) else {"double": "float"}.get(kind, kind)


def _declared(node: Node) -> Iterator[tuple[str, str]]:
    """The names that a declaration or a parameter declares, with their types; none of constants."""
    kind = node.child_by_field_name("type")
    base = _plain(text_of(kind)) if kind else ""
    for one in node.children_by_field_name("declarator"):
        value = one.child_by_field_name("declarator") if one.type == "init_declarator" else one
        names = [text_of(part) for part in walk(value) if part.type == "identifier"]
        if value.type == "structured_binding_declarator":
            yield from ((name, "int") for name in names)
        elif names:
            more = "*" * any(part.type == "pointer_declarator" for part in walk(value))
            more += "".join(re.findall(r"\[[^\]]*\]", text_of(value)))
            yield names[0], f"{base}{more}" if base != "auto" else ""


def _bracketed(code: str) -> str:
    """In brackets, but for a name: gcc takes (name) for a reference."""
    return code if re.fullmatch(r"[\w.:]+", code) else f"({code})"


# ---- the tree


def _code(node: Node) -> str:
    return " ".join(code_of(node).split())


def _sides(node: Node) -> tuple[Node, Node]:
    return node.child_by_field_name("left"), node.child_by_field_name("right")


def _operator(node: Node) -> str:
    return text_of(node.child_by_field_name("operator"))


def _values(node: Node) -> Iterator[Node]:
    """The nodes that may be edited: neither types, nor constant expressions, nor what is declared."""
    yield node
    for child in node.named_children:
        if child.type in _KEPT or (child.type == "declaration" and _is_constant(child)):
            continue
        if child.type == "condition_clause" and any(one.type == "constexpr" for one in node.children):
            continue
        if node.type == "init_declarator" and child != node.child_by_field_name("value"):
            continue
        if node.type == "declaration" and child.type != "init_declarator":
            continue
        yield from _values(child)


def _is_constant(node: Node) -> bool:
    return bool(re.match(r"(?:static |extern )?(?:constexpr|__shared__|static|extern|using)\b", text_of(node)))


def _holds(node: Node, field: str) -> bool:
    """Whether it is that field of its parent."""
    return node.parent.child_by_field_name(field) == node


def _is_reference(node: Node, scope: _Scope) -> bool:
    """Whether it is needed itself, and not its value alone."""
    outer = node.parent
    if outer.type == "field_expression":
        return True
    if outer.type in ("pointer_expression", "update_expression"):
        return True
    if outer.type == "assignment_expression":
        return _holds(node, "left")
    if outer.type == "argument_list" and outer.parent.type == "call_expression":
        name = re.findall(r"\w+", text_of(outer.parent.child_by_field_name("function")).split("<")[0])[-1:]
        called = scope.source.function(name[0]) if name else None
        at = outer.named_children.index(node)
        return called is not None and at < len(called.parameters) and called.parameters[at].is_reference
    return False


# ---- the edits


def _edits_of(node: Node, scope: _Scope) -> Iterator[Edit]:
    if node.type in ("expression_statement", "declaration", "return_statement", "continue_statement"):
        yield from _of_statement(node, scope)
        return
    code = scope.code(node)
    if not code or node.type.endswith(("_statement", "_clause", "_list", "_syntax", "declarator")):
        return
    is_reference = _is_reference(node, scope)
    for kind, new in _others(node, scope, is_reference):
        yield _edit(kind, scope, [(node, new)])
    for kind, several in _pairs(node, scope):
        yield _edit(kind, scope, several)


def _edit(kind: str, scope: _Scope, replaced: Sequence[tuple[Node, str]]) -> Edit:
    """The edit that makes each of these nodes another text; it is quoted with as much around it as tells which one."""
    first, last = replaced[0][0], replaced[-1][0]
    shown = first
    while shown.end_byte < last.end_byte or (
        len(replaced) == 1 and _times(scope, shown) > 1 and shown.parent.type.endswith(("_expression", "_declarator"))
    ):
        shown = shown.parent
    new, start = text_of(shown), shown.start_byte
    for one, text in reversed(replaced):
        new = new[: one.start_byte - start] + text + new[one.end_byte - start :]
    changes = []
    for one, text in replaced:
        way = _REFERENCE if _is_reference(one, scope) else _VALUE
        way = _POINTER if one.parent.type == "subscript_expression" and _holds(one, "argument") else way
        changes.append(Change(one.start_byte, one.end_byte, text, way))
    new = " ".join(re.sub(r"//[^\n]*", " ", new).split())
    return Edit(scope.source.file, line_of(first), kind, _code(shown), new, tuple(changes))


def _times(scope: _Scope, node: Node) -> int:
    line = scope.source.lines[line_of(node) - 1]
    return len(re.findall(rf"(?<!\w){re.escape(text_of(node))}(?!\w)", line.split("//")[0]))


def _others(node: Node, scope: _Scope, is_reference: bool) -> Iterator[tuple[str, str]]:
    """What an expression may become: its kind, and the text."""
    code = scope.code(node)
    if is_reference and node.type not in ("identifier", "field_expression"):
        return
    if node.type == "binary_expression":
        yield from _of_operator(node, scope)
    elif node.type in ("identifier", "qualified_identifier", "field_expression"):
        yield from _of_name(node, scope, is_reference)
    elif node.type == "number_literal":
        if scope.is_whole(node):
            number = int(code.rstrip("u"))
            yield from (("constant", str(one)) for one in (0, number + 1, number - 1, 2 * number) if one != number)
        else:
            yield from (("constant", one) for one in _NUMBERS.get(code, (f"2.0f * {code}", f"0.5f * {code}")))
    elif node.type == "unary_expression":
        yield "operator", scope.code(node.child_by_field_name("argument"))
        if code == "-INFINITY":
            yield "constant", "0.0f"
    elif node.type == "conditional_expression":
        condition, yes, no = (scope.code(node.child_by_field_name(one)) for one in _TERNARY)
        yield from (("condition", one) for one in (yes, no, f"({condition}) ? {_bracketed(no)} : {_bracketed(yes)}"))
    elif node.type == "call_expression":
        yield from _of_call(node, scope)
    elif node.type == "subscript_expression":
        base, inner = node.child_by_field_name("argument"), node.child_by_field_name("indices")
        if base.type == "subscript_expression":
            array, outer = (base.child_by_field_name(one) for one in ("argument", "indices"))
            yield "names", f"{_code(array)}{_code(inner)}{_code(outer)}"
    elif node.type == "assignment_expression" and node.parent.type != "for_statement":
        (left, right), operator = map(_code, _sides(node)), _operator(node)
        others = {"=": "+=", "+=": "= -= *=", "*=": "/= +=", "-=": "+=", "/=": "*="}.get(operator, "")
        yield from (("assignment", f"{left} {one} {right}") for one in others.split())
    if node.parent.type == "condition_clause":
        yield from (("condition", one) for one in ("true", "false", f"!({code})"))
    if (other := scope.right_sides.get(code)) and node.type in ("binary_expression", "call_expression"):
        if not (node.parent.type == "assignment_expression" and _code(_sides(node.parent)[0]) == other):
            yield "name", other


_TERNARY = ("condition", "consequence", "alternative")


def _of_operator(node: Node, scope: _Scope) -> Iterator[tuple[str, str]]:
    left, right = _sides(node)
    one, two, operator, is_whole = scope.code(left), scope.code(right), _operator(node), scope.is_whole(node)
    if operator in _COMPARED:
        yield from (("comparison", f"{one} {other} {two}") for other in _COMPARED[operator].split())
        further = {"<": "-", "<=": "+", ">": "+", ">=": "-"}.get(operator)
        if further:
            yield "comparison", f"{one} {operator} {two} {further} 1"
        return
    for other in _OPERATORS.get(operator, "").split():
        if other != "%" or is_whole:
            first = _bracketed(one) if _PRECEDENCE.get(other, 0) == 2 else one
            yield "operator", f"{first} {other} {_bracketed(two)}"
    kind = {"*": "factor", "/": "factor"}.get(operator, "condition" if operator in ("&&", "||") else "term")
    yield from ((kind, side) for side in (one, two))
    if operator in ("-", "/"):
        yield "operator", f"{_bracketed(two)} {operator} {_bracketed(one)}"
    for inner, is_left in ((left, True), (right, False)):
        bare = inner.named_children[0] if inner.type == "parenthesized_expression" else inner
        if bare.type == "binary_expression" and {_operator(bare), operator} <= {*_PRECEDENCE}:
            first, second, its = *map(scope.code, _sides(bare)), _operator(bare)
            if its != operator or its in "-/%":
                yield "parentheses", (
                    f"{first} {its} ({second} {operator} {two})" if is_left else f"({one} {operator} {first}) {its} {second}"
                )


def _of_name(node: Node, scope: _Scope, is_reference: bool) -> Iterator[tuple[str, str]]:
    name, names = text_of(node), scope.at(node)
    if node.type == "field_expression":
        base, member = node.child_by_field_name("argument"), text_of(node.child_by_field_name("field"))
        for members in scope.source.structs.values():
            if member in members:
                yield from (("name", f"{_code(base)}.{one}") for one in members if one != member)
        if name in _COORDINATES:
            yield from (("name", one) for one in _COORDINATES if one != name)
    mine = names.get(name, "int" if name in _COORDINATES else "")
    if not mine:
        return
    same = [one for one, kind in names.items() if kind == mine and one != name]
    if is_reference:
        same = [one for one in same if scope.as_declared.get(one) == scope.as_declared.get(name, "?")]
    yield from (("name", one) for one in same)
    if mine == "bool":
        yield "condition", f"!{name}"
    if is_reference:
        return
    if mine == "int":
        in_comparison = node.parent.type == "binary_expression" and _operator(node.parent) in _COMPARED
        in_comparison |= node.parent.parent.type == "binary_expression" and _operator(node.parent.parent) in _COMPARED
        for one in (name, *(same if in_comparison else ())):
            yield from (("constant", f"({one} {sign} 1)") for sign in "-+")
        yield "constant", "0"
        same = [one for one in same if one[0].islower() or "::" not in one]
        for pattern in ("({0} + {1})", "({0} * {1})", "({0} - {1})", "({0} / {1})", "({0} % {1})"):
            yield from (("more", pattern.format(name, one)) for one in same)
    elif mine == "float":
        yield from (("more", f"({name} {sign} {one})") for sign in "*+-/" for one in same)


def _of_call(node: Node, scope: _Scope) -> Iterator[tuple[str, str]]:
    called, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
    if any(one.type == "kernel_call_syntax" for one in node.named_children):
        return
    name, given = _code(called), _code(arguments)
    base, _, more = name.partition("<")
    for group in _FUNCTIONS:
        yield from (("function", f"{one}{given}") for one in group if base in group and one != base)
    mine = scope.source.function(base)
    for one in scope.source.functions if mine else ():
        if one.name != base and _types_of(one) == _types_of(mine):
            yield "function", f"{one.name}{'<' * bool(more)}{more}{given}"
    if node.parent.type != "expression_statement":
        yield from (("function", _bracketed(_code(one))) for one in arguments.named_children)


def _types_of(function: Function) -> list[str]:
    parameters = function.node.child_by_field_name("parameters")
    return [re.sub(r"\s*\b\w+$", "", _code(one)) for one in parameters.named_children]


def _pairs(node: Node, scope: _Scope) -> Iterator[tuple[str, list[tuple[Node, str]]]]:
    """Several places that change together: two arguments of a call, or two names, exchanged."""
    if node.type == "argument_list":
        return
    if node.type == "call_expression":
        every = node.child_by_field_name("arguments").named_children
        every = [one for one in every if one.type != "comment" and scope.code(one)]
        names = scope.at(node)
        for one, other in itertools.combinations(every, 2):
            kinds = [names.get(text_of(each), "int" if scope.is_whole(each) else "") for each in (one, other)]
            if kinds[0] == kinds[1] and text_of(one) != text_of(other) and (kinds[0] or "call" in one.type):
                yield "arguments", [(one, scope.code(other)), (other, scope.code(one))]
    outer = node.parent
    is_whole = outer.type in ("init_declarator", "condition_clause", "return_statement", "subscript_argument_list")
    is_whole |= outer.type in ("for_statement", "argument_list", "parenthesized_expression")
    is_whole |= outer.type == "assignment_expression" and _holds(node, "right")
    if not is_whole or node.type != "binary_expression":
        return
    leaves: dict[str, list[Node]] = {}
    names = scope.at(node)
    for one in walk(node):
        if one.type in ("identifier", "qualified_identifier") and text_of(one) in names:
            leaves.setdefault(text_of(one), []).append(one)
    for one, other in itertools.combinations(leaves, 2):
        if names[one] == names[other] and names[one]:
            places = [(place, other) for place in leaves[one]] + [(place, one) for place in leaves[other]]
            yield "names", sorted(places, key=lambda place: place[0].start_byte)


def _of_statement(node: Node, scope: _Scope) -> Iterator[Edit]:
    code, line = scope.code(node), line_of(node)

    def edit(kind: str, old: str, new: str, *changes: Change) -> Edit:
        return Edit(scope.source.file, line, kind, old, new, changes)

    whole = (node.start_byte, node.end_byte)
    if node.type in ("return_statement", "continue_statement"):
        if code in ("return;", "continue;"):
            for new in {"return;", "continue;", "break;"} - {code}:
                yield edit("jump", code, new, Change(*whole, new, _STATEMENT))
        return
    if not code or _BARRIER.search(code):
        return
    if node.type == "expression_statement":
        yield edit("statement", code, "", Change(*whole, "", _STATEMENT))
    block = node.parent
    if block.type != "compound_statement" or node.type != "expression_statement":
        return
    before = [one for one in block.named_children if one.end_byte <= node.start_byte and one.type != "comment"][-1:]
    for other in before:
        its = scope.code(other)
        if its and other.type in ("expression_statement", "declaration") and not _BARRIER.search(its):
            moved = Change(other.start_byte, other.end_byte, code, _BEFORE)
            yield edit("order", f"{its} {code}", f"{code} {its}", moved, Change(*whole, "", _STATEMENT))


# ---- all in one text


def switched(text: str, edits: Mapping[int, Edit]) -> tuple[str, dict[int, int]]:
    """The text with these edits, by number, and line -> number, of the lines that hold one."""
    spots: dict[tuple[int, int], list[tuple[int, Change]]] = {}
    for number, edit in edits.items():
        for change in edit.changes:
            spots.setdefault((change.start, change.end), []).append((number, change))
    made = _rendered(text, 0, len(text), sorted(spots.items(), key=lambda one: (one[0][0], -one[0][1])))
    at = {}
    for line, code in enumerate(made.split("\n"), 1):
        if found := re.findall(rf"{CHOSEN} == (\d+)", code):
            at[line] = int(found[-1])
    return made, at


def _rendered(text: str, start: int, end: int, spots: Sequence) -> str:
    made, at = [], start
    while spots:
        ((first, last), changes), *rest = spots
        inside = list(itertools.takewhile(lambda one: one[0][0] < last, rest))
        old = " ".join(re.sub(r"//[^\n]*", " ", text[first:last]).split())
        made += [text[at:first], _switch(old, _rendered(text, first, last, inside), changes)]
        at, spots = last, rest[len(inside) :]
    return "".join([*made, text[at:end]])


def _switch(old: str, kept: str, changes: Sequence[tuple[int, Change]]) -> str:
    if changes[0][1].way >= _STATEMENT:
        before = "".join(f"\nif ({CHOSEN} == {number}) {{ {one.new} }}\n" for number, one in changes if one.way == _BEFORE)
        other = [(number, one.new) for number, one in changes if one.way == _STATEMENT]
        if not other:
            return f"{before}{kept}"
        made = "".join(f"\nif ({CHOSEN} == {number}) {{ {new} }} else\n" for number, new in other)
        return f"{{ {before}{made}{{ {kept} }} }}"
    made = ""
    for number, one in changes:
        kind = f"decltype(({old}))" if one.way == _REFERENCE else f"edited_type<decltype(({old}))>"
        made += f"\n{CHOSEN} == {number} ? static_cast<{kind}>({one.new}) :\n"
    whole = f"({made}{_bracketed(kept)})"
    return f"(+{whole})" if changes[0][1].way == _POINTER else whole
