"""Further mistakes in CUDA C++ by rule, in expressions: written when the diagnosis was built, and without a look at it.

mutations(text, start, end, function) makes these and those in statements (c_rules_fresh_statements.py). See c_nodes.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

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
)
from common.mutants.c_rules_fresh_statements import RULES as IN_STATEMENTS
from common.mutants.c_scope import variables_at
from common.mutants.mutation import Mutation

_COMPARISONS = ("<", ">", "<=", ">=", "==", "!=")
_ARITHMETIC = ("+", "-", "*", "/", "%")
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "!=", "!=": "=="}
_COMMUTATIVE = ("fmaxf", "fminf", "add_dot")
_FUNCTIONS = {"expf": "exp2f", "exp2f": "expf", "logf": "log2f", "log2f": "logf", "rsqrtf": "sqrtf", "tanhf": "erff"}
_REDUCTIONS = {"warp_sum": "warp_max", "warp_max": "warp_sum", "Max": "Sum", "Sum": "Max"}
_THREADS = {
    "threadIdx.x": ("blockIdx.x", "threadIdx.y"), "threadIdx.y": ("blockIdx.y",),
    "blockIdx.x": ("threadIdx.x", "blockIdx.y"),
    "blockDim.x": ("gridDim.x", "blockDim.y"), "lane": ("threadIdx.x",), "warp": ("threadIdx.x", "blockIdx.x"),
}  # fmt: skip
# Members of one struct, of one type
_MEMBERS = {"m": "l", "l": "m", "mean": "inverse_std", "inverse_std": "mean", "begin": "end", "end": "begin"}
# Sizes that are known when the kernel is compiled, and what is taken for them
_SIZES = (
    ("T::D", "head_dim"), ("T::COLS", "T::KEYS"), ("T::ROWS", "T::KEYS"), ("T::ROWS", "T::COLS"), ("T::B_c", "T::D"),
    ("T::WARPS", "T::ROWS"), ("T::THREADS", "T::WARPS"), ("T::B_r", "T::ROWS"),
    ("B_c", "B_r"), ("WARPS", "THREADS"), ("WARPS", "KEYS"), ("THREADS", "ITEMS"), ("D", "COLS"),
    ("D", "head_dim"), ("COLS", "KEYS"), ("TILE", "TILE_ROWS"), ("OUTPUTS", "TILE"), ("TILE_ROWS", "OUTPUTS"),
    ("ROW_THREADS", "TILE"), ("ROW_THREADS", "cols"), ("COUNT", "ITEMS"), ("THREADS", "cols"),
)  # fmt: skip


def mutations(text: str, start: int, end: int, function: str) -> list[Mutation]:
    """Every one of these mutations of the gap; arguments as in c_rules.py."""
    return made_by([*RULES, *IN_STATEMENTS], text, start, end, function)


def _known(node: Node, text: str, function: str) -> dict[str, str]:
    """The variables that an expression knows."""
    around = statement_around(node)
    if around is None:
        return {}
    known = variables_at(text, function, around.start)
    if around.kind == "for" and around.parts and node.start > around.parts[0].end:
        known[text_of(around.parts[0].parts[0], text)] = "int"
    return known


def _is_written(node: Node) -> bool:
    """Whether a value is given to it, or it is counted up."""
    outer = node.parent
    if outer is not None and outer.kind == "unary" and outer.op in ("++", "--", "&"):
        return True
    return is_target(node) and outer.op not in _COMPARISONS


def _is_variable(node: Node) -> bool:
    """Whether it is a name of its own that is read."""
    member = node.parent is not None and node.parent.kind == "name"
    return node.kind == "name" and re.fullmatch(r"\w+", node.op) is not None and not member and not _is_written(node)


def _is_declared(node: Node) -> bool:
    """Whether it belongs to the name or the lengths that a declaration gives."""
    return any(
        outer.kind == "declaration" and inner.parts[0].start <= node.start < inner.parts[0].end
        for inner, outer in pairwise([node, *node.parents()])
        if inner.parts
    )


def _variable(node: Node, text: str, function: str) -> Iterator[Found]:
    if not _is_variable(node):
        return
    known = _known(node, text, function)
    mine = known.get(node.op, "")
    kind = {"int": "variable", "float": "value"}.get(mine, "pointer" if mine.endswith(("*", "]")) else "")
    for other, its in known.items() if kind else ():
        if its == mine and other != node.op:
            yield kind, place_of(node), other


def _member(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "name" and "." in node.op and not _is_written(node):
        base, member = node.op.rsplit(".", 1)
        if member in _MEMBERS:
            yield "value", place_of(node), f"{base}.{_MEMBERS[member]}"


def _shifted(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "index" and node.parts[1].kind in ("name", "binary", "brackets"):
        inner = node.parts[1]
        if inner.kind != "binary" or inner.op in _ARITHMETIC:
            yield "shifted", place_of(inner), f"{text_of(inner, text)} + 1"
            yield "shifted", place_of(inner), f"{text_of(inner, text)} - 1"
    called = node.parent is not None and node.parent.kind == "call" and not node.parent.launch
    if called and _is_variable(node) and _known(node, text, function).get(node.op) == "int":
        yield "shifted", place_of(node), f"{node.op} + 1"
        yield "shifted", place_of(node), f"{node.op} - 1"


def _bound(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "binary" and node.op in ("<", ">", "<=", ">="):
        right = node.parts[1]
        if text_of(right, text) == "0":
            return
        one_off = "- 1" if node.op in ("<", ">=") else "+ 1"
        yield "bound", place_of(right), f"{text_of(right, text)} {one_off}"


def _rounding(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "call" and node.op == "ceil_div":
        over, under = (text_of(part, text) for part in node.parts)
        yield "rounding", place_of(node), f"({over}) / {under}"
    if node.kind == "call" and node.op == "blocks_for":
        yield "rounding", place_of(node), f"static_cast<unsigned>(({text_of(node.parts[0], text)}) / THREADS)"
    if node.kind == "binary" and node.op == "*" and node.parts[0].op == "/":
        over, under = node.parts[0].parts
        if text_of(under, text) == text_of(node.parts[1], text):
            yield "rounding", place_of(node), text_of(over, text)


def _steps(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "for" or not node.parts:
        return
    begin, _, step = node.parts
    first = begin.parts[1]
    words = text_of(first, text)
    yield "begin", place_of(first), "1" if words == "0" else f"{words} + 1"
    if step.op in ("+=", "/="):
        name, size = (text_of(part, text) for part in step.parts)
        yield "step", place_of(step), f"{name} {step.op} {size} * 2"
        if step.op == "+=":
            yield "begin", place_of(first), size if words == "0" else f"{words} + {size}"
            yield "step", place_of(step), f"{name} += {size} / 2"
    elif step.kind == "unary":
        yield "step", place_of(step), f"{text_of(step.parts[0], text)} += 2"


def _condition(node: Node, text: str, function: str) -> Iterator[Found]:
    around = node.parent
    is_whole = around is not None and (
        (around.kind == "if" and node in around.parts)
        or (around.kind == "ternary" and node is around.parts[0])
        or (around.kind == "binary" and around.op in ("=", "&&", "||"))
    )
    if node.kind == "binary" and node.op in _COMPARISONS:
        left, right = (text_of(part, text) for part in node.parts)
        looped = around is not None and around.kind == "for"
        fixed = looped and re.search(r"::|^[A-Z]\w", right)  # a size that is known when the kernel is compiled
        if not fixed:
            yield "comparison", place_of(node), f"{left} {_TURNED[node.op]} {right}"
        if looped and not fixed and around.parts[2].op == "+=":
            yield "comparison", place_of(node), f"{left} != {right}"
    elif node.kind == "binary" and node.op in ("&&", "||"):
        other = "||" if node.op == "&&" else "&&"
        yield "connective", place_of(node), f" {other} ".join(text_of(part, text) for part in node.parts)
        if is_whole:
            yield "negated", place_of(node), f"!({text_of(node, text)})"
    elif is_whole and _is_variable(node) and _known(node, text, function).get(node.op) == "bool":
        yield "negated", place_of(node), f"!{node.op}"


def _either(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "call" and node.op in ("fmaxf", "combine"):
        for part in node.parts:
            yield "either", place_of(node), text_of(part, text)
    if node.kind == "ternary" and node.parts[0].op in ("<", ">"):
        sides, results = ([text_of(part, text) for part in parts] for parts in (node.parts[0].parts, node.parts[1:]))
        if set(sides) == set(results):
            for result in results:
                yield "either", place_of(node), result


def _reduction(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "call":
        return
    words = text_of(node, text)
    if node.op in _REDUCTIONS:
        new, around = _REDUCTIONS[node.op] + words.removeprefix(node.op), statement_around(node)
        if node.parts:
            yield "reduction", place_of(node), new
        else:  # an object of another type: the whole statement
            yield "reduction", place_of(around), text_with(around, node, new, text)
    if node.op in ("warp_sum", "warp_max", "merge_warp", "__popc"):
        of_one = text_of(node.parts[0], text)
        yield "reduction", place_of(node), f"({of_one})" if node.parts[0].kind == "binary" else of_one
    if node.op == "__shfl_sync":
        yield "reduction", place_of(node), text_of(node.parts[1], text)
        yield "reduction", place_of(node), words.replace(f", {text_of(node.parts[2], text)})", ", 0)")


def _thread(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "name" and not _is_written(node):
        known = _known(node, text, function)
        for other in _THREADS.get(node.op, ()):
            if "." in node.op or node.op in known:
                yield "thread", place_of(node), other
    if node.kind == "binary" and node.op in ("/", "%") and text_of(node.parts[1], text) == "32":
        yield "thread", place_of(node), text_of(node.parts[0], text)


def _launch(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "call" or not node.launch:
        return
    blocks, threads, *more = (text_of(part, text) for part in node.parts[: node.launch])
    yield "launch", place_of(node.parts[0]), f"{blocks} - 1"
    yield "launch", place_of(node.parts[1]), "32"
    if "__launch_bounds__" in text:  # any number of threads is as good elsewhere
        yield "launch", place_of(node.parts[1]), f"{threads} * 2"
    if more and more[0] != "0":
        yield "launch", place_of(node.parts[2]), "0"


def _arguments(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "call" or node.op in _COMMUTATIVE:
        return
    known = _known(node, text, function)
    for one, other in pairwise(node.parts[node.launch :]):
        words = [text_of(part, text) for part in (one, other)]
        types = [known.get(re.match(r"\w*", part)[0], part) for part in words]
        if types[0] == types[1] and words[0] != words[1]:
            new = text[node.start : one.start] + words[1] + text[one.end : other.start] + words[0]
            yield "arguments", place_of(node), new + text[other.end : node.end]


def _function(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "call" and node.op in _FUNCTIONS:
        yield "function", place_of(node), _FUNCTIONS[node.op] + text_of(node, text).removeprefix(node.op)
        yield "function", place_of(node), f"({text_of(node.parts[0], text)})"


def _constant(node: Node, text: str, function: str) -> Iterator[Found]:
    outer = node.parent
    divides = outer is not None and outer.kind == "binary" and outer.op in ("/", "%") and node is outer.parts[1]
    around = statement_around(node)
    in_head = around is not None and around.kind == "for"
    launched = outer is not None and outer.kind == "call" and outer.launch > 0
    if node.kind == "number" and not (divides or in_head or launched or _is_declared(node)):
        others = {"0": "1", "1": "0", "1u": "2u", "0.0f": "1.0f", "1.0f": "0.0f", "0.5f": "2.0f", "32": "16", "2": "1"}
        if new := others.get(text_of(node, text)):
            yield "constant", place_of(node), new


def _sign(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "unary" and node.op in ("-", "!"):
        yield "sign", place_of(node), text_of(node.parts[0], text)
    if node.kind == "binary" and node.op in ("+=", "-=") and node.parent.kind == "simple":
        left, right = (text_of(part, text) for part in node.parts)
        yield "sign", place_of(node), f"{left} {'-=' if node.op == '+=' else '+='} {right}"


def _factor(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "binary" or node.op not in ("*", "/", "*=") or is_address(node, text):
        return
    left, right = (text_of(part, text) for part in node.parts)
    if node.op == "/":
        yield "factor", place_of(node), f"{left} * {right}"
        yield "factor", place_of(node), f"{left} / {right} / {right}"
    elif FACTORS.search(right) and "?" not in right:
        yield "factor", place_of(node), f"{left} {'/=' if node.op == '*=' else '/'} {right}"
        yield "factor", place_of(node), f"{left} {node.op} {right} * {right}"
    elif FACTORS.search(left) and node.op == "*":
        yield "factor", place_of(node), f"{left} * {left} * {right}"


def _brackets(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "brackets" or node.parts[0].op not in ("+", "-", "||", "?") or node.parent.op not in _ARITHMETIC:
        return
    top = node
    while top.parent is not None and top.parent.kind == "binary" and top.parent.op in _ARITHMETIC:
        top = top.parent
    yield "brackets", place_of(top), text_with(top, node, text_of(node.parts[0], text), text)


def _size(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "name" and not _is_written(node) and (node.parent is None or node.parent.kind != "name"):
        known = _known(node, text, function)
        for one, two in _SIZES:
            for mine, other in ((one, two), (two, one)):
                if node.op == mine and _is_size(mine, known, text, function) and _is_size(other, known, text, function):
                    yield "size", place_of(node), other
    if re.fullmatch(r"load_tile<.*\b(?:D|T::K_STRIDE)>", node.op) and node.kind == "call":  # the length of its rows
        padded = node.op.endswith("K_STRIDE>")
        new = re.sub(r"(?:T::)?\w+>$", "T::D>" if padded else "T::K_STRIDE>", node.op)
        yield "size", place_of(node), new + text_of(node, text).removeprefix(node.op)


def _is_size(name: str, known: dict[str, str], text: str, function: str) -> bool:
    """Whether a size is known in the function: a member of T, a constant of the file, a parameter or variable."""
    if name.startswith("T::"):
        return bool(re.search(rf"\b{name}\b", text) and re.search(r"typename T\b|using T\b", function))
    if name == "D" and "using T =" in function:  # it is T::D there
        return False
    constant = re.search(rf"constexpr int {name} =", text[: text.index(function)])
    return known.get(name) == "int" or constant is not None or re.search(rf"\bint {name}\b", function) is not None


def _vector(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "call" and node.op == "make_float4":
        for before, part in pairwise(node.parts):
            yield "vector", place_of(part), "0.0f"
            yield "vector", place_of(part), text_of(before, text)


def _branches(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "ternary" and node.parts[0].op in ("<", ">", "<=", ">="):
        condition, yes, no = (text_of(part, text) for part in node.parts)
        yield "branches", place_of(node), f"{condition} ? {no} : {yes}"


def _bits(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind == "binary" and node.op in ("<<", "&", "|="):
        left, right = (text_of(part, text) for part in node.parts)
        if node.op == "<<":
            yield "bits", place_of(node), f"{left} << ({right} + 1)"
            yield "bits", place_of(node), right
        else:
            yield "bits", place_of(node), f"{left} {'|' if node.op == '&' else '&='} {right}"


def _operator(node: Node, text: str, function: str) -> Iterator[Found]:
    if node.kind != "binary" or not is_address(node, text):
        return
    left, right = node.parts
    first, last = text_of(left, text), text_of(right, text)
    if node.op == "+":
        if left.op != "*" and right.kind in ("name", "number"):
            yield "operator", place_of(node), f"{first} - {last}"
        if left.op == "*":
            one, two = (text_of(part, text) for part in left.parts)
            yield "operator", place_of(node), f"({one} + {last}) * {two}"
    if node.op in ("/", "%") and left.op in ("/", "%"):
        one, two = (text_of(part, text) for part in left.parts)
        yield "operator", place_of(node), f"{one} {node.op} {last} {left.op} {two}"


RULES: tuple[Rule, ...] = (
    _variable, _member, _shifted, _bound, _rounding, _steps, _condition, _either, _reduction, _thread, _launch,
    _arguments, _function, _constant, _sign, _factor, _brackets, _size, _vector, _branches, _bits, _operator,
)  # fmt: skip
