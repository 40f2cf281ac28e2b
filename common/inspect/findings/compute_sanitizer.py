"""Converts compute-sanitizer's output on a GPU into findings like those of the simulator's checked build.

    findings_of(tool, command, sources)     runs the command under its four tools
    read_output(text, sources)              parses one tool's output

memcheck finds out-of-bounds and misaligned accesses, racecheck races in shared memory, initcheck reads of uninitialized
global memory, synccheck barriers that not all threads reach. Reports on kernels outside the sources (such as PyTorch's)
are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.compiling.report import kernel_name
from common.compiling.toolchain import ToolchainError
from common.inspect import gpu_tools
from common.inspect.findings.model import Access, Finding
from common.inspect.source_lines import DEVICE_HEADERS, Place, bare_name

TOOLS: dict[str, dict[str, str]] = {
    "memcheck": {"--report-api-errors": "no"},
    "racecheck": {"--racecheck-report": "analysis"},
    "initcheck": {"--initcheck-address-space": "all"},
    "synccheck": {},
}
MARK = "========="
OPTIONS = {"--target-processes": "all", "--print-limit": "1000", "--destroy-on-device-error": "kernel"}

_INVALID = re.compile(r"Invalid __(?P<space>\w+)__ (?P<action>read|write|atomic\w*) of size (?P<bytes>\d+)")
_UNINITIALIZED = re.compile(r"Uninitialized __(?P<space>\w+)__ memory (?P<action>read) of size (?P<bytes>\d+)")
_RACE = re.compile(r"(?P<level>\w+): Race reported between (?P<action>Read|Write|Atomic) access at (?P<where>.+)")
_RACE_AND = re.compile(
    r"and (?P<action>Read|Write|Atomic) access at (?P<where>.+?)(?: \[(?P<count>[\d,]+) hazards?\])?$"
)
_BARRIER = re.compile(r"Barrier error detected\. (?P<what>.+)")
_AT = re.compile(r"at (?P<where>\S.*)")
_FRAME = re.compile(r"Device Frame: ?(?P<where>\S.*)")
_THREAD = re.compile(r"by thread \((?P<thread>\d+,\d+,\d+)\) in block \((?P<block>\d+,\d+,\d+)\)")
_ADDRESS = re.compile(r"(?:Address|Access at) 0x\w+ is (?P<what>misaligned|out of bounds)")
_NEAREST = re.compile(
    r"and is (?P<distance>[\d,]+) bytes (?P<side>before|after) the nearest allocation.* of size (?P<size>.+)"
)
_WHERE = re.compile(r"(?P<function>.+?)\+0x[0-9a-f]+(?: in (?P<file>\S.*?):(?P<line>\d+)(?::\S.*)?)?$")


@dataclass
class _Record:
    """One report, parsed line by line."""

    kind: str
    space: str = "global"
    action: str = "read"
    bytes: int = 0
    frames: list[str] = field(default_factory=list)  # "function+0x10 in file:line", innermost first
    others: list[tuple[str, str, int]] = field(default_factory=list)  # a race's other sides: action, where, hazards
    thread: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    detail: str = ""


def findings_of(
    tool: Path, command: Sequence[str], sources: Sequence[Path], done: Callable[[str], None] = lambda name: None
) -> list[tuple[str, list[Finding]]]:
    """[(case, findings), ...] from all four tools on the command, a child of common.inspect.gpu_tools.

    The tools run concurrently in separate processes, since most of their time is startup.

    Args:
        tool: path of compute-sanitizer.
        command: the command to run under it.
        sources: findings in other files are ignored.
        done: called with the name of each of TOOLS when it has finished.

    Raises:
        ToolchainError: a tool did not finish; the message has the end of its output.
    """
    found: list[tuple[str, list[Finding]]] = []
    known = gpu_tools.output_of([tool, "--help"])  # older versions lack some

    def run(name: str) -> str:
        options = [word for pair in (OPTIONS | TOOLS[name]).items() if pair[0] in known for word in pair]
        # PyTorch's caching allocator suballocates large blocks, which hides the bounds from memcheck
        text = gpu_tools.output_of([tool, "--tool", name, *options, *command], PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        done(name)
        return text

    with ThreadPoolExecutor(len(TOOLS)) as together:
        said = dict(zip(TOOLS, together.map(run, TOOLS), strict=True))
    for name, text in said.items():
        if "SUMMARY" not in text:
            last = "\n".join(text.strip().splitlines()[-8:])
            raise ToolchainError(f"compute-sanitizer --tool {name} did not finish:\n{last}")
        for case, part in gpu_tools.by_case(text):
            if findings := read_output(part, sources):
                found.append((case, findings))
    return found


def read_output(text: str, sources: Sequence[Path]) -> list[Finding]:
    """The findings in one tool's output, in order; duplicates are merged and counted."""
    found: dict[tuple, Finding] = {}
    for record in _records(text):
        for finding in _findings(record, sources):
            key = finding.kind, finding.kernel, tuple((one.action, one.place) for one in finding.accesses)
            old = found.get(key)
            found[key] = finding if old is None else replace(old, count=old.count + finding.count)
    return list(found.values())


def _records(text: str) -> list[_Record]:
    records: list[_Record] = []
    current: _Record | None = None
    for raw in text.splitlines():
        if not raw.startswith(MARK):
            continue
        line = raw.removeprefix(MARK).strip()
        started = _start(line)
        if started:
            records.append(started)
            current = started
        elif not line or "SUMMARY" in line:
            current = None
        elif current is not None:
            _continue(current, line)
    return records


def _start(line: str) -> _Record | None:
    if match := _INVALID.search(line):
        action = "atomic" if match["action"].startswith("atomic") else match["action"]
        return _Record("out_of_bounds", match["space"], action, int(match["bytes"]))
    if match := _UNINITIALIZED.search(line):
        return _Record("uninitialized", match["space"], "read", int(match["bytes"]))
    if match := _RACE.search(line):
        return _Record("race", "shared", match["action"].lower(), frames=[match["where"]])
    if match := _BARRIER.search(line):
        return _Record("barrier", "", detail=match["what"])
    return None


def _continue(record: _Record, line: str) -> None:
    if match := _THREAD.match(line):
        record.thread, record.block = (tuple(map(int, match[name].split(","))) for name in ("thread", "block"))
    elif match := _RACE_AND.match(line):
        record.others.append((match["action"].lower(), match["where"], int((match["count"] or "1").replace(",", ""))))
    elif match := _ADDRESS.match(line):
        record.kind = "misaligned" if match["what"] == "misaligned" else record.kind
    elif match := _NEAREST.match(line):
        record.detail = f"It is {match['distance']} bytes {match['side']} an allocation of {match['size']}"
    elif match := _FRAME.match(line) or (_AT.match(line) if not record.frames else None):
        record.frames.append(match["where"])


def _findings(record: _Record, sources: Sequence[Path]) -> list[Finding]:
    """A record's findings: one, or for a race one per other side."""
    place, kernel = _place(record.frames, sources)
    if place is None:
        return []
    first = Access(record.action, record.bytes, place, record.block, record.thread)
    if record.kind == "barrier":
        return [Finding("barrier", kernel, place, record.space, detail=record.detail)]
    if record.kind != "race":
        return [Finding(record.kind, kernel, None, record.space, accesses=(first,), detail=record.detail)]
    sides = [(action, _place([where], sources)[0], count) for action, where, count in record.others]
    return [
        Finding("race", kernel, None, record.space, count=count, accesses=(Access(action, 0, other), first))
        for action, other, count in sides
    ]


def _place(frames: Sequence[str], sources: Sequence[Path]) -> tuple[Place | None, str]:
    """(the source line with its inlined callers, the kernel); the line is None if it is in none of the sources."""
    places = []
    for frame in frames:
        match = _WHERE.match(frame)
        file = _own_file(match["file"], sources) if match and match["file"] else None
        if match and file:
            places.append(Place(str(file), int(match["line"]), bare_name(match["function"])))
    if not places:
        return None, ""
    outermost = _WHERE.match(frames[-1])
    kernel = kernel_name(outermost["function"]) if outermost else ""
    inner = places[0]
    return Place(inner.file, inner.line, inner.function, tuple(places[1:])), kernel


def _own_file(file: str, sources: Sequence[Path]) -> Path | None:
    """The source with that name, which the tool may print without its folder; or a file of common/cuda/."""
    name = Path(file).name
    headers = sorted(DEVICE_HEADERS.glob("*"))
    return next((source for source in [*sources, *headers] if source.name == name), None)
