"""Single edits of Python: edits_in(source, file, lines), and edited(source, edit), the source with one of them.

The counterpart of single_edits.py for the tasks' Python files. Nothing is compiled: a worker runs the edited text in
place of the file's own (common/testing/python_side.py).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

from common.diagnosis.single_edits import Change, Edit

_COMPARED = {
    ast.Lt: "<= > >=", ast.LtE: "< >= >", ast.Gt: ">= < <=", ast.GtE: "> <= <", ast.Eq: "!= >= <=", ast.NotEq: "==",
}  # fmt: skip
_COMPUTED = {
    ast.Add: "- *", ast.Sub: "+", ast.Mult: "/ +", ast.Div: "* //", ast.FloorDiv: "/ %", ast.Mod: "//", ast.Pow: "*",
    ast.MatMult: "*",
}  # fmt: skip
_WRITTEN = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.MatMult: "@",
}  # fmt: skip
_FUNCTIONS = (
    ("exp", "exp2"), ("log", "log2"), ("maximum", "minimum"), ("amax", "amin", "sum", "mean"), ("max", "min"),
    ("tril", "triu"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("repeat_interleave", "repeat"),
    ("logical_and", "logical_or"), ("cumsum", "cumprod"), ("argmax", "argmin"),
)  # fmt: skip
_REDUCTIONS = ("amax", "amin", "sum", "mean", "prod", "logsumexp", "cumsum", "softmax", "log_softmax")
_NUMBERS = ("0", "1", "-1", "2", "-2", "0.0", "1.0", "0.5", "-torch.inf")
_DIMENSIONS = ("-1", "-2", "-3", "0", "1")
_OF_POSITIONS = ("range", "slice", "arange")  # calls whose arguments are positions
_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.Tuple)


def edits_in(source: str, file: str, lines: Collection[int] | None) -> list[Edit]:
    """The edits of a file's functions in source order, only in these lines (None: all); [] if it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found: dict[tuple[Change, ...], Edit] = {}
    text = _Text(source, file, tree)
    for function in (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)):
        names = _names_of(function)
        for node in (part for one in function.body for part in ast.walk(one)):
            if isinstance(node, ast.expr | ast.stmt) and (lines is None or node.lineno in lines):
                of_kind = _of_statement if isinstance(node, ast.stmt) else _of_expression
                for edit in of_kind(node, text, names):
                    found.setdefault(edit.changes, edit)
    return list(found.values())


def edited(source: str, edit: Edit) -> str:
    """The source with this edit."""
    data = source.encode()
    for change in sorted(edit.changes, key=lambda one: one.start, reverse=True):
        data = data[: change.start] + change.new.encode() + data[change.end :]
    return data.decode()


class _Text:
    """A source text and its tree, with every node's parent, place and code."""

    def __init__(self, source: str, file: str, tree: ast.Module) -> None:
        self.data, self.file = source.encode(), file
        self.parent = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._starts = [0]
        for line in self.data.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.members: dict[str, list[str]] = {}  # "self" -> the attributes that the file uses of it
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id != "torch":
                its = self.members.setdefault(node.value.id, [])
                is_called = isinstance(self.parent[node], ast.Call) and self.parent[node].func == node
                its += [] if is_called or node.attr in its else [node.attr]

    def place(self, node: ast.AST) -> tuple[int, int]:
        """The bytes where a node begins and ends."""
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def code(self, node: ast.AST) -> str:
        """A node's code on one line, as it is written."""
        start, end = self.place(node)
        return " ".join(self.data[start:end].decode().split())

    def operand(self, node: ast.AST) -> str:
        """The same with parentheses, unless it needs none."""
        return self.code(node) if isinstance(node, _ATOMS) else f"({self.code(node)})"

    def first(self, node: ast.AST) -> str:
        """The code of the first operand of what it is part of, in parentheses if it is so."""
        is_bracketed = self.data[: self.place(node)[0]].endswith(b"(")
        return self.operand(node) if is_bracketed else self.code(node)

    def line(self, node: ast.AST) -> str:
        """The line where a node begins."""
        return self.data[self._starts[node.lineno - 1] : self._starts[node.lineno] - 1].decode().split("#")[0]

    def counters(self, node: ast.AST) -> list[str]:
        """The variables of the loops around a node."""
        found = []
        while node := self.parent.get(node):
            found += [node.target.id] if isinstance(node, ast.For) and isinstance(node.target, ast.Name) else []
        return found

    def edit(self, kind: str, *replaced: tuple[ast.AST, str]) -> Edit:
        """Replaces nodes; quoted with enough of the code around them to be unambiguous in the line."""
        (first, _), (last, _), shown = replaced[0], replaced[-1], replaced[0][0]
        while isinstance(self.parent[shown], ast.expr | ast.keyword | ast.Slice) and (
            self.place(shown)[1] < self.place(last)[1]
            or isinstance(shown, ast.Constant | ast.Slice | ast.UnaryOp | ast.keyword)
            or (len(replaced) == 1 and self.line(first).count(self.code(shown)) > 1)
        ):
            shown = self.parent[shown]
        start, end = self.place(shown)
        new = self.data[start:end]
        for node, text in reversed(replaced):
            begins, ends = (one - start for one in self.place(node))
            new = new[:begins] + text.encode() + new[ends:]
        says = f"with `{' '.join(new.decode().split())}` in place of `{self.code(shown)}`"
        changes = tuple(Change(*self.place(node), text, 0) for node, text in replaced)
        is_number = not isinstance(first, ast.Constant) and (_is_number(replaced[0][1]) or replaced[0][1] in _TRUTH)
        return Edit(self.file, first.lineno, kind, says, changes, len(replaced) == 1 and is_number)


_TRUTH = ("True", "False")


def _is_number(code: str) -> bool:
    return code.lstrip("-").replace(".", "").isdigit()


def _names_of(function: ast.FunctionDef) -> dict[str, str]:
    """The parameters and variables of a function, without `self`: name -> what it holds, "" if unknown."""
    found = {}
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            found[node.arg] = _HOLDS.get(ast.unparse(node.annotation).split(".")[-1] if node.annotation else "", "")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id, "")
    for node in ast.walk(function):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            found[node.target.id] = found[node.target.id] or _held(node.iter)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = found[node.targets[0].id] or _held(node.value)
    return {name: holds for name, holds in found.items() if name not in ("self", "_")}


_HOLDS = {"Tensor": "tensor", "int": "number", "float": "number", "bool": "bool"}
_RETURNS = {"range": "number", "size": "number", "len": "number", "slice": "slice"}


def _held(value: ast.expr) -> str:
    """What a variable holds that is set to this value, or goes through it in a loop; "" if unknown."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.MatMult):
        return "tensor"
    called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
    return _RETURNS.get(called.split(".")[-1], "tensor" if called.startswith("torch.") else "")


def _like(name: str, names: Mapping[str, str]) -> list[str]:
    """The other names that may hold the same."""
    return [one for one, holds in names.items() if one != name and (not holds or names[name] in ("", holds))]


def _of_expression(node: ast.expr, text: _Text, names: Mapping[str, str]) -> Iterator[Edit]:
    if isinstance(getattr(node, "ctx", None), ast.Store):
        return
    yield from (text.edit(kind, (node, new)) for kind, new in _others(node, text, names))
    yield from (text.edit(kind, *several) for kind, several in _exchanged(node, text, names))


def _others(node: ast.expr, text: _Text, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What an expression may become: (kind of edit, new text)."""
    outer, code = text.parent[node], text.code(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = text.code(node.left), text.code(node.comparators[0])
        yield from (("comparison", f"{left} {one} {right}") for one in _COMPARED.get(type(node.ops[0]), "").split())
    if isinstance(node, ast.BinOp):
        yield from _of_computation(node, text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "negation", text.operand(node.operand)
    if isinstance(node, ast.IfExp):
        yield from (("part", text.code(one)) for one in (node.body, node.orelse))
    if isinstance(node, ast.BoolOp):
        yield "operator", (" or " if isinstance(node.op, ast.And) else " and ").join(map(text.operand, node.values))
        yield from (("part", text.code(one)) for one in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", str(not node.value)
    elif _is_number(code) and not isinstance(outer, ast.UnaryOp):
        is_position = isinstance(outer, ast.Call) and text.code(outer.func).split(".")[-1] in _OF_POSITIONS
        is_dimension = isinstance(outer, ast.Call | ast.keyword) and not is_position
        new = [*(_DIMENSIONS if is_dimension else ()), *_NUMBERS]
        yield from (("constant", one) for one in dict.fromkeys(new) if one != code)
    if isinstance(node, ast.Call):
        yield from _of_call(node, text)
    is_function = isinstance(outer, ast.Call) and outer.func == node
    if isinstance(node, ast.Name) and node.id in names and not is_function:
        like, holds = _like(node.id, names), names[node.id]
        its = [f"{base}.{one}" for base in names for one in text.members.get(base, ())] if holds != "number" else []
        yield from (("name", one) for one in (*like, *its))
        around = (outer, text.parent[outer]) if isinstance(outer, ast.expr) else (outer,)
        is_position = any(isinstance(one, ast.Slice | ast.Compare) for one in around)
        is_position &= not isinstance(outer, ast.Attribute | ast.Subscript | ast.Call)
        is_position |= isinstance(outer, ast.Call) and text.code(outer.func).split(".")[-1] in _OF_POSITIONS
        if is_position:
            near = ["1", *text.counters(node)]
            yield from (("index", f"{code} {sign} {one}") for one in near for sign in "+-" if one != code)
            yield from (("more", f"{code} {sign} {one}") for one in like for sign in "+-")
        elif isinstance(outer, ast.BinOp) and holds == "number":
            yield from (("index", f"({code} {sign} 1)") for sign in "+-")
        if isinstance(outer, ast.BinOp | ast.Return | ast.Assign | ast.Tuple):
            yield from (("unit", f"{code} {sign} {one}") for one in names for sign in "*/" if one != code)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        its = text.members.get(node.value.id, ())
        yield from (("name", f"{node.value.id}.{one}") for one in its if one != node.attr and not is_function)
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
        several = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        index, base = [*map(text.code, several)], text.code(node.value)
        moved = [index[1:], [":", *index], index[1:] + index[:1], index[-1:] + index[:-1]]
        yield from (("index", f"{base}[{', '.join(one)}]") for one in moved if one and one != index)


def _of_computation(node: ast.BinOp, text: _Text) -> Iterator[tuple[str, str]]:
    operator, left, right = _WRITTEN.get(type(node.op), ""), text.operand(node.left), text.operand(node.right)
    if not operator:
        return
    yield from (("operator", f"{left} {one} {right}") for one in _COMPUTED[type(node.op)].split())
    is_inside = isinstance(text.parent[node], ast.BinOp | ast.UnaryOp | ast.Attribute)
    yield from (("part", text.operand(one) if is_inside else text.code(one)) for one in (node.left, node.right))
    if operator in "-/@**//%":
        yield "names", f"{right} {operator} {left}"
    if operator == "@":
        by = ".transpose(-2, -1)"
        yield from [("operator", f"{left}{by} @ {right}")] * (not left.endswith(by))
        yield from [("operator", f"{left} @ {right}{by}")] * (not right.endswith(by))
    inner = node.left
    if isinstance(inner, ast.BinOp):  # a op b op c
        first, middle, by = text.first(inner.left), text.operand(inner.right), _WRITTEN.get(type(inner.op))
        if by:
            yield "brackets", f"{first} {by} ({middle} {operator} {right})"
        last = inner.right
        if by and isinstance(last, ast.BinOp) and type(last.op) in _WRITTEN:  # a / b**1 / 2
            base, power = map(text.operand, (last.left, last.right))
            yield "brackets", f"{first} {by} {base} {_WRITTEN[type(last.op)]} ({power} {operator} {right})"


def _of_call(node: ast.Call, text: _Text) -> Iterator[tuple[str, str]]:
    called, given = text.code(node.func), [*node.args, *node.keywords]
    base, _, name = called.rpartition(".")
    arguments = [*map(text.code, given)]

    def call(of: str, its: Sequence[str]) -> str:
        return f"{of}({', '.join(its)})"

    others = [one for group in _FUNCTIONS if name in group for one in group if one != name]
    yield from (("function", call(f"{base}.{one}" if base else one, arguments)) for one in others)
    if isinstance(node.func, ast.Attribute) and base != "torch":
        yield "part", text.operand(node.func.value)
    yield from (("call", text.operand(one)) for one in node.args[:1])
    for at in range(len(given)):
        yield "call", call(called, arguments[:at] + arguments[at + 1 :])
    if name in _REDUCTIONS and "keepdim=True" not in arguments:
        yield "part", call(called, [*arguments, "keepdim=True"])
    if isinstance(text.parent[node], ast.BinOp):
        yield from (("part", f"{text.code(node)}.unsqueeze({at})") for at in ("-1", "-2"))


def _exchanged(
    node: ast.expr, text: _Text, names: Mapping[str, str]
) -> Iterator[tuple[str, list[tuple[ast.AST, str]]]]:
    """Two arguments, parts of a tuple, or names exchanged."""
    several = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
    several = [one for one in several if not isinstance(one, ast.Starred | ast.GeneratorExp)]
    for one, other in combinations(several, 2):
        holds = {names.get(text.code(each), "") for each in (one, other)} - {""}
        if text.code(one) != text.code(other) and len(holds) < 2:
            yield "arguments", [(one, text.code(other)), (other, text.code(one))]
    pair = (node.left, node.comparators[0]) if isinstance(node, ast.Compare) else ()
    for one, other in (pair, pair[::-1]) if pair else ():  # x[:, None] > y
        if isinstance(one, ast.Subscript) and isinstance(other, ast.Name):
            index = text.code(one)[len(text.code(one.value)) :]
            several = [(one, text.code(one.value)), (other, f"{other.id}{index}")]
            yield "index", sorted(several, key=lambda place: text.place(place[0]))
    if isinstance(node, ast.BinOp | ast.Compare) and not isinstance(text.parent[node], ast.BinOp | ast.Compare):
        places: dict[str, list[ast.Name]] = {}
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and one.id in names:
                places.setdefault(one.id, []).append(one)
        for one, other in combinations(places, 2):
            both = [(place, other) for place in places[one]] + [(place, one) for place in places[other]]
            yield "names", sorted(both, key=lambda place: text.place(place[0]))


def _of_statement(node: ast.stmt, text: _Text, names: Mapping[str, str]) -> Iterator[Edit]:
    code, (start, end) = text.code(node), text.place(node)
    outer = text.parent[node]
    body = next((its for its in (outer.body, getattr(outer, "orelse", [])) if node in its), [])
    after = body[body.index(node) + 1 :][:1] if body else []
    is_simple = isinstance(node, ast.Assign | ast.AugAssign | ast.Expr) and not isinstance(node.value, ast.Constant)

    def edit(kind: str, says: str, new: str, to: int = end, undoes: bool = False) -> Edit:
        return Edit(text.file, node.lineno, kind, says, (Change(start, to, new, 0),), undoes)

    if isinstance(node, ast.If | ast.While):
        for one in _TRUTH if isinstance(node, ast.If) else ():
            says = f"with `{text.code(node.test)}` always {one.lower()}"
            yield Edit(text.file, node.lineno, "condition", says, (Change(*text.place(node.test), one, 0),), True)
    if isinstance(outer, ast.For | ast.While | ast.If) and len(body) > 1 and not after:
        block = "loop" if not isinstance(outer, ast.If) else "block"
        says = f"with `{code}` after the {block} of line {outer.lineno} and not in it"
        moved = " " * outer.col_offset + text.data[start:end].decode()
        changes = (Change(start - node.col_offset, end, moved, 0),)
        yield Edit(text.file, node.lineno, "statement", says, changes)
    if not is_simple:
        return
    indent = " " * node.col_offset
    yield edit("statement", f"without `{code}`", "pass", undoes=True)
    for other in after:
        if isinstance(other, ast.Assign | ast.AugAssign | ast.Expr):
            its = text.data[slice(*text.place(other))].decode()
            mine, both = text.data[start:end].decode(), f"with lines {node.lineno} and {other.lineno} exchanged"
            yield edit("order", both, f"{its}\n{indent}{mine}", text.place(other)[1])
    call = node.value
    method = call.func if isinstance(node, ast.Expr) and isinstance(call, ast.Call) else None
    if isinstance(method, ast.Attribute) and isinstance(method.value, ast.Name) and method.value.id in names:
        new = f"{method.value.id} = {code}"
        yield edit("assignment", f"with `{new}` in place of `{code}`", new)
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and not isinstance(node.targets[0], ast.Tuple):
        for sign in "+*":
            new = f"{text.code(node.targets[0])} {sign}= {text.code(node.value)}"
            yield edit("assignment", f"with `{new}` in place of `{code}`", new)
        for other in body if isinstance(node.targets[0], ast.Name) else ():  # out[rows] = ...
            target = other.targets[0] if isinstance(other, ast.Assign) else None
            if isinstance(target, ast.Subscript):
                new = f"{node.targets[0].id}[{text.code(target.slice)}] = {text.code(node.value)}"
                yield edit("assignment", f"with `{new}` in place of `{code}`", new)
    if isinstance(node, ast.AugAssign):
        target, value = text.code(node.target), text.code(node.value)
        for sign in ("=", "+=", "-=", "*=", "/="):
            if sign != f"{_WRITTEN.get(type(node.op))}=":
                yield edit(
                    "assignment", f"with `{target} {sign} {value}` in place of `{code}`", f"{target} {sign} {value}"
                )
