"""Calls of host functions from kernels, which nvcc rejects and a C++ compiler accepts.

    host_calls(code)     [(position, what is wrong), ...]; `code` without comments and strings

A function is a host function if none of its definitions in the file has __device__, or a macro that may expand to it.
Of the C library, only the functions that are most often called by mistake are listed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from common.simulator.text import blank, without_directives

HOST_LIBRARY = {
    "rand": "a generator of your own: a few multiplications and shifts of a seed and the thread's index",
    "srand": "a seed that is an argument of the kernel",
    "random": "a generator of your own",
    "drand48": "a generator of your own",
    "time": "clock64(), or an argument of the kernel",
    "getenv": "an argument of the kernel",
    "exit": "__trap(), which ends the kernel with an error",
    "scanf": "data that the host has copied",
    "fopen": "data that the host has copied",
    "fprintf": "printf()",
    "sprintf": "printf()",
    "puts": "printf()",
}
_NO_NAMES = {  # of functions, although a bracket may follow
    "if", "for", "while", "switch", "catch", "return", "sizeof", "alignof", "decltype", "noexcept", "requires",
    "alignas", "declspec", "__launch_bounds__", "__align__", "__attribute__", "__maxnreg__", "__cluster_dims__",
}  # fmt: skip
_TYPES = {"void", "bool", "char", "short", "int", "long", "signed", "unsigned", "float", "double", "auto"}


@dataclass(frozen=True)
class Function:
    """A definition: its name, the text before it, the span of its body."""

    name: str
    head: str
    start: int
    body: tuple[int, int]
    is_member: bool
    in_namespace: bool = False

    @property
    def on_device(self) -> bool:
        return bool(re.search(r"(?<!\w)__(?:global|device)__(?!\w)", self.head))

    @property
    def is_plain(self) -> bool:
        """Whether its name alone identifies it: neither a template nor in a class or namespace."""
        return not self.is_member and not self.in_namespace and not re.search(r"(?<!\w)template(?!\w)", self.head)

    @property
    def device_only(self) -> bool:
        return self.on_device and "__host__" not in self.head

    @property
    def is_surely_host(self) -> bool:
        """Whether it has neither __device__ nor anything that may imply it: constexpr, or a macro (all capitals)."""
        words = re.findall(r"\w+", self.head)
        return (
            not self.on_device
            and "constexpr" not in words
            and not any(
                (word.isupper() and len(word) > 1) or (word.startswith("__") and word != "__host__") for word in words
            )
        )


def host_calls(code: str) -> list[tuple[int, str]]:
    """Where device code calls a host function, and what to do about it."""
    if not re.search(r"(?<!\w)__(?:global|device)__(?!\w)", code):
        return []
    code = without_directives(code)
    functions = definitions(code)
    by_name: dict[str, list[Function]] = {}
    for function in functions:
        by_name.setdefault(function.name, []).append(function)
    host = {
        name: same[0] for name, same in by_name.items() if all(one.is_surely_host and not one.is_member for one in same)
    }
    found = []
    for caller in functions:
        if not caller.device_only:
            continue
        start, end = caller.body
        for call in re.finditer(r"(?<![\w.>])((?:std\s*)?::\s*)?(\w+)\s*(?:<[^<>;(){}]*>)?\s*\(", code[start:end]):
            name, at = call[2], start + call.start(2)
            if name not in host and name not in HOST_LIBRARY:
                continue  # most calls are done here
            if (
                re.search(r"(?:->|\.)\s*$|[\w:]::\s*$|(?<!\w)(?!(?:return|else|do|case)\b)\w+\s+$", code[start:at])
                and not call[1]
            ):
                continue  # a member, another namespace's, or a declaration
            if name in host and not call[1] and not re.search(rf"(?<!\w){name}\s*=", code[start:end]):
                line = code.count("\n", 0, host[name].start) + 1
                says = f"which is a host function: write __device__ before its definition in line {line}"
                found.append((at, f"{caller.name} runs on the device and calls {name}(), {says}"))
            elif name in HOST_LIBRARY and name not in by_name:
                says = f"there is no {name}(): use {HOST_LIBRARY[name]}"
                found.append((at, f"{caller.name} runs on the device, where {says}"))
    return found


@lru_cache(4)  # each pass over a file asks for this
def definitions(code: str) -> tuple[Function, ...]:
    """The functions that the file defines, except those within functions."""
    found: list[Function] = []
    stack: list[str] = []  # what each open brace belongs to: "function", "class", "namespace" or "other"
    since = 0  # start of the current declaration
    open_functions: list[tuple[str, str, int, int, tuple[bool, bool]]] = []
    for match in re.finditer(r"[{};]", code):
        at = match.start()
        if match.group() == "{":
            inside = "function" in stack
            head = code[since:at]
            kind = "other"
            if inside:
                kind = "function"
            elif re.search(r"(?<!\w)(?:struct|class|union|enum)(?!\w)[^()=]*$", head):
                kind = "class"
            elif re.search(r"(?<!\w)namespace(?!\w)[^()]*$", head):
                kind = "namespace"
            elif not re.search(r"(?<!\w)extern\s*$", head) and (name := _name(head)):
                kind = "function"
                scopes = ("class" in stack, "namespace" in stack)
                open_functions.append((name[0], head[: name[1]], since + name[1], at, scopes))
            stack.append(kind)
            if not inside:
                since = at + 1
        elif match.group() == "}":
            if stack:
                kind = stack.pop()
                if kind == "function" and "function" not in stack and open_functions:
                    name, head, start, begin, scopes = open_functions.pop()
                    found.append(Function(name, head, start, (begin + 1, at), *scopes))
            if "function" not in stack:
                since = at + 1
        elif "function" not in stack:
            since = at + 1
    return tuple(found)


def _name(head: str) -> tuple[str, int] | None:
    """Name of the function whose definition begins with `head`, and its position; None if it is no function."""
    depth = 0
    head = re.sub(r"\[\[.*?\]\]", lambda match: blank(match[0]), head, flags=re.DOTALL)
    for match in re.finditer(r"[()]", head):
        if match.group() == "(":
            before = re.search(r"((?:[\w$]+\s*::\s*)*)(~?[\w$]+)\s*$", head[: match.start()])
            if depth == 0 and before and before[2] in _TYPES:  # a function pointer, if it is no conversion
                if re.search(r"(?<!\w)operator(?!\w)[\w\s]*$", head[: before.start(2)]):
                    return "operator", before.start(2)
            elif depth == 0 and before and before[2] not in _NO_NAMES:
                return before[2], before.start(2)
            depth += 1
        else:
            depth = max(0, depth - 1)  # an extra one ends a macro call that has a body among its arguments
    return None
