"""Single edits of CUDA C++, all in one source text: a number set at run time selects the active edit.

    edits = edits_in(source, functions, lines)          `<` for `<=`, another name, a term more or less, ...
    text, at = switched(text, {1: edits[0], ...})       the text with these edits, and which edit each line contains

Mutant schemata (Untch, Offutt, Harrold 1993): one compilation for all edits. An edited expression keeps its type, and
every edit is on its own line, so that a compiler error identifies the edit to leave out. common/cli/tried_edits.py
finds out which of them fixes a wrong output.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations, takewhile

from common.source.reader import Function, Node, Source, code_of, line_of, text_of, walk

CHOSEN = "chosen_edit"  # the variable with the number
HEADER = f"""#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#undef __forceinline__
#define __forceinline__ inline
inline int {CHOSEN} = 0;
template <typename T>
using edited_type = std::decay_t<T>;
extern "C" __attribute__((visibility("default"), weak)) void choose_edit(int edit) {{ {CHOSEN} = edit; }}
"""
KINDS = (  # kinds with few edits first
    "comparison", "condition", "rounding", "clamp", "operator", "brackets", "function", "call", "part", "names",
    "arguments", "assignment", "statement", "order", "jump", "loop", "negation", "constant", "name", "index", "unit",
    "more",
)  # fmt: skip
# what is edited: a value, the pointer of a subscript, an lvalue, a statement; or code inserted in front of one
_VALUE, _POINTER, _REFERENCE, _STATEMENT, _BEFORE = range(5)
_OPERATORS = {
    "<": "<= > >=", "<=": "< >= >", ">": ">= < <=", ">=": "> <= <", "==": "!= >= <=", "!=": "==",
    "+": "- *", "-": "+", "*": "/ +", "/": "* %", "%": "/", "&&": "||", "||": "&&",
    "=": "+=", "+=": "= -= *=", "*=": "/= +=", "-=": "+=", "/=": "*=",
}  # fmt: skip
_BOUNDS = {"<": "-", "<=": "+", ">": "+", ">=": "-"}  # other ways to move a bound by one
_OF_LANES = ("warp_sum", "warp_max")  # where the file mentions them
_FUNCTIONS = (
    ("expf", "exp2f"), ("logf", "log2f"), ("fmaxf", "fminf"), ("max", "min"), ("sqrtf", "rsqrtf"), ("Max", "Sum"),
    _OF_LANES,
)  # fmt: skip
_NUMBERS = {"0.0f": ("1.0f", "-INFINITY"), "1.0f": ("0.0f", "2.0f"), "0.5f": ("2.0f", "1.0f"), "2.0f": ("0.5f", "1.0f")}
_MORE = {
    "int": "({0} + {1})|({0} * {1})|({0} - {1})|({0} / {1})|({0} % {1})",
    "float": "({0} * {1})|({0} + {1})|({0} - {1})",
}
_OF_COUNT = ("({0} % {1})", "({0} / {1})", "({0} * {1})")  # of an index and how many there are: head and heads
_THREADS = ("threadIdx.x", "threadIdx.y", "blockIdx.x", "blockIdx.y", "blockIdx.z", "blockDim.x", "gridDim.x")
_KEPT = (  # types, and what must remain constant
    "template_argument_list", "type_descriptor", "static_assert_declaration", "sizeof_expression", "case_statement",
    "lambda_expression", "asm_statement", "ERROR",
)  # fmt: skip
_CONSTANT = re.compile(r"^(?:static |inline )*constexpr\s+(\w+)\s+(\w+)\s*=", re.MULTILINE)
_FACTOR = re.compile(r"[*/] ([A-Z][A-Z0-9_]+)\b(?![(<:])")
_FIXED = re.compile(r"(?:static |extern )?(?:constexpr|__shared__|static|extern|using)\b")
_WAITS = re.compile(r"__sync\w+\(|CUDA_|cp_async|wait")
_QUOTIENT = re.compile(r"\(?(\d+) / (\d+)\)?")  # of integers, which is rounded down
_UNSIGNED = re.compile(r"static_cast<(?:unsigned(?: int)?|uint\d+_t|size_t)>")
_STRIDES = (("threadIdx.x % 32", "32"), ("threadIdx.x", "blockDim.x"))  # start and step of loops over threads
_LEAF = ("identifier", "qualified_identifier", "field_expression")


@dataclass(frozen=True)
class Change:
    """Replaces text[start:end] by `new`; `way` says how it is switched."""

    start: int
    end: int
    new: str
    way: int


@dataclass(frozen=True)
class Edit:
    """One edit: its location, kind, description ("with `<` in place of `<=`"), and changes. undoes: whether it removes
    an expression, with a number in its place or a condition that always holds."""

    file: str
    line: int
    kind: str
    says: str
    changes: tuple[Change, ...]
    undoes: bool = False


def edits_in(source: Source, functions: Collection[str], lines: Collection[int] | None) -> list[Edit]:
    """The edits of these functions in source order, only in these lines (None: all)."""
    found: dict[tuple[Change, ...], Edit] = {}
    for function in source.functions:
        scope = _Scope(source, function) if function.name in functions else None
        for node in _values(function.body) if scope else ():
            if lines is None or line_of(node) in lines:
                for edit in _of_statement(node, scope) if node.type.endswith("_statement") else _edits(node, scope):
                    found.setdefault(edit.changes, edit)
        for edit in _throughout(function, scope) if scope else ():
            if lines is None or edit.line in lines:
                found.setdefault(edit.changes, edit)
    return list(found.values())


def _throughout(function: Function, scope: _Scope) -> Iterator[Edit]:
    """A constant of a struct, T::D, that becomes another one of it wherever the function has it, and the index of
    several arrays that becomes another one wherever a statement has it."""
    places: dict[str, list[Node]] = {}
    for node in _values(function.body):
        if node.type == "qualified_identifier" and _way(node, scope) == _VALUE:
            places.setdefault(text_of(node), []).append(node)
    for name, every in places.items():
        base, _, constant = name.rpartition("::")
        of_struct = (one for one in scope.source.structs.values() if constant in one and len(every) > 1)
        for other in (f"{base}::{one}" for members in of_struct for one in members if one != constant):
            first, last = line_of(every[0]), line_of(every[-1])
            says = f"with `{other}` in place of `{name}` in line{f's {first} to' if first < last else ''} {last}"
            changes = tuple(Change(one.start_byte, one.end_byte, other, _VALUE) for one in every)
            yield Edit(scope.source.file, first, "name", says, changes)
    for statement in (node for node in walk(function.body) if node.type == "expression_statement"):
        indices = [one.named_children[0] for one in walk(statement) if one.type == "subscript_argument_list"]
        for name in {text_of(one) for one in indices if one.type == "identifier"}:
            every, declared = [one for one in indices if text_of(one) == name], scope.at(statement)
            for other in declared if len(every) > 1 and _plain(declared.get(name, "")) == "int" else ():
                if other != name and _plain(declared[other]) == "int" and scope.code(statement):
                    says = f"with index `{other}` in place of `{name}` everywhere in `{scope.code(statement)}`"
                    changes = tuple(Change(one.start_byte, one.end_byte, other, _VALUE) for one in every)
                    yield Edit(scope.source.file, line_of(every[0]), "names", says, changes)


# ---- names and their types


class _Scope:
    """A function and the names that are in scope in it."""

    def __init__(self, source: Source, function: Function) -> None:
        self.source, self.text, body = source, "\n".join(source.lines), text_of(function.body)
        self.whole = f"{text_of(function.node)} {body}"
        begin, end = function.node.start_byte, function.body.end_byte
        template = function.node.parent.parent
        head = text_of(template.child_by_field_name("parameters")) if template.type == "template_declaration" else ""
        whole = [*re.findall(r"\bint (\w+)", head), *re.findall(r"\b[A-Z]\w*::[A-Z]\w*\b(?![(<])", body)]
        constants = [(name, kind) for kind, name in _CONSTANT.findall(self.text) if re.search(rf"\b{name}\b", body)]
        code = re.sub(r"//[^\n]*", "", self.text)
        as_whole = r"(?<=[\w,])(?<!^constexpr float)\s+{}\s*[=,>]"  # how a file declares what is no factor of floats
        names = dict.fromkeys(_FACTOR.findall(code))
        self.factors = [one for one in names if not re.search(as_whole.format(one), code, re.MULTILINE)]
        self._names = [(begin, end, *one) for one in (*constants, *((name, "int") for name in whole))]
        self.left_of: dict[str, str] = {}  # assigned value -> its left-hand side
        for node in (*walk(function.node), *walk(function.body)):
            if node.type == "parameter_declaration":
                self._names += [(begin, end, *one) for one in _declared(node)]
            elif node.type == "declaration":
                self._names += [(node.end_byte, node.parent.end_byte, *one) for one in _declared(node)]
            elif node.type == "assignment_expression" and _operator(node) == "=":
                left, right = map(_code, _sides(node))
                self.left_of.setdefault(right, left)

    def at(self, node: Node) -> dict[str, str]:
        """Name -> declared type, at a node."""
        return {name: kind for begin, end, name, kind in self._names if begin <= node.start_byte < end and kind}

    def code(self, node: Node) -> str:
        """The code of a node on one line; "" if it differs from what was parsed or contains a directive or a lambda."""
        written = self.text[node.start_byte : node.end_byte]
        same = re.sub(r"[^\x00-\x7f]", " ", written) == text_of(node)
        return "" if not same or re.search(r"\[[&=]|^\s*#", written, re.MULTILINE) else _code(node)

    def is_long(self, node: Node) -> bool:
        """Whether it is the name of a 64-bit integer."""
        return re.search(r"int64|size_t|long", self.at(node).get(text_of(node), "")) is not None

    def is_whole(self, node: Node) -> bool:
        """Whether it is computed from integers."""
        if node.type == "number_literal":
            return re.fullmatch(r"-?\d+u?", text_of(node)) is not None
        if node.type == "subscript_expression":
            return re.match(r"int\W", _plain(self.at(node).get(text_of(node.named_children[0]), ""))) is not None
        if node.type in _LEAF:
            return text_of(node) in _THREADS or _plain(self.at(node).get(text_of(node), "")) == "int"
        if node.type == "call_expression":
            if not re.match(r"static_cast<(?:u?int|size_t)|min$|max$", text_of(node.named_children[0])):
                return False
            node = node.child_by_field_name("arguments")
        parts = [one for one in node.named_children if not one.type.endswith(("_type", "type_identifier"))]
        return bool(parts) and all(map(self.is_whole, parts))


def _plain(kind: str) -> str:
    """ "int" for every integer type, "float*" for const float* __restrict__."""
    kind = " ".join(re.sub(r"\b(?:const|__restrict__|unsigned|long)\b", " ", kind).split()).replace(" *", "*")
    return re.sub(r"^(?:u?int(?:\d+_t)?|size_t|short|)(?=\W|$)", "int", kind).replace("double", "float")


def _declared(node: Node) -> Iterator[tuple[str, str]]:
    """The names declared by a declaration or parameter, each with its type."""
    of_type = ("type", "qualifier", "type_identifier", "type_specifier")
    base = " ".join(text_of(one) for one in node.named_children if one.type.endswith(of_type))
    for one in node.children_by_field_name("declarator"):
        value = one.child_by_field_name("declarator") if one.type == "init_declarator" else one
        names = [text_of(part) for part in walk(value) if part.type == "identifier"]
        if value.type == "structured_binding_declarator":
            yield from ((name, "const int") for name in names)
        elif names and "auto" not in base:
            pointers = "*" * any(part.type == "pointer_declarator" for part in walk(value))
            yield names[0], base + pointers + "".join(re.findall(r"\[[^\]]*\]", text_of(value)))


# ---- the tree


def _code(node: Node) -> str:
    return " ".join(code_of(node).split())


def _bracketed(code: str) -> str:
    """Adds parentheses, except around a name: to gcc, (name) is a reference."""
    return code if re.fullmatch(r"[\w.:]+", code) else f"({code})"


def _sides(node: Node) -> tuple[Node, Node]:
    return node.child_by_field_name("left"), node.child_by_field_name("right")


def _operator(node: Node) -> str:
    return text_of(node.child_by_field_name("operator"))


def _values(node: Node) -> Iterator[Node]:
    """The nodes that may be edited: not types, constants, declared names, or code that did not parse."""
    if not node.has_error:
        yield node
    for child in node.named_children:
        is_fixed = child.type in _KEPT or (child.type == "declaration" and bool(_FIXED.match(text_of(child))))
        is_fixed |= child.type == "condition_clause" and any(one.type == "constexpr" for one in node.children)
        is_name = node.type == "declaration" and child.type != "init_declarator"
        is_name |= node.type == "init_declarator" and child != node.child_by_field_name("value")
        if not (is_fixed or is_name):
            yield from _values(child)


def _way(node: Node, scope: _Scope) -> int:
    """How a node is used: as a value, as the pointer of a subscript, or as an lvalue."""
    outer = node.parent
    if outer.type == "subscript_expression" and outer.child_by_field_name("argument") == node:
        return _POINTER
    is_left = outer.type == "assignment_expression" and _sides(outer)[0] == node
    if is_left or outer.type in ("field_expression", "pointer_expression", "update_expression"):
        return _REFERENCE
    if outer.type == "argument_list" and outer.parent.type == "call_expression":
        name = re.findall(r"\w+", text_of(outer.parent.named_children[0]).split("<")[0])[-1:]
        called, at = scope.source.function(name[0]) if name else None, outer.named_children.index(node)
        if called and at < len(called.parameters) and called.parameters[at].is_reference:
            return _REFERENCE
    return _VALUE


# ---- the edits


def _edits(node: Node, scope: _Scope) -> Iterator[Edit]:
    """The edits of an expression."""
    if node.type.endswith(("_expression", "literal", "identifier")) and scope.code(node):
        if _way(node, scope) == _VALUE or node.type in (*_LEAF, "subscript_expression"):
            yield from (_edit(kind, scope, [(node, new)]) for kind, new in _others(node, scope))
        yield from (_edit(kind, scope, several) for kind, several in _exchanged(node, scope))


def _edit(kind: str, scope: _Scope, replaced: Sequence[tuple[Node, str]]) -> Edit:
    """The edit that replaces these nodes; it is quoted with enough context to be unambiguous in its line."""
    (first, _), (last, _) = replaced[0], replaced[-1]
    line, shown = scope.source.lines[line_of(first) - 1].split("//")[0], first
    while (
        shown.end_byte < last.end_byte
        or shown.type in ("argument_list", "number_literal")
        or (
            len(replaced) == 1
            and shown.parent.type.endswith("_expression")
            and len(re.findall(rf"(?<!\w){re.escape(text_of(shown))}(?!\w)", line)) > 1
        )
    ):
        shown = shown.parent
    new, start = text_of(shown), shown.start_byte
    for one, text in reversed(replaced):
        new = new[: one.start_byte - start] + text + new[one.end_byte - start :]
    says = f"with `{' '.join(new.split())}` in place of `{_code(shown)}`"
    undoes = bool(re.fullmatch(r"[\d.]+f?", new) and re.search(r"\b[a-z_]", _code(shown)))
    if shown == first and replaced[0][1] in ("true", "false"):
        says, undoes = f"with `{_code(shown)}` always {replaced[0][1]}", True
    changes = tuple(Change(one.start_byte, one.end_byte, text, _way(one, scope)) for one, text in replaced)
    return Edit(scope.source.file, line_of(first), kind, says, changes, undoes)


def _others(node: Node, scope: _Scope) -> Iterator[tuple[str, str]]:
    """What an expression may become: (kind of edit, new text)."""
    code, outer = scope.code(node), node.parent
    if node.type == "binary_expression":
        yield from _of_operator(node, scope)
        if outer.type in ("assignment_expression", "init_declarator") and scope.is_whole(node):
            yield "clamp", f"({code}) > 0 ? {code} : 0"
    elif node.type in _LEAF:
        yield from _of_name(node, scope)
    elif node.type == "number_literal" and scope.is_whole(node):
        number = int(code.rstrip("u"))
        yield from (("constant", str(one)) for one in (0, number + 1, number - 1, 2 * number) if one != number)
    elif node.type == "number_literal":
        yield from (("constant", one) for one in _NUMBERS.get(code, (f"2.0f * {code}", f"0.5f * {code}")))
    elif node.type == "unary_expression":
        yield "operator", scope.code(node.child_by_field_name("argument"))
        yield from [("constant", "0.0f")] * (code == "-INFINITY")
    elif node.type == "conditional_expression":
        fields = ("condition", "consequence", "alternative")
        condition, yes, no = (_bracketed(scope.code(node.child_by_field_name(one))) for one in fields)
        yield from (("condition", scope.code(node.child_by_field_name(one))) for one in fields[1:])
        yield "condition", f"{condition} ? {no} : {yes}"
    elif node.type == "call_expression" and outer.type != "expression_statement":
        yield from _of_call(node, scope)
        given = node.child_by_field_name("arguments").named_children
        inner, name = scope.code(given[0]) if len(given) == 1 else "", _code(node.named_children[0])
        if inner and name == "static_cast<int>" and any(scope.is_long(one) for one in walk(given[0])):
            yield "function", f"std::clamp<int64_t>({inner}, -(1 << 30), 1 << 30)"
        elif inner and given[0].type == "binary_expression" and "<" not in name:
            left, right = map(scope.code, _sides(given[0]))
            yield "brackets", f"{name}({left}) {_operator(given[0])} {right}"
    elif node.type == "subscript_expression" and node.named_children[0].type == "subscript_expression":
        (array, outside), inside = node.named_children[0].named_children, node.named_children[1]
        yield "names", _code(array) + _code(inside) + _code(outside)
    elif node.type == "assignment_expression" and outer.type == "expression_statement":
        left, right = map(_code, _sides(node))
        yield from (("assignment", f"{left} {one} {right}") for one in _OPERATORS.get(_operator(node), "").split())
        if first := _operator(node) == "*=" and _first_iteration(node, f"{left} {right}"):
            yield "condition", f"{left} *= {first} ? {right} : 1"
    if outer.type == "condition_clause":
        yield from (("condition", one) for one in ("true", "false"))
        yield "negation", f"!({code})"
    is_its_own = outer.type == "assignment_expression" and _code(_sides(outer)[0]) == scope.left_of.get(code)
    if code in scope.left_of and node.type in ("binary_expression", "call_expression") and not is_its_own:
        yield "name", scope.left_of[code]


def _of_operator(node: Node, scope: _Scope) -> Iterator[tuple[str, str]]:
    left, right = _sides(node)
    one, two, operator = scope.code(left), scope.code(right), _operator(node)
    for other in _OPERATORS.get(operator, "").split():
        is_rounded = other == "/" and one.endswith(f"/ {two}")  # n / tile * tile
        if (other != "%" or scope.is_whole(node)) and not is_rounded:
            first = _bracketed(one) if other in "*/%" else one
            kind = "negation" if operator in ("==", "!=") else "comparison" if operator[0] in "<>" else "operator"
            kind = "unit" if other == "/" and scope.is_whole(node) else kind  # it often makes an index 0
            yield kind, f"{first} {other} {_bracketed(two)}"
    divided = _QUOTIENT.fullmatch(one)
    if divided and not scope.is_whole(node):
        yield "constant", f"{divided[1]}.0f / {divided[2]} {operator} {_bracketed(two)}"
    if operator in _BOUNDS:
        yield "comparison", f"{one} {operator} {two} {_BOUNDS[operator]} 1"
    if operator[0] in "<>=!":
        if _UNSIGNED.search(one) or _UNSIGNED.search(two):
            yield "comparison", _UNSIGNED.sub("static_cast<int64_t>", f"{one} {operator} {two}")
        return
    if operator == "*" and (first := _first_iteration(node, f"{one} {two}")):
        yield "condition", f"{first} ? {one} * {two} : {one}"
    yield from (("part", side) for side in (one, two))
    if operator == "-" and not scope.is_whole(node):
        yield from (("function", f"{exponential}({one} - {two})") for exponential in ("expf", "exp2f"))
    if operator == "/" and scope.is_whole(node):
        yield "rounding", f"({one} + {_bracketed(two)} - 1) / {_bracketed(two)}"
    if operator in "-/":
        yield "operator", f"{_bracketed(two)} {operator} {_bracketed(one)}"
    for inner in (left, right):
        given = inner.child_by_field_name("arguments").named_children if inner.type == "call_expression" else ()
        if len(given) == 1 and "<" not in (name := _code(inner.named_children[0])):
            both = (scope.code(given[0]), two) if inner == left else (one, scope.code(given[0]))
            yield "brackets", f"{name}({f' {operator} '.join(both)})"
        bare = inner.named_children[0] if inner.type == "parenthesized_expression" else inner
        if operator in "+-*/%" and bare.type == "binary_expression" and _operator(bare) in "+-*/%":
            (first, second), its = map(scope.code, _sides(bare)), _operator(bare)
            if its != operator or its in "-/%":
                in_front = f"{first} {its} ({second} {operator} {two})"
                yield "brackets", in_front if inner == left else f"({one} {operator} {first}) {its} {second}"
                if inner == left and operator in "*/" and its in "+-":
                    yield "brackets", f"{first} {operator} {two} {its} {second}"


def _of_name(node: Node, scope: _Scope) -> Iterator[tuple[str, str]]:
    name, declared, way = text_of(node), scope.at(node), _way(node, scope)
    if node.type == "field_expression":
        base, _, member = name.rpartition(".")
        every = (members for members in scope.source.structs.values() if member in members)
        yield from (("name", f"{base}.{one}") for members in every for one in members if one != member)
        yield from [("name", member)] * (member in declared)
        dimensions = [one for one in _THREADS if one.endswith(".x") or one in scope.whole]  # others are 0 or 1
        yield from (("name", one) for one in dimensions if name in _THREADS and one != name)
    kind = "int" if name in _THREADS else _plain(declared[name]) if name in declared else ""
    same = [one for one, its in declared.items() if _plain(its) == kind and one != name]
    if way == _REFERENCE:
        same = [one for one in same if declared[one] == declared.get(name)]
    if not kind or node.parent.type == "update_expression":
        return
    yield from (("name", one) for one in same)
    if way != _VALUE:
        return
    yield from [("condition", f"!{name}")] * (kind == "bool")
    if kind == "int":
        yield from (("constant", one) for one in (f"({name} - 1)", f"({name} + 1)", "0", "1"))
        around = (node.parent, node.parent.parent)
        if any(one.type == "binary_expression" and _operator(one)[0] in "<>" for one in around):
            yield from (("more", f"({one} {sign} 1)") for one in same for sign in "-+")
        yield from (("index", one.format(name, f"{name}s")) for one in _OF_COUNT if f"{name}s" in same)
    if kind == "float":
        used = text_of(node.parent)
        yield from (("function", f"{one}({name})") for one in _OF_LANES if one in scope.text and one not in used)
        yield from [("constant", "0.0f")] * (node.parent.type == "init_declarator")
        yield from (("unit", f"({name} {sign} {one})") for one in scope.factors if one not in used for sign in "/*")
    yield from (("more", one.format(name, other)) for one in _MORE.get(kind, "").split("|") if one for other in same)


def _first_iteration(node: Node, code: str) -> str:
    """The condition for the first iteration of the loop around a node; "" if it has no counter or the code uses it."""
    while node.type != "for_statement" and node.parent:
        node = node.parent
    head = re.match(r"for \(\w+ (\w+) = ([^;,]+);", _code(node))
    return f"{head[1]} == {head[2]}" if head and not re.search(rf"\b{head[1]}\b", code) else ""


def _of_call(node: Node, scope: _Scope) -> Iterator[tuple[str, str]]:
    name, given = node.named_children[0], node.child_by_field_name("arguments")
    base, _, more = _code(name).partition("<")
    others = [one for group in _FUNCTIONS if base in group for one in group]
    if mine := scope.source.function(base):
        others += [one.name for one in scope.source.functions if _types_of(one) == _types_of(mine)]
    kind = "call" if base in _OF_LANES else "function"  # the largest of equal sums makes up for adding up all of them
    yield from ((kind, f"{one}{'<' * bool(more)}{more}{_code(given)}") for one in others if one != base)
    if not more:
        yield from (("call", _bracketed(_code(one))) for one in given.named_children)


def _types_of(function: Function) -> list[str]:
    parameters = function.node.child_by_field_name("parameters").named_children
    return [re.sub(r"\s*\b\w+$", "", _code(one)) for one in parameters]


def _exchanged(node: Node, scope: _Scope) -> Iterator[tuple[str, list[tuple[Node, str]]]]:
    """Swaps two arguments of a call, or two names in an expression."""
    declared = dict.fromkeys(_THREADS, "int") | scope.at(node)
    if node.type == "call_expression":
        for one, other in combinations(node.child_by_field_name("arguments").named_children, 2):
            codes = [scope.code(each) for each in (one, other)]
            kinds = {
                "int" if scope.is_whole(each) else _plain(declared.get(text_of(each), "")) for each in (one, other)
            }
            if len(kinds) == 1 and kinds != {""} and codes[0] != codes[1] and all(codes):
                yield "arguments", [(one, codes[1]), (other, codes[0])]
            for each, factors in enumerate([re.split(r" \* ", code) for code in codes] if kinds == {"int"} else ()):
                if len(factors) == 2 and all(re.fullmatch(r"[\w.:]+", factor) for factor in factors):
                    for moved, left in (factors, factors[::-1]):
                        new = [left, f"{_bracketed(codes[1 - each])} * {moved}"]
                        yield "arguments", list(zip((one, other), new[:: -1 if each else 1], strict=True))
    if node.type == "binary_expression" and node.parent.type != "binary_expression":
        places: dict[str, list[Node]] = {}
        for one in walk(node):
            if one.type in _LEAF and text_of(one) in declared:
                places.setdefault(text_of(one), []).append(one)
        for one, other in combinations(places, 2):
            if _plain(declared[one]) == _plain(declared[other]):
                both = [(place, other) for place in places[one]] + [(place, one) for place in places[other]]
                yield "names", sorted(both, key=lambda place: place[0].start_byte)


def _of_statement(node: Node, scope: _Scope) -> Iterator[Edit]:
    code, place, line = scope.code(node), (node.start_byte, node.end_byte), line_of(node)
    edit = partial(Edit, scope.source.file, line)
    if code in ("return;", "continue;"):
        for new in {"return;", "continue;", "break;"} - {code}:
            yield edit("jump", f"with `{new}` in place of `{code}`", (Change(*place, new, _STATEMENT),))
    block = node.parent.named_children if node.parent.type == "compound_statement" else []
    block = [one for one in block if one.type != "comment"]
    before = [one for one in block if one.end_byte <= node.start_byte][-1:]
    if node.type in ("for_statement", "while_statement"):
        yield from _of_loop(node, scope, scope.code(before[0]) if before else "")
    if node.type == "if_statement":
        yield from _of_condition(node, scope)
    if node.type != "expression_statement" or code in ("", ";") or _WAITS.search(code):
        return
    gone = Change(*place, "", _STATEMENT)
    yield edit("statement", f"without `{code}`", (gone,))
    call = node.named_children[0]
    if call.type == "call_expression" and call.named_children[1].type != "kernel_call_syntax":
        for new in (new for _, new in _of_call(call, scope) if "(" in new):
            says = f"with `{new}` in place of `{code[:-1]}`"
            yield edit("function", says, (Change(*place, f"{new};", _STATEMENT),))
    for other in before:
        its = scope.code(other)
        if its and other.type in ("expression_statement", "declaration") and not _WAITS.search(its):
            says = f"with lines {line_of(other)} and {line} exchanged"
            yield edit("order", says, (_before(other, scope, code), gone))
    loop = node.parent.parent if node.parent.type == "compound_statement" else node.parent
    if loop.type == "for_statement" and _assigns(node, ""):
        own = scope.at(node).keys() - scope.at(loop).keys()
        if own.isdisjoint(re.findall(r"\w+", code)):
            says = f"with `{code}` in front of the loop in line {line_of(loop)} and not in it"
            yield edit("statement", says, (_before(loop, scope, code), gone))
    after = [one for one in block if one.start_byte >= node.end_byte]
    if len(after) > 1 and after[0].type == "declaration" and not _WAITS.search(text_of(after[0])):
        says = f"with lines {line} and {line_of(after[0])} exchanged"
        yield edit("order", says, (gone, _before(after[1], scope, code)))
    if _assigns(node) and not any(map(_assigns, before)):
        run = [node, *takewhile(_assigns, after)]
        for pairs, swapped in _swapped([scope.code(one) for one in run], scope.at(node)):
            says = f"with {pairs} exchanged in lines {line} to {line_of(run[-1])}"
            yield edit("names", says, (Change(node.start_byte, run[-1].end_byte, swapped, _STATEMENT),))


def _before(node: Node, scope: _Scope, code: str) -> Change:
    """Inserts code in front of a statement, and before the line above if that is its #pragma."""
    above = scope.text.rfind("\n", 0, node.start_byte)
    first = scope.text.rfind("\n", 0, above) + 1
    is_pragma = scope.text[first:above].lstrip().startswith("#")
    return Change(first if is_pragma else node.start_byte, node.end_byte, code, _BEFORE)


def _assigns(node: Node, operator: str = "=") -> bool:
    """Whether a statement is an assignment with this operator; "": any."""
    inner = node.named_children[:1] if node.type == "expression_statement" else []
    return any(one.type == "assignment_expression" and operator in ("", _operator(one)) for one in inner)


def _swapped(codes: Sequence[str], declared: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Swaps integer names throughout this code, q and k together with S_q and S_k: (the pairs, the new code)."""
    code = " ".join(codes) if len(codes) > 1 and all(codes) else ""
    names = [one for one in dict.fromkeys(re.findall(r"[A-Za-z_]\w*", code)) if _plain(declared.get(one, "")) == "int"]
    for one, other in combinations(dict.fromkeys(part for name in names for part in name.split("_")), 2):
        parts = {one: other, other: one}
        to = {name: "_".join(parts.get(part, part) for part in name.split("_")) for name in names}
        pairs = [f"`{name}` and `{new}`" for name, new in to.items() if name < new]
        if pairs and all(new in names for new in to.values()):
            yield ", ".join(pairs), re.sub(r"[A-Za-z_]\w*", lambda match, to=to: to.get(match[0], match[0]), code)


def _of_loop(node: Node, scope: _Scope, before: str) -> Iterator[Edit]:
    """Edits of a loop as a whole: `before` is the statement in front of it."""
    edit, declared = partial(Edit, scope.source.file, line_of(node)), scope.at(node)
    sums = [one for one in walk(node) if one.type == "assignment_expression" and _operator(one) == "+="]
    for name in sorted({text_of(_sides(one)[0]) for one in sums} & declared.keys()) if before else ():
        if _plain(declared[name]) in ("int", "float") and f"{name} = 0" not in before:
            says = f"with `{name} = 0;` in front of line {line_of(node)}"
            yield edit("statement", says, (_before(node, scope, f"{name} = 0;"),))
    start, update = (node.child_by_field_name(one) for one in ("initializer", "update"))
    values = [one.child_by_field_name("value") for one in start.named_children[1:]] if start else []
    if len(values) == 1 and values[0] and scope.is_whole(values[0]) and values[0].type != "number_literal":
        its = scope.code(values[0])
        others = (one for one, kind in declared.items() if _plain(kind) == "int" and not re.search(rf"\b{one}\b", its))
        for name in others:
            says = f"with a loop from `{its} + {name}` in place of one from `{its}`"
            kind = "loop" if len(re.findall(rf"\b{name}\b", scope.whole)) == 1 else "more"  # forgotten, or another one
            change = Change(values[0].start_byte, values[0].end_byte, f"{its} + {name}", _VALUE)
            yield edit(kind, says, (change,))
    if len(values) == 1 and values[0] and update in sums and scope.is_whole(values[0]):
        nodes = values[0], _sides(update)[1]
        old = [*map(scope.code, nodes)]
        for new in _STRIDES if values[0].type != "number_literal" else ():
            if old[1] != new[1]:
                ways = [f"from `{one}` in steps of `{by}`" for one, by in (new, old)]
                changes = [Change(one.start_byte, one.end_byte, to, _VALUE) for one, to in zip(nodes, new, strict=True)]
                yield edit("loop", f"with a loop {ways[0]} in place of one {ways[1]}", tuple(changes))
    counter = re.fullmatch(r"\+\+(\w+)|(\w+)\+\+", scope.code(update)) if update and len(values) == 1 else None
    if counter and values[0] and scope.code(values[0]) == "0":  # each thread does all of it
        for first, by in _STRIDES:
            new = f"{counter[1] or counter[2]} += {by}"
            changes = [
                Change(one.start_byte, one.end_byte, to, _VALUE) for one, to in ((values[0], first), (update, new))
            ]
            says = f"with a loop from `{first}` in steps of `{by}` in place of one from `0` in steps of `1`"
            yield edit("loop", says, tuple(changes))


def _of_condition(node: Node, scope: _Scope) -> Iterator[Edit]:
    """Edits of an `if` without `else` as a whole: a loop instead, or its last statement moved after it."""
    body, place, declared = node.named_children[-1], (node.start_byte, node.end_byte), scope.at(node)
    statements = body.named_children if body.type == "compound_statement" else [body]
    codes = [scope.code(one) for one in statements if one.type != "comment"]
    if node.child_by_field_name("alternative") or not codes or not all(codes):
        return
    whole, head = " ".join(codes), " ".join(scope.text[place[0] : body.start_byte].split())
    condition, names = node.named_children[0].named_children[0], re.findall(r"\w+", head)
    left = [one for one, kind in declared.items() if _plain(kind) == "int" and one not in names]
    for one, other in permutations(left, 2) if "<" in head and scope.code(condition) else ():
        says = f"with `&& {one} < {other}` added to `{head}`"
        change = Change(
            condition.start_byte, condition.end_byte, f"({scope.code(condition)}) && {one} < {other}", _VALUE
        )
        yield Edit(scope.source.file, line_of(node), "more", says, (change,))
    less, leaves = re.match(r"if \((\w+) < (.+)\)$", head), re.search(r"return|continue|break", whole)
    if less and _plain(declared.get(less[1], "")) == "int" and not leaves and not _WAITS.search(whole):
        for _, by in _STRIDES:
            loop = f"edited_type<decltype({less[1]})> edited_at = {less[1]}; edited_at < {less[2]}; edited_at += {by}"
            change = Change(*place, f"for ({loop}) {{ const auto {less[1]} = edited_at; {whole} }}", _STATEMENT)
            says = f"with a loop in steps of `{by}` in place of `{head}`"
            yield Edit(scope.source.file, line_of(node), "loop", says, (change,))
    last = statements[-1]
    own = scope.at(last).keys() - declared.keys()
    if len(codes) > 1 and _assigns(last, "") and own.isdisjoint(re.findall(r"\w+", codes[-1])):
        says = f"with `{codes[-1]}` after the block of `{head}` and not in it"
        change = Change(*place, f"{head} {{ {' '.join(codes[:-1])} }} {codes[-1]}", _STATEMENT)
        yield Edit(scope.source.file, line_of(last), "statement", says, (change,))


# ---- all in one text


def switched(text: str, edits: Mapping[int, Edit]) -> tuple[str, dict[int, int]]:
    """The text with these edits, and line -> edit number for the lines that contain one."""
    spots: dict[tuple[int, int], list[tuple[int, Change]]] = {}
    for number, edit in edits.items():
        for change in edit.changes:
            spots.setdefault((change.start, change.end), []).append((number, change))
    made = _rendered(text, 0, len(text), sorted(spots.items(), key=lambda one: (one[0][0], -one[0][1])))
    found = ((line, re.search(rf"{CHOSEN} == (\d+)", code)) for line, code in enumerate(made.split("\n"), 1))
    return made, {line: int(match[1]) for line, match in found if match}


def _rendered(text: str, start: int, end: int, spots: Sequence) -> str:
    made, at = [], start
    while spots:
        ((first, last), changes), *rest = spots
        inside = [one for one in rest if one[0][0] < last]
        old = " ".join(re.sub(r"//[^\n]*", " ", text[first:last]).split())
        made += [text[at:first], _switch(old, _rendered(text, first, last, inside), changes)]
        at, spots = last, rest[len(inside) :]
    return "".join([*made, text[at:end]])


def _switch(old: str, kept: str, changes: Sequence[tuple[int, Change]]) -> str:
    before, made = "", ""
    for number, one in changes:
        holds = f"\n{CHOSEN} == {number}"
        if one.way == _BEFORE:
            before += f"\nif ({holds}) {{ {one.new} }}\n"
        elif one.way == _STATEMENT:
            made += f"\nif ({holds}) {{ {one.new} }} else\n"
        else:
            kind = f"decltype(({old}))" if one.way == _REFERENCE else f"edited_type<decltype(({old}))>"
            made += f"{holds} ? static_cast<{kind}>({one.new}) :\n"
    if changes[0][1].way >= _STATEMENT:
        return f"{{ {before}{made}{{ {kept} }} }}" if made else before + kept
    whole = f"({made}{_bracketed(kept)})"
    return f"(+{whole})" if changes[0][1].way == _POINTER else whole
