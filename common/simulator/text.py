"""CUDA C++ as text: helpers shared by the rewriter's passes and other readers of sources.

    blanked(text)               replaces comments and strings by spaces: same length, same lines
    without_directives(code)    replaces preprocessor lines by spaces
    blank(text)                 replaces everything by spaces
    closed(code, start)         the position after the bracket that closes the one at `start`, or -1
    open_braces(code, start, end)    the braces that are open at `end`
    spans(code)                 spans of the parts between commas outside all brackets

`code` is text without comments and strings.
"""

from __future__ import annotations

import re
from functools import lru_cache

DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_NOT_CODE = re.compile(  # unterminated ones match to the end: else each quote would cost a scan
    r"""//(?:\\\n|[^\n])* | /\*.*?(?:\*/|\Z) | R"(?P<raw>[^()\s\\]{0,16})\(.*?(?:\)(?P=raw)"|\Z)"""
    r"""| "(?:\\.|[^"\\\n])*(?:"|) | (?<![0-9A-Za-z_])(?:u8|[uUL])?'(?:\\.|[^'\\\n])+'? """,
    re.DOTALL | re.VERBOSE,
)
_LINE = re.compile(r"[^\n]+")


def blank(text: str) -> str:
    """The text as spaces, with the same newlines."""
    return _LINE.sub(lambda match: " " * len(match[0]), text)


def blanked(text: str) -> str:
    """CUDA C++ with comments and strings replaced by spaces: same length, same lines."""
    return _NOT_CODE.sub(lambda match: blank(match[0]), text)


@lru_cache(4)  # each pass over a file asks for this
def without_directives(code: str) -> str:
    """The code with preprocessor lines replaced by spaces."""
    return DIRECTIVE.sub(lambda match: blank(match[0]), code)


def closed(code: str, start: int, brackets: str = "()[]{}") -> int:
    """The position after the bracket that closes the one at `start`, or -1."""
    depth = 0
    for match in re.compile(f"[{re.escape(brackets)}]").finditer(code, start):
        depth += 1 if match[0] in "([{" else -1
        if depth == 0:
            return match.end()
    return -1


def open_braces(code: str, start: int, end: int) -> list[int]:
    """The positions of the braces between `start` and `end` that are not closed there, outer ones first."""
    opened: list[int] = []
    for match in re.compile(r"[{}]").finditer(code, start, end):
        if match[0] == "{":
            opened.append(match.start())
        elif opened:
            opened.pop()
    return opened


def spans(code: str, brackets: str = "([{") -> list[tuple[int, int]]:
    """The spans of the parts between commas outside all brackets; `brackets` may include `<`."""
    closing = brackets.translate(str.maketrans("([{<", ")]}>"))
    found, depth, start = [], 0, 0
    for match in re.compile(f"[,{re.escape(brackets + closing)}]").finditer(code):
        depth += (match[0] in brackets) - (match[0] in closing)
        if match[0] == "," and depth == 0:
            found.append((start, match.start()))
            start = match.end()
    return [*found, (start, len(code))]
