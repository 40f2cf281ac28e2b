"""Macros that assemble asm statements from pieces, expanded before ptx.py reads the result.

    expanded(text, code)    the text with every use of such a macro replaced, with the same number of lines

A template such as `"wgmma...m64n" #N "k16" TYPE` is complete only after preprocessing, and so are operands that a macro
lists. Only macros of the same file are known. Macros whose asm statement can be read unexpanded are left alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from common.simulator.ptx import PtxError, read_asm
from common.simulator.text import DIRECTIVE, closed

_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)]*\))?((?:\\\n|[^\n])*)", re.MULTILINE)
_ASM = re.compile(r"(?<!\w)(?:asm|__asm__|__asm)(?!\w)\s*(?:volatile|__volatile__)?\s*\(")
_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])+\'|[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*|##|::|->|\s+|.', re.DOTALL
)


@dataclass(frozen=True)
class Macro:
    """parameters: None for an object-like macro; the last may be "..."."""

    name: str
    parameters: tuple[str, ...] | None
    body: str


def expanded(text: str, code: str) -> str:
    """Expands the macros. `code` is the text with comments and strings blanked. Expansions stay on the line of use."""
    macros = {}
    for match in _DEFINE.finditer(code):
        whole = text[match.start(3) : match.end(3)].replace("\\\n", " ")
        parameters = (
            None
            if match[2] is None
            else tuple(p.strip() for p in match[2][1:-1].replace("\\\n", " ").split(",") if p.strip())
        )
        macros[match[1]] = Macro(match[1], parameters, re.sub(r"/\*.*?\*/|//.*", " ", whole).strip())
    wanted = {name for name, macro in macros.items() if _is_unreadable(macro.body)}
    if not wanted:
        return text
    while more := {n for n, m in macros.items() if n not in wanted and _names(m.body) & wanted}:
        wanted |= more
    directives = [match.span() for match in DIRECTIVE.finditer(code)]
    done, result = 0, ""
    for match in re.finditer(rf"(?<!\w)(?:{'|'.join(sorted(wanted))})(?!\w)", code):
        if match.start() < done or any(a <= match.start() < b for a, b in directives):
            continue
        end = _call_end(code, match.end()) if macros[match[0]].parameters is not None else match.end()
        if end is None:
            continue
        made = "".join(_expand(_tokens(text[match.start() : end]), macros, frozenset()))
        result += text[done : match.start()] + " ".join(made.split()) + "\n" * text.count("\n", match.start(), end)
        done = end
    return result + text[done:]


def is_unreadable(text: str, start: int) -> bool:
    """Whether the asm statement whose opening bracket is at `start` - 1 cannot be parsed unexpanded."""
    try:
        end = closed(text, start - 1, "()")
        read_asm(text[start : end - 1])
    except PtxError:
        return True
    return end < 0


def _is_unreadable(body: str) -> bool:
    return any(is_unreadable(body, match.end()) for match in _ASM.finditer(body))


def _names(body: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", body))


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _skip_space(tokens: list[str], i: int) -> int:
    while i < len(tokens) and tokens[i].isspace():
        i += 1
    return i


def _call_end(code: str, start: int) -> int | None:
    match = re.compile(r"\s*\(").match(code, start)
    end = closed(code, match.end() - 1, "()") if match else -1
    return end if end >= 0 else None


def _expand(tokens: list[str], macros: dict[str, Macro], hidden: frozenset[str]) -> list[str]:
    """The tokens after macro expansion; `hidden` are the macros being expanded."""
    result, i = [], 0
    while i < len(tokens):
        token = tokens[i]
        i += 1
        macro = macros.get(token)
        if macro is None or token in hidden:
            result.append(token)
            continue
        arguments: list[list[str]] = []
        if macro.parameters is not None:
            k = _skip_space(tokens, i)
            if k == len(tokens) or tokens[k] != "(":
                result.append(token)
                continue
            arguments, i = _arguments(tokens, k + 1)
        made = _substitute(macro, arguments, macros, hidden)
        # If the expansion ends with a function-like macro's name, its arguments may follow.
        tail = _expand([*made, *tokens[i:]], macros, hidden | {token}) if _ends_open(made, macros) else None
        if tail is not None:
            return result + tail
        result += _expand(made, macros, hidden | {token})
    return result


def _ends_open(made: list[str], macros: dict[str, Macro]) -> bool:
    last = next((token for token in reversed(made) if not token.isspace()), "")
    return last in macros and macros[last].parameters is not None


def _arguments(tokens: list[str], i: int) -> tuple[list[list[str]], int]:
    arguments: list[list[str]] = [[]]
    depth = 1
    while i < len(tokens):
        token = tokens[i]
        i += 1
        depth += (token == "(") - (token == ")")
        if depth == 0:
            break
        if token == "," and depth == 1:
            arguments.append([])
        else:
            arguments[-1].append(token)
    return arguments, i


def _substitute(
    macro: Macro, arguments: list[list[str]], macros: dict[str, Macro], hidden: frozenset[str]
) -> list[str]:
    names = macro.parameters or ()
    given: dict[str, list[str]] = {}
    for n, name in enumerate(names):
        if name == "...":
            rest = arguments[n:]
            given["__VA_ARGS__"] = [token for k, one in enumerate(rest) for token in ([","] if k else []) + one]
        else:
            given[name] = arguments[n] if n < len(arguments) else []
    body, result, i = _tokens(macro.body), [], 0
    while i < len(body):
        token = body[i]
        if token == "#" and macro.parameters is not None:
            k = _skip_space(body, i + 1)
            if k < len(body) and body[k] in given:
                text = " ".join("".join(given[body[k]]).split())
                result.append('"' + re.sub(r'(["\\])', r"\\\1", text) + '"')
                i = k + 1
                continue
        if token == "##":
            while result and result[-1].isspace():
                result.pop()
            i = _skip_space(body, i + 1)
            right = given.get(body[i], [body[i]]) if i < len(body) else []
            right = [one for one in right if not one.isspace()]
            if result and right:
                result[-1] += right[0]
                result += right[1:]
            else:
                result += right
            i += 1
            continue
        k = _skip_space(body, i + 1)
        pasted = k < len(body) and body[k] == "##"
        if token in given:
            result += given[token] if pasted else _expand(given[token], macros, hidden)
        else:
            result.append(token)
        i += 1
    return result
