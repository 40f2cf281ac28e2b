"""The code of a gap as one kind of tree for CUDA C++, parsed by tree-sitter, and Python, parsed by ast.

Anything not recognized becomes a node with an empty kind, which no rule matches.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node as Syntax

from common.source.reader import parsed, walk

_KINDS = {
    "identifier": "name", "qualified_identifier": "name", "field_expression": "name", "template_function": "name",
    "true": "name", "false": "name", "number_literal": "number", "unary_expression": "unary",
    "update_expression": "unary", "pointer_expression": "unary", "binary_expression": "binary",
    "assignment_expression": "binary", "init_declarator": "binary", "conditional_expression": "ternary",
    "call_expression": "call", "subscript_expression": "index", "initializer_list": "braced",
    "compound_literal_expression": "braced", "parenthesized_expression": "brackets", "cast_expression": "cast",
    "expression_statement": "simple", "declaration": "declaration", "return_statement": "return",
    "break_statement": "jump", "continue_statement": "jump", "if_statement": "if", "while_statement": "if",
    "for_statement": "for", "compound_statement": "block",
    "Name": "name", "Attribute": "name", "Constant": "number", "UnaryOp": "unary", "BinOp": "binary",
    "Compare": "binary", "IfExp": "ternary", "Call": "call", "keyword": "keyword", "Subscript": "index",
    "Tuple": "braced", "GeneratorExp": "brackets", "Assign": "simple", "Expr": "simple", "Return": "return",
    "If": "if", "For": "for",
}  # fmt: skip
_FIELDS = {
    "field_expression": ("argument",), "subscript_expression": ("argument",), "unary": ("argument",),
    "binary": ("left", "right"), "ternary": ("condition", "consequence", "alternative"), "cast": ("value",),
    "Attribute": ("value",), "Subscript": ("value", "slice"), "UnaryOp": ("operand",), "BinOp": ("left", "right"),
    "Compare": ("left", "comparators"), "Assign": ("targets", "value"), "IfExp": ("test", "body", "orelse"),
    "Call": ("args", "keywords"), "keyword": ("value",), "Tuple": ("elts",), "GeneratorExp": ("elt",),
    "Expr": ("value",), "Return": ("value",), "If": ("test",), "For": ("iter",),
}  # fmt: skip
_OPERATORS = {
    "Mult": "*", "Div": "/", "Sub": "-", "Add": "+", "MatMult": "@", "FloorDiv": "//", "Pow": "**", "USub": "-",
    "Gt": ">", "GtE": ">=", "Lt": "<", "LtE": "<=", "Eq": "==", "NotEq": "!=",
}  # fmt: skip
STATEMENTS = ("simple", "declaration", "return", "jump", "if", "for", "block")
_WHOLE = r"(?:const |shared )*(?:int|unsigned|bool|dim3)\b|.*\*$"  # types of sizes, indices and addresses
_WHOLE_NAMES = re.compile(r"(?:Idx|Dim)\.[xyz]$|::")
_WHOLE_CALLS = re.compile(r"ceil_div|min|size|__popc|static_cast<(?:int|unsigned|size_t).*|(?:u?int|unsigned).*")
Declared = Sequence[tuple[int, int, dict[str, str]]]  # from, to, name -> type


@dataclass(eq=False)
class Node:
    """A range of code, source[start:end].

    Attributes:
        kind: for expressions "name", "number", "unary", "binary", "ternary", "call", "cast", "index", "brackets",
            "braced"; for statements one of STATEMENTS; "gap" for the whole gap, "" if not recognized.
        op: the operator; the name of the called function; the type of a cast or declaration; a name itself; for the gap
            the head of the enclosing function.
        parts: the expressions in it, in order; for a launch those between <<< and >>> first; for a for loop its
            initializer, condition and step, or none.
        body: the statements in it.
        launch: how many of the parts belong to the launch configuration; 0 for a plain call.
        declared: what the function declares.
    """

    kind: str
    start: int
    end: int
    source: str
    declared: Declared = field(repr=False, default=())
    op: str = ""
    parts: list[Node] = field(default_factory=list)
    body: list[Node] = field(default_factory=list)
    launch: int = 0
    parent: Node | None = None

    @property
    def text(self) -> str:
        return self.source[self.start : self.end]

    @property
    def place(self) -> tuple[int, int]:
        return self.start, self.end

    @property
    def whole(self) -> tuple[int, int]:
        """The range of a statement, including the pragmas before it."""
        pragmas = not self.in_python and re.search(r"(?:\n[ \t]*#[^\n]*)+\n[ \t]*$", self.source[: self.start])
        return (pragmas.start() if pragmas else self.start), self.end

    def walk(self) -> Iterator[Node]:
        """This node and all its descendants, outer ones first."""
        yield self
        for part in (*self.parts, *self.body):
            yield from part.walk()

    def parents(self) -> Iterator[Node]:
        """Its ancestors, innermost first."""
        if self.parent is not None:
            yield self.parent
            yield from self.parent.parents()

    @property
    def statement(self) -> Node:
        """The innermost statement that it is or that contains it."""
        return next(one for one in (self, *self.parents()) if one.kind in (*STATEMENTS, "gap"))

    @property
    def words(self) -> str:
        """That statement on one line; for a loop or a condition only its head."""
        one = self.statement
        return " ".join(self.source[one.start : one.body[0].start if one.body else one.end].split())

    @property
    def after(self) -> Node | None:
        """The statement after it in its block."""
        body = self.parent.body if self.parent else []
        return body[body.index(self) + 1] if self in body[:-1] else None

    @property
    def function(self) -> str:
        """The head of the enclosing function."""
        return next(one.op for one in (self, *self.parents()) if one.kind == "gap")

    @property
    def in_python(self) -> bool:
        return self.function.startswith("def ")

    @property
    def line_end(self) -> str:
        """The whitespace between it and a statement after it."""
        column = self.start - self.source.rfind("\n", 0, self.start) - 1
        return "\n" + " " * column if self.in_python else " "

    def with_(self, node: Node, new: str) -> str:
        """Its text with another text in place of one of its nodes."""
        return self.source[self.start : node.start] + new + self.source[node.end : self.end]

    @functools.cached_property
    def types(self) -> dict[str, str]:
        """Name -> type of the variables and parameters in scope here: "int" (also for int64_t and size_t), "float",
        "const float*", "shared float[TILE]"."""
        here = (names for start, end, names in self.declared if start <= self.start and self.end <= end)
        return {name: kind for names in here for name, kind in names.items()}

    @property
    def is_whole_number(self) -> bool:
        """Whether it is an integer computation: a size, an index, an address."""
        if self.kind == "number":
            return "." not in self.text
        if self.kind == "name":
            unknown = "int" if self.op.isidentifier() or _WHOLE_NAMES.search(self.op) else ""
            return bool(re.match(_WHOLE, self.types.get(self.op, unknown)))
        if self.kind == "index":
            return bool(re.match(r"(?:const |shared )*int", self.types.get(self.parts[0].text, "")))
        if self.kind in ("call", "cast") and not _WHOLE_CALLS.fullmatch(self.op.rpartition(".")[2]):
            return False
        return bool(self.parts) and all(part.is_whole_number for part in self.parts[self.kind == "ternary" :])

    @property
    def is_read(self) -> bool:
        """Whether it is a standalone name whose value is used."""
        if self.kind != "name" or not self.op.isidentifier() or self.parent.kind == "name":
            return False
        written = self.parent.parts[:1] == [self] and re.fullmatch(r"(?:[-+*/%|&]|<<|>>)?=", self.parent.op)
        return not written and not (self.parent.kind == "unary" and self.parent.op in ("++", "--", "&"))


def without_comments(text: str) -> str:
    """The text with its // comments blanked out: the same length and the same lines."""
    return re.sub(r"//[^\n]*", lambda match: " " * len(match[0]), text)


def gap_of(text: str, start: int, end: int, in_python: bool = False) -> Node:
    """A node of kind "gap" whose body is the statements in text[start:end]."""
    gap = _gap_in_python(text, start, end) if in_python else _gap_in_cuda(text, start, end)
    for node in gap.walk():
        for part in (*node.parts, *node.body):
            part.parent = node
    return gap


# ---- CUDA C++

_parsed = functools.lru_cache(maxsize=8)(parsed)


def _gap_in_cuda(text: str, start: int, end: int) -> Node:
    block = _parsed(text).named_descendant_for_byte_range(start, end - 1)
    while block.type not in ("compound_statement", "translation_unit"):
        block = block.parent
    function = block
    while function.parent is not None and function.type != "function_definition":
        function = function.parent
    declared = []
    for one in walk(function):
        if one.type == "parameter_declaration":
            declared.append((one.start_byte, function.end_byte, _declared_by(one)))
        elif one.type == "declaration":
            declared.append((one.end_byte, one.parent.end_byte, _declared_by(one)))
    inside = [one for one in block.named_children if start <= one.start_byte < end]
    nodes = [_cuda(one, text, declared) for one in inside]
    head = text[function.start_byte : text.index("{", function.start_byte)]
    return Node("gap", start, end, text, declared, head, body=[one for one in nodes if one.kind in STATEMENTS])


def _declared_by(syntax: Syntax) -> dict[str, str]:
    """What a declaration or a parameter declares."""
    kind = syntax.child_by_field_name("type")
    base = " ".join(kind.text.decode().split()) if kind else "auto"
    text, found = syntax.text.decode(), {}
    for one in syntax.children_by_field_name("declarator"):
        value = one.child_by_field_name("declarator") if one.type == "init_declarator" else one
        names = [part.text.decode() for part in walk(value) if part.type == "identifier"]
        if value.type == "structured_binding_declarator":
            return dict.fromkeys(names, "int")
        more = "*" * any(part.type == "pointer_declarator" for part in walk(value))
        more += "".join(re.findall(r"\[[^\]]*\]", value.text.decode()))
        named = "int" if base in ("int", "int64_t", "size_t") and not more else base
        const = "const " if more and re.match(r"(?:__\w+ )?const\b", text) else ""
        found |= dict.fromkeys(names[:1], f"{'shared ' * ('__shared__' in text)}{const}{named}{more}")
    return found if base != "auto" else {}


def _cuda(syntax: Syntax, text: str, declared: Declared) -> Node:
    node = Node(_KINDS.get(syntax.type, ""), syntax.start_byte, syntax.end_byte, text, declared)
    if syntax.has_error or not node.kind:
        node.kind = ""
        return node

    def of(*fields: str) -> list[Node]:
        return [_cuda(one, text, declared) for name in fields if (one := syntax.child_by_field_name(name)) is not None]

    def all_of(one: Syntax | None, *types: str) -> list[Node]:
        return [_cuda(each, text, declared) for each in one.named_children if not types or each.type in types]

    operator = syntax.child_by_field_name("operator")
    node.op = operator.text.decode() if operator is not None else ""
    node.parts = of(*_FIELDS.get(syntax.type, _FIELDS.get(node.kind, ())))
    if node.kind == "name":
        node.op = node.text
    elif syntax.type == "init_declarator":
        target, value = syntax.child_by_field_name("declarator"), syntax.child_by_field_name("value")
        while target.type in ("pointer_declarator", "reference_declarator"):
            target = target.named_children[-1]
        name = text[slice(*target.byte_range)]
        node.op, node.start = "=", target.start_byte
        node.kind = "binary" if "=" in text[target.end_byte : value.start_byte] else ""
        node.parts = [Node("name", *target.byte_range, text, declared, name), *of("value")]
    elif node.kind == "call":
        called, launched = syntax.child_by_field_name("function"), syntax.named_children[1]
        launch = all_of(launched) if launched.type == "kernel_call_syntax" else []
        node.op, node.launch = called.text.decode(), len(launch)
        node.parts = launch + all_of(syntax.child_by_field_name("arguments"))
        node.kind = "cast" if "_cast<" in node.op and len(node.parts) == 1 else "call"
    elif node.kind == "index":
        indices = syntax.child_by_field_name("indices").named_children
        node.op, node.parts = "[", [node.parts[0], _cuda(indices[0], text, declared)]
    elif node.kind == "braced":
        kind = syntax.child_by_field_name("type")
        node.op, node.parts = kind.text.decode() if kind else "{", all_of(syntax.child_by_field_name("value") or syntax)
        node.kind = "cast" if re.fullmatch(r"u?int\d+_t", node.op) and len(node.parts) == 1 else "braced"
    elif node.kind == "cast":
        node.op = syntax.child_by_field_name("type").text.decode()
    elif node.kind in ("brackets", "simple", "return"):
        node.parts = all_of(syntax)
        node.kind = "jump" if node.kind == "return" and not node.parts else node.kind
    elif node.kind == "declaration":
        node.op, node.parts = syntax.child_by_field_name("type").text.decode(), all_of(syntax, "init_declarator")
    elif node.kind == "block":
        node.body = all_of(syntax)
    elif node.kind == "if":
        node.body = of("consequence", "body")
        node.parts = all_of(syntax.child_by_field_name("condition"))
    elif node.kind == "for":
        begin = [one.parts[0] if one.parts else one for one in of("initializer")]
        node.parts, node.body = [*begin, *of("condition", "update")], of("body")
        node.parts = node.parts if len(node.parts) == 3 and all(one.kind for one in node.parts) else []
    return node


# ---- Python


def _gap_in_python(text: str, start: int, end: int) -> Node:
    lines, begins = text.split("\n"), [0]
    for line in lines:
        begins.append(begins[-1] + len(line) + 1)

    def at(line: int, column: int) -> int:
        """Columns are in bytes."""
        return begins[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def made(one: ast.AST) -> Node:
        name = type(one).__name__
        first, last = at(one.lineno, one.col_offset), at(one.end_lineno, one.end_col_offset)
        node = Node(_KINDS.get(name, ""), first, last, text, declared)
        values = [getattr(one, field) for field in _FIELDS.get(name, ())]
        node.parts = [made(part) for value in values for part in (value if isinstance(value, list) else [value])]
        operator = getattr(one, "op", None) or getattr(one, "ops", [None])[0]
        node.op = _OPERATORS.get(type(operator).__name__, "")
        if node.kind == "name":
            node.op = node.text
        elif name == "Call":
            node.op = ast.get_source_segment(text, one.func)
        elif name == "Assign":
            node.parts = [Node("binary", first, last, text, declared, "=", node.parts)]
        elif name in ("If", "For"):
            node.body = [made(part) for part in one.body]
        return node

    every = [one for one in ast.walk(ast.parse(text)) if hasattr(one, "lineno")]
    function = [one for one in every if isinstance(one, ast.FunctionDef) and at(one.lineno, 0) < start][-1]
    declared = list(_declared_in(function, at))
    inside = [one for one in every if isinstance(one, ast.stmt) and start <= at(one.lineno, one.col_offset) < end]
    nested = {part for one in inside for part in ast.walk(one) if part is not one}
    body = [made(one) for one in inside if one not in nested]
    return Node("gap", start, end, text, declared, f"def {function.name}", body=body)


def _declared_in(function: ast.FunctionDef, at: Callable[[int, int], int]) -> Iterator[tuple[int, int, dict[str, str]]]:
    """What a Python function declares, with types as far as the text shows them."""
    end = at(function.end_lineno, function.end_col_offset)
    types = {one.arg: ast.unparse(one.annotation).split(".")[-1] for one in function.args.args if one.annotation}
    yield at(function.lineno, 0), end, types
    for one in ast.walk(function):
        if isinstance(one, ast.For):
            yield at(one.lineno, one.col_offset), at(one.end_lineno, one.end_col_offset), {one.target.id: "int"}
        if isinstance(one, ast.Assign):
            value = re.sub(r"\w+\.(?:size\([^)]*\)|shape)", "", ast.unparse(one.value))
            tensors = [name for name, kind in types.items() if kind == "Tensor"]
            other = re.match(r"slice\(|\(|nothing_seen|add_tile|attend", value)  # a slice, a tuple, a state
            is_tensor = any(re.search(rf"\b{name}\b", value) for name in [*tensors, "torch"])
            kind = other[0] if other else "Tensor" if is_tensor else "int"
            names = [part.id for target in one.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            new = {name: types.get(name, kind) for name in names}
            types = types | new
            yield at(one.end_lineno, one.end_col_offset), end, new
