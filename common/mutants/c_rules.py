"""Mistakes in CUDA C++ by rule: mutations(text, start, end) of the gap text[start:end].

Every rule looks at one node of the tree (c_code.py) and yields (kind, place, what stands there instead). Places are
whole expressions or whole statements, as common.compiling.planting wants them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from common.mutants.c_code import Node, statements
from common.mutants.mutation import Mutation

Found = tuple[str, tuple[int, int], str]  # kind, place, new text
_HEADS = re.compile(r"\b(batch\w*|\w*head|\w*heads|sequence\w*|group|matrix)\b(?!_dim)")
_FACTORS = re.compile(r"rescale|weight|exp|inverse|factor|scale|log2_e", re.IGNORECASE)
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
    found = []
    for statement in statements(text, start, end):
        for node in statement.walk():
            for rule in RULES:
                for kind, (begin, stop), new in rule(node, text, function):
                    old = text[begin:stop]
                    if old.strip() == new.strip():
                        continue
                    begin_code = begin + len(old) - len(old.lstrip())
                    line = text.count("\n", 0, begin_code) + 1
                    if re.match(r"\s*#", old):  # the pragmas before a loop
                        line += len(re.match(r"(?:\s*#[^\n]*\n)+", old)[0].splitlines())
                    found.append(Mutation(kind, begin, stop, old.strip(), new, line, _statement(node, text)))
    return sorted(set(found), key=lambda one: (one.start, one.end, one.kind, one.new))


def _statement(node: Node, text: str) -> str:
    for one in (node, *node.parents()):
        if one.kind in ("simple", "declaration", "return", "jump"):
            return " ".join(text[one.start : one.end].split())
        if one.kind in ("if", "for"):
            return " ".join(text[one.start : one.head[1] + 1].split())
    return ""


def _text(node: Node, text: str) -> str:
    return text[node.start : node.end]


def _place(node: Node) -> tuple[int, int]:
    return node.start, node.end


def _whole(node: Node, text: str) -> tuple[int, int]:
    """The place of a statement, with the pragmas before it."""
    start = node.start
    while match := re.search(r"\n[ \t]*#[^\n]*\n[ \t]*$", text[:start]):
        start = match.start()
    return start, node.end


def _with(around: Node, node: Node, new: str, text: str) -> str:
    """The text of a statement with another text in place of a node in it."""
    return text[around.start : node.start] + new + text[node.end : around.end]


def _stands_in(node: Node) -> Node | None:
    """The statement around an expression."""
    kinds = ("simple", "declaration", "return", "if", "for", "block")
    return next((one for one in node.parents() if one.kind in kinds), None)


def _is_address(node: Node, text: str) -> bool:
    """Whether an expression is an index, a position or a pointer, and no number that is computed with."""
    for inner, outer in pairwise([node, *node.parents()]):
        if outer.kind == "index" and outer.parts[1] is inner:
            return True
    around = _stands_in(node)
    if around is None or any(one.kind == "call" and not one.launch for one in node.parents()):
        return False
    if around.kind == "simple" and (target := re.match(r"(\w+) [-+*|]?= ", _text(around, text))):
        return bool(re.search(rf"\b(?:int|int64_t|unsigned)\b[^;(){{}}]*\b{target[1]}\b", text[: around.start]))
    if around.kind == "declaration":
        return bool(re.search(r"\b(int|int64_t|size_t|unsigned)\b|[*&]", around.op))
    return around.kind in ("for", "if")


def _barrier(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "simple" and _text(node, text) in ("__syncthreads();", "__syncwarp();"):
        yield "barrier", _place(node), ""


def _loop(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "for" or not node.parts:
        return
    begin, condition, step = node.parts
    if condition.kind == "binary" and condition.op in ("<", ">"):
        left, right = (_text(part, text) for part in condition.parts)
        yield "loop", _place(condition), f"{left} {condition.op}= {right}"
        yield "loop", _place(condition), f"{left} < {right} - 1" if condition.op == "<" else f"{left} > {right} + 1"
    if begin.op == "=" and not re.fullmatch(r"\s*0\s*", _text(begin.parts[1], text)):
        yield "loop", _place(begin.parts[1]), "0"
    if step.op in ("+=", "/="):
        name = _text(step.parts[0], text)
        yield "loop", _place(step), f"++{name}" if step.op == "+=" else f"{name} = 0"


def _bound(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "binary":
        return
    left, right = (_text(part, text) for part in node.parts) if len(node.parts) == 2 else ("", "")
    around = _stands_in(node)
    in_head = around is not None and around.kind == "for" and node in around.parts
    if node.op in ("<", ">", "<=", ">=") and not in_head:
        other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}[node.op]
        yield "bound", _place(node), f"{left} {other} {right}"
    if node.op in ("&&", "||"):
        yield "bound", _place(node), left
        yield "bound", _place(node), right


def _guard(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "if" and len(node.body) == 1:
        body = node.body[0]
        yield "guard", _whole(node, text), "" if body.kind == "jump" else _text(body, text)
    if node.kind == "ternary":
        _, yes, no = node.parts
        constant = re.compile(r"-?INFINITY|0\.0f|State\{.*\}|-1")
        for one, other in ((yes, no), (no, yes)):
            if constant.fullmatch(_text(other, text)) and not constant.fullmatch(_text(one, text)):
                yield "guard", _place(node), _text(one, text)


def _indices(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "index" and node.parts[0].kind == "index":
        inner = node.parts[0]
        base, first, second = (_text(one, text) for one in (inner.parts[0], inner.parts[1], node.parts[1]))
        if not first.isdigit() and not second.isdigit() and base != "s":
            yield "indices", _place(node), f"{base}[{second}][{first}]"
    if node.kind == "binary" and node.op in ("/", "%") and _is_address(node, text):
        left, right = (_text(part, text) for part in node.parts)
        yield "indices", _place(node), f"{left} {'%' if node.op == '/' else '/'} {right}"
    if node.kind == "binary" and node.op == "+" and node.parts[0].op == "*" and _is_address(node, text):
        product, addend = node.parts
        left, right = (_text(part, text) for part in product.parts)
        if addend.kind in ("name", "brackets") and "*" not in left:
            yield "indices", _place(node), f"{_text(addend, text)} * {right} + {left}"


def _offset(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "binary" or node.op not in ("+", "*", "-", "%") or not _is_address(node, text):
        return
    left, right = node.parts
    around = _stands_in(node)
    if around is not None and around.kind == "for" and node.parent is around:
        return
    pointer = around is not None and around.kind == "declaration" and "*" in around.op
    options = [(left, right)] + ([(right, left)] if node.op in "+*" and not pointer else [])
    for kept, dropped in options:
        words = _text(dropped, text)
        yield "head" if _HEADS.search(words) else "offset", _place(node), _text(kept, text)


def _head(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "name" and re.fullmatch(r"batch_head|sequence_head|head|sequence", node.op):
        around = _stands_in(node)
        plain = node.parent is None or node.parent.kind != "name"
        if around is not None and around.kind in ("declaration", "simple") and plain and not _is_target(node):
            yield "head", _place(node), "0"


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


def _is_target(node: Node) -> bool:
    """Whether something is assigned to it."""
    outer = node.parent
    return outer is not None and outer.kind == "binary" and outer.op.endswith("=") and outer.parts[0] is node


def _assigned(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "simple" and node.parts and node.parts[0].kind == "binary":
        one = node.parts[0]
        target, value = (_text(part, text) for part in one.parts)
        if one.op in ("+=", "|="):
            yield "assigned", _place(node), f"{target} = {value};"
        elif one.op == "=" and one.parts[0].kind in ("name", "index") and value not in ("0.0f", "-INFINITY"):
            yield "store", _place(node), ""
        elif one.op == "=":
            yield "initial", _place(node), ""
        elif one.op == "*=":
            yield "rescale", _place(node), ""


def _sign(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "binary" and node.op in ("-", "+") and not _is_address(node, text):
        left, right = (_text(part, text) for part in node.parts)
        yield "sign", _place(node), f"{left} {'+' if node.op == '-' else '-'} {right}"
        if node.op == "-":
            yield "operands", _place(node), f"{right} - {left}"


def _extremum(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "call" and node.op == "fmaxf":
        yield "extremum", _place(node), _text(node, text).replace("fmaxf", "fminf", 1)
    if node.kind == "ternary" and node.parts[0].op in ("<", ">") and node.parts[0].kind == "binary":
        condition, yes, no = (_text(part, text) for part in node.parts)
        sides = {_text(part, text) for part in node.parts[0].parts}
        if sides == {yes, no}:
            yield "extremum", _place(node), f"{condition} ? {no} : {yes}"


def _initial(node: Node, text: str, function: str) -> Iterator[Found]:
    words = _text(node, text)
    if words == "-INFINITY" and node.kind == "unary":
        yield "initial", _place(node), "0.0f"
    around = _stands_in(node)
    if words == "0.0f" and around is not None and around.kind == "declaration" and node.parent.op == "=":
        yield "initial", _place(node), "1.0f"
    if node.kind == "number" and re.fullmatch(r"\d*\.\d+f", words) and words != "0.0f":
        yield "initial", _place(node), f"{float(words[:-1]) * 2}f"


def _cast(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "cast" and re.match(r"static_cast<(int|size_t|unsigned)|u?int", node.op):
        inner = _text(node.parts[0], text)
        yield "cast", _place(node), f"({inner})"
    if node.kind == "binary" and node.op == "*" and all(one.op == "static_cast<float>" for one in node.parts):
        around = _stands_in(node)  # the whole statement: its two versions have different types
        if around is not None and around.kind == "simple":
            words = [_text(one.parts[0], text) for one in node.parts]
            yield "cast", _place(around), _with(around, node, " * ".join(words), text)


def _launch(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "call" or not node.launch:
        return
    _, threads, *more = (_text(part, text) for part in node.parts[: node.launch])
    yield "launch", _place(node.parts[0]), "1"
    yield "launch", _place(node.parts[0]), threads
    yield "launch", _place(node.parts[1]), f"{threads} / 2"
    if more and more[0] != "0":
        yield "launch", _place(node.parts[2]), f"{more[0]} / 2"
    inner = node.parts[0]
    if inner.kind == "call" and len(inner.parts) == 1:
        product = inner.parts[0]
        if product.kind == "binary" and product.op == "*":
            for part in product.parts:
                yield "launch", _place(product), _text(part, text)


def _is_over(name: str, known: str, node: Node, text: str) -> bool:
    """Whether a name is that of a loop above which does not go around the node: it is not known there any more."""
    looped = re.search(rf"\bfor \((?:const )?\w+ {re.escape(name)} = ", known)
    declared = re.search(rf"(?<!for \()\b(?:int|int64_t|unsigned|size_t|float)\s+{re.escape(name)}\b", known)
    around = [_text(one, text) for one in node.parents() if one.kind == "for"]
    return bool(looped) and not declared and not any(f" {name} = " in one.split(";")[0] for one in around)


def _operands(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "name" and not _is_target(node) and not (node.parent is not None and node.parent.kind == "name"):
        around = _stands_in(node)
        if around is None or (around.kind == "for" and node.parent.parent is around and node is node.parent.parts[0]):
            return
        known = function[: function.rfind(_text(around, text)) if around.kind != "for" else None]
        others = [b if node.op == a else a for a, b in _CONFUSED if node.op in (a, b)]
        for other in others:
            alike = "." in other or "::" in other or _type_of(node.op, function) == _type_of(other, function)
            if _is_over(other, known, node, text):
                continue
            if alike and re.search(rf"(?<![.>])\b{re.escape(other)}\b", known):  # a member is no name of its own
                yield "operands", _place(node), other
    if node.kind == "binary" and node.op == "/" and not _is_address(node, text):
        left, right = (_text(part, text) for part in node.parts)
        yield "operands", _place(node), f"{right} / {left}"


def _rescale(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "binary" and node.op in ("*", "/") and not _is_address(node, text):
        left, right = (_text(part, text) for part in node.parts)
        if node.op == "/" or _FACTORS.search(right):
            yield "rescale", _place(node), left
        if node.op == "*" and _FACTORS.search(left):
            yield "rescale", _place(node), right


RULES: tuple[Callable[[Node, str, str], Iterator[Found]], ...] = (
    _barrier, _loop, _bound, _guard, _indices, _offset, _head, _assigned, _sign, _extremum, _initial, _cast, _launch,
    _operands, _rescale,
)  # fmt: skip
