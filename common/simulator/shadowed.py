"""Host variables named like CUDA's built-in variables: `dim3 blockDim(16, 16), gridDim(4);`.

threadIdx etc. are macros here, so such variables are renamed:

    renamed(text, code)     the text with blockDim -> blockDim_ in the scope of such a declaration, and after . and ->

`code` is the text without comments and strings, of the same length.
"""

from __future__ import annotations

import re

from common.simulator.text import closed, spans

_NAMES = r"(?:threadIdx|blockIdx|blockDim|gridDim)"
_NO_TYPES = r"(?!(?:return|else|case|throw|do|and|or|not|define|undef|ifdef|ifndef)\b)"
_DECLARED = re.compile(rf"(?<![\w.>]){_NO_TYPES}(?:\w+[&*]?\s+|dim3\s*[&*]\s*)({_NAMES})\b(?=\s*[({{=,;)])")
_MEMBER = re.compile(rf"(?:\.|->)\s*({_NAMES})\b")


def renamed(text: str, code: str) -> str:
    """See above. Text without such declarations is returned unchanged."""
    places = {match.start(1) for match in _MEMBER.finditer(code)}
    for match in _DECLARED.finditer(code):
        start, end = _scope(code, match.start(1))
        for name in _declared_names(code, match.start(1), end):
            uses = re.finditer(rf"(?<![\w.:]){name}(?!\w)", code[start:end])
            places |= {start + use.start() for use in uses if not code[: start + use.start()].endswith("->")}
    for place in sorted(places, reverse=True):
        end = place + re.match(r"\w+", code[place:]).end()
        text = f"{text[:end]}_{text[end:]}"
    return text


def _declared_names(code: str, position: int, end: int) -> set[str]:
    """The names that the declaration introduces: `dim3 blockDim(16), gridDim(4);` has two."""
    stop = position
    depth = 0
    while stop < end and not (depth == 0 and code[stop] in ";{") and depth >= 0:
        depth += (code[stop] in "([{") - (code[stop] in ")]}")
        stop += 1
    parts = [code[position + a : position + b] for a, b in spans(code[position:stop])]
    return {match[1] for part in parts if (match := re.match(rf"[^\w(\[{{]*({_NAMES})\b", part))}


def _scope(code: str, position: int) -> tuple[int, int]:
    """From the declaration to the end of its block; for a parameter, to the end of the function's body."""
    depth = rounds = 0
    for i in range(position, len(code)):
        c = code[i]
        rounds += (c == "(") - (c == ")")
        depth += (c == "{") - (c == "}")
        if depth < 0:
            return position, i
        if rounds < 0:  # a parameter: the function's body follows, if any
            body = re.compile(r"\)[^;{}()]*(?:\([^()]*\)[^;{}()]*)*\{").match(code, i)
            return position, closed(code, body.end() - 1, "{}") - 1 if body else i
    return position, len(code)
