"""Explains a failed build: explain_failure(log, own_files, log_file).

Errors in the student's own lines come first, with at most three lines each. Errors inside templates and macros are
reported at the student's line that led there; errors in a kernel call list the kernel's parameters. After a missing
brace the compiler's errors mislead, so the unclosed function comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.compiling.report import Diagnostic, diagnostics
from common.console.paths import shown_path
from common.console.words import counted
from common.simulator.text import blanked, closed, spans, without_directives

SIMULATOR = "common/simulator/"
_LINE_OF_CODE = re.compile(r"^\s*\d* \|")
_PLACE = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d+)")
_UNDEFINED = re.compile(r"undefined (?:reference to|symbol:?)\s*[`'\"]?(?P<symbol>[^`'\"\n]+)")
CUDA_NAMES = {  # the simulator's type name -> CUDA's
    "simulator::Float16<simulator::Fp16Format>": "__half",
    "simulator::Float16<simulator::Bf16Format>": "__nv_bfloat16",
}
_ARGUMENTS = re.compile(
    r"too (?:few|many) arguments|no matching function for call|no instance of function template|cannot convert|"
    r"invalid conversion|argument of type"
)
_NAMED = re.compile(r"([A-Za-z_]\w*)\s*(?:<[^;{}<>]*>)?\s*$")
_BEGINS = re.compile(
    r"(?:template|__global__|__device__|__host__|static|inline|void|extern|struct|class|namespace|constexpr|using)\b"
)
_NOT_A_FUNCTION = re.compile(r"namespace\b|extern\s*$|(?:struct|class|enum|union)\b[^()]*$")


@dataclass(frozen=True)
class _Told:
    """An error as reported, and its location."""

    file: Path
    line: int
    is_own: bool
    says: tuple[str, ...]


def explain_failure(log: str, own_files: Iterable[Path], log_file: Path | None, most: int = 5) -> str:
    """Explains a failed build: the errors in `own_files`, then the others, then the path of the full log, if any."""
    own = {file.resolve() for file in own_files}
    errors = [_told(message, own) for message in diagnostics(log) if message.is_error]
    errors = [error for number, error in enumerate(errors) if not _is_told(error, errors[:number])]
    mine = [error for error in errors if error.is_own]
    shown = [*mine, *(error for error in errors if not error.is_own)]
    text = [says for file in sorted(own) if errors and (says := unbalanced(file))]
    if text:
        most = 1  # the other errors follow from it
    text += ["\n".join(error.says) for error in shown[:most]]
    undefined = {match["symbol"].strip() for match in _UNDEFINED.finditer(log)}
    text += [f"the linker found no definition of {symbol}" for symbol in sorted(undefined)[:most]]
    if not text:
        text = log.strip().splitlines()[-12:]
    if len(shown) > most:
        text.append(f"... and {counted(len(shown) - most, 'more error')}")
    return "\n".join([*text, *([f"(the compiler's whole output: {shown_path(log_file)})"] if log_file else [])])


def _is_told(error: _Told, before: Sequence[_Told]) -> bool:
    """Whether an error for this line has been reported: a template repeats it for each of its types."""
    return error.is_own and any((one.file, one.line) == (error.file, error.line) for one in before)


def _told(message: Diagnostic, own: set[Path]) -> _Told:
    text = message.text
    for long, short in CUDA_NAMES.items():
        text = text.replace(long, short)
    place = (message.file, message.line) if message.file.resolve() in own else _leads_to(message, own)
    if place is None:
        head = f"{shown_path(message.file)}:{message.line}: {message.kind}: {text}"
        return _Told(message.file, message.line, False, (head, *_code(message)))
    file, line = place
    head = f"{shown_path(file)}:{line}: {message.kind}: "
    if _ARGUMENTS.search(text) and (call := _call_at(file, line, own)):
        return _Told(file, line, True, (f"{head}{call[0]}", *call[1:]))
    if place == (message.file, message.line):
        return _Told(file, line, True, (f"{head}{text}", *_code(message)))
    inside = shown_path(message.file)
    where = "" if SIMULATOR in inside else f" (in {inside}:{message.line})"
    return _Told(file, line, True, (f"{head}{text}{where}", f"{line:>5} | {_line(file, line)}"))


def _code(message: Diagnostic) -> list[str]:
    """The source line and its marker line: with g++ the lines with a bar, with nvcc the first two."""
    rest = [line.rstrip() for line in message.lines[1:]]
    barred = [line for line in rest if _LINE_OF_CODE.match(line)]
    return (barred or [line for line in rest if not _PLACE.match(line)])[:2]


def _leads_to(message: Diagnostic, own: set[Path]) -> tuple[Path, int] | None:
    """The innermost line of the student's files that led to the message."""
    for line in (*message.before, *message.lines[1:]):
        match = _PLACE.match(line)
        if match and Path(match["file"]).resolve() in own and "candidate" not in line and "declared here" not in line:
            return Path(match["file"]), int(match["line"])
    return None


def _line(file: Path, number: int) -> str:
    lines = _text(file).splitlines()
    return lines[number - 1].rstrip() if 0 < number <= len(lines) else ""


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


# ---- kernel calls


def _call_at(file: Path, line: int, own: Iterable[Path]) -> tuple[str, ...]:
    """The mismatch between a kernel's parameters and the arguments in this line; () if no kernel of `own` is launched.

    Only the numbers of arguments can be compared. Both lists are shown, one below the other.
    """
    text = _text(file)
    code = blanked(text)
    for match in re.finditer(r"<<<", code):
        named = _NAMED.search(code, 0, match.start())
        opening = re.compile(r">>>\s*\(").search(code, match.end())
        if not named or not opening:
            continue
        end = closed(code, opening.end() - 1, "()") - 1
        if not text.count("\n", 0, named.start()) < line <= text.count("\n", 0, end) + 1:
            continue
        given = _arguments(text[opening.end() : end])
        for source in own:
            other = _text(source)
            kernel = re.search(rf"__global__[^;{{}}]*?\b{named[1]}\s*\(", blanked(other))
            if kernel:
                taken = _arguments(other[kernel.end() : closed(blanked(other), kernel.end() - 1, "()") - 1])
                fits = "" if len(given) == len(taken) else f" with {len(given)} arguments where it takes {len(taken)}"
                return (
                    f"{named[1]} is called{fits or ' with arguments of other types than it takes'}",
                    f"    takes: {', '.join(taken)}",
                    f"    given: {', '.join(given)}",
                )
    return ()


def _arguments(text: str) -> list[str]:
    """ "a, f(b, c)" -> ["a", "f(b, c)"], each on one line."""
    return [" ".join(text[a:b].split()) for a, b in spans(text) if text[a:b].strip()]


# ---- braces


def unbalanced(file: Path) -> str:
    """Names the function that is not closed, or closed too early; "" if all braces match.

    Functions are assumed to begin in the first column, as everywhere in the course.
    """
    code = without_directives(blanked(_text(file)))
    if code.count("{") == code.count("}"):
        return ""
    too_few = code.count("{") > code.count("}")
    depth, base, name, begun = 0, 0, "", 0
    lines = code.splitlines()
    for number, line in enumerate(lines, 1):
        starts = bool(re.match(r"[A-Za-z_]", line))
        if _BEGINS.match(line) and depth > base and too_few and name:
            return (
                f"{shown_path(file)}:{begun}: error: {name} is never closed: it lacks a }} before line {number}, where "
                "the next function begins"
            )
        if starts and depth == base:
            head = re.match(r"[^{;]*", "\n".join(lines[number - 1 : number + 8]))
            match = re.search(r"(?!__)\b([A-Za-z_]\w*)\s*\(", head[0]) if head else None
            if match and not _NOT_A_FUNCTION.match(line):
                name, begun = f"{match[1]}()", number + head[0].count("\n", 0, match.start())
        if "{" in line and _NOT_A_FUNCTION.match(line) and depth == base and "namespace" in line:
            base += 1
        depth += line.count("{") - line.count("}")
        if depth <= base and "}" in line and line[:1].isspace() and not too_few and name:
            return (
                f"{shown_path(file)}:{number}: error: this }} closes {name}, which begins in line {begun}: there is "
                "one } too many, here or before"
            )
    if too_few and name:
        return f"{shown_path(file)}:{begun}: error: {name} is never closed: it lacks a }} before the end of the file"
    return ""
