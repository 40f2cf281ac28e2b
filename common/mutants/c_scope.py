"""Which variables a place in a function knows, and of which types: variables_at(text, function, place)."""

from __future__ import annotations

import functools
import re

from common.mutants.c_code import Node, statements

_TYPE = r"(?:const\s+)?(?:unsigned\s+)?[A-Za-z_][\w:]*(?:<[\w:, ]*>)?"
_PARAMETER = re.compile(rf"\s*({_TYPE})(\s*[*&]\s*|\s+)(?:__restrict__\s+)?(\w+)\s*$")
_ARRAY_PARAMETER = re.compile(rf"\s*({_TYPE})\s*\(&(\w+)\)((?:\[[^\]]*\])+)\s*$")
_DECLARATION = re.compile(rf"((?:__shared__|constexpr|static)\s+)?({_TYPE})(\s*[*&]\s*|\s+)(?=\w+\s*[=;,\[{{(])")
_PAIR = re.compile(r"const auto \[(\w+), (\w+)\]")
_INTEGER = re.compile(r"(?:const )?(?:int|int64_t|size_t)")
_NO_TYPES = ("return", "else", "using", "auto", "const auto")


def variables_at(text: str, function: str, place: int) -> dict[str, str]:
    """Name -> type of the parameters and variables that are known at a place.

    Types are "float", "const float*", "shared float[TILE]" and the like; "int" stands for int64_t and size_t, too.

    Args:
        text: of the file, without comments.
        function: the part of it from the function's head on, as long as it reaches to the place.
        place: where a statement begins.
    """
    return dict(_known(function[: place - text.index(function)]))


@functools.cache
def _known(function: str) -> tuple[tuple[str, str], ...]:
    opening = function.index("{")
    head = function[:opening].rstrip()
    found = {}
    for parameter in _between_commas(head[_opening_of(head) + 1 : -1]):
        if match := _PARAMETER.match(parameter):
            found[match[3]] = _named(match[1], match[2])
        elif match := _ARRAY_PARAMETER.match(parameter):
            found[match[2]] = _named(match[1], match[3])
    body = function + ";"  # what stands at the place: then every head has a body
    _declare(found, statements(body, opening + 1, len(body)), body)
    return tuple(found.items())


def _declare(found: dict[str, str], nodes: list[Node], text: str) -> None:
    """Adds what the statements declare; of blocks only those that the text's end lies in."""
    for node in nodes:
        if node.kind in ("declaration", "simple"):
            found.update(_declared(text[node.start : node.end]))
        elif node.end >= len(text) - 1:
            found.update(_declared(text[node.head[0] : node.head[1]]) if node.kind == "for" else {})
            _declare(found, node.body, text)


def _declared(words: str) -> dict[str, str]:
    """What a statement declares, or the head of a for."""
    if pair := _PAIR.match(words):
        return {pair[1]: "int", pair[2]: "int"}
    match = _DECLARATION.match(words)
    if not match or match[2] in _NO_TYPES:
        return {}
    found = {}
    for declarator in _between_commas(words[match.end() : _semicolon_of(words)]):
        name = re.match(r"\s*(\w+)\s*((?:\[[^\]]*\])*)", declarator)
        if name:
            shared = "shared " if (match[1] or "").startswith("__shared__") else ""
            found[name[1]] = shared + _named(match[2], match[3] + name[2])
    return found


def _named(kind: str, more: str) -> str:
    """A type in one spelling."""
    more = more.strip().replace("&", "")
    kind = " ".join(kind.split())
    if not more:
        return "int" if _INTEGER.fullmatch(kind) else kind.removeprefix("const ")
    return kind + more


def _semicolon_of(words: str) -> int:
    return words.index(";") if ";" in words else len(words)


def _between_commas(words: str) -> list[str]:
    """The parts of a list, split at the commas outside brackets."""
    parts, depth = [""], 0
    for letter in words:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _opening_of(head: str) -> int:
    """Where the bracket opens that the head's last one closes."""
    depth = 0
    for at in range(len(head) - 1, -1, -1):
        depth += (head[at] == ")") - (head[at] == "(")
        if depth == 0:
            return at
    return 0
