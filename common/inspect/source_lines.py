"""Maps addresses in a compiled library to lines of the student's file.

    places = SourceLines(library).places([0x1234, ...])      return addresses, as reported by the runtime
    places[0x1234].shown                                     "task2/attention_kernel.cu:71"

Inlining is resolved: a place knows its function and, if that was inlined, the call sites. The names come from
`addr2line`, which is part of binutils, like the linker.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from common.compiling.objects import local_file
from common.compiling.report import kernel_name
from common.console.files import SHOWN
from common.console.paths import ROOT, shown_path

_LAUNCH = re.compile(r"lambda.*\bauto.*\.\.\.")  # kernel<<<...>>> becomes a call that forwards its arguments
SIMULATOR = ROOT / "common" / "simulator"
DEVICE_HEADERS = ROOT / "common" / "cuda"
INSTALL = "sudo apt-get install binutils"


@dataclass(frozen=True)
class Place:
    """A line of a source file.

    Attributes:
        file, line: as recorded by the compiler.
        function: its name without return type, template arguments and parameters; "" if unknown.
        callers: the call sites in this file into which this code was inlined, innermost first.
        outer: the same in other files, such as a kernel that calls a header's function.
        instance: the outermost of these functions with its template arguments, usually the kernel; equal places may be
            in different instances.
        statement: the text to quote if the line is only part of a statement.
    """

    file: str
    line: int
    function: str = ""
    callers: tuple[Place, ...] = ()
    outer: tuple[Place, ...] = field(default=(), compare=False)
    instance: str = field(default="", compare=False)
    statement: str = field(default="", compare=False)

    @property
    def at(self) -> tuple[str, int]:
        """Only the file and the line."""
        return self.file, self.line

    @property
    def shown(self) -> str:
        """ "task2/attention_kernel.cu:71", relative to the working directory."""
        return f"{shown_path(Path(self.file))}:{self.line}"

    @property
    def text(self) -> str:
        """The line's text without indentation; "" if the file cannot be read."""
        lines = _lines(self.file)
        return self.statement or (lines[self.line - 1].strip() if 0 < self.line <= len(lines) else "")

    @property
    def inlined_at(self) -> str:
        """ "in load_tile, called from line 209"; "" for code that was not inlined."""
        if not self.callers:
            return ""
        calls = ", ".join(str(caller.line) for caller in self.callers)
        return f"in {self.function}, called from line {calls}" if self.function else f"called from line {calls}"


def place_of(text: str) -> Place | None:
    """Parses "task2/kernel.cu:71", as object files name it; None if it has another form."""
    match = re.fullmatch(r"(.+?):(\d+)", text.strip())
    return Place(local_file(match[1]), int(match[2])) if match else None


@functools.cache
def text_of(file: str) -> str:
    """A source file's text; "" if it cannot be read."""
    if Path(file) in SHOWN:
        return SHOWN[Path(file)]
    try:
        return Path(file).read_text(errors="replace")
    except OSError:
        return ""


@functools.cache
def _lines(file: str) -> list[str]:
    return text_of(file).splitlines()


def bare_name(function: str) -> str:
    """ "void block_reduce<Max>(float*, Max)" -> "block_reduce"."""
    depth, flat = 0, ""
    for char in function.replace("(anonymous namespace)::", ""):
        depth -= char in ">)"
        if depth == 0 and char not in "<>()":
            flat += char
        elif depth == 0 and char in "<(":
            flat += " "  # the rest is arguments
        depth += char in "<("
    words = flat.split()
    names = [word for word in words if word not in ("const", "[clone", ".cold]", ".isra.0]", "constprop.0]")]
    return names[-1].split("::")[-1] if names else function


class SourceLines:
    """The source lines of one library. Without addr2line every place is None and `problem` says what to install."""

    def __init__(self, library: Path) -> None:
        self.library = library
        self._known: dict[int, Place | None] = {}
        self._tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
        self.problem = None if self._tool else f"no source lines: addr2line is missing ({INSTALL})"

    def places(self, return_addresses: Iterable[int]) -> dict[int, Place | None]:
        """The place of the call that returns to each address (offsets in the library file)."""
        wanted = set(return_addresses)
        missing = sorted(wanted - self._known.keys())
        if missing:
            self._known |= dict.fromkeys(missing)
            if self._tool:
                self._ask(missing)
        return {address: self._known[address] for address in wanted}

    def _ask(self, addresses: list[int]) -> None:
        asked = "\n".join(f"{address - 1:#x}" for address in addresses)
        command = [self._tool, "-e", str(self.library), "-Cfia"]
        done = subprocess.run(command, input=asked, capture_output=True, text=True)
        for address, frames in _read_frames(done.stdout).items():
            self._known[address + 1] = students_place(frames)


@functools.cache
def _original(file: str) -> str:
    """The file from which the rewriter made this one: for an inlined function g++ may name the copy."""
    start = "\n".join(_lines(file)[:2]) if file.endswith(".cu.cpp") else ""
    match = re.search(r'^#line 1 "(.+)"$', start, re.MULTILINE)
    return match[1] if match else file


def _read_frames(text: str) -> dict[int, list[Place]]:
    """Parses addr2line's output: an address, then two lines per frame, function and file:line, innermost first.

    The frames' functions are full signatures.
    """
    result: dict[int, list[Place]] = {}
    frames: list[Place] = []
    function = None
    for line in text.splitlines():
        if re.fullmatch(r"0x[0-9a-f]+", line):
            frames = result.setdefault(int(line, 16), [])
            function = None
        elif function is None:
            function = line
        else:
            place = place_of(re.sub(r" \(discriminator \d+\)$", "", line))
            if place:
                frames.append(replace(place, file=_original(place.file), function=function))
            function = None
    return result


def students_place(frames: Sequence[Place]) -> Place | None:
    """The innermost student frame, with those it was inlined into.

    Excludes the simulator's own code and the code that the rewriter generates for a launch; a frame of common/cuda/ is
    used only if there is no other.

    Args:
        frames: innermost first; their functions are signatures.
    """
    outside = [frame for frame in frames if not _lies_in(frame, SIMULATOR) and not _LAUNCH.search(frame.function)]
    own = [frame for frame in outside if not _lies_in(frame, DEVICE_HEADERS)] or outside
    if not own:
        return None
    instance = kernel_name(own[-1].function)
    named = [replace(frame, function=bare_name(frame.function)) for frame in own]
    # addr2line names an inlined static function after the function it is inlined into
    named = [
        replace(frame, function="") if frame.function == outer.function else frame for frame, outer in pairwise(named)
    ] + named[-1:]
    first = named[0]
    callers = tuple(caller for caller in named[1:] if caller.file == first.file)
    outer = tuple(caller for caller in named[1:] if caller.file != first.file)
    return Place(first.file, first.line, first.function, callers, outer, instance)


def instance_of(kernel: str, places: Iterable[Place | None]) -> str:
    """The kernel with its actual template arguments, "flash_kernel<64>" for "flash_kernel<D>", if the places tell.

    For `auto kernel = flash_kernel<64>; kernel<<<...>>>` the name is a variable's, and the places' function differs.
    """
    places = [place for place in places if place and place.instance]
    exact = {place.instance for place in places if place.instance.split("<")[0] == kernel.split("<")[0]}
    if not places or exact:
        return exact.pop() if len(exact) == 1 else kernel
    kernels = {place.instance for place in places if _is_kernel(place.instance.split("<")[0], place.file)}
    is_variable = not any(_is_kernel(kernel.split("<")[0], place.file) for place in places)
    return kernels.pop() if len(kernels) == 1 and is_variable else kernel


def _is_kernel(name: str, file: str) -> bool:
    """Whether the file defines a __global__ function of that name."""
    return bool(re.search(rf"__global__[^;{{}}]*?\b{re.escape(name)}\s*\(", "\n".join(_lines(file))))


def _lies_in(place: Place, folder: Path) -> bool:
    return folder in Path(place.file).resolve().parents
