"""Further mistakes in the Python gaps by rule: written when the diagnosis was built, and without a look at it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from common.mutants.c_nodes import FACTORS
from common.mutants.mutation import Mutation
from common.mutants.python_rules import Found, ModuleText, made_by

_TURNED = {ast.Gt: (">", "<"), ast.Lt: ("<", ">"), ast.Eq: ("==", "!="), ast.GtE: (">=", "<="), ast.LtE: ("<=", ">=")}
_FUNCTIONS = {"softmax": "log_softmax", "log": "log2", "sum": "mean", "amax": "mean"}
_NUMBERS = {"0": "1", "1": "0", "2": "1", "-1": "-2", "-2": "-1", "0.0": "1.0", "1.0": "0.0", "0.5": "2"}
_MEMBERS = {"m": "l", "l": "m"}
_NOT_EXCHANGED = ("maximum", "minimum", "max", "min", "range")


def mutations(text: str, start: int, end: int) -> list[Mutation]:
    """Every one of these mutations of the gap."""
    return made_by(_found, text, start, end)


def _found(node: ast.AST, parents: dict, whole: ModuleText) -> Iterator[Found]:
    for rule in (_name, _number, _condition, _call, _arithmetic, _loop, _statement):
        yield from rule(node, parents, whole)


def _function_around(node: ast.AST, parents: dict) -> ast.FunctionDef:
    while not isinstance(node, ast.FunctionDef):
        node = parents[node]
    return node


def _types(node: ast.AST, parents: dict, whole: ModuleText) -> dict[str, str]:
    """The names that are known before a node's statement -> "Tensor", "int", ..., as far as their texts tell."""
    function = _function_around(node, parents)
    types = {one.arg: whole.words(one.annotation).split(".")[-1] for one in function.args.args if one.annotation}
    for one in ast.walk(function):
        if isinstance(one, ast.For) and one.lineno < node.lineno <= one.end_lineno:
            types[whole.words(one.target)] = "int"
        if isinstance(one, ast.Assign) and one.end_lineno < node.lineno:
            value = re.sub(r"\w+\.(?:size\([^)]*\)|shape)", "", whole.words(one.value))
            tensors = [name for name, kind in types.items() if kind == "Tensor"]
            is_tensor = any(re.search(rf"\b{name}\b", value) for name in [*tensors, "torch"])
            other = re.match(r"slice\(|\(|nothing_seen|add_tile|attend", value)  # a slice, a tuple, a state
            kind = other[0] if other else "Tensor" if is_tensor else "int"
            names = [part for target in one.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            types |= {name.id: types.get(name.id, kind) for name in names if isinstance(name.ctx, ast.Store)}
    return types


def _name(node: ast.AST, parents: dict, whole: ModuleText) -> Iterator[Found]:
    if isinstance(node, ast.Attribute) and whole.words(node.value) == "state" and node.attr in _MEMBERS:
        yield "value", node, f"state.{_MEMBERS[node.attr]}"
    outer = parents.get(node)
    stored = isinstance(outer, ast.Subscript) and isinstance(outer.ctx, ast.Store) and node is outer.value
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and not stored:
        types = _types(node, parents, whole)
        mine = types.get(node.id)
        for other, kind in types.items():
            if mine in ("int", "Tensor") and kind == mine and other not in (node.id, "_"):
                yield "variable" if mine == "int" else "value", node, other


def _number(node: ast.AST, parents: dict, whole: ModuleText) -> Iterator[Found]:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    if negative and not isinstance(node.operand, ast.Constant):
        yield "sign", node, whole.words(node.operand)
    inner = isinstance(parents.get(node), ast.UnaryOp)
    is_number = isinstance(node.operand if negative else node, ast.Constant) and not inner
    if is_number and whole.words(node) in _NUMBERS:
        yield "constant", node, _NUMBERS[whole.words(node)]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", node, str(not node.value)


def _condition(node: ast.AST, parents: dict, whole: ModuleText) -> Iterator[Found]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _TURNED:
        old, new = _TURNED[type(node.ops[0])]
        yield "comparison", node, whole.words(node).replace(f" {old} ", f" {new} ", 1)
    if isinstance(node, ast.If) and not isinstance(node.test, ast.Compare):
        yield "negated", node.test, f"not ({whole.words(node.test)})"
    if isinstance(node, ast.IfExp):
        test, yes, no = (whole.words(part) for part in (node.test, node.body, node.orelse))
        yield "branches", node, f"{no} if {test} else {yes}"


def _call(node: ast.AST, parents: dict, whole: ModuleText) -> Iterator[Found]:
    if not isinstance(node, ast.Call):
        return
    words, called = whole.words(node), whole.words(node.func)
    name = called.split(".")[-1]
    if isinstance(node.func, ast.Attribute) and name in _FUNCTIONS:
        yield "function", node, f"{whole.words(node.func.value)}.{_FUNCTIONS[name]}{words.removeprefix(called)}"
    if name == "clamp":
        yield "function", node, whole.words(node.func.value)
    if called in ("torch.exp", "torch.log"):
        yield "function", node, f"({whole.words(node.args[0])})"
    if name in ("slice", "arange"):
        for argument in node.args:
            yield "shifted", argument, f"{whole.words(argument)} + 1"
            yield "shifted", argument, f"{whole.words(argument)} - 1"
    types = _types(node, parents, whole) if name not in _NOT_EXCHANGED else {}
    for first, second in pairwise(node.args):
        a, b = whole.words(first), whole.words(second)
        if a != b and types.get(a) and types.get(a) == types.get(b):
            yield "arguments", node, words.replace(f"{a}, {b}", f"{b}, {a}", 1)


def _arithmetic(node: ast.AST, parents: dict, whole: ModuleText) -> Iterator[Found]:
    if not isinstance(node, ast.BinOp):
        return
    left, right = whole.words(node.left), whole.words(node.right)
    if isinstance(node.op, ast.Mult) and FACTORS.search(left + right):
        factor = right if FACTORS.search(right) else left
        yield "factor", node, f"{left} * {right} * {factor}" if factor is right else f"{left} * {left} * {right}"
        yield "factor", node, f"{left} / {right}"
    if isinstance(node.op, ast.Div):
        yield "factor", node, f"{left} * {right}"
    if isinstance(node.op, ast.Add):
        yield "operator", node, f"{left} - {right}"
    if isinstance(node.op, ast.FloorDiv):
        yield "operator", node, f"{left} % {right}"


def _loop(node: ast.AST, parents: dict, whole: ModuleText) -> Iterator[Found]:
    if not isinstance(node, ast.For):
        return
    call = node.iter
    if isinstance(call, ast.Call) and whole.words(call.func) == "range" and len(call.args) == 3:
        first, last, step = map(whole.words, call.args)
        yield "begin", call, f"range({'1' if first == '0' else f'{first} + 1'}, {last}, {step})"
        yield "step", call, f"range({first}, {last}, 2 * {step})"
        yield "step", call, f"range({first}, {last})"
    last = node.body[-1]
    indent = " " * last.col_offset
    yield "leaving", last, f"{whole.words(last)}\n{indent}break"
    for one in node.body:
        name = whole.words(one.targets[0]) if isinstance(one, ast.Assign) else ""
        before = [two for two in parents[node].body if isinstance(two, ast.Assign) and two.lineno < node.lineno]
        for two in before:
            if name and whole.words(two.targets[0]) == name:
                yield "reset", one, f"{whole.words(two)}\n{indent}{whole.words(one)}"


def _statement(node: ast.AST, parents: dict, whole: ModuleText) -> Iterator[Found]:
    if not isinstance(node, ast.Assign | ast.Expr):
        return
    words, indent = whole.words(node), " " * node.col_offset
    target = whole.words(node.targets[0]) if isinstance(node, ast.Assign) else ""
    if target.endswith("]"):
        yield "added", node, words.replace(" = ", " += ", 1)
    if re.search(r"append\(|add_tile\(", words):
        yield "twice", node, f"{words}\n{indent}{words}"
    siblings = next(list_ for _, list_ in ast.iter_fields(parents[node]) if isinstance(list_, list) and node in list_)
    at = siblings.index(node) + 1
    other = siblings[at] if at < len(siblings) else None
    if isinstance(other, ast.Assign | ast.Expr | ast.For) and _can_be_swapped(node, other, parents, whole):
        yield "order", (node, other), f"{whole.words(other)}\n{indent}{words}"


def _can_be_swapped(node: ast.AST, other: ast.AST, parents: dict, whole: ModuleText) -> bool:
    """Whether the second may run first, and then finds something else."""
    known = _types(node, parents, whole)
    written = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    read = {one.id for one in ast.walk(other) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    calls = all(isinstance(one, ast.Expr) for one in (node, other))
    return (calls or bool(written & read)) and written & read <= set(known)
