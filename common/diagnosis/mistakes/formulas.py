"""Wrong answers of a computation given as formulas, with one error in one line at a time.

    varied("rescale = exp(m - m_new)\nl = rescale * l + rowsum(P)", {"m": m, ...}, lambda values: values["l"])

gives a Mistake for every line with a flipped sign, swapped operands, a missing factor or summand, a minimum for a
maximum, a bound off by one, or with a function or the whole line missing. The formulas are the handout's, with its
names, so the matching line is the line to look at. These mistakes are vague: those known by name are reported first.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Mistake

Values = dict[str, Any]
_SWAPPED = {
    "maximum": "minimum",
    "rowmax": "rowmin",
    "partmax": "partmin",
    "rowmean": "rowsum",
    "exp": "exp2",
    "exp2": "exp",
    "log": "log2",
}
_UNARY = ("exp", "exp2", "log", "tanh", "rsqrt", "square", "sqrt")  # functions that may be forgotten


def shift_of(m: Tensor) -> Tensor:
    """The number subtracted in exp(): the maximum, or 0 if all scores were -inf."""
    return torch.where(m == -math.inf, 0.0, m)


def divided(o: Tensor, l: Tensor) -> Tensor:  # noqa: E741
    """o / l; 0 where l is 0."""
    return torch.where(l == 0, 0.0, o / l)


def _functions() -> Values:
    return {
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "exp": torch.exp,
        "exp2": torch.exp2,
        "log": torch.log,
        "log2": torch.log2,
        "tanh": torch.tanh,
        "rsqrt": torch.rsqrt,
        "square": torch.square,
        "shift_of": shift_of,
        "rowmax": lambda x: x.amax(-1, keepdim=True),
        "rowmin": lambda x: x.amin(-1, keepdim=True),
        "rowsum": lambda x: x.sum(-1, keepdim=True),
        "rowmean": lambda x: x.mean(-1, keepdim=True),
        "partmax": lambda x: x.amax(0),
        "partmin": lambda x: x.amin(0),
        "partsum": lambda x: x.sum(0),
        "divided": divided,
        "sqrt": math.sqrt,
        "pi": math.pi,
    }


def computed(text: str, values: Mapping[str, Any]) -> Values:
    """Evaluates the lines of the text, each NAME = EXPRESSION; returns the values of all names."""
    known = {**_functions(), **values}
    exec(_compiled(text), known)
    return known


@functools.lru_cache(maxsize=4096)
def _compiled(text: str):
    return compile(text, "<formulas>", "exec")


def without(text: str, factor: str, names: Iterable[str]) -> str:
    """The formulas without the factor in front of these names."""
    for name in names:
        text = text.replace(f"{factor} * {name}", name)
    return text


def varied(
    text: str,
    values: Mapping[str, Any],
    result: Callable[[Values], Tensor],
    exchanged: tuple[tuple[str, ...], ...] = (),
) -> list[Mistake]:
    """The wrong answers due to one wrong line.

    Args:
        text: the formulas, as for `computed`.
        values: values of their names, in float64.
        result: result(values after the last line) -> the output.
        exchanged: groups of names that may be confused.
    """
    return varied_by(text, lambda wrong: result(computed(wrong, values)), exchanged)


def varied_by(text: str, answer: Callable[[str], Tensor], exchanged: tuple[tuple[str, ...], ...] = ()) -> list[Mistake]:
    """The same, with answer(wrong text) -> the output: for formulas that are the body of a loop."""
    return [
        Mistake(
            wrong or f"without {right}",
            _shown(
                f"The output matches `{wrong}`; it should be `{right}`."
                if wrong
                else f"The output matches what you get without `{right}`."
            ),
            functools.partial(or_nothing, answer, whole),
            vague=True,
        )
        for right, wrong, whole in variations(text, exchanged)
    ]


def _shown(says: str) -> str:
    return re.sub(r"divided\((\w+), (\w+)\)", r"\1 / \2", says).replace("+ -", "- ")


def misread(
    name: str, index: str, memory: Tensor, places: Mapping[str, Any], use: Callable[[Tensor], Tensor], base: Any = 0
) -> list[Mistake]:
    """The wrong answers due to a wrong index in a read of an array.

    Args:
        name: the array's name.
        index: its index, "row * cols + col".
        memory: the array.
        places: values of the names in the index: numbers, or integer tensors that broadcast.
        use: maps the elements read, of the places' broadcast shape, to the output.
        base: offset that the index is relative to; also broadcast.
    """
    flat = memory.flatten()

    def answer(wrong: str) -> Tensor:
        at = torch.as_tensor(base + computed(wrong, places)["index"])
        if at.is_floating_point():
            raise TypeError(f"{wrong!r} is no index")
        at = torch.broadcast_to(at, right.shape)
        inside = (at >= 0) & (at < flat.numel())
        return use(torch.where(inside, flat[at.clamp(0, flat.numel() - 1)], math.nan))

    text = f"index = {index}"
    right = base + computed(text, places)["index"]
    found = []
    for _, line, whole in variations(text, (tuple(places),)):
        wrong = line.removeprefix("index = ")
        says = f"The output matches what you get if {name} is read at `{wrong}`; it should be `{index}`."
        found.append(Mistake(f"{name}[{wrong}]", says, functools.partial(or_nothing, answer, whole), vague=True))
    return found


def or_nothing(answer: Callable[[str], Tensor], wrong: str) -> Tensor:
    """The answer; an empty tensor if there is none."""
    try:
        return answer(wrong)
    except (ArithmeticError, IndexError, NameError, RuntimeError, TypeError):  # sizes do not match: no answer
        return torch.empty(0)


@functools.lru_cache(maxsize=256)
def variations(text: str, exchanged: tuple[tuple[str, ...], ...] = ()) -> tuple[tuple[str, str, str], ...]:
    """(the correct line, the wrong one or "" if it is left out, the whole text with the wrong one), without duplicates.

    exchanged: groups of names that may be confused.
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    found = {}
    for number, line in reversed([*enumerate(lines)]):  # if several have the same effect, the last is named
        for wrong in _wrong_lines(line, lines[:number], exchanged):
            if wrong != line:
                found.setdefault((line, wrong), "\n".join([*lines[:number], wrong or "pass", *lines[number + 1 :]]))
    return tuple((right, wrong, whole) for (right, wrong), whole in found.items())


def _wrong_lines(line: str, before: list[str], exchanged: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    (statement,) = ast.parse(line).body
    name = statement.targets[0].id
    if name in {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}:
        yield ""  # keeps its old value
    if isinstance(statement.value, ast.Name):
        yield ""
    for node in ast.walk(statement.value):
        groups = [group for group in exchanged if isinstance(node, ast.Name) and node.id in group]
        names = [ast.Name(one) for group in groups for one in group]
        for new in (*_others(node), *names):
            yield f"{name} = {ast.unparse(_Replaced(node, new).visit(ast.parse(line).body[0].value))}"
    olds = {one.split(" = ")[0]: one for one in before}
    for node in ast.walk(statement.value):  # the old value instead of the new one
        if isinstance(node, ast.Name) and node.id in olds and node.id.endswith("_new"):
            old = ast.Name(node.id.removesuffix("_new"))
            yield f"{name} = {ast.unparse(_Replaced(node, old).visit(ast.parse(line).body[0].value))}"


class _Replaced(ast.NodeTransformer):
    """A copy of an expression in which the node with the same text and position is replaced."""

    def __init__(self, node: ast.expr, new: ast.expr) -> None:
        self._at, self._new = _place(node), new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if _place(node) == self._at else super().visit(node)


def _place(node: ast.AST) -> tuple:
    return (type(node), *(getattr(node, name, None) for name in ("col_offset", "end_col_offset")))


def _others(node: ast.AST) -> Iterator[ast.expr]:
    """What an expression may become by mistake."""
    if isinstance(node, ast.BinOp):
        left, op, right, of = node.left, node.op, node.right, ast.BinOp
        if isinstance(op, ast.Sub):
            yield from (of(right, op, left), of(left, ast.Add(), right), left)
            if isinstance(left, ast.Name) and isinstance(right, ast.Name):
                yield ast.UnaryOp(ast.USub(), right)
        if isinstance(op, ast.Add):
            yield from (left, right, of(left, ast.Sub(), right))
            if isinstance(left, ast.Name) and isinstance(right, ast.BinOp) and isinstance(right.left, ast.Constant):
                yield of(of(left, ast.Mult(), ast.Name("per_lane")), op, right.right)  # contiguous, not strided
        if isinstance(op, ast.Mult):
            yield from (left, right)
        if isinstance(op, ast.Div):
            yield from (left, of(left, ast.Mult(), right), of(right, op, left))
    if isinstance(node, ast.Compare):
        left, (op,), (right,) = node.left, node.ops, node.comparators
        other = {ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt}[type(op)]
        yield from (ast.Compare(left, [other()], [right]), ast.Compare(right, [op], [left]))
        step = ast.Add() if isinstance(op, ast.Gt | ast.LtE) else ast.Sub()  # the opposite step equals `other`
        yield ast.Compare(left, [op], [ast.BinOp(right, step, ast.Constant(1))])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd):
        other = ast.BitAnd() if isinstance(node.op, ast.BitOr) else ast.BitOr()
        yield from (node.left, node.right, ast.BinOp(node.left, other, node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if other := _SWAPPED.get(node.func.id):
            yield ast.Call(ast.Name(other), node.args, [])
        if node.func.id in _UNARY:
            yield node.args[0]
        if node.func.id in ("maximum", "minimum"):
            yield from node.args
        if node.func.id == "minimum":  # minimum of two ends: the end is taken as inclusive
            one, other = node.args
            yield ast.Call(node.func, [ast.BinOp(one, ast.Sub(), ast.Constant(1)), other], [])
        if node.func.id == "divided":
            yield node.args[0]
            yield ast.BinOp(node.args[0], ast.Mult(), node.args[1])
            yield ast.Call(node.func, node.args[::-1], [])
    if isinstance(node, ast.Constant) and isinstance(node.value, float | int):
        yield ast.Constant(node.value * 2)
