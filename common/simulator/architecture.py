"""Conditional compilation by __CUDA_ARCH__ in a single pass, where nvcc compiles host and device code separately.

The macro is defined (include/simulator/nvcc_names.h), so device code gets the branches of that architecture. What
becomes of a conditional depends on its place:

    in a device function                unchanged
    in a host function                  rewritten as if the macro were not defined
    in a function for both (`__host__ __device__`, or a macro that may expand to it)
                                        the body is emitted twice; the caller's side is chosen at run time
    outside of functions                unchanged, plus the branches that only the host would take. If host and device
                                        would take different branches, the device's, with a warning

    conditionals = Conditionals(code)
    conditionals.without_inactive()     the code without the branches that neither side takes
    conditionals.edits(warning)         [(start, end, text), ...] for all other changes
    with_both_bodies(text)              the last step: duplicates the bodies that edits() has marked
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from common.simulator.device_calls import Function, definitions
from common.simulator.targets import Target, target_of
from common.simulator.text import blank, closed, open_braces, without_directives

_KNOWN = {"CUDA_SIMULATOR": "1", "__CUDACC__": "1", "__NVCC__": "1"}
_FEATURES = "__CUDA_ARCH_FEAT_SM90_ALL"
_MACROS = rf"(?:__CUDA_ARCH__|{_FEATURES})"
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(ifdef|ifndef|if|elif|else|endif)\b((?:\\\n|[^\n])*)", re.MULTILINE)
_MACRO = re.compile(rf"(?<!\w){_MACROS}(?!\w)")
_LAMBDA = re.compile(r"\]\s*((?:__(?:host|device)__\s*)+)(?:\([^{};]*\)[^{};()]*)?$")
_BEGIN, _END = "\x01", "\x02"


@dataclass
class _Branch:
    word: str
    condition: str
    start: int  # of the directive
    body: int  # after the directive
    known: dict[str, dict[str, str | None]]  # known macros, for device and host
    end: int = 0  # start of the next directive

    def holds(self, side: str) -> bool | None:
        """Whether the side takes it, given that it took no earlier branch; None if that depends on other macros."""
        return (
            True if self.word == "else" else _value(self.word.replace("elif", "if"), self.condition, self.known[side])
        )


@dataclass
class _Conditional:
    """From #if to #endif."""

    branches: list[_Branch]
    end: int = 0  # after #endif
    side: str = "device"  # or "host", "both", "either": outside of functions, where both sides' code is kept

    def taken(self, side: str) -> _Branch | str | None:
        """The branch that the side takes; None if it takes none; or "unknown"."""
        for branch in self.branches:
            holds = branch.holds(side)
            if holds is None:
                return "unknown"
            if holds:
                return branch
        return None

    @property
    def asks(self) -> bool:
        """Whether it depends on the architecture in a way that may differ between host and device."""
        if not any(_MACRO.search(branch.condition) for branch in self.branches):
            return False
        host, device = self.taken("host"), self.taken("device")
        return "unknown" in (host, device) or host is not device


class Conditionals:
    """The conditionals of a file; `code` has comments and strings blanked."""

    def __init__(self, code: str, target: Target | None = None) -> None:
        self.code = code
        self.all = _read(code, _macros_of(target or target_of()))
        self.bodies: list[tuple[int, int]] = []  # of functions for both sides that contain such conditionals
        self.warned: list[tuple[int, str]] = []
        if not any(one.asks for one in self.all):
            return
        for one in self.all:
            one.side = "both"
        inactive = self._inactive()
        plain = without_directives(self.without_inactive())
        functions = definitions(plain)
        for one in self.all:
            one.side = "device"
        for one in self.all:
            if one.asks and not any(start <= one.branches[0].start < end for start, end in inactive):
                self._place(one, plain, functions)

    def _place(self, one: _Conditional, plain: str, functions: list[Function]) -> None:
        """Decides how to handle the conditional."""
        at = one.branches[0].start
        owner = next((function for function in functions if function.body[0] <= at < function.body[1]), None)
        if owner is None:
            self._place_outside(one, functions)
            return
        side, body = "both", owner.body
        if owner.device_only:
            side = "device"
        elif owner.is_surely_host:
            side = "host"
            if inner := _lambda_around(plain, owner.body[0], at):
                side, body = inner
        one.side = side
        if side == "both" and body not in self.bodies:
            self.bodies.append(body)

    def _place_outside(self, one: _Conditional, functions: list[Function]) -> None:
        host, device = one.taken("host"), one.taken("device")
        if not isinstance(host, _Branch) or device == "unknown":
            return
        of_host = [each for each in functions if host.body <= each.start < host.end and not each.on_device]
        rest = self.code[host.body : host.end]
        includes = re.search(r"^[ \t]*#[ \t]*include\b", rest, re.MULTILINE)
        in_functions = [each for each in functions if host.body <= each.start < host.end]
        other = bool(without_directives(rest).strip()) and not in_functions
        if not of_host and not includes and not other:
            if device is not None:
                self._warn_of_macros(one, host, functions)
            return
        if device is None or not self.code[device.body : device.end].strip():
            one.side = "host"
            return
        lines = [self.code.count("\n", 0, at) + 1 for at in (host.body, host.end)]
        self._warn(
            one,
            f"lines {lines[0] + 1} to {lines[1] - 1} are for the host (__CUDA_ARCH__ is not defined there) and are",
        )

    def _warn_of_macros(self, one: _Conditional, host: _Branch, functions: list[Function]) -> None:
        """Warns where host code uses a macro whose host definition is left out."""
        names = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", self.code[host.body : host.end], re.MULTILINE)
        for function in functions:
            used = [
                name
                for name in names
                if not function.on_device and re.search(rf"(?<!\w){name}(?!\w)", self.code[slice(*function.body)])
            ]
            if used:
                self._warn(
                    one, f"{function.name}() runs on the host and uses {used[0]}, whose definition for the host is"
                )
                return

    def _warn(self, one: _Conditional, what: str) -> None:
        why = "the simulator compiles host and device code in one go, and takes the device's"
        self.warned.append((one.branches[0].start, f"{what} left out: {why}"))

    def without_inactive(self) -> str:
        """The code with all branches blanked that are known not to be compiled."""
        code = self.code
        for start, end in self._inactive():
            code = code[:start] + _blank_code(code[start:end]) + code[end:]
        return code

    def _inactive(self) -> list[tuple[int, int]]:
        blank: list[tuple[int, int]] = []
        for one in self.all:
            sides = ["host", "device"] if one.side == "both" else [one.side]
            open_for = dict.fromkeys(sides, True)
            for branch in one.branches:
                kept = False
                for side in sides:
                    if open_for[side] is False:
                        continue
                    holds = branch.holds(side)
                    kept = kept or holds is not False
                    if holds:
                        open_for[side] = False
                if not kept:
                    blank.append((branch.body, branch.end))
        return blank

    def edits(self, pragma: Callable[[str], str]) -> list[tuple[int, int, str]]:
        """The rewriter's edits; `pragma(text)` returns a pragma that makes the compiler warn.

        A warning gets its own line, followed by a #line directive that restores the line numbers.
        """
        edits: list[tuple[int, int, str]] = []
        resumed: set[int] = set()
        for one in self.all:
            if one.side == "host":
                for branch in one.branches:
                    text = self.code[branch.start : branch.body]
                    if (new := _as_host(text)) != text:
                        edits.append((branch.start, branch.body, new))
        for position, words in self.warned:
            line = self.code.count("\n", 0, position) + 1
            edits.append((position, position, f"{pragma(words)}\n#line {line}\n"))
            resumed |= self._directives_around(position)
        for start, end in self.bodies:
            line = self.code.count("\n", 0, start) + 1
            edits += [(start, start, f"{_BEGIN}{line} "), (end, end, _END)]
            resumed |= self._directives_around(start)
        return edits + [(end, end, f"\n#line {self.code.count(chr(10), 0, end) + 2}") for end in resumed]

    def _directives_around(self, position: int) -> set[int]:
        """The ends of the #elif, #else and #endif of the conditionals around the position. If that code is skipped, so
        are its #line directives, and the lines after it must be renumbered."""
        ends: set[int] = set()
        for one in self.all:
            if one.branches[0].start < position < one.end:
                ends |= {end for end in [one.end, *(branch.body for branch in one.branches)] if end > position}
        return ends


def with_both_bodies(text: str) -> str:
    """Emits each marked body twice: for CUDA threads, and for the host."""

    def twice(match: re.Match) -> str:
        line, body = match.groups()
        for_host = _DIRECTIVE.sub(lambda directive: _as_host(directive.group()), body)
        return f" if (::simulator::runs_on_device()) {{{body}}}\n#line {line}\nelse {{{for_host}}} "

    return re.sub(rf"{_BEGIN}(\d+) ([^{_BEGIN}{_END}]*){_END}", twice, text)


def _macros_of(target: Target) -> dict[str, dict[str, str | None]]:
    device = {"__CUDA_ARCH__": str(target.number), _FEATURES: "1" if target.has_features else None}
    return {"device": _KNOWN | device, "host": _KNOWN | dict.fromkeys(device)}


def _read(code: str, known: dict[str, dict[str, str | None]]) -> list[_Conditional]:
    found: list[_Conditional] = []
    stack: list[_Conditional] = []
    for match in _DIRECTIVE.finditer(code):
        word, condition = match.groups()
        if word in ("if", "ifdef", "ifndef"):
            stack.append(_Conditional([]))
            found.append(stack[-1])
        elif not stack:
            continue
        else:
            stack[-1].branches[-1].end = match.start()
        if word == "endif":
            stack.pop().end = match.end()
        else:
            stack[-1].branches.append(_Branch(word, condition, match.start(), match.end(), known))
    for one in stack:
        one.branches[-1].end = one.end = len(code)
    return found


def _lambda_around(code: str, begin: int, position: int) -> tuple[str, tuple[int, int]] | None:
    """Side and body of the innermost lambda around the position that has __host__ or __device__."""
    for at in reversed(open_braces(code, begin, position)):
        head = _LAMBDA.search(code, max(begin, at - 400), at)
        if head and "__device__" in head[1]:
            return ("both" if "__host__" in head[1] else "device"), (at + 1, closed(code, at, "{}") - 1)
    return None


def _as_host(directive: str) -> str:
    """The directive as if __CUDA_ARCH__ were not defined, with the same number of lines."""
    directive = re.sub(rf"(#[ \t]*)ifdef[ \t]+{_MACROS}(?!\w)", r"\1if 0", directive)
    directive = re.sub(rf"(#[ \t]*)ifndef[ \t]+{_MACROS}(?!\w)", r"\1if 1", directive)
    directive = re.sub(rf"defined[ \t]*\([ \t]*{_MACROS}[ \t]*\)|defined[ \t]+{_MACROS}(?!\w)", "0", directive)
    return _MACRO.sub("0", directive)


def _blank_code(text: str) -> str:
    """Blanks the code but keeps directives, so that nested conditionals can still be read."""
    kept, at = [], 0
    for match in _DIRECTIVE.finditer(text):
        kept += [blank(text[at : match.start()]), match.group()]
        at = match.end()
    return "".join([*kept, blank(text[at:])])


def _value(word: str, condition: str, known: dict[str, str | None]) -> bool | None:
    """The value of a condition on known macros only, else None."""
    if word in ("ifdef", "ifndef"):
        name = condition.strip().split()[0] if condition.strip() else ""
        return None if name not in known else (known[name] is not None) == (word == "ifdef")
    text = condition.replace("\\\n", " ")
    for macro, value in known.items():
        is_defined = "1" if value is not None else "0"
        text = re.sub(rf"(?<!\w)(?:defined\s*\(\s*{macro}\s*\)|defined\s+{macro})(?!\w)", is_defined, text)
        text = re.sub(rf"(?<!\w){macro}(?!\w)", value or "0", text)
    if not re.fullmatch(r"[\s\d()!&|<>=]+", text):
        return None
    text = re.sub(r"!(?!=)", " not ", text).replace("&&", " and ").replace("||", " or ")
    try:
        return bool(eval(text.strip(), {"__builtins__": {}}))  # only digits, brackets and comparisons
    except (SyntaxError, TypeError):
        return None
