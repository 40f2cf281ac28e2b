"""Parses the compilers' output.

diagnostics(log)         errors and warnings, each with the lines that belong to it
kernel_resources(log)    ptxas -v -> registers, shared memory, stack and spills per kernel
kernel_name(text)        a demangled signature -> the kernel's name with its template arguments
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from common.console.paths import shown_path

# g++ and clang++: file.cu:12:34: error: text        nvcc: file.cu(12): error: text
_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\s:(][^:(\n]*)(?::(?P<line>\d+)(?::\d+)?|\((?P<nvcc_line>\d+)\)): "
    r"(?P<kind>fatal error|error|warning|note|catastrophic error)(?: #[\w-]+)?: (?P<text>.*)$"
)
_LEADS_TO_ONE = re.compile(
    r"^(?:In file included from |\s+from )|^\S+: (?:At global scope|in .constexpr. expansion|"
    r"In (?:instantiation|substitution|function|member|lambda|constructor|static)\b)|"
    r"^\S+:\d+(?::\d+)?:   (?:recursively )?(?:required|in)\b"
)
_NOT_PART_OF_ONE = re.compile(
    r"^(ninja: |FAILED: |\[\d+/\d+\]|/\S*(nvcc|g\+\+|c\+\+|clang\+\+) |ptxas info|Remark: |\s*$)"
)


@dataclass(frozen=True)
class Diagnostic:
    """One compiler message: location, severity, all its lines, and the context before it ("included from ...")."""

    file: Path
    line: int
    kind: str
    text: str
    lines: tuple[str, ...]
    before: tuple[str, ...] = ()

    @property
    def is_error(self) -> bool:
        return "error" in self.kind


@dataclass(frozen=True)
class KernelResources:
    """What ptxas reports for one kernel on one architecture; memory in bytes per thread, shared memory per block."""

    name: str
    arch: str
    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int


def diagnostics(log: str) -> list[Diagnostic]:
    """The compiler's messages in the order printed, without repeats."""
    found: list[Diagnostic] = []
    current: list[str] | None = None
    head: re.Match[str] | None = None
    before: list[str] = []
    told_before: tuple[str, ...] = ()

    def finish() -> None:
        if head and current:
            line = int(head["line"] or head["nvcc_line"])
            one = Diagnostic(Path(head["file"]), line, head["kind"], head["text"], tuple(current), told_before)
            if one not in found:
                found.append(one)

    for text in log.splitlines():
        match = _DIAGNOSTIC.match(text)
        if match and (match["kind"] != "note" or not current):
            finish()
            head, current = match, [text]
            told_before, before = tuple(before), []
        elif _LEADS_TO_ONE.match(text):
            finish()
            head = current = None
            before.append(text)
        elif _NOT_PART_OF_ONE.match(text):
            finish()
            head = current = None
        elif current is not None:
            current.append(text)
    finish()
    return found


def _shown(diagnostic: Diagnostic) -> str:
    place = f"{shown_path(diagnostic.file)}:{diagnostic.line}"
    lines = [f"{place}: {diagnostic.kind}: {diagnostic.text}", *diagnostic.lines[1:3]]
    return "\n".join(line.rstrip() for line in lines)


def own_warnings(log: str, own_files: Iterable[Path]) -> list[str]:
    """The warnings on `own_files`, except g++'s about `#pragma unroll` before a gap, where the loop is missing."""
    own = {file.resolve() for file in own_files}
    found: dict[tuple[Path, int, str], str] = {}  # a template's warnings once, not per type
    for one in diagnostics(log):
        if one.kind == "warning" and one.file.resolve() in own and one.text != "ignoring loop annotation":
            found.setdefault((one.file, one.line, one.text), _shown(one))
    return list(found.values())


def demangled(text: str) -> str:
    """The text with C++ symbols such as _Z7softmaxPKf demangled, if c++filt is installed."""
    if not text or not shutil.which("c++filt"):
        return text
    done = subprocess.run(["c++filt"], input=text, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else text


def kernel_name(name: str) -> str:
    """The kernel's name and template arguments, without return type and parameter list."""
    name = re.sub(r"\(anonymous namespace\)::", "", name)
    name = re.sub(r"\((?:int|bool|unsigned int)\)", "", name)
    depth, end = 0, len(name)
    for index, char in enumerate(name):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "(" and depth == 0:
            end = index
            break
    return re.sub(r"^(?:void|[\w:]+\s[*&]?)\s*(?=\w)", "", name[:end]) if " " in name[:end] else name[:end]


def kernel_resources(log: str) -> list[KernelResources]:
    """The kernels of a `ptxas -v` report, in the order compiled."""
    entry = re.compile(
        r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>\w+)'.*?"
        r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
        r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
        re.DOTALL,
    )
    matches = list(entry.finditer(log))
    names = demangled("\n".join(match["name"] for match in matches)).splitlines()
    kernels = []
    for match, name in zip(matches, names, strict=True):
        shared = re.search(r"(\d+)(?:\+\d+)? bytes smem", match["rest"])
        kernels.append(
            KernelResources(
                kernel_name(name),
                match["arch"],
                int(match["registers"]),
                int(shared[1]) if shared else 0,
                int(match["stack"]),
                int(match["stores"]),
                int(match["loads"]),
            )
        )
    return kernels
