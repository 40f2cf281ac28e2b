"""Mistakes in CUDA C++ by rule: mutations(text, start, end) of the gap text[start:end].

A rule looks at one node of the tree (c_tree.py) and yields (kind, place, what stands there instead). Places are whole
expressions or whole statements, as common.compiling.planting wants them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from c_tree import Node, gap_of
from mutants import Mutation

Found = tuple[str, tuple[int, int], str]
Rule = Callable[[Node], Iterator[Found]]
FACTORS = re.compile(r"rescale|weight|exp|inverse|factor|scale|log2_e", re.IGNORECASE)
_HEADS = re.compile(r"\b(batch\w*|\w*head|\w*heads|sequence\w*|group|matrix)\b(?!_dim)")
_COMPARISONS = ("<", ">", "<=", ">=", "==", "!=")
_ARITHMETIC = ("+", "-", "*", "/", "%")
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "!=", "!=": "=="}
_ONE_OFF = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_COMMUTATIVE = ("fmaxf", "fminf", "add_dot")
_FUNCTIONS = {"expf": "exp2f", "exp2f": "expf", "logf": "log2f", "log2f": "logf", "rsqrtf": "sqrtf", "tanhf": "erff"}
_REDUCTIONS = {"warp_sum": "warp_max", "warp_max": "warp_sum", "Max": "Sum", "Sum": "Max"}
_NUMBERS = {"0": "1", "1": "0", "1u": "2u", "0.0f": "1.0f", "1.0f": "0.0f", "0.5f": "2.0f", "32": "16", "2": "1"}
_THREADS = {
    "threadIdx.x": ("blockIdx.x", "threadIdx.y"), "threadIdx.y": ("blockIdx.y", "threadIdx.x"),
    "blockIdx.x": ("threadIdx.x", "blockIdx.y"),
    "blockDim.x": ("gridDim.x", "blockDim.y"), "lane": ("threadIdx.x", "warp"), "warp": ("threadIdx.x", "blockIdx.x"),
}  # fmt: skip
# Members of one struct, of one type
_MEMBERS = {"m": "l", "l": "m", "mean": "inverse_std", "inverse_std": "mean", "begin": "end", "end": "begin"}
_MOST_LINES = 8  # of two statements that are exchanged
_BARRIERS = ("__syncthreads();", "__syncwarp();")
_ADDS = re.compile(r"\w*(?:multiply|accumulate|softmax|scale_)\w*")  # functions that add to what is there


def mutations(text: str, start: int, end: int) -> list[Mutation]:
    """What the rules make of the gap text[start:end], in the order of the text, which has no comments."""
    found = []
    for node in gap_of(text, start, end).walk():
        for rule in RULES if node.kind else ():
            for kind, (begin, stop), new in rule(node):
                old = text[begin:stop]
                if old.strip() == new.strip():
                    continue
                line = text.count("\n", 0, begin + len(old) - len(old.lstrip())) + 1
                if pragmas := re.match(r"(?:\s*#[^\n]*\n)+", old):  # before a loop
                    line += len(pragmas[0].lstrip("\n").splitlines())
                found.append(Mutation(kind, begin, stop, old.strip(), new, line, node.words))
    return sorted(set(found), key=lambda one: (one.start, one.end, one.kind, one.new))


# ---- barriers


def _is_barrier(node: Node | None) -> bool:
    return node is not None and node.text in _BARRIERS


def _beside(node: Node, step: int) -> Node | None:
    """The statement before (-1) or after (1) it in its block."""
    if node.parent is None or node.parent.kind not in ("block", "gap"):
        return None
    at = node.parent.body.index(node) + step
    other = node.parent.body[at] if 0 <= at < len(node.parent.body) else None
    return other if other is not None and other.kind else None


def _movable(node: Node | None) -> bool:
    """Whether something else may come before it or after it: nothing needs what it declares."""
    return node is not None and node.kind in ("simple", "for", "if")


def _swapped(first: Node, second: Node) -> tuple[tuple[int, int], str]:
    """Two neighbors in the other order: the place of both, and the new text."""
    return (first.whole[0], second.end), f"{second.text} {first.text}"


def _barrier(node: Node) -> Iterator[Found]:
    if not _is_barrier(node):
        return
    before, after, around = _beside(node, -1), _beside(node, 1), node.parent.parent
    yield "barrier", node.place, ""
    yield "barrier", node.place, f"if (threadIdx.x < 16) {node.text}"
    if "lane" in node.known:
        yield "barrier", node.place, f"if (lane == 0) {node.text}"
    if node.text == "__syncthreads();":
        yield "barrier", node.place, "__syncwarp();"
    for other in (before, after):
        if _movable(other):
            yield "barrier", *_swapped(*((other, node) if other is before else (node, other)))
        if other is not None and other.kind in ("for", "if") and other.body[0].kind == "block":
            inner = other.body[0]
            if other is before:
                place = other.whole[0], node.end
                new = f"{node.source[other.start : inner.end - 1]}    {node.text} }}"
            else:
                place, at = (node.start, other.end), inner.start + 1
                new = f"{node.source[other.start : at]} {node.text}{node.source[at : other.end]}"
            yield "barrier", place, new
    if around is not None and around.kind == "for":
        yield "barrier", around.whole, f"{around.with_(node, '')} {node.text}"
    if re.search(r"\bvoid\b", node.function[: node.function.index("{")]):
        yield "leaving", node.place, f"if (threadIdx.x >= 128) return; {node.text}"


# ---- loops and conditions


def _loop(node: Node) -> Iterator[Found]:
    if node.kind == "simple" and node.parent.kind == "for":  # the only statement of a loop
        yield "leaving", node.place, f"{{ {node.text} break; }}"
    if node.kind != "for" or not node.parts:
        return
    begin, condition, step = node.parts
    first = begin.parts[1]
    if condition.kind == "binary" and condition.op in ("<", ">"):
        left, right = (part.text for part in condition.parts)
        yield "loop", condition.place, f"{left} {condition.op}= {right}"
        yield "loop", condition.place, f"{left} {condition.op} {right} {'-' if condition.op == '<' else '+'} 1"
        if step.op == "+=" and not re.search(r"::|^[A-Z]\w", right):
            yield "loop", condition.place, f"{left} != {right}"
    if first.text != "0":
        yield "loop", first.place, "0"
    yield "loop", first.place, "1" if first.text == "0" else f"{first.text} + 1"
    if step.kind == "unary":
        yield "loop", step.place, f"{step.parts[0].text} += 2"
    elif step.op in ("+=", "/="):
        name, size = (part.text for part in step.parts)
        yield "loop", step.place, f"++{name}" if step.op == "+=" else f"{name} = 0"
        yield "loop", step.place, f"{name} {step.op} {size} * 2"
        if step.op == "+=":
            yield "loop", first.place, size if first.text == "0" else f"{first.text} + {size}"
            yield "loop", step.place, f"{name} += {size} / 2"


def _bound(node: Node) -> Iterator[Found]:
    around = node.parent
    if node.kind != "binary" or around is None:
        if node.is_variable and node.known.get(node.op) == "bool" and _is_whole(node):
            yield "bound", node.place, f"!{node.op}"
        return
    left, right = (part.text for part in node.parts)
    in_head = around.kind == "for" and node in around.parts
    fixed = in_head and re.search(r"::|^[A-Z]\w", right)  # a size that is known when the kernel is compiled
    if node.op in _ONE_OFF and not in_head:
        yield "bound", node.place, f"{left} {_ONE_OFF[node.op]} {right}"
    if node.op in _ONE_OFF and right != "0":
        yield "bound", node.parts[1].place, f"{right} {'-' if node.op in ('<', '>=') else '+'} 1"
    if node.op in _COMPARISONS and not fixed:
        yield "bound", node.place, f"{left} {_TURNED[node.op]} {right}"
    if node.op in ("&&", "||"):
        yield "bound", node.place, left
        yield "bound", node.place, right
        yield "bound", node.place, f"{left} {'||' if node.op == '&&' else '&&'} {right}"
        if _is_whole(node):
            yield "bound", node.place, f"!({node.text})"


def _is_whole(node: Node) -> bool:
    """Whether it is all of a condition, or one side of it."""
    around = node.parent
    return around is not None and (
        (around.kind == "if" and node in around.parts)
        or (around.kind == "ternary" and node is around.parts[0])
        or (around.kind == "binary" and around.op in ("=", "&&", "||"))
    )


def _guard(node: Node) -> Iterator[Found]:
    if node.kind == "if" and len(node.body) == 1:
        body = node.body[0]
        yield "guard", node.whole, "" if body.kind == "jump" else body.text
        returns_nothing = re.search(r"\bvoid\b", node.function[: node.function.index("{")])
        looped = any(one.kind == "for" for one in node.parents())
        goes_on = _beside(node, 1) is not None or (looped and re.search(r"\|\||[a-z] (?!<)", node.head))
        if body.kind != "jump" and goes_on and (looped or returns_nothing):
            yield "leaving", node.whole, f"if (!({node.head})) {'break' if looped else 'return'}; {body.text}"
    if node.kind == "ternary":
        condition, yes, no = node.parts
        constant = re.compile(r"-?INFINITY|0\.0f|State\{.*\}|-1")
        for one, other in ((yes, no), (no, yes)):
            if constant.fullmatch(other.text) and not constant.fullmatch(one.text):
                yield "guard", node.place, one.text
        if condition.op in _ONE_OFF:
            yield "bound", node.place, f"{condition.text} ? {no.text} : {yes.text}"
    if node.kind == "jump" and node.op in ("continue", "break"):
        yield "leaving", node.place, "break;" if node.op == "continue" else "continue;"


# ---- indices


def _index(node: Node) -> Iterator[Found]:
    if node.kind == "index" and node.parts[0].kind == "index":
        inner = node.parts[0]
        base, first, second = (one.text for one in (*inner.parts, node.parts[1]))
        if not first.isdigit() and not second.isdigit() and base != "s":
            yield "index", node.place, f"{base}[{second}][{first}]"
    if node.kind == "index" and node.parts[1].kind in ("name", "binary", "brackets"):
        inner = node.parts[1]
        if inner.kind != "binary" or inner.op in _ARITHMETIC:
            yield "index", inner.place, f"{inner.text} + 1"
            yield "index", inner.place, f"{inner.text} - 1"
    called = node.parent is not None and node.parent.kind == "call" and not node.parent.launch
    if called and node.is_variable and node.known.get(node.op) == "int":
        yield "index", node.place, f"{node.op} + 1"
    if node.kind == "call" and node.op == "ceil_div":
        yield "index", node.place, "({}) / {}".format(*(part.text for part in node.parts))
    if node.kind == "call" and node.op == "blocks_for":
        yield "launch", node.place, f"static_cast<unsigned>(({node.parts[0].text}) / THREADS)"


def _arithmetic_of_an_index(node: Node) -> Iterator[Found]:
    if node.kind != "binary" or node.op not in _ARITHMETIC or not node.is_address:
        return
    left, right = node.parts
    around, inner = node.statement, [part.text for part in left.parts]
    if node.op in ("/", "%"):
        yield "index", node.place, f"{left.text} {'%' if node.op == '/' else '/'} {right.text}"
        if left.op in ("/", "%"):
            yield "index", node.place, f"{inner[0]} {node.op} {right.text} {left.op} {inner[1]}"
    if node.op == "*" and left.op == "/" and left.parts[1].text == right.text:
        yield "index", node.place, inner[0]  # not rounded
    if node.op == "+" and left.op == "*":
        if right.kind in ("name", "brackets") and "*" not in inner[0]:
            yield "index", node.place, f"{right.text} * {inner[1]} + {inner[0]}"
        yield "index", node.place, f"({inner[0]} + {right.text}) * {inner[1]}"
    elif node.op == "+" and right.kind in ("name", "number"):
        yield "index", node.place, f"{left.text} - {right.text}"
    if node.op == "/" or (around is not None and around.kind == "for" and node.parent is around):
        return
    pointer = around is not None and around.kind == "declaration" and "*" in around.op
    options = [(left, right)] + ([(right, left)] if node.op in "+*" and not pointer else [])
    for kept, dropped in options:
        yield "head" if _HEADS.search(dropped.text) else "offset", node.place, kept.text


def _name(node: Node) -> Iterator[Found]:
    if node.kind != "name" or node.is_written or node.is_member:
        return
    around, mine = node.statement, node.known.get(node.op, "")
    of_a_head = re.fullmatch(r"batch_head|sequence_head|head|sequence", node.op)
    if of_a_head and around is not None and around.kind in ("declaration", "simple"):
        yield "head", node.place, "0"
    for other in _THREADS.get(node.op, ()):
        if "." in other or other in node.known:
            yield "thread", node.place, other
    base, _, member = node.op.rpartition(".")
    if base and member in _MEMBERS:
        yield "operands", node.place, f"{base}.{_MEMBERS[member]}"
    if node.is_variable and (mine in ("int", "float") or mine.endswith(("*", "]"))):
        for other, its in node.known.items():
            if its == mine and other != node.op:
                yield "operands", node.place, other


# ---- numbers


def _number(node: Node) -> Iterator[Found]:
    around, outer = node.statement, node.parent
    if node.text == "-INFINITY" and node.kind in ("unary", "name"):
        yield "initial", node.place, "0.0f"
    if node.kind == "unary" and node.op in ("-", "!"):
        yield "sign", node.place, node.parts[0].text
    if node.kind != "number" or outer is None:
        return
    if re.fullmatch(r"\d*\.\d+f", node.text) and node.text != "0.0f":
        yield "initial", node.place, f"{float(node.text[:-1]) * 2}f"
    if node.text == "0.0f" and around is not None and around.kind == "declaration" and outer.op == "=":
        yield "initial", node.place, "1.0f"
    divides = outer.kind == "binary" and outer.op in ("/", "%") and node is outer.parts[1]
    in_head = around is not None and around.kind == "for"
    launched = outer.kind == "call" and outer.launch > 0
    if not (divides or in_head or launched) and node.text in _NUMBERS:
        yield "constant", node.place, _NUMBERS[node.text]


def _arithmetic(node: Node) -> Iterator[Found]:
    if node.kind != "binary":
        return
    left, right = (part.text for part in node.parts)
    if node.op in ("+=", "-=") and node.parent is not None and node.parent.kind == "simple":
        yield "sign", node.place, f"{left} {'-=' if node.op == '+=' else '+='} {right}"
    if node.op in ("<<", "&", "|="):
        other = {"<<": f"{left} << ({right} + 1)", "&": f"{left} | {right}", "|=": f"{left} &= {right}"}[node.op]
        yield "function", node.place, other
    if node.op in ("/", "%") and right == "32":
        yield "thread", node.place, left
    if node.is_address:
        return
    if node.op in ("-", "+"):
        yield "sign", node.place, f"{left} {'+' if node.op == '-' else '-'} {right}"
    if node.op in ("-", "/"):
        yield "operands", node.place, f"{right} {node.op} {left}"
    if node.op == "/":
        yield "rescale", node.place, left
        yield "rescale", node.place, f"{left} * {right}"
    if node.op in ("*", "*=") and FACTORS.search(right) and "?" not in right:
        yield "rescale", node.place, left
        yield "rescale", node.place, f"{left} {'/=' if node.op == '*=' else '/'} {right}"
        yield "rescale", node.place, f"{left} {node.op} {right} * {right}"
    if node.op == "*" and FACTORS.search(left):
        yield "rescale", node.place, right
        yield "rescale", node.place, f"{left} * {left} * {right}"


def _cast(node: Node) -> Iterator[Found]:
    if node.kind == "cast" and re.match(r"static_cast<(int|size_t|unsigned)|u?int", node.op):
        yield "cast", node.place, f"({node.parts[0].text})"
    if node.kind == "binary" and node.op == "*" and all(one.op == "static_cast<float>" for one in node.parts):
        around = node.statement  # the whole statement: its two versions have different types
        if around is not None and around.kind == "simple":
            yield "cast", around.place, around.with_(node, " * ".join(one.parts[0].text for one in node.parts))


def _call(node: Node) -> Iterator[Found]:
    if node.kind == "ternary" and node.parts[0].kind == "binary" and node.parts[0].op in ("<", ">"):
        condition, yes, no = node.parts
        if {part.text for part in condition.parts} == {yes.text, no.text}:
            yield "extremum", node.place, f"{condition.text} ? {no.text} : {yes.text}"
            yield "extremum", node.place, yes.text
            yield "extremum", node.place, no.text
    if node.kind not in ("call", "braced") or node.launch:
        return
    arguments, rest = [part.text for part in node.parts], node.text.removeprefix(node.op)
    if node.op == "fmaxf":
        yield "extremum", node.place, f"fminf{rest}"
    if node.op in ("fmaxf", "combine"):
        for one in arguments:
            yield "extremum", node.place, one
    if node.op in _REDUCTIONS:
        if arguments:
            yield "extremum", node.place, _REDUCTIONS[node.op] + rest
        else:  # an object of another type: the whole statement
            yield "extremum", node.statement.place, node.statement.with_(node, _REDUCTIONS[node.op] + rest)
    if node.op in ("warp_sum", "warp_max", "merge_warp", "__popc"):
        yield "extremum", node.place, f"({arguments[0]})" if node.parts[0].kind == "binary" else arguments[0]
    if node.op == "__shfl_sync":
        yield "thread", node.place, arguments[1]
        yield "thread", node.place, node.text.replace(f", {arguments[2]})", ", 0)")
    if node.op in _FUNCTIONS:
        yield "function", node.place, _FUNCTIONS[node.op] + rest
        yield "function", node.place, f"({arguments[0]})"
    if node.op == "make_float4":
        for before, part in pairwise(node.parts):
            yield "operands", part.place, "0.0f"
            yield "operands", part.place, before.text


def _arguments(node: Node) -> Iterator[Found]:
    if node.kind != "call" or node.op in _COMMUTATIVE:
        return
    for one, other in pairwise(node.parts[node.launch :]):
        first, second = (node.known.get(re.match(r"\w*", part.text)[0], part.text) for part in (one, other))
        if first == second and one.text != other.text:
            between = node.source[one.end : other.start]
            new = node.source[node.start : one.start] + other.text + between + one.text
            yield "operands", node.place, new + node.source[other.end : node.end]


def _launch(node: Node) -> Iterator[Found]:
    if node.kind != "call" or not node.launch:
        return
    blocks, threads, *more = node.parts[: node.launch]
    yield "launch", blocks.place, "1"
    yield "launch", blocks.place, f"{blocks.text} - 1"
    yield "launch", blocks.place, threads.text
    yield "launch", threads.place, f"{threads.text} / 2"
    yield "launch", threads.place, "32"
    if "__launch_bounds__" in node.source:  # any number of threads is as good elsewhere
        yield "launch", threads.place, f"{threads.text} * 2"
    if more and more[0].text != "0":
        yield "launch", more[0].place, f"{more[0].text} / 2"
        yield "launch", more[0].place, "0"
    if blocks.kind == "call" and len(blocks.parts) == 1 and blocks.parts[0].op == "*":
        for part in blocks.parts[0].parts:
            yield "launch", blocks.parts[0].place, part.text


# ---- statements


def _names_written(node: Node, known: dict[str, str]) -> set[str]:
    """What a statement may change: what it assigns to, and the arrays and structs that it passes to a call."""
    found = set()
    for one in node.walk():
        if one.kind == "binary" and re.fullmatch(r"[-+*/|]?=", one.op):
            found.add(re.match(r"[\w.]*", one.parts[0].text)[0])
        if one.kind == "call":
            names = {re.match(r"\w*", part.text)[0] for part in one.parts}
            found |= {name for name in names if not re.match(r"const |int$|float$|bool$|$", known.get(name, ""))}
    return found - {""}


def _mention(name: str) -> str:
    """A pattern for a name, or for a member and its whole struct."""
    base, _, member = name.partition(".")
    return rf"(?<![.\w]){base}(?:\.{member}\b|(?![.\w]))" if member else rf"(?<![.\w]){base}\b"


def _order(node: Node) -> Iterator[Found]:
    other = _beside(node, 1)
    if not _movable(node) or not _movable(other) or _is_barrier(node) or _is_barrier(other):
        return
    depends = any(
        re.search(_mention(name), reader.text)
        for writer, reader in ((node, other), (other, node))
        for name in _names_written(writer, node.known)
    )
    if depends and node.source.count("\n", node.start, other.end) < _MOST_LINES:
        yield "order", *_swapped(node, other)


def _statement(node: Node) -> Iterator[Found]:
    if node.kind != "simple" or not node.parts or not node.parts[0].kind:
        return
    one, known = node.parts[0], node.known
    if one.kind == "call" and not _is_barrier(node) and not one.op.startswith("CUDA_"):
        yield "call", node.place, ""
        if _ADDS.match(one.op):
            yield "adding", node.place, f"{node.text} {node.text}"
    if one.kind != "binary":
        return
    target, value = (part.text for part in one.parts)
    kind = known.get(re.match(r"\w*", target)[0], "")
    begins = value in ("0.0f", "-INFINITY")
    if one.op in ("+=", "|=", "*="):
        yield ("rescale", node.place, "") if one.op == "*=" else ("adding", node.place, f"{target} = {value};")
        yield "adding", node.place, f"{node.text} {node.text}"
    elif one.op == "=":
        yield "initial" if begins else "store", node.place, ""
        if not begins and (re.search(r"\bfloat(?!4)|State<", kind) or kind == "int*"):
            yield "adding", node.place, f"{target} += {value};"
        if re.search(rf"(?<![.\w]){re.escape(target)}(?![.\w])", value) and "fmaxf" not in value:
            yield "adding", node.place, f"{node.text} {node.text}"
    guarded = any(other.kind == "if" and "== 0" in other.head for other in node.parents())
    shared = kind.endswith("*") or kind.startswith("shared")
    in_kernel = re.search(r"__(?:global|device)__", node.function) and "threadIdx.x > 0) return" not in node.function
    if one.op.endswith("=") and one.parts[0].kind == "index" and shared and in_kernel and not guarded:
        for number in ("threadIdx.x", *(("lane",) if "lane" in known else ())):
            yield "store", node.place, f"if ({number} == 0) {node.text}"


RULES: tuple[Rule, ...] = (
    _barrier, _loop, _bound, _guard, _index, _arithmetic_of_an_index, _name, _number, _arithmetic, _cast,
    _call, _arguments, _launch, _order, _statement,
)  # fmt: skip
