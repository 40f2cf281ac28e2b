"""Further mistakes in CUDA C++ by rule, in whole statements and in barriers: see c_rules_fresh.py."""

from __future__ import annotations

import re
from collections.abc import Iterator

from common.mutants.c_code import Node
from common.mutants.c_nodes import Found, Rule, place_of, text_of, text_with, whole_of
from common.mutants.c_scope import variables_at

_MOST_LINES = 8  # of two statements that are exchanged
_BARRIERS = ("__syncthreads();", "__syncwarp();")
_ADDS = re.compile(r"\w*(?:multiply|accumulate|softmax|scale_)\w*")  # functions that add to what is there
# Names that are known -> when a thread that has nothing to load or to store would leave
_IDLE = (
    (("M", "first_row"), "first_row + threadIdx.y >= M"),
    (("cols",), "threadIdx.x >= cols"),
    (("S_q", "q_start", "first_row"), "q_start + first_row >= S_q"),
    (("head_dim", "lane"), "lane >= head_dim"),
    (("warp",), "warp > 0"),
    ((), "threadIdx.x >= 128"),
)


def _is_barrier(node: Node | None, text: str) -> bool:
    return node is not None and text_of(node, text) in _BARRIERS


def _beside(node: Node, step: int) -> Node | None:
    """The statement before (-1) or behind (1) it in its block."""
    if node.parent is None or node.parent.kind not in ("block", "gap"):
        return None
    at = node.parent.body.index(node) + step
    return node.parent.body[at] if 0 <= at < len(node.parent.body) else None


def _movable(node: Node | None, text: str) -> bool:
    """Whether something else may come before it or behind it: nothing needs what it declares."""
    return node is not None and node.kind in ("simple", "for", "if") and "#" not in text_of(node, text)[:1]


def _swapped(first: Node, second: Node, text: str) -> tuple[tuple[int, int], str]:
    """Two neighbours in the other order: the place of both, and the new text."""
    return (whole_of(first, text)[0], second.end), f"{text_of(second, text)} {text_of(first, text)}"


def _names_written(node: Node, text: str, known: dict[str, str]) -> set[str]:
    """What a statement may change: what it assigns to, and the arrays and structs that it passes to a call."""
    found = set()
    for one in node.walk():
        if one.kind == "binary" and re.fullmatch(r"[-+*/|]?=", one.op):
            found.add(re.match(r"[\w.]*", text_of(one.parts[0], text))[0])
        if one.kind == "call":
            names = {re.match(r"\w*", text_of(part, text))[0] for part in one.parts}
            found |= {name for name in names if not re.match(r"const |int$|float$|bool$|$", known.get(name, ""))}
    return found - {""}


def _mention(name: str) -> str:
    """A pattern for a name, or for a member and its whole struct."""
    base, _, member = name.partition(".")
    return rf"(?<![.\w]){base}(?:\.{member}\b|(?![.\w]))" if member else rf"(?<![.\w]){base}\b"


def _order(node: Node, text: str, function: str) -> Iterator[Found]:
    other = _beside(node, 1)
    if not _movable(node, text) or not _movable(other, text) or _is_barrier(node, text) or _is_barrier(other, text):
        return
    known = variables_at(text, function, node.start)
    depends = any(
        re.search(_mention(name), text_of(reader, text))
        for writer, reader in ((node, other), (other, node))
        for name in _names_written(writer, text, known)
    )
    if depends and text.count("\n", node.start, other.end) < _MOST_LINES:
        yield "order", *_swapped(node, other, text)


def _moved(node: Node, text: str, function: str) -> Iterator[Found]:
    if not _is_barrier(node, text):
        return
    barrier = text_of(node, text)
    before, behind, around = _beside(node, -1), _beside(node, 1), node.parent.parent
    for other in (before, behind):
        if _movable(other, text):
            yield "moved", *_swapped(*((other, node) if other is before else (node, other)), text)
        if other is not None and other.kind in ("for", "if") and other.body[0].kind == "block":
            inner = other.body[0]
            place = (min(other.start, node.start), max(other.end, node.end))
            if other is before:
                place = (whole_of(other, text)[0], node.end)
                new = text[other.start : inner.end - 1] + f"    {barrier} }}"
            else:
                new = text[other.start : inner.start + 1] + f" {barrier}" + text[inner.start + 1 : other.end]
            yield "moved", place, new
    if around is not None and around.kind == "for":
        yield "moved", whole_of(around, text), f"{text_with(around, node, '', text)} {barrier}"


def _branch(node: Node, text: str, function: str) -> Iterator[Found]:
    if not _is_barrier(node, text):
        return
    barrier, known = text_of(node, text), variables_at(text, function, node.start)
    yield "branch", place_of(node), f"if (threadIdx.x < 16) {barrier}"
    if "lane" in known:
        yield "branch", place_of(node), f"if (lane == 0) {barrier}"
    if barrier == "__syncthreads();":
        yield "branch", place_of(node), "__syncwarp();"


def _leaving(node: Node, text: str, function: str) -> Iterator[Found]:
    returns_nothing = re.search(r"\bvoid\b", function[: function.index("{")])
    if _is_barrier(node, text) and returns_nothing:
        known = variables_at(text, function, node.start)
        idle = next(words for names, words in _IDLE if all(name in known for name in names))
        yield "leaving", place_of(node), f"if ({idle}) return; {text_of(node, text)}"
    if node.kind == "if" and len(node.body) == 1 and node.body[0].kind != "jump":
        looped = any(one.kind == "for" for one in node.parents())
        condition, body = text[slice(*node.head)], text_of(node.body[0], text)
        goes_on = _beside(node, 1) is not None or (looped and re.search(r"\|\||[a-z] (?!<)", condition))
        if goes_on and (looped or returns_nothing):
            yield "leaving", whole_of(node, text), f"if (!({condition})) {'break' if looped else 'return'}; {body}"
    if node.kind == "simple" and node.parent.kind == "for":  # the only statement of a loop
        yield "leaving", place_of(node), f"{{ {text_of(node, text)} break; }}"


def _alone(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "simple" or not node.parts or not re.search(r"__(?:global|device)__", function):
        return
    one = node.parts[0]
    if one.kind == "binary" and one.op.endswith("=") and one.parts[0].kind == "index":
        known = variables_at(text, function, node.start)
        target = known.get(re.match(r"\w*", text_of(one, text))[0], "")
        guarded = any(one.kind == "if" and "== 0" in text[slice(*one.head)] for one in node.parents())
        alone = guarded or "threadIdx.x > 0) return" in function
        if not alone and (target.endswith("*") or target.startswith("shared")):
            for number in ("threadIdx.x", *(("lane",) if "lane" in known else ())):
                yield "alone", place_of(node), f"if ({number} == 0) {text_of(node, text)}"


def _added(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "simple" or not node.parts or node.parts[0].op not in ("=", "*="):
        return
    target, value = (text_of(part, text) for part in node.parts[0].parts)
    kind = variables_at(text, function, node.start).get(re.match(r"\w*", target)[0], "")
    if value in ("0.0f", "-INFINITY"):
        return
    if re.search(r"\bfloat(?!4)|State<", kind) or kind == "int*":
        yield "added", place_of(node), f"{target} += {value};"
        if node.parts[0].op == "*=":
            yield "added", place_of(node), f"{target} = {value};"


def _twice(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "simple" or not node.parts:
        return
    one, words = node.parts[0], text_of(node, text)
    adds = one.kind == "binary" and one.op in ("+=", "*=")
    if one.kind == "binary" and one.op == "=":
        target = re.escape(text_of(one.parts[0], text))
        adds = re.search(rf"(?<![.\w]){target}(?![.\w])", text_of(one.parts[1], text)) and "fmaxf" not in words
    if adds or (one.kind == "call" and _ADDS.match(one.op)):
        yield "twice", place_of(node), f"{words} {words}"


def _reset(node: Node, text: str, function: str) -> Iterator[Found]:
    around = next((one for one in node.parents() if one.kind in ("for", "gap")), None)
    if node.kind not in ("simple", "for", "if") or around is None or around.kind == "gap" or not around.parts:
        return
    if node.parent.kind == "for" and node.parent is not around:
        return
    known = variables_at(text, function, around.start)
    for name in sorted(_names_written(node, text, {})):
        begun = re.search(rf"\b{name} = (\{{[^;]*\}}|-INFINITY|state\.\w|[\d.]+f?)[;,]", function)
        adds_here = node.kind == "simple" and node.parts and node.parts[0].op == "+="
        if begun and known.get(name) in ("float", "State") and not adds_here:
            initial = f"{known[name]}{begun[1]}" if begun[1].startswith("{") else begun[1]
            yield "reset", whole_of(node, text), f"{name} = {initial}; {text_of(node, text)}"


def _call(node: Node, text: str, function: str) -> Iterator[Found]:
    called = node.parts[0].op if node.kind == "simple" and node.parts and node.parts[0].kind == "call" else "CUDA_"
    if not _is_barrier(node, text) and not called.startswith("CUDA_"):
        yield "call", place_of(node), ""


def _jump(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "jump" and node.op in ("continue", "break"):
        yield "jump", place_of(node), "break;" if node.op == "continue" else "continue;"


RULES: tuple[Rule, ...] = (
    _order, _moved, _branch, _leaving, _alone, _added, _twice, _reset, _call, _jump,
)  # fmt: skip
