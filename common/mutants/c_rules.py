"""Mistakes in CUDA C++ by rule: mutations(text, start, end, function) of the gap text[start:end]. See c_nodes.py."""

from __future__ import annotations

import re
from collections.abc import Iterator

from common.mutants.c_code import Node
from common.mutants.c_nodes import (
    FACTORS,
    Found,
    Rule,
    is_address,
    is_target,
    made_by,
    place_of,
    statement_around,
    text_of,
    text_with,
    whole_of,
)
from common.mutants.mutation import Mutation

_HEADS = re.compile(r"\b(batch\w*|\w*head|\w*heads|sequence\w*|group|matrix)\b(?!_dim)")
# Names that are taken for each other where both are known
_CONFUSED = (
    ("S_q", "S_k"), ("M", "N"), ("N", "K"), ("K", "M"), ("first_row", "first_col"), ("first_row", "k0"),
    ("first_col", "k0"), ("rows", "cols"), ("lane", "warp"), ("query", "key"), ("key", "value"), ("k_tile", "v_tile"),
    ("k_rows", "v_rows"), ("begin", "end"), ("q_start", "k_start"), ("position", "token"), ("heads", "kv_heads"),
    ("threadIdx.x", "threadIdx.y"), ("T::K_LENGTH", "T::D"), ("T::K_STRIDE", "T::D"), ("T::B_R", "T::B_C"),
    ("T::B_r", "T::B_c"), ("window", "S_k"), ("counts", "columns"), ("keys_left", "diagonal"), ("q", "k"),
    ("row", "key"), ("row", "col"), ("rows_left", "head_dim"), ("batch_heads", "S_q"),
)  # fmt: skip


def mutations(text: str, start: int, end: int, function: str) -> list[Mutation]:
    """Every mutation of the gap, in the order of the text; `text` without comments, `function` that of its function."""
    return made_by(RULES, text, start, end, function)


def _barrier(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "simple" and text_of(node, text) in ("__syncthreads();", "__syncwarp();"):
        yield "barrier", place_of(node), ""


def _loop(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "for" or not node.parts:
        return
    begin, condition, step = node.parts
    if condition.kind == "binary" and condition.op in ("<", ">"):
        left, right = (text_of(part, text) for part in condition.parts)
        yield "loop", place_of(condition), f"{left} {condition.op}= {right}"
        yield "loop", place_of(condition), f"{left} < {right} - 1" if condition.op == "<" else f"{left} > {right} + 1"
    if begin.op == "=" and not re.fullmatch(r"\s*0\s*", text_of(begin.parts[1], text)):
        yield "loop", place_of(begin.parts[1]), "0"
    if step.op in ("+=", "/="):
        name = text_of(step.parts[0], text)
        yield "loop", place_of(step), f"++{name}" if step.op == "+=" else f"{name} = 0"


def _bound(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "binary":
        return
    left, right = (text_of(part, text) for part in node.parts) if len(node.parts) == 2 else ("", "")
    around = statement_around(node)
    in_head = around is not None and around.kind == "for" and node in around.parts
    if node.op in ("<", ">", "<=", ">=") and not in_head:
        other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[node.op]
        yield "bound", place_of(node), f"{left} {other} {right}"
    if node.op in ("&&", "||"):
        yield "bound", place_of(node), left
        yield "bound", place_of(node), right


def _guard(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "if" and len(node.body) == 1:
        body = node.body[0]
        yield "guard", whole_of(node, text), "" if body.kind == "jump" else text_of(body, text)
    if node.kind == "ternary":
        _, yes, no = node.parts
        constant = re.compile(r"-?INFINITY|0\.0f|State\{.*\}|-1")
        for one, other in ((yes, no), (no, yes)):
            if constant.fullmatch(text_of(other, text)) and not constant.fullmatch(text_of(one, text)):
                yield "guard", place_of(node), text_of(one, text)


def _indices(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "index" and node.parts[0].kind == "index":
        inner = node.parts[0]
        base, first, second = (text_of(one, text) for one in (inner.parts[0], inner.parts[1], node.parts[1]))
        if not first.isdigit() and not second.isdigit() and base != "s":
            yield "indices", place_of(node), f"{base}[{second}][{first}]"
    if node.kind == "binary" and node.op in ("/", "%") and is_address(node, text):
        left, right = (text_of(part, text) for part in node.parts)
        yield "indices", place_of(node), f"{left} {'%' if node.op == '/' else '/'} {right}"
    if node.kind == "binary" and node.op == "+" and node.parts[0].op == "*" and is_address(node, text):
        product, addend = node.parts
        left, right = (text_of(part, text) for part in product.parts)
        if addend.kind in ("name", "brackets") and "*" not in left:
            yield "indices", place_of(node), f"{text_of(addend, text)} * {right} + {left}"


def _offset(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "binary" or node.op not in ("+", "*", "-", "%") or not is_address(node, text):
        return
    left, right = node.parts
    around = statement_around(node)
    if around is not None and around.kind == "for" and node.parent is around:
        return
    pointer = around is not None and around.kind == "declaration" and "*" in around.op
    options = [(left, right)] + ([(right, left)] if node.op in "+*" and not pointer else [])
    for kept, dropped in options:
        words = text_of(dropped, text)
        yield "head" if _HEADS.search(words) else "offset", place_of(node), text_of(kept, text)


def _head(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "name" and re.fullmatch(r"batch_head|sequence_head|head|sequence", node.op):
        around = statement_around(node)
        plain = node.parent is None or node.parent.kind != "name"
        if around is not None and around.kind in ("declaration", "simple") and plain and not is_target(node):
            yield "head", place_of(node), "0"


def _type_of(name: str, function: str) -> str:
    """How a name is declared, "int64_t" or "float*"; int64_t unless it is said."""
    declared = re.search(
        rf"([A-Za-z_][\w:]*)\s*([*&]?)\s*(?:__restrict__\s+)?\b{name}\b\s*(\[?)(?=[,=;)\]{{\s\w:])", function
    )
    while declared and declared[1] in ("return", "else", "const"):
        declared = None
    if declared is None:
        return "int64_t"
    return (
        {"int": "int64_t", "unsigned": "int64_t", "size_t": "int64_t"}.get(declared[1], declared[1])
        + declared[2]
        + declared[3]
    )


def _assigned(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "simple" and node.parts and node.parts[0].kind == "binary":
        one = node.parts[0]
        target, value = (text_of(part, text) for part in one.parts)
        if one.op in ("+=", "|="):
            yield "assigned", place_of(node), f"{target} = {value};"
        elif one.op == "=" and one.parts[0].kind in ("name", "index") and value not in ("0.0f", "-INFINITY"):
            yield "store", place_of(node), ""
        elif one.op == "=":
            yield "initial", place_of(node), ""
        elif one.op == "*=":
            yield "rescale", place_of(node), ""


def _sign(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "binary" and node.op in ("-", "+") and not is_address(node, text):
        left, right = (text_of(part, text) for part in node.parts)
        yield "sign", place_of(node), f"{left} {'+' if node.op == '-' else '-'} {right}"
        if node.op == "-":
            yield "operands", place_of(node), f"{right} - {left}"


def _extremum(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "call" and node.op == "fmaxf":
        yield "extremum", place_of(node), text_of(node, text).replace("fmaxf", "fminf", 1)
    if node.kind == "ternary" and node.parts[0].op in ("<", ">") and node.parts[0].kind == "binary":
        condition, yes, no = (text_of(part, text) for part in node.parts)
        sides = {text_of(part, text) for part in node.parts[0].parts}
        if sides == {yes, no}:
            yield "extremum", place_of(node), f"{condition} ? {no} : {yes}"


def _initial(node: Node, text: str, function: str) -> Iterator[Found]:
    words = text_of(node, text)
    if words == "-INFINITY" and node.kind == "unary":
        yield "initial", place_of(node), "0.0f"
    around = statement_around(node)
    if words == "0.0f" and around is not None and around.kind == "declaration" and node.parent.op == "=":
        yield "initial", place_of(node), "1.0f"
    if node.kind == "number" and re.fullmatch(r"\d*\.\d+f", words) and words != "0.0f":
        yield "initial", place_of(node), f"{float(words[:-1]) * 2}f"


def _cast(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "cast" and re.match(r"static_cast<(int|size_t|unsigned)|u?int", node.op):
        inner = text_of(node.parts[0], text)
        yield "cast", place_of(node), f"({inner})"
    if node.kind == "binary" and node.op == "*" and all(one.op == "static_cast<float>" for one in node.parts):
        around = statement_around(node)  # the whole statement: its two versions have different types
        if around is not None and around.kind == "simple":
            words = [text_of(one.parts[0], text) for one in node.parts]
            yield "cast", place_of(around), text_with(around, node, " * ".join(words), text)


def _launch(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "call" or not node.launch:
        return
    _, threads, *more = (text_of(part, text) for part in node.parts[: node.launch])
    yield "launch", place_of(node.parts[0]), "1"
    yield "launch", place_of(node.parts[0]), threads
    yield "launch", place_of(node.parts[1]), f"{threads} / 2"
    if more and more[0] != "0":
        yield "launch", place_of(node.parts[2]), f"{more[0]} / 2"
    inner = node.parts[0]
    if inner.kind == "call" and len(inner.parts) == 1:
        product = inner.parts[0]
        if product.kind == "binary" and product.op == "*":
            for part in product.parts:
                yield "launch", place_of(product), text_of(part, text)


def _is_over(name: str, known: str, node: Node, text: str) -> bool:
    """Whether a name is that of a loop above which does not go around the node: it is not known there any more."""
    looped = re.search(rf"\bfor \((?:const )?\w+ {re.escape(name)} = ", known)
    declared = re.search(rf"(?<!for \()\b(?:int|int64_t|unsigned|size_t|float)\s+{re.escape(name)}\b", known)
    around = [text_of(one, text) for one in node.parents() if one.kind == "for"]
    return bool(looped) and not declared and not any(f" {name} = " in one.split(";")[0] for one in around)


def _operands(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "name" and not is_target(node) and not (node.parent is not None and node.parent.kind == "name"):
        around = statement_around(node)
        if around is None or (around.kind == "for" and node.parent.parent is around and node is node.parent.parts[0]):
            return
        known = function[: function.rfind(text_of(around, text)) if around.kind != "for" else None]
        others = [b if node.op == a else a for a, b in _CONFUSED if node.op in (a, b)]
        for other in others:
            alike = "." in other or "::" in other or _type_of(node.op, function) == _type_of(other, function)
            if _is_over(other, known, node, text):
                continue
            if alike and re.search(rf"(?<![.>])\b{re.escape(other)}\b", known):  # a member is no name of its own
                yield "operands", place_of(node), other
    if node.kind == "binary" and node.op == "/" and not is_address(node, text):
        left, right = (text_of(part, text) for part in node.parts)
        yield "operands", place_of(node), f"{right} / {left}"


def _rescale(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "binary" and node.op in ("*", "/") and not is_address(node, text):
        left, right = (text_of(part, text) for part in node.parts)
        if node.op == "/" or FACTORS.search(right):
            yield "rescale", place_of(node), left
        if node.op == "*" and FACTORS.search(left):
            yield "rescale", place_of(node), right


RULES: tuple[Rule, ...] = (
    _barrier, _loop, _bound, _guard, _indices, _offset, _head, _assigned, _sign, _extremum, _initial, _cast, _launch,
    _operands, _rescale,
)  # fmt: skip
