"""CUDA C++ as text: what the rewriter's passes, and other readers of sources, share.

    blanked(text)               comments and strings made of spaces: as long, on the same lines
    without_directives(code)    preprocessor lines made of spaces, too
    blank(text)                 all of it made of spaces
    closed(code, start)         the position after the bracket that closes the one at `start`, or -1
    spans(code)                 where the parts between commas outside all brackets begin and end

`code` is text without comments and strings.
"""

from __future__ import annotations

import re
from functools import lru_cache

DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_NOT_CODE = re.compile(  # what is never closed goes on to its end: else the rest were searched from each of its marks
    r"""//(?:\\\n|[^\n])* | /\*.*?(?:\*/|\Z) | R"(?P<raw>[^()\s\\]{0,16})\(.*?(?:\)(?P=raw)"|\Z)"""
    r"""| "(?:\\.|[^"\\\n])*(?:"|) | (?<![0-9A-Za-z_])(?:u8|[uUL])?'(?:\\.|[^'\\\n])+'? """,
    re.DOTALL | re.VERBOSE,
)
_LINE = re.compile(r"[^\n]+")


def blank(text: str) -> str:
    """Spaces, on the same lines."""
    return _LINE.sub(lambda match: " " * len(match[0]), text)


def blanked(text: str) -> str:
    """CUDA C++ with comments and strings made of spaces: as long, on the same lines."""
    return _NOT_CODE.sub(lambda match: blank(match[0]), text)


@lru_cache(4)  # the passes over a file ask for the same
def without_directives(code: str) -> str:
    """The code with preprocessor lines made of spaces."""
    return DIRECTIVE.sub(lambda match: blank(match[0]), code)


def closed(code: str, start: int, brackets: str = "()[]{}") -> int:
    """The position after the bracket that closes the one at `start`, or -1."""
    depth = 0
    for match in re.compile(f"[{re.escape(brackets)}]").finditer(code, start):
        depth += 1 if match[0] in "([{" else -1
        if depth == 0:
            return match.end()
    return -1


def spans(code: str, brackets: str = "([{") -> list[tuple[int, int]]:
    """The spans of the parts between commas outside all brackets; `brackets` may hold `<` too."""
    closing = brackets.translate(str.maketrans("([{<", ")]}>"))
    found, depth, start = [], 0, 0
    for match in re.compile(f"[,{re.escape(brackets + closing)}]").finditer(code):
        depth += (match[0] in brackets) - (match[0] in closing)
        if match[0] == "," and depth == 0:
            found.append((start, match.start()))
            start = match.end()
    return [*found, (start, len(code))]
