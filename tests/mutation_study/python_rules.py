"""Mistakes in the Python gaps by rule: mutations(text, start, end) of the gap text[start:end]."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from c_rules import FACTORS
from mutants import Mutation

Found = tuple[str, ast.AST | tuple[ast.AST, ast.AST], str]  # kind, node or (first, last), new text
_FEWER = {ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<")}
_TURNED = {ast.Gt: (">", "<"), ast.Lt: ("<", ">"), ast.Eq: ("==", "!="), ast.GtE: (">=", "<="), ast.LtE: ("<=", ">=")}
_OPERATORS = {
    ast.Mult: "*",
    ast.Div: "/",
    ast.Sub: "-",
    ast.Add: "+",
    ast.MatMult: "@",
    ast.FloorDiv: "//",
    ast.Pow: "**",
}
_NUMBERS = {"0": "1", "1": "0", "2": "1", "-1": "-2", "-2": "-1", "0.0": "1.0", "1.0": "0.0", "0.5": "2"}
_MEMBERS = {"m": "l", "l": "m"}
# A method -> the kind, and what is called for it; "" for nothing at all
_METHODS = {
    "transpose": [("index", "")], "view": [("index", "")], "merge_heads": [("index", "")],
    "masked_fill": [("guard", "")], "repeat_interleave": [("head", ""), ("operands", "repeat")],
    "maximum": [("extremum", "minimum")], "amax": [("extremum", "amin"), ("extremum", "mean")],
    "exp": [("function", "exp2")], "log": [("function", "log2")], "softmax": [("function", "log_softmax")],
    "sum": [("function", "mean")], "clamp": [("function", "")],
}  # fmt: skip
_NOT_EXCHANGED = ("maximum", "minimum", "max", "min", "range")


class _Module:
    """A module's text, and where its nodes stand in it. (ast.get_source_segment splits the whole text at each call.)"""

    def __init__(self, text: str) -> None:
        self.text, self._lines, self._begins = text, text.split("\n"), [0]
        for line in self._lines:
            self._begins.append(self._begins[-1] + len(line) + 1)
        self.tree = ast.parse(text)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def place(self, node: ast.AST) -> tuple[int, int]:
        """(start, end) of a node; columns are counted in bytes."""
        ends = ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        start, end = (
            self._begins[line - 1] + len(self._lines[line - 1].encode()[:column].decode()) for line, column in ends
        )
        return start, end

    def words(self, node: ast.AST) -> str:
        """The node's text."""
        return self.text[slice(*self.place(node))]

    def around(self, node: ast.AST, kind: type) -> ast.AST:
        """The innermost node of a kind that it is in."""
        while not isinstance(node, kind):
            node = self.parents[node]
        return node

    def types(self, node: ast.AST) -> dict[str, str]:
        """The names that are known before a node's statement -> "Tensor", "int", ..., as far as their texts tell."""
        function = self.around(node, ast.FunctionDef)
        types = {one.arg: self.words(one.annotation).split(".")[-1] for one in function.args.args if one.annotation}
        for one in ast.walk(function):
            if isinstance(one, ast.For) and one.lineno < node.lineno <= one.end_lineno:
                types[self.words(one.target)] = "int"
            if isinstance(one, ast.Assign) and one.end_lineno < node.lineno:
                value = re.sub(r"\w+\.(?:size\([^)]*\)|shape)", "", self.words(one.value))
                tensors = [name for name, kind in types.items() if kind == "Tensor"]
                is_tensor = any(re.search(rf"\b{name}\b", value) for name in [*tensors, "torch"])
                other = re.match(r"slice\(|\(|nothing_seen|add_tile|attend", value)  # a slice, a tuple, a state
                kind = other[0] if other else "Tensor" if is_tensor else "int"
                names = [part for target in one.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
                types |= {name.id: types.get(name.id, kind) for name in names if isinstance(name.ctx, ast.Store)}
        return types


def mutations(text: str, start: int, end: int) -> list[Mutation]:
    """Every mutation of the gap, in the order of the text."""
    whole, found = _Module(text), []
    for node in ast.walk(whole.tree):
        if not hasattr(node, "lineno") or not start <= whole.place(node)[0] < end:
            continue
        words = whole.words(whole.around(node, ast.stmt)).split("\n")[0]
        for rule in (_name, _number, _condition, _arithmetic, _call, _loop, _statement):
            for kind, place, new in rule(node, whole):
                first, last = place if isinstance(place, tuple) else (place, place)
                begin, stop = whole.place(first)[0], whole.place(last)[1]
                if text[begin:stop] != new and stop <= end:
                    found.append(Mutation(kind, begin, stop, text[begin:stop], new, first.lineno, words.strip()))
    return sorted(set(found), key=lambda one: (one.start, one.end, one.kind, one.new))


def _name(node: ast.AST, whole: _Module) -> Iterator[Found]:
    if isinstance(node, ast.Attribute) and whole.words(node.value) == "state" and node.attr in _MEMBERS:
        yield "operands", node, f"state.{_MEMBERS[node.attr]}"
    outer = whole.parents.get(node)
    stored = isinstance(outer, ast.Subscript) and isinstance(outer.ctx, ast.Store) and node is outer.value
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and not stored:
        types = whole.types(node)
        mine = types.get(node.id)
        for other, kind in types.items():
            if mine in ("int", "Tensor") and kind == mine and other not in (node.id, "_"):
                yield "operands", node, other
    read = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    if read and re.search("tile|rows", whole.words(node.slice)):
        yield "offset", node, whole.words(node.value)


def _number(node: ast.AST, whole: _Module) -> Iterator[Found]:
    outer = whole.parents.get(node)
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    if negative and not isinstance(node.operand, ast.Constant):
        yield "sign", node, whole.words(node.operand)
        if whole.words(node) == "-torch.inf" and isinstance(outer, ast.Call):
            yield "initial", node, "0.0"
    is_number = isinstance(node.operand if negative else node, ast.Constant) and not isinstance(outer, ast.UnaryOp)
    if is_number and whole.words(node) in _NUMBERS:
        yield "constant", node, _NUMBERS[whole.words(node)]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", node, str(not node.value)


def _condition(node: ast.AST, whole: _Module) -> Iterator[Found]:
    if isinstance(node, ast.Compare):
        for old, new in (table[type(node.ops[0])] for table in (_FEWER, _TURNED) if type(node.ops[0]) in table):
            yield "bound", node, whole.words(node).replace(f" {old} ", f" {new} ", 1)
    if isinstance(node, ast.If) and not node.orelse:
        if not isinstance(node.test, ast.Compare):
            yield "bound", node.test, f"not ({whole.words(node.test)})"
        yield "guard", node.test, "True"
        yield "guard", node.test, "False"
    if isinstance(node, ast.IfExp):
        test, yes, no = (whole.words(part) for part in (node.test, node.body, node.orelse))
        yield "guard", node, yes
        yield "guard", node, no
        yield "bound", node, f"{no} if {test} else {yes}"


def _arithmetic(node: ast.AST, whole: _Module) -> Iterator[Found]:
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        return
    left, right, op = whole.words(node.left), whole.words(node.right), _OPERATORS[type(node.op)]
    if op in ("*", "/", "**"):
        yield "rescale", node, left
    if op == "*":
        yield "rescale", node, right
    if op == "/" or (op == "*" and FACTORS.search(left + right)):
        yield "rescale", node, f"{left} {'*' if op == '/' else '/'} {right}"
    if op == "*" and FACTORS.search(left + right):
        yield "rescale", node, f"{left} * {right} * {right if FACTORS.search(right) else left}"
    if op == "-":
        yield "sign", node, f"{left} + {right}"
    if op in ("-", "@"):
        yield "operands", node, f"{right} {op} {left}"
    if op == "+":
        floats = re.search(r"exp|rescale|sum|@", left + right)
        yield "store" if floats else "offset", node, left
        yield "store" if floats else "offset", node, right
        yield "sign" if floats else "index", node, f"{left} - {right}"
    if op == "//":
        yield "index", node, f"{left} % {right}"


def _call(node: ast.AST, whole: _Module) -> Iterator[Found]:
    if not isinstance(node, ast.Call):
        return
    words, called, arguments = whole.words(node), whole.words(node.func), [whole.words(one) for one in node.args]
    base, _, name = called.rpartition(".")
    rest = words.removeprefix(called)
    for kind, other in _METHODS.get(name, ()) if base else ():
        if name == "repeat_interleave" and other:
            yield kind, node, f"{base}.repeat(1, {arguments[0]}, 1, 1)"
        elif other:
            yield kind, node, f"{base}.{other}{rest}"
        else:
            yield kind, node, arguments[0] if base == "self" else base
    if base and name in ("sum", "amax"):
        yield "index", node, words.replace("(-1", "(-2", 1)
    if base and name in ("reset", "append"):
        yield "store", node, "None"
    if called in ("torch.exp", "torch.log"):
        yield "function", node, f"({arguments[0]})"
    if name == "where" and len(arguments) == 3:
        yield "guard", node, arguments[2]
    if called == "min":
        yield "extremum", node, f"max{rest}"
        for argument in arguments:
            yield "bound", node, argument
    if name in ("slice", "arange"):
        for argument in node.args:
            yield "index", argument, f"{whole.words(argument)} + 1"
            yield "index", argument, f"{whole.words(argument)} - 1"
    for keyword in node.keywords:
        value = whole.words(keyword.value)
        if keyword.arg == "diagonal":
            yield "bound", keyword.value, "0"
            yield "bound", keyword.value, "2"
        if keyword.arg == "dim" and name != "repeat_interleave":
            yield "index", keyword.value, "0" if value != "0" else "1"
            yield "index", keyword.value, "-2"
    types = whole.types(node) if name not in _NOT_EXCHANGED else {}
    for a, b in pairwise(arguments):
        if a != b and types.get(a) and types.get(a) == types.get(b):
            yield "operands", node, words.replace(f"{a}, {b}", f"{b}, {a}", 1)
        if f"{a}, {b}" == "-2, -1":
            yield "index", node, words.replace("-2, -1", "-3, -2", 1)


def _loop(node: ast.AST, whole: _Module) -> Iterator[Found]:
    if not isinstance(node, ast.For):
        return
    call = node.iter
    if isinstance(call, ast.Call) and whole.words(call.func) == "range" and len(call.args) == 3:
        first, last, step = map(whole.words, call.args)
        later = "1" if first == "0" else f"{first} + 1"
        for new in (f"{first}, {last} - {step}, {step}", f"{step}, {last}, {step}", f"{first}, {last} - 1, {step}",
                    f"{later}, {last}, {step}", f"{first}, {last}, 2 * {step}", f"{first}, {last}"):  # fmt: skip
            yield "loop", call, f"range({new})"
    last = node.body[-1]
    indent = " " * last.col_offset
    yield "leaving", last, f"{whole.words(last)}\n{indent}break"
    for one in node.body:
        name = whole.words(one.targets[0]) if isinstance(one, ast.Assign) else ""
        before = [two for two in whole.parents[node].body if isinstance(two, ast.Assign) and two.lineno < node.lineno]
        for two in before:
            if name and whole.words(two.targets[0]) == name:
                yield "adding", one, f"{whole.words(two)}\n{indent}{whole.words(one)}"


def _statement(node: ast.AST, whole: _Module) -> Iterator[Found]:
    if not isinstance(node, ast.Assign | ast.Expr):
        return
    words, indent = whole.words(node), " " * node.col_offset
    target = whole.words(node.targets[0]) if isinstance(node, ast.Assign) else ""
    if target.endswith("]"):
        yield "adding", node, words.replace(" = ", " += ", 1)
    if re.search(r"append\(|add_tile\(", words):
        yield "adding", node, f"{words}\n{indent}{words}"
    fields = ast.iter_fields(whole.parents[node])
    siblings = next(list_ for _, list_ in fields if isinstance(list_, list) and node in list_)
    other = (siblings[siblings.index(node) + 1 :] or [None])[0]
    if isinstance(other, ast.Assign | ast.Expr | ast.For):
        written = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        read = {one.id for one in ast.walk(other) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
        calls = all(isinstance(one, ast.Expr) for one in (node, other))
        # the second may run first, and then finds something else
        if (calls or written & read) and written & read <= set(whole.types(node)):
            yield "order", (node, other), f"{whole.words(other)}\n{indent}{words}"
