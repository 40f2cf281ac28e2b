"""Mistakes in the Python gaps by rule: mutations(text, start, end) of the gap text[start:end]."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from common.mutants.mutation import Mutation

Found = tuple[str, ast.AST | tuple[ast.AST, ast.AST], str]  # kind, node or (first, last), new text
Rule = Callable[[ast.AST, dict, "ModuleText"], Iterator[Found]]  # of a node, what each stands in, and the text
_CONFUSED = (
    ("query", "key"), ("key", "value"), ("keys", "values"), ("q_start", "k_start"), ("B_r", "B_c"),
    ("seq_len", "head_dim"), ("queries", "keys"), ("outs", "lse"), ("k_cache", "v_cache"),
)  # fmt: skip
_FEWER = {ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<")}


class ModuleText:
    """A module's text, and where its nodes stand in it. (ast.get_source_segment splits the whole text at each call.)"""

    def __init__(self, text: str) -> None:
        self.text, self._lines, self._begins = text, text.split("\n"), [0]
        for line in self._lines:
            self._begins.append(self._begins[-1] + len(line) + 1)

    def place(self, node: ast.AST) -> tuple[int, int]:
        """(start, end) of a node; columns are counted in bytes."""
        ends = ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        start, end = (
            self._begins[line - 1] + len(self._lines[line - 1].encode()[:column].decode()) for line, column in ends
        )
        return start, end

    def words(self, node: ast.AST) -> str:
        """The node's text."""
        start, end = self.place(node)
        return self.text[start:end]


def mutations(text: str, start: int, end: int) -> list[Mutation]:
    """Every mutation of the gap, in the order of the text."""
    return made_by(_found, text, start, end)


def made_by(rule: Rule, text: str, start: int, end: int) -> list[Mutation]:
    """What a rule makes of the gap text[start:end]; a node in the tuples that it yields may be (first, last)."""
    whole, found = ModuleText(text), []
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not hasattr(node, "lineno") or not start <= whole.place(node)[0] < end:
            continue
        statement = node
        while not isinstance(statement, ast.stmt):
            statement = parents[statement]
        words = whole.words(statement).split("\n")[0]
        for kind, place, new in rule(node, parents, whole):
            first, last = place if isinstance(place, tuple) else (place, place)
            begin, stop = whole.place(first)[0], whole.place(last)[1]
            if text[begin:stop] != new and stop <= end:
                found.append(Mutation(kind, begin, stop, text[begin:stop], new, first.lineno, words.strip()))
    return sorted(set(found), key=lambda one: (one.start, one.end, one.kind, one.new))


def _found(node: ast.AST, parents: dict, whole: ModuleText) -> Iterator[Found]:
    words = whole.words

    if isinstance(node, ast.Compare) and type(node.ops[0]) in _FEWER:
        old, new = _FEWER[type(node.ops[0])]
        yield "bound", node, words(node).replace(f" {old} ", f" {new} ", 1)
        yield "operands", node, f"{words(node.comparators[0])} {old} {words(node.left)}"
    if isinstance(node, ast.IfExp):
        yield "guard", node, words(node.body)
        yield "guard", node, words(node.orelse)
    if isinstance(node, ast.If) and not node.orelse:
        yield "guard", node.test, "True"
        yield "guard", node.test, "False"
    if isinstance(node, ast.BinOp):
        left, right = words(node.left), words(node.right)
        if isinstance(node.op, ast.Mult):
            yield "rescale", node, left
            yield "rescale", node, right
        if isinstance(node.op, ast.Div):
            yield "rescale", node, left
        if isinstance(node.op, ast.Div | ast.Mult) and re.search("scale|head_dim", right + left):
            yield "rescale", node, f"{left} {'*' if isinstance(node.op, ast.Div) else '/'} {right}"
        if isinstance(node.op, ast.Sub):
            yield "sign", node, f"{left} + {right}"
            yield "operands", node, f"{right} - {left}"
        if isinstance(node.op, ast.Add):
            floats = re.search(r"exp|rescale|sum|@", left + right)
            yield "store" if floats else "offset", node, left
            yield "store" if floats else "offset", node, right
        if isinstance(node.op, ast.MatMult):
            yield "operands", node, f"{right} @ {left}"
        if isinstance(node.op, ast.Pow):
            yield "rescale", node, left
    if isinstance(node, ast.UnaryOp) and words(node) == "-torch.inf":
        outer = parents.get(node)
        if isinstance(outer, ast.Call):
            yield "initial", node, "0.0"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name, base = node.func.attr, words(node.func.value)
        if name in ("transpose", "view", "merge_heads", "masked_fill", "repeat_interleave"):
            kept = words(node.args[0]) if base == "self" else base
            kind = {"masked_fill": "guard", "repeat_interleave": "head"}.get(name, "indices")
            yield kind, node, kept
        swapped = {"maximum": "minimum", "amax": "amin", "exp": "exp2", "repeat_interleave": "repeat"}
        if name in swapped:
            new = words(node).replace(f".{name}(", f".{swapped[name]}(", 1)
            if name == "repeat_interleave":
                new = f"{base}.repeat(1, {words(node.args[0])}, 1, 1)"
            yield "extremum" if name in ("maximum", "amax") else "operands", node, new
        if name == "sum" or name == "amax":
            yield "indices", node, words(node).replace("(-1", "(-2", 1)
        if name == "where" and len(node.args) == 3:
            yield "guard", node, words(node.args[2])
        if name == "reset":
            yield "store", node, "None"
        if name == "append":
            yield "store", node, "None"
        for keyword in node.keywords:
            if keyword.arg in ("dim", "diagonal") and name != "repeat_interleave":
                new = {"dim": "0" if words(keyword.value) != "0" else "1", "diagonal": "0"}[keyword.arg]
                yield "indices" if keyword.arg == "dim" else "bound", keyword.value, new
                if keyword.arg == "diagonal":
                    yield "bound", keyword.value, "2"
                else:
                    yield "indices", keyword.value, "-2"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "min":
            yield "extremum", node, "max" + words(node)[3:]
            for argument in node.args:
                yield "bound", node, words(argument)
        if node.func.id == "range" and len(node.args) == 3:
            first, last, step = map(words, node.args)
            yield "loop", node, f"range({first}, {last} - {step}, {step})"
            yield "loop", node, f"range({step}, {last}, {step})"
            yield "loop", node, f"range({first}, {last} - 1, {step})"
        names = [argument for argument in node.args if isinstance(argument, ast.Name)]
        for first, second in zip(node.args, node.args[1:], strict=False):
            if first in names and second in names and node.func.id != "range":
                new = words(node).replace(f"{first.id}, {second.id}", f"{second.id}, {first.id}", 1)
                yield "operands", node, new
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        for first, second in zip(node.args, node.args[1:], strict=False):
            a, b = words(first), words(second)
            if {a, b} <= {"query", "key", "keys", "value", "values", "k_cache", "v_cache"}:
                yield "operands", node, words(node).replace(f"{a}, {b}", f"{b}, {a}", 1)
            if f"{a}, {b}" == "-2, -1":
                yield "indices", node, words(node).replace("-2, -1", "-3, -2", 1)
    if isinstance(node, ast.Call) and node.args and words(node.args[-1]) == "True":
        yield "guard", node.args[-1], "False"
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        for pair in _CONFUSED:
            for mine, other in (pair, pair[::-1]):
                function = parents.get(node)
                while function is not None and not isinstance(function, ast.FunctionDef):
                    function = parents.get(function)
                known = words(function).split(words(node))[0] if function else ""
                if node.id == mine and re.search(rf"\b{other}\b", known):
                    yield "operands", node, other
    if isinstance(node, ast.Subscript):
        base = words(node.value)
        if re.search("tile|rows", words(node.slice)) and isinstance(node.ctx, ast.Load):
            yield "offset", node, base
