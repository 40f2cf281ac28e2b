"""Mistakes by rule: mutations(text, start, end, in_python) of the gap text[start:end].

A rule looks at one node of the tree (code_tree.py) and yields (kind, place, replacement). Places are whole expressions
or whole statements, as tests/helpers/planting.py requires.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from code_tree import Node, gap_of

Found = tuple[str, tuple[int, int], str]
Mutation = tuple[int, int, str, str, str]  # start, end, kind, new text; the statement, or its head, on one line
Templates = dict[str, list[tuple[str, str]]]
_FACTORS = re.compile(r"rescale|weight|exp|inverse|factor|scale|log2_e", re.IGNORECASE)
_HEADS = re.compile(r"\b(batch\w*|\w*head|\w*heads|sequence\w*|group|matrix)\b(?!_dim)")
_COMMUTATIVE = ("fmaxf", "fminf", "add_dot", "maximum", "minimum", "max", "min")
_BARRIERS = ("__syncthreads();", "__syncwarp();")
_MOST_LINES = 8  # of two statements that are swapped

# Replacements of an operator: in conditions, in integer expressions, in others
_COMPARISONS: Templates = {
    "<": [("bound", "{0} <= {1}"), ("bound", "{0} > {1}"), ("bound", "{0} < {1} - 1")],
    "<=": [("bound", "{0} < {1}"), ("bound", "{0} >= {1}"), ("bound", "{0} <= {1} + 1")],
    ">": [("bound", "{0} >= {1}"), ("bound", "{0} < {1}"), ("bound", "{0} > {1} + 1")],
    ">=": [("bound", "{0} > {1}"), ("bound", "{0} <= {1}"), ("bound", "{0} >= {1} - 1")],
    "==": [("bound", "{0} != {1}")],
    "!=": [("bound", "{0} == {1}")],
    "&&": [("bound", "{0}"), ("bound", "{1}"), ("bound", "{0} || {1}"), ("bound", "!({0} && {1})")],
    "||": [("bound", "{0}"), ("bound", "{1}"), ("bound", "{0} && {1}"), ("bound", "!({0} || {1})")],
}
_WHOLE_NUMBERS: Templates = {
    "+": [("index", "{0} - {1}"), ("offset", "{0}"), ("offset", "{1}")],
    "-": [("offset", "{0}")],
    "*": [("offset", "{0}"), ("offset", "{1}")],
    "/": [("index", "{0} % {1}"), ("thread", "{0}")],
    "//": [("index", "{0} % {1}"), ("index", "{0}")],
    "%": [("index", "{0} / {1}"), ("thread", "{0}")],
    "<<": [("function", "{0} << ({1} + 1)")],
    "&": [("function", "{0} | {1}")],
    "+=": [("sign", "{0} -= {1}")],
    "|=": [("function", "{0} &= {1}")],
}
_OTHERS: Templates = {
    "+": [("sign", "{0} - {1}"), ("adding", "{0}"), ("adding", "{1}")],
    "-": [("sign", "{0} + {1}"), ("operands", "{1} - {0}")],
    "/": [("rescale", "{0}"), ("rescale", "{0} * {1}"), ("operands", "{1} / {0}")],
    "@": [("operands", "{1} @ {0}")],
    "**": [("rescale", "{0}")],
    "+=": [("sign", "{0} -= {1}")],
    "-=": [("sign", "{0} += {1}")],
}
_BY_A_FACTOR: Templates = {
    "*": [("rescale", "{0}"), ("rescale", "{0} / {1}"), ("rescale", "{0} * {1} * {1}")],
    "*=": [("rescale", "{0} /= {1}"), ("rescale", "{0} *= {1} * {1}")],
}
# Replacements of a call: its arguments, {all} of them, {before} the last dot; those with a dot are methods in Python
_CALLS: Templates = {
    "fmaxf": [("extremum", "fminf({all})"), ("extremum", "{0}"), ("extremum", "{1}")],
    "combine": [("extremum", "{0}"), ("extremum", "{1}")],
    "warp_sum": [("extremum", "warp_max({all})"), ("extremum", "({0})")],
    "warp_max": [("extremum", "warp_sum({all})"), ("extremum", "({0})")],
    "merge_warp": [("extremum", "({0})")],
    "__popc": [("extremum", "({0})")],
    "__shfl_sync": [("thread", "{1}"), ("thread", "__shfl_sync({0}, {1}, 0)")],
    "expf": [("function", "exp2f({all})"), ("function", "({0})")],
    "exp2f": [("function", "expf({all})"), ("function", "({0})")],
    "logf": [("function", "log2f({all})"), ("function", "({0})")],
    "log2f": [("function", "logf({all})"), ("function", "({0})")],
    "rsqrtf": [("function", "sqrtf({all})"), ("function", "({0})")],
    "tanhf": [("function", "erff({all})"), ("function", "({0})")],
    "ceil_div": [("index", "({0}) / ({1})")],
    "blocks_for": [("launch", "static_cast<unsigned>(({0}) / THREADS)")],
    "make_float4": [("operands", "make_float4({0}, {1}, {1}, {3})"), ("operands", "make_float4({0}, {1}, {2}, 0.0f)")],
    "range": [("loop", f"range({new})") for new in ("{0} + {2}, {1}, {2}", "{0}, {1} - 1, {2}", "{0}, {1} - {2}, {2}",
                                                    "{0} + 1, {1}, {2}", "{0}, {1}, 2 * {2}", "{0}, {1}")],
    "min": [("extremum", "max({all})"), ("bound", "{0}"), ("bound", "{1}")],
    "slice": [("index", "slice({0} + 1, {1})"), ("index", "slice({0}, {1} + 1)"), ("index", "slice({0}, {1} - 1)")],
    "arange": [("index", "torch.arange({0} + 1, {1} + 1)"), ("index", "torch.arange({0} - 1, {1} - 1)")],
    "where": [("guard", "{2}")],
    ".transpose": [("index", "{before}"), ("index", "{before}.transpose(-3, -2)")],
    ".view": [("index", "{before}")],
    ".merge_heads": [("index", "{0}")],
    ".masked_fill": [("guard", "{before}"), ("bound", "{before}.masked_fill(~({0}), {1})")],
    ".triu": [("bound", "{before}.triu(0)"), ("bound", "{before}.triu(2)")],
    ".repeat_interleave": [("head", "{before}"), ("operands", "{before}.repeat(1, {0}, 1, 1)")],
    ".maximum": [("extremum", "torch.minimum({all})")],
    ".amax": [("extremum", "{before}.amin({all})"), ("index", "{before}.amax(-2, keepdim=True)")],
    ".sum": [("function", "{before}.mean({all})"), ("index", "{before}.sum(-2, keepdim=True)")],
    ".exp": [("function", "torch.exp2({all})"), ("function", "({0})")],
    ".log": [("function", "torch.log2({all})"), ("function", "({0})")],
    ".softmax": [("function", "torch.log_softmax({all})")],
    ".clamp": [("function", "{before}")],
    ".append": [("store", "None")],
    ".reset": [("store", "None")],
}  # fmt: skip
_NUMBERS = {
    "0": "1", "1": "0", "1u": "2u", "0.0f": "1.0f", "1.0f": "0.0f", "0.5f": "2.0f", "32": "16", "2": "1", "-1": "-2",
    "-2": "-1", "0.0": "1.0", "1.0": "0.0", "0.5": "2", "True": "False", "False": "True",
}  # fmt: skip
_THREADS = {
    "threadIdx.x": ("blockIdx.x", "threadIdx.y"), "threadIdx.y": ("blockIdx.y", "threadIdx.x"),
    "blockIdx.x": ("threadIdx.x", "blockIdx.y"),
    "blockDim.x": ("gridDim.x", "blockDim.y"), "lane": ("threadIdx.x", "warp"), "warp": ("threadIdx.x", "blockIdx.x"),
}  # fmt: skip
# Members of one struct that have the same type
_MEMBERS = {"m": "l", "l": "m", "mean": "inverse_std", "inverse_std": "mean", "begin": "end", "end": "begin"}


def mutations(text: str, start: int, end: int, in_python: bool = False) -> list[Mutation]:
    """The mutations that the rules make in the gap text[start:end], in source order; C++ has no comments."""
    found = set()
    for node in gap_of(text, start, end, in_python).walk():
        for rule in RULES if node.kind and node.parent else ():
            for kind, (begin, stop), new in rule(node):
                if "".join(text[begin:stop].split()) != "".join(new.split()):
                    found.add((begin, stop, kind, new, node.words))
    return sorted(found)


# ---- expressions


def _operator(node: Node) -> Iterator[Found]:
    if node.kind != "binary" or len(node.parts) != 2:
        return
    sides = left, right = [part.text for part in node.parts]
    in_head = node.parent.kind == "for"
    if node.op in _COMPARISONS:
        for number, (kind, new) in enumerate(_COMPARISONS[node.op]):
            if not (in_head and number == 1):  # reversed, a loop would not run
                yield "loop" if in_head else kind, node.place, new.format(*sides)
    elif node.is_whole_number and not in_head:
        for kind, new in _WHOLE_NUMBERS.get(node.op, ()):
            kept = new.format(*sides)
            is_pointer = node.op == "+" and kept == right and re.search(r"\*$", _type_of(node.parts[0]))
            of_head = kind == "offset" and _HEADS.search(right if kept == left else left)
            if not is_pointer and not (kind == "thread" and right != "32"):
                yield "head" if of_head else kind, node.place, kept
        yield from _arithmetic_of_an_index(node)
    else:
        for kind, new in _OTHERS.get(node.op, ()):
            yield kind, node.place, new.format(*sides)
        for (one, other), op in ((sides, node.op), (sides[::-1], node.op.replace("*=", ""))):
            for kind, new in _BY_A_FACTOR.get(op, ()) if _FACTORS.search(other) and "?" not in other else ():
                yield kind, node.place, new.format(one, other)


def _type_of(node: Node) -> str:
    """The type of the first operand of an expression."""
    return node.types.get(re.match(r"\(?(\w*)", node.text)[1], "")


def _arithmetic_of_an_index(node: Node) -> Iterator[Found]:
    left, right = node.parts
    inner = [part.text for part in left.parts]
    if node.op in ("/", "%") and left.op in ("/", "%"):
        yield "index", node.place, f"{inner[0]} {node.op} {right.text} {left.op} {inner[1]}"
    if node.op == "*" and left.op == "/" and inner[1] == right.text:
        yield "index", node.place, inner[0]  # not rounded
    if node.op == "+" and left.op == "*" and "*" not in inner[0]:
        yield "index", node.place, f"({right.text}) * {inner[1]} + {inner[0]}"
        yield "index", node.place, f"({inner[0]} + {right.text}) * {inner[1]}"


def _call(node: Node) -> Iterator[Found]:
    if node.kind not in ("call", "braced") or node.launch:
        return
    before, _, name = node.op.rpartition(".")
    arguments = [part.text for part in node.parts]
    for kind, new in (*_CALLS.get(name, ()), *(_CALLS.get(f".{name}", ()) if before else ())):
        if len(arguments) > max(map(int, re.findall(r"\{(\d)\}", new)), default=-1):
            yield kind, node.place, new.format(*arguments, all=", ".join(arguments), before=before)
    if node.op in ("Max", "Sum"):  # an object of another type: the whole statement
        other = {"Max": "Sum", "Sum": "Max"}[node.op]
        yield "extremum", node.statement.place, node.statement.with_(node, f"{other}()")


def _arguments(node: Node) -> Iterator[Found]:
    if node.kind != "call" or node.op.rpartition(".")[2] in _COMMUTATIVE:
        return
    for one, other in pairwise(node.parts[node.launch :]):
        first, second = (_type_of(part) or part.text for part in (one, other))
        if first == second and one.text != other.text:
            between = node.source[one.end : other.start]
            new = node.source[node.start : one.start] + other.text + between + one.text
            yield "operands", node.place, new + node.source[other.end : node.end]
    for part in node.parts[node.launch :]:
        if part.is_read and part.types.get(part.op) == "int":
            yield "index", part.place, f"{part.op} + 1"


def _launch(node: Node) -> Iterator[Found]:
    if node.kind != "call" or not node.launch:
        return
    blocks, threads, *more = node.parts[: node.launch]
    for new in ("1", f"{blocks.text} - 1", threads.text):
        yield "launch", blocks.place, new
    for new in (f"{threads.text} / 2", "32", f"{threads.text} * 2"):
        yield "launch", threads.place, new
    for part in more[:1] if more and more[0].text != "0" else ():
        yield "launch", part.place, f"{part.text} / 2"
        yield "launch", part.place, "0"


def _index(node: Node) -> Iterator[Found]:
    if node.kind != "index":
        return
    base, inner = node.parts
    if base.kind == "index" and base.parts[0].text != "s":
        first, second = base.parts[1].text, inner.text
        if not first.isdigit() and not second.isdigit():
            yield "index", node.place, f"{base.parts[0].text}[{second}][{first}]"
    if inner.kind in ("name", "binary", "brackets") and node.op:
        yield "index", inner.place, f"{inner.text} + 1"
        yield "index", inner.place, f"{inner.text} - 1"
    if not node.op and re.search("tile|rows", inner.text) and node.parent.parts[0] is not node:  # a slice in Python
        yield "offset", node.place, base.text


def _name(node: Node) -> Iterator[Found]:
    if node.kind != "name" or (node.parent.op == "=" and node.parent.parts[0] is node):
        return
    for other in _THREADS.get(node.op, ()):
        if "." in other or other in node.types:
            yield "thread", node.place, other
    base, _, member = node.op.rpartition(".")
    if base and member in _MEMBERS:
        yield "operands", node.place, f"{base}.{_MEMBERS[member]}"
    if not node.is_read:
        return
    mine = node.types.get(node.op, "")
    if re.fullmatch(r"batch_head|sequence_head|head|sequence", node.op) and node.statement.kind != "for":
        yield "head", node.place, "0"
    if mine == "bool" and (node.parent.kind in ("if", "ternary") or node.parent.op in ("&&", "||")):
        yield "bound", node.place, f"{'not ' if node.in_python else '!'}{node.op}"
    if mine in ("int", "float", "Tensor") or mine.endswith(("*", "]")):
        for other, its in node.types.items():
            if its == mine and other not in (node.op, "_"):
                yield "operands", node.place, other


def _number(node: Node) -> Iterator[Found]:
    if node.text in ("-INFINITY", "-torch.inf"):
        yield "initial", node.place, "0.0f" if node.text == "-INFINITY" else "0.0"
    if node.kind == "unary" and node.op in ("-", "!") and node.parts[0].kind != "number":
        yield "sign", node.place, node.parts[0].text
    outer = node.parent
    if re.fullmatch(r"\d*\.\d+f", node.text) and node.text != "0.0f":
        yield "initial", node.place, f"{float(node.text[:-1]) * 2}f"
    divides = outer.kind == "binary" and outer.op in ("/", "%") and node is outer.parts[1]
    fixed = divides or node.statement.kind == "for" or outer.launch or outer.text == f"-{node.text}"
    if node.kind in ("number", "unary") and node.text in _NUMBERS and not fixed:
        kind = "initial" if outer.op == "=" and node.text == "0.0f" else "constant"
        yield kind, node.place, _NUMBERS[node.text]


def _cast(node: Node) -> Iterator[Found]:
    if node.kind == "cast" and re.match(r"static_cast<(int|size_t|unsigned)|u?int", node.op):
        yield "cast", node.place, f"({node.parts[0].text})"


# ---- conditions and loops


def _condition(node: Node) -> Iterator[Found]:
    if node.kind == "ternary":
        condition, yes, no = node.parts
        if "State{" not in node.text:
            yield "guard", node.place, yes.text
            yield "guard", node.place, no.text
            turned = (f"{no.text} if ", f" else {yes.text}") if node.in_python else ("", f" ? {no.text} : {yes.text}")
            yield "bound", node.place, condition.text.join(turned)
    if node.kind == "jump" and node.text in ("continue;", "break;"):
        yield "leaving", node.place, "break;" if node.text == "continue;" else "continue;"
    if node.kind != "if" or not node.parts:
        return
    condition, body = node.parts[0], node.body[0]
    always, never = ("True", "False") if node.in_python else ("true", "false")
    yield "guard", condition.place, never if body.kind == "jump" else always
    looped = any(one.kind == "for" for one in node.parents())
    if node.after and body.kind != "jump" and not node.in_python and (looped or "void" in node.function):
        leave = "break" if looped else "return"
        yield "leaving", node.place, f"if (!({condition.text})) {leave}; {body.text}"


def _loop(node: Node) -> Iterator[Found]:
    if node.kind != "for":
        return
    last = node.body[-1].body[-1] if node.body[-1].body else node.body[-1]
    if node.in_python:
        yield "leaving", last.place, f"{last.text}{last.line_end}break"
    elif last.kind in ("simple", "if"):
        yield "leaving", last.place, f"{{ {last.text} break; }}"
    if len(node.parts) < 3:
        return
    begin, _, step = node.parts
    first = begin.parts[1]
    yield "loop", first.place, "0"
    yield "loop", first.place, f"{first.text} + 1"
    if step.kind == "unary":
        yield "loop", step.place, f"{step.parts[0].text} += 2"
        return
    name, size = (part.text for part in step.parts)
    yield "loop", step.place, f"{name} {step.op} {size} * 2"
    yield "loop", step.place, f"++{name}" if step.op == "+=" else f"{name} = 0"
    if step.op == "+=":
        yield "loop", first.place, f"{first.text} + {size}"
        yield "loop", step.place, f"{name} += {size} / 2"


# ---- statements


def _barrier(node: Node) -> Iterator[Found]:
    if node.text not in _BARRIERS:
        return
    yield "barrier", node.place, ""
    yield "barrier", node.place, f"if (threadIdx.x < 16) {node.text}"
    if "lane" in node.types:
        yield "barrier", node.place, f"if (lane == 0) {node.text}"
    if node.text == "__syncthreads();":
        yield "barrier", node.place, "__syncwarp();"
    around = node.parent.parent
    if around is not None and around.kind == "for":
        yield "barrier", around.whole, f"{around.with_(node, '')} {node.text}"
    if "void" in node.function:
        yield "leaving", node.place, f"if (threadIdx.x >= 128) return; {node.text}"


def _names_written(node: Node) -> set[str]:
    """What a statement may change: what it assigns to, the arrays and structs it passes to a call, and the object whose
    method it calls."""
    found = set()
    for one in node.walk():
        if one.kind == "binary" and re.fullmatch(r"[-+*/|]?=", one.op):
            found.add(re.match(r"[\w.]*", one.parts[0].text)[0])
        if one.kind == "call":
            values = r"const |int$|float$|bool$|Tensor$|$"
            found |= {_type_of(part) and part.text for part in one.parts if not re.match(values, _type_of(part))}
            found.add(one.op.rpartition(".")[0])
    return {name for name in found if re.fullmatch(r"\w[\w.]*", name)}


def _mention(name: str) -> str:
    """A pattern that matches a name, or a member and its whole struct."""
    base, _, member = name.partition(".")
    return rf"(?<![.\w]){base}(?:\.{member}\b|(?![.\w]))" if member else rf"(?<![.\w]){base}\b"


def _order(node: Node) -> Iterator[Found]:
    other, movable = node.after, ("simple", "for", "if")
    if other is None or node.kind not in movable or other.kind not in movable:
        return
    is_barrier = {node.text, other.text} & {*_BARRIERS}
    written = [(name, other) for name in _names_written(node) if "." in name or name in node.types]
    written += [(name, node) for name in _names_written(other)]
    depends = any(re.search(_mention(name), reader.text) for name, reader in written)
    if (depends or is_barrier) and node.source.count("\n", node.start, other.end) < _MOST_LINES:
        new = f"{other.text}{node.line_end}{node.text}"
        yield "barrier" if is_barrier else "order", (node.whole[0], other.end), new


def _statement(node: Node) -> Iterator[Found]:
    if node.kind != "simple" or node.text in _BARRIERS or not node.parts or not node.parts[0].kind:
        return
    one, nothing, twice = node.parts[0], "pass" if node.in_python else "", f"{node.text}{node.line_end}{node.text}"
    if one.kind == "call" and not one.op.startswith("CUDA_"):
        yield "call", node.place, nothing
        if re.search(r"multiply|accumulate|softmax|scale_|append", one.op):
            yield "adding", node.place, twice
    if one.kind != "binary" or (node.in_python and one.parts[0].op.isidentifier() and not _type_of(one)):
        return  # Python code may need what it declares
    target, value = (part.text for part in one.parts)
    end, kind, begins = ";" * (not node.in_python), _type_of(one), value in ("0.0f", "-INFINITY")
    if one.op in ("+=", "|="):
        yield "adding", node.place, f"{target} = {value}{end}"
    if one.op != "=":
        yield "rescale" if one.op == "*=" else "store", node.place, nothing
        yield "adding", node.place, twice
    else:
        yield "initial" if begins else "store", node.place, nothing
        if not begins and re.search(r"\bfloat(?!4)|State<|int\*|Tensor", kind):
            yield "adding", node.place, f"{target} += {value}{end}"
        if re.search(rf"(?<![.\w]){re.escape(target)}(?![.\w])", value) and "max" not in value:
            yield "adding", node.place, twice
    shared = kind.endswith("*") or kind.startswith("shared")
    guarded = any(other.kind == "if" and "== 0" in other.words for other in node.parents())
    if one.parts[0].kind == "index" and shared and not guarded and re.search("__(?:global|device)__", node.function):
        for number in ("threadIdx.x", *(("lane",) if "lane" in node.types else ())):
            yield "store", node.place, f"if ({number} == 0) {node.text}"


RULES = (
    _operator, _call, _arguments, _launch, _index, _name, _number, _cast, _condition, _loop, _barrier, _order,
    _statement,
)  # fmt: skip
