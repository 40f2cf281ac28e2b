"""CUDA C++ -> C++20: rewrites the few things in a `.cu` file that a C++ compiler cannot parse.

    translate(source, out_dir, include_dirs)   a .cu file and the local headers it includes
    rewrite(text, name)                        one file's text
    CXX_FLAGS, CHECKED_FLAGS, COUNTED_FLAGS, INCLUDE_DIR     what else a kernel build needs
    runtime_jobs(checked)                      the runtime's sources, with their flags

All edits are in place and preserve line numbers (`#line` names the original file):

    kernel<<<grid, block, bytes>>>(x)   ::simulator::Launcher(SIMULATOR_KERNEL(kernel), grid, block, bytes)(x)
    __shared__ float a[32], b;          a struct with these members in the block's shared memory, and references
    extern __shared__ float s[];        a pointer to the block's dynamic shared memory
    __noinline__                        __attribute__((noinline))
    __builtin_assume(x)                 (void)sizeof(x)
    #pragma unroll 4                    #pragma GCC unroll 4
    #include "local.cuh"                its rewritten copy
    asm("add.u32 %0, %1, 1;" : ...)     equivalent C++ (ptx.py)
    __syncthreads(); ... __syncthreads()  on one line: each gets a number
    malloc, free, new, delete           in device functions, those of the device heap
    #ifdef __CUDA_ARCH__                the device's branch, in host functions the host's (architecture.py)

They are located in a copy of the text of the same length, in which comments, strings and the code after
`#ifndef CUDA_SIMULATOR` are blanked.
"""

import hashlib
import os
import platform
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from common.console.files import read_source, write_whole
from common.simulator.architecture import Conditionals, with_both_bodies
from common.simulator.device_calls import definitions, host_calls
from common.simulator.macros import expanded, is_unreadable
from common.simulator.ptx import PtxError, read_asm, translated
from common.simulator.refused import BUILT_IN, refused_header, refused_names
from common.simulator.shadowed import renamed
from common.simulator.targets import Target
from common.simulator.text import DIRECTIVE, blanked, closed, open_braces, spans, without_directives

HERE = Path(__file__).resolve().parent
INCLUDE_DIR = HERE / "include"
_CLANG = "clang" in os.environ.get("CXX", "")
RUNTIME_FLAGS = [
    "-std=c++20",
    "-O2",
    "-g1",  # lines and calls, inlined functions included; types and variables would take a tenth of the time
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-pthread",
    "-Wall",
    "-Wno-unknown-pragmas",
    "-Wno-sign-compare",
    "-Wno-psabi",  # for CUtensorMap by value
    "-Wno-deprecated-volatile" if _CLANG else "-Wno-volatile",  # C++20: volatile x += 1
    "-Wframe-larger-than=131072",  # a CUDA thread's stack has 256 KB
]
# For kernels: checks of static array bounds and vector alignment, which call runtime/undefined.cpp. The runtime does
# not need them and would take twice as long to compile.
_WATCHED = ["-fsanitize=bounds,alignment", "-fno-sanitize-recover=bounds,alignment,integer-divide-by-zero"]
if platform.machine() != "x86_64":
    _WATCHED.append("-fsanitize=integer-divide-by-zero")  # x86 traps by itself
if not _CLANG:
    # gcc: merged calls of fail() would lose their line numbers, and variable tracking takes a fifth of the compile time
    RUNTIME_FLAGS += ["-fno-crossjumping", "-fno-tree-tail-merge", "-fno-var-tracking"]
    # gcc: also checks trailing arrays of structs, which could be flexible array members in C
    _WATCHED += ["-fsanitize=bounds-strict", "-fno-sanitize-recover=bounds-strict"]
RUNTIME_FLAGS += os.environ.get("SIMULATOR_CXXFLAGS", "").split()
CXX_FLAGS = [*_WATCHED, *RUNTIME_FLAGS]
# A call at the start of every basic block; clang would prune those implied by others.
_EVERY_BLOCK = "-fsanitize-coverage=trace-pc" + (",no-prune" if _CLANG else "")
# For kernels in the checked build: calls to runtime/checked.cpp before every load, store and basic block. It also
# checks the alignment of plain stores, with a better message than a trap's.
CHECKED_FLAGS = [
    "-DSIMULATOR_CHECKED",
    "-fsanitize=thread",
    _EVERY_BLOCK,
    "-fno-sanitize=alignment",
    "-fno-tree-vectorize",  # operations are counted, and a half-filled vector would count as full
    "-fno-tree-slp-vectorize",
    "-fno-builtin-malloc",  # compilers drop writes to memory that is then freed
    "-fno-builtin-free",
]
# For graded kernels: each thread's work is counted (runtime/work.cpp), and host code runs in its own process
# (apart.cpp). Stores (stores.cpp) and calls (common/course/grading/build.py) are checked, so the compiler must not add
# any (Ubuntu's does by default).
COUNTED_FLAGS = [_EVERY_BLOCK, "-DSIMULATOR_GRADED", "-fno-jump-tables", "-fno-builtin-printf"]
COUNTED_FLAGS += ["-fno-stack-protector", "-U_FORTIFY_SOURCE"]
if not _CLANG:
    _PARAMETERS = {"instrument-reads": 0, "instrument-allocas": 0, "globals": 0, "stack": 0}
    COUNTED_FLAGS += ["-fno-gnu-unique", "-fsanitize=kernel-address", "-U__SANITIZE_ADDRESS__"]
    COUNTED_FLAGS += ["--param=asan-instrumentation-with-call-threshold=0"]
    # Functions called with a function's address get a clone that calls it directly, as with nvcc
    COUNTED_FLAGS += ["-fipa-cp-clone", "--param=ipa-cp-eval-threshold=1"]
    COUNTED_FLAGS += [f"--param=asan-{name}={value}" for name, value in _PARAMETERS.items()]
if _CLANG:  # which would omit the read of `x += 1`
    CHECKED_FLAGS += ["-mllvm", "-tsan-instrument-read-before-write=1", "-mllvm", "-tsan-distinguish-volatile=1"]
else:
    CHECKED_FLAGS += ["--param=tsan-distinguish-volatile=1"]

LOCKSTEP = (
    "the lanes of a warp need not run in step (since Volta), and here they do not: put __syncwarp() between reading "
    "and writing in each of these steps"
)


def runtime_jobs(checked: bool) -> list[tuple[Path, list[str]]]:
    """The sources and flags of the runtime, which all libraries and programs of one kind of build link.

    Args:
        checked: for the checked build. Its kernels report each load and store to the runtime, which itself is not
            instrumented but has more sources and another define.
    """
    flags = [*RUNTIME_FLAGS, "-DCUDA_SIMULATOR", "-fPIC", f"-I{INCLUDE_DIR}", *(["-DSIMULATOR_CHECKED"] * checked)]
    names = ["checker", "reports", "runtime"] if checked else ["runtime"]  # the longest first
    return [(HERE / "runtime" / f"{name}.cpp", flags) for name in names]


class RewriteError(Exception):
    """The source contains something that the simulator cannot run; the message begins with file and line."""


@dataclass
class Translation:
    path: Path
    inputs: list[Path] = field(default_factory=list)


_OUT = "\3"  # placeholder for out_dir in cached texts, which all builds share


@cache
def _version() -> str:
    """A hash of what all rewritten texts depend on: this folder's Python and the names of its headers."""
    parts = [file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py"))]
    names = sorted(str(file.relative_to(INCLUDE_DIR)) for file in INCLUDE_DIR.rglob("*"))
    return hashlib.sha256(b"\0".join([*parts, *map(str.encode, names)])).hexdigest()


def translate(
    source: Path,
    out_dir: Path,
    include_dirs: list[Path] = (),
    target: Target | None = None,
    headers_only: bool = False,
    keep: Callable[[tuple[str, ...], Callable[[], str]], str] = lambda key, make: make(),
    given: str | None = None,
) -> Translation:
    """Writes `<out_dir>/<stem>.cu.cpp` and, next to it, rewritten copies of the local headers; see Target.flags.

    Args:
        headers_only: the source is already C++ (a binding.cpp); only the headers that it includes are written.
        keep: a cache; keep(key, make) returns make()'s result for that key, now or earlier.
        given: the source's text, if not the file's; its #line directives say where a line is.
    """
    source, out_dir = Path(source).resolve(), Path(out_dir).resolve()
    include_dirs = [Path(folder).resolve() for folder in include_dirs]
    translation = Translation(out_dir / f"{source.stem}.cu.cpp")

    def visit(file: Path, place: Path) -> None:
        translation.inputs.append(file)
        try:
            text = read_source(file) if given is None or file != source else given
        except ValueError as error:
            raise RewriteError(str(error)) from None

        headers: dict[str, Path] = {}  # path of the rewritten copy -> header
        copies: dict[tuple[str, bool], str] = {}  # that path, independent of out_dir
        for name, quoted, header in _included(file, text, include_dirs):
            copy = _copy_of(header, source.parent, out_dir, include_dirs)
            headers[str(copy)] = header
            copies[name, quoted] = f"{_OUT}/{copy.relative_to(out_dir)}"

        def make() -> str:
            included: list[str] = []

            def include(name: str, quoted: bool) -> str | None:
                if copy := copies.get((name, quoted)):
                    included.append(copy)
                return copy

            made = rewrite(text, str(file), include, file != source, target)
            return "\n".join([str(len(included)), *included, made])

        if file == source and headers_only:
            included = list(headers)
        else:
            key = (_version(), text, str(file), str(file != source), repr(target), *map(repr, copies.items()))
            count, kept = keep(key, make).split("\n", 1)
            *included, made = kept.replace(_OUT, str(out_dir)).split("\n", int(count))
            write_whole(place, made)
        for copy in included:
            if headers[copy] not in translation.inputs:
                visit(headers[copy], Path(copy))

    visit(source, source if headers_only else translation.path)
    return translation


def local_sources(source: Path, include_dirs: list[Path] = ()) -> list[Path]:
    """The file and the headers that it includes from its folder and `include_dirs`, in the order of first mention."""
    found: list[Path] = []

    def visit(file: Path) -> None:
        found.append(file)
        for _, _, header in _included(file, file.read_text(errors="replace"), include_dirs):
            if header not in found:
                visit(header)

    visit(Path(source).resolve())
    return found


_LINE = re.compile(r'^#line (\d+) "([^"\n]*)"\n', re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)

# Not said in grading, where nvcc compiles the same text.
LEFT_OUT = " (behind #ifndef CUDA_SIMULATOR it is left out)"

# struct alignas(16) Name : Base {
_NAMED_TYPE = re.compile(
    r"[^;{}=]*?(?<!\w)(struct|class|union|enum)(?!\w)[^;{}=:]*?(\w+)(?: final)?(?: ?:[^;{}=]*)? ?\{"
)


def _included(file: Path, text: str, include_dirs: Iterable[Path]) -> Iterator[tuple[str, bool, Path]]:
    """Name, whether it is quoted, and path of each header that the file includes from these folders or its own."""
    for quoted, bracketed in _INCLUDE.findall(text):
        name = quoted or bracketed
        for folder in [*([file.parent] if quoted else []), *include_dirs]:
            if (folder / name).is_file():
                yield name, bool(quoted), (folder / name).resolve()
                break


def _copy_of(header: Path, source_dir: Path, out_dir: Path, include_dirs: list[Path]) -> Path:
    """Path of the rewritten copy, which keeps the folders below the include directory (or the source's)."""
    for folder in [*include_dirs, source_dir]:
        if header.is_relative_to(folder):
            return out_dir / header.relative_to(folder)
    return out_dir / "elsewhere" / header.relative_to(header.anchor)


# ---- one file


def rewrite(
    text: str, name: str, include=lambda name, quoted: None, is_header: bool = False, target: Target | None = None
) -> str:
    """The text as C++20. `include(name, quoted)` returns the path to include instead, or None.

    A header may also be included by a binding.cpp, which nvcc would not compile, so it inherits __CUDACC__ and
    __CUDA_ARCH__ from the including file.
    """
    text = expanded(text, blanked(text))
    file = _File(renamed(text, blanked(text)), name, target)
    has_ptx = file.rewrite_inline_ptx()
    file.refuse_names()
    file.refuse_host_calls()
    file.hint_at_lockstep()
    file.rewrite_includes(include)
    file.rewrite_unrolling()
    file.rewrite_launches()
    file.rewrite_shared()
    file.number_barriers()
    file.rewrite_heap()
    file.keep_launch_bounds()
    file.let_spinning_threads_wait()
    file.rewrite_assumptions()
    for match in re.finditer(r"(?<!\w)__noinline__(?!\w)", file.code):
        if not file.before(match.start(), r"__attribute__\s*\(\(\s*$"):
            file.edits.append((match.start(), match.end(), "__attribute__((noinline))"))
    registered = "".join(f"SIMULATOR_REGISTER({kernel}) " for kernel in file.plain_kernels())
    headers = f"#include <{'cuda_runtime' if is_header else 'simulator/nvcc_names'}.h>\n" + (
        "#include <simulator/ptx.h>\n" if has_ptx else ""
    )
    registered += "".join(
        f"namespace {{ [[maybe_unused]] const ::simulator::ClusterDims simulator_cluster_{kernel}"
        f'("{kernel}", {{{dims}}}); }} '
        for kernel, dims in file.declared_clusters()
    )
    edited = with_both_bodies(file.edited())
    return f'{headers}#line 1 "{name}"\n{edited}' + (f"\n{registered}\n" if registered else "")


class _File:
    def __init__(self, text: str, name: str, target: Target | None = None):
        self.text, self.name = text, name
        self.edits: list[tuple[int, int, str]] = []
        conditionals = Conditionals(blanked(text), target)
        self.edits += conditionals.edits(lambda words: f'#pragma GCC warning "{words}"')
        self.code = conditionals.without_inactive()
        self.directives = [match.span() for match in DIRECTIVE.finditer(self.code)]

    def edited(self) -> str:
        made, at = [], 0
        for start, end, replacement in sorted(self.edits):
            made += [self.text[at:start], replacement]
            at = end
        return "".join([*made, self.text[at:]])

    def error(self, position: int, message: str) -> RewriteError:
        name, line, start = self.name, 1, 0
        for match in _LINE.finditer(self.text, 0, position):
            name, line, start = match[2], int(match[1]), match.end()
        return RewriteError(f"{name}:{self.code.count(chr(10), start, position) + line}: {message}")

    def directive_at(self, position: int) -> tuple[int, int] | None:
        """The span of the preprocessor line (such as a macro's definition) that contains the position."""
        found = self.directives[max(0, bisect(self.directives, (position, len(self.code))) - 1) :][:1]
        return found[0] if found and found[0][0] <= position < found[0][1] else None

    def before(self, end: int, pattern: str) -> re.Match | None:
        """Matches the pattern, which ends in $, against the 300 characters before the position."""
        return re.compile(pattern).search(self.code, max(0, end - 300), end)

    def newlines(self, start: int, end: int) -> str:
        """As many newlines as the span contains, so that a replacement keeps the line numbers."""
        count = self.code.count("\n", start, end)
        return ("\\\n" if self.directive_at(start) else "\n") * count

    # ---- inline PTX, unsupported code

    def rewrite_inline_ptx(self) -> bool:
        """Translates asm statements; returns whether there were any."""
        found = False
        pattern = r"(?<!\w)(?:asm|__asm__|__asm)(?!\w)\s*(?:volatile|__volatile__)?\s*(?=\()"
        for match in re.finditer(pattern, self.code):
            end = closed(self.code, match.end())
            if self.directive_at(match.start()) and is_unreadable(self.text, match.end() + 1):
                continue  # a macro that assembles its text: macros.py has expanded its uses
            try:
                if end < 0:
                    raise PtxError("this asm statement has no end")
                inner = self.text[match.end() + 1 : end - 1]
                new = translated(*read_asm(inner))
            except PtxError as error:
                raise self.error(match.start(), f"{error}{LEFT_OUT}") from None
            self.edits.append((match.start(), end, new + self.newlines(match.start(), end)))
            found = True
        return found

    def refuse_names(self) -> None:
        for position, why in refused_names(self.code):
            if not self.directive_at(position):
                raise self.error(position, why)

    def refuse_host_calls(self) -> None:
        for position, message in host_calls(self.code):
            raise self.error(position, message)

    # ---- code that behaves differently than intended

    def hint_at_lockstep(self) -> None:
        """Adds a compiler warning to warp-synchronous reductions, written for GPUs before Volta."""
        step = r"(\w+)\s*\[\s*(\w+)\s*\]\s*(?:\+=|=)[^;=]*\1\s*\[\s*\2\s*\+[^;\]]*\][^;]*;"
        for match in re.finditer(rf"{step}\s*(?=\1\s*\[\s*\2\s*\]\s*\+?=)", self.code):
            if not re.search(rf"(?<!\w)volatile(?!\w)[^;(){{}}]*(?<!\w){match.group(1)}(?!\w)", self.code):
                continue
            if not self.directive_at(match.start()):
                self.edits.append((match.end(), match.end(), f'_Pragma("GCC warning \\"{LOCKSTEP}\\"")'))
                return

    # ---- includes

    def rewrite_includes(self, include) -> None:
        for start, end in self.directives:
            match = _INCLUDE.match(self.text, start, end)
            if not match:
                continue
            name = match[match.lastindex]
            if path := include(name, match.lastindex == 1):
                self.edits.append((match.start(match.lastindex) - 1, match.end(match.lastindex) + 1, f'"{path}"'))
            elif BUILT_IN.fullmatch(name):
                self.edits.append((match.start(), match.end(), "#include <cuda_runtime.h>"))
            elif not (INCLUDE_DIR / name).is_file() and (why := refused_header(name)):
                raise self.error(match.start(), why)

    # ---- unrolling

    def rewrite_unrolling(self) -> None:
        """Full unrolling keeps small arrays (`float sums[8][8]`) in registers, here as on a GPU."""
        for match in re.finditer(r"^([ \t]*#[ \t]*pragma[ \t]+)unroll\b[ \t]*\(?(\d*)[^\n]*", self.code, re.MULTILINE):
            self.edits.append((match.end(1), match.end(), f"GCC unroll {match.group(2) or 32}"))

    # ---- barriers

    def number_barriers(self) -> None:
        """Numbers barriers that share a line, which their line alone does not tell apart."""
        by_line: dict[int, list[re.Match]] = {}
        for match in re.finditer(r"(?<!\w)__syncthreads(?:_count|_and|_or)?\s*\(", self.code):
            if not self.directive_at(match.start()):
                by_line.setdefault(self.code.count("\n", 0, match.start()), []).append(match)
        for matches in by_line.values():
            for number, match in enumerate(matches, 1):
                end = closed(self.code, match.end() - 1)
                if len(matches) > 1 and end > 0:
                    comma = ", " if self.code[match.end() : end - 1].strip() else ""
                    self.edits.append((end - 1, end - 1, f"{comma}::simulator::here_number({number})"))

    # ---- the device heap

    def rewrite_heap(self) -> None:
        """malloc, free, new and delete in device functions; include/simulator/heap.h."""
        if not re.search(r"(?<!\w)(?:malloc|free|new|delete)(?!\w)", self.code):
            return
        code = without_directives(self.code)
        functions = definitions(code)
        own = {one.name for one in functions}
        for one in functions:
            if not one.on_device or re.search(r"operator\s+(?:new|delete)", code):
                continue
            words = (
                r"(?<![\w.:>])(?:::\s*)?(malloc|free)\s*(?=\()|(?<![\w:.])(new)(?!\w)(?!\s*\()|(?<![\w:])(delete)(?!\w)"
            )
            for match in re.finditer(words, code[one.body[0] : one.body[1]]):
                start, end = (one.body[0] + at for at in match.span())
                if match[1] and match[1] not in own:
                    self.edits.append((start, end, f"::simulator::heap_{match[1]}"))
                elif match[2]:
                    self.edits.append((end, end, " (::simulator::OnHeap{::simulator::here()})"))
                elif match[3] and not self.before(start, r"=\s*$"):
                    self.edits.append((start, start, "::simulator::deletes_here(), "))

    # ---- launch bounds

    def keep_launch_bounds(self) -> None:
        """Checks them in the kernel's first statement, where they may depend on template arguments."""
        if "__launch_bounds__" not in self.code:
            return
        for one in definitions(without_directives(self.code)):
            if (bounds := re.search(r"(?<!\w)__launch_bounds__\s*(?=\()", one.head)) and "__global__" in one.head:
                inner = one.head[bounds.end() + 1 : closed(one.head, bounds.end()) - 1]
                start, end = spans(inner, "([{<")[0]
                most = " ".join(inner[start:end].split())
                self.edits.append((one.body[0], one.body[0], f" ::simulator::keep_launch_bounds({most});"))

    # ---- spin loops

    def let_spinning_threads_wait(self) -> None:
        """Makes `while (flag == 0);` in device functions yield to other threads. Ignores the end of a do statement."""
        loops = [*re.finditer(r"(?<!\w)while\s*(?=\()", self.code)] if "while" in self.code else []
        bodies = [one.body for one in definitions(without_directives(self.code)) if one.device_only] if loops else []
        for match in loops:
            if not any(start <= match.start() < end for start, end in bodies):
                continue
            end = closed(self.code, match.end())
            empty = re.compile(r"\s*(?:;|\{\s*\})").match(self.code, end) if end > 0 else None
            if empty and not self._ends_a_do(match.start()):
                braces = "{ ::simulator::spin(); }"
                self.edits.append((end, empty.end(), self.newlines(end, empty.end()) + braces))

    def _ends_a_do(self, position: int) -> bool:
        before = self._skip_space_back(position)
        if self.code[before - 1] == "}":
            opening = self._skip_group_back(before)
            return bool(self.before(opening, r"(?<!\w)do\s*$"))
        statement = max(self.code.rfind(mark, 0, before - 1) for mark in ";{}") + 1
        return bool(re.compile(r"\s*do(?!\w)").match(self.code, statement, before))

    # ---- assumptions

    def rewrite_assumptions(self) -> None:
        """__builtin_assume(x), which only checks x's type."""
        for match in re.finditer(r"(?<!\w)__builtin_assume(?=\s*\()", self.code):
            self.edits.append((*match.span(), "(void)sizeof"))

    # ---- launches

    def plain_kernels(self) -> list[str]:
        """Kernels with a single address: no template, not overloaded, in no namespace. Empty if the code needs none."""
        if not re.search(r"cudaLaunch\w*Kernel|cudaKernelNodeParams", self.code):
            return []
        names = [
            one.name for one in definitions(without_directives(self.code)) if "__global__" in one.head and one.is_plain
        ]
        return [name for name in names if names.count(name) == 1]

    def declared_clusters(self) -> list[tuple[str, str]]:
        """(kernel, "2, 1, 1") for each __cluster_dims__."""
        found = []
        for match in re.finditer(r"(?<!\w)__cluster_dims__\s*(?=\()", self.code):
            end = closed(self.code, match.end())
            name = re.compile(r"[^;{}]*?(\w+)\s*\((?=[^;{}()]*(?:\([^()]*\)[^;{}()]*)*\)\s*[{;])").match(self.code, end)
            if end > 0 and name and not self.directive_at(match.start()):
                dims = [one.strip() or "1" for one in self.text[match.end() + 1 : end - 1].split(",")]
                if dims != ["1"]:
                    found.append((name[1], ", ".join([*dims, "1", "1"][:3])))
        return found

    def rewrite_launches(self) -> None:
        code = self.code
        pointer = r"\s*(?:const\s+)?void\s*(?:const\s*)?\*\s*"
        cast = rf"(\({pointer}\)\s*|reinterpret_cast\s*<{pointer}>\s*(?=\())"
        for match in re.finditer(rf"(?<!\w)cudaLaunch(?:Cooperative)?Kernel\s*\(\s*{cast}", code):
            # the type of a template or a pointer isn't registered
            self.edits.append((*match.span(1), self.newlines(*match.span(1))))
        for match in re.finditer(r"<<<", code):
            begin, depth, end = self._kernel_start(match.start()), 0, match.end()
            while end < len(code) and not (depth == 0 and code.startswith(">>>", end)):
                depth += (code[end] in "([{") - (code[end] in ")]}")
                end += 1
            call = re.compile(r"(?:\s|\\\n)*\(").match(code, end + 3)
            close = closed(code, call.end() - 1) if call else -1
            kernel = " ".join(code[begin : match.start()].replace("\\\n", " ").split())
            if close < 0 or not kernel:
                raise self.error(match.start(), "cannot read this launch: expected kernel<<<grid, block>>>(arguments)")
            opening = f"::simulator::Launcher({self._opening(kernel, call.end(), close - 1)}"
            self.edits += [(begin, begin, opening), (*match.span(), "), ")]  # the kernel's text stays as it is
            self.edits.append((end, end + 3, ")"))

    def _opening(self, kernel: str, start: int, end: int) -> str:
        """What precedes the kernel: SIMULATOR_KERNEL(, or SIMULATOR_CALL( and more if an argument cannot be forwarded
        ({1, 2}, NULL, 0) or a parameter is a reference, whose argument's address is passed, as in nvcc."""
        arguments = self.code[start:end]
        parts = [self.text[start + a : start + b] for a, b in spans(arguments)]
        blank = r"(?:\s|\\\n)*"
        typeless = [bool(re.fullmatch(rf"{blank}(?:\{{.*\}}|NULL|0){blank}", p, re.DOTALL)) for p in parts]
        references = self._references(kernel)
        if not any(typeless) and not references:
            return "SIMULATOR_KERNEL("
        flat = [" ".join(part.replace("\\\n", " ").split()) for part in parts]
        typed = [i for i, pasted in enumerate(typeless) if not pasted]
        passed = [f"{'*' * (i in references)}a{i}_" if i in typed else part for i, part in enumerate(flat)]
        given = [f"auto a{i}_" for i in typed]
        values = ", ".join(f"&({flat[i]})" if i in references else flat[i] for i in typed)
        self.edits.append((start, end, values + self.newlines(start, end)))
        return f"SIMULATOR_CALL(({', '.join(given)}), ({', '.join(passed)}), "

    def _references(self, kernel: str) -> set[int]:
        """The parameters that are references, of a kernel defined in this file."""
        name = re.findall(r"\w+", kernel.split("<")[0])[-1:]
        head = name and re.search(rf"(?<!\w)__global__(?!\w)[^;{{}}]*?(?<!\w){name[0]}\s*\(", self.code)
        if not head:
            return set()
        parameters = self.code[head.end() : closed(self.code, head.end() - 1) - 1]
        every = [re.sub(r"<[^<>]*>|decltype\s*\([^()]*\)", "", parameters[a:b]) for a, b in spans(parameters, "([{<")]
        return {i for i, one in enumerate(every) if "&" in one.split("=")[0]}

    def _kernel_start(self, end: int) -> int:
        """Where the kernel's name begins: `ns::A<(N > 3), f(x)>::kernel`, `(*pointer)`, `table[i]`."""
        code, i = self.code, end
        while True:
            i = self._skip_space_back(i)
            if i and code[i - 1] in ">)]":
                i = self._skip_group_back(i)
                if code[i] != "(" or self.before(self._skip_space_back(i), r"[\w$]$"):
                    continue  # template arguments, an index or a call: part of the preceding name
                start = i
            else:
                start = self.before(i, r"[\w$]*$").start()
            before = self._skip_space_back(start)
            joint = self.before(before, r"(?:::|->|\.|##|(?<!\w)template)$")
            if joint:
                i = self._skip_space_back(joint.start())
                if joint.group() == "::" and not self.before(i, r"[\w$>]$"):
                    return joint.start()  # a leading ::
                continue
            opening = self._template_start(before) if before and code[before - 1] in "<," else None
            if opening is None:
                return start
            i = opening  # inside template arguments that contain a < without parentheses

    def _skip_space_back(self, i: int) -> int:
        while i and (self.code[i - 1].isspace() or self.code[i - 1] == "\\"):
            i -= 1
        return i

    def _skip_group_back(self, i: int) -> int:
        """The position of the bracket that opens the group closed just before i."""
        angles = rounds = 0
        for k in range(i - 1, -1, -1):
            c = self.code[k]
            rounds += (c in ")]}") - (c in "([{")
            if rounds == 0:
                angles += (c == ">" and self.code[k - 1] != "-") - (c == "<")
            if rounds <= 0 and angles <= 0:
                return k
        raise self.error(i, "unbalanced brackets before <<<")

    def _template_start(self, i: int) -> int | None:
        """The position of the < that opens the template argument list around i; None if the comma before i is an
        operator: `a<<<1, 2>>>(x), b<<<1, 2>>>(y)`."""
        rounds = 0
        for k in range(i - 1, -1, -1):
            c = self.code[k]
            rounds += (c in ")]}") - (c in "([{")
            if rounds < 0 or (rounds == 0 and (c == ";" or re.match(r">\s*\(", self.code[k : k + 9]))):
                return None
            if rounds == 0 and c == "<":
                return k
        return None

    # ---- shared memory

    def rewrite_shared(self) -> None:
        done = 0
        for number, match in enumerate(re.finditer(r"(?<!\w)__shared__(?!\w)", self.code)):
            if match.start() < done:
                continue
            directive = self.directive_at(match.start())
            start = self._declaration_start(match.start(), directive)
            end = self._declaration_end(match.end(), directive[1] if directive else len(self.code))
            done = end
            flat = " ".join(self.code[start:end].replace("\\\n", " ").split())
            # Like nvcc, treats an extern variable that is not an unsized array as static
            external = re.search(r"(?<!\w)extern(?!\w).*\[\s*\]", flat)
            declaration = re.sub(r"(?<!\w)(?:extern|static|__shared__)(?!\w) ?", "", flat)
            local = bool(directive) or self._in_function(start)
            if declaration.startswith("template"):
                raise self.error(match.start(), "the simulator has no __shared__ templates: declare it in the kernel")
            make = self._dynamic if external else self._static
            new = make(declaration, re.sub(r"\W", "_", f"{Path(self.name).stem}_{number}"), local, match.start())
            self.edits.append((start, end, new + self.newlines(start, end)))

    def _declaration_start(self, position: int, directive: tuple[int, int] | None) -> int:
        """The start of the declaration; words, A<B>::C and alignas(16) may precede __shared__."""
        lowest = max([0, *(b for _, b in self.directives if b <= position)])
        if directive:
            head = re.compile(r"\s*#\s*define\s+\w+(\([^)]*\))?").match(self.code, directive[0], directive[1])
            lowest = head.end() if head else directive[0]
        start = position
        while True:
            i = self._skip_space_back(start)
            if i <= lowest:
                return start
            word = re.compile(r"(?<!\w)(?:::|(?!else\b|do\b)\w+)$").search(self.code, max(lowest, i - 100), i)
            if word:
                start = word.start()
            elif self.code[i - 1] in ">)":
                group = self._skip_group_back(i)
                if self.code[i - 1] == ")" and not self.before(group, r"(?:alignas|__align__|__attribute__)\s*$"):
                    return start
                start = group
            else:
                return start

    def _declaration_end(self, position: int, limit: int) -> int:
        """The position of its semicolon, outside of all brackets; `limit` for a macro without one."""
        depth = 0
        for i in range(position, limit):
            depth += (self.code[i] in "([{") - (self.code[i] in ")]}")
            if self.code[i] == ";" and depth == 0:
                return i
        return limit

    def _in_function(self, position: int) -> bool:
        # namespaces and classes are not functions
        outer = re.compile(r"(?:(?<!\w)(?:namespace|struct|class|union|enum)(?!\w)[^;{}()=]*|(?<!\w)extern\s*)$")
        return any(not outer.search(self.code[max(0, at - 300) : at]) for at in open_braces(self.code, 0, position))

    def _static(self, declaration: str, label: str, local: bool, position: int) -> str:
        defined = ""
        if match := _NAMED_TYPE.match(declaration):  # its name must be visible outside of Shared_...
            end = closed(declaration, match.end() - 1)
            defined = f"{declaration[match.start(1) : end]}; "
            declaration = f"{declaration[: match.start(1)]}{match[1]} {match[2]}{declaration[end:]}"
        declarators = spans(declaration, "([{<")
        names = []
        for a, b in declarators:
            declarator = re.search(r"(\w+)\s*((?:\[.*\])?)\s*$", declaration[a:b], re.DOTALL)
            bare = re.sub(r"\{.*\}|\[.*?\]|<.*>", "", declaration[a:b])
            if not declarator or "=" in re.sub(r"[<>=!]=", "", bare):
                raise self.error(position, "cannot read this __shared__ declaration (they take no initializer)")
            names.append(declarator.group(1))
        text = ", ".join(f"SIMULATOR_VARIABLE(Shared_{label}_, {name})" for name in names)
        described = (
            f"{defined}struct Shared_{label}_ {{ {declaration}; }}; "
            f"static constexpr ::simulator::Variable variables_{label}_[] = {{{text}}};"
        )
        references = " ".join(f"[[maybe_unused]] auto& {name} = shared_{label}_.{name};" for name in names)
        made = f"auto& shared_{label}_ = ::simulator::shared_variable<Shared_{label}_>(variables_{label}_);"
        if local:
            return f"{described} {made} {references[:-1]}"
        self._make_in_functions(position, names, f"{made} {references}")
        return f"{described} extern {declaration}"

    def _make_in_functions(self, position: int, names: list[str], made: str) -> None:
        """Makes variables of namespace scope in the device functions below `position` that use them, one scope further
        out than their own variables. Elsewhere, as in sizeof, they are declared only."""
        word = re.compile(rf"(?<![\w.])(?<!->)(?:{'|'.join(names)})(?!\w)")
        for one in definitions(without_directives(self.code)):
            below = one.on_device and one.start > position
            if below and word.search(self.code, *one.body) and not word.search(self.code, one.start, one.body[0]):
                self.edits += [(one.body[0], one.body[0], f" {made} {{"), (one.body[1], one.body[1], "}")]

    def _dynamic(self, declaration: str, label: str, local: bool, position: int) -> str:
        align = re.compile(r"(?:__align__|alignas|__attribute__)\s*(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))\s*")
        alignment = "16"
        for match in align.finditer(declaration):
            alignment = re.sub(r"^\(\(\s*(?:__)?aligned(?:__)?\s*(.*)\)\)$", r"\1", match.group(1))
        declaration = align.sub("", declaration)
        match = re.fullmatch(r"(.*?)(\w+)\s*\[\s*\]\s*(.*)", declaration, re.DOTALL)
        if not match:
            raise self.error(position, "cannot read this extern __shared__ declaration: expected type name[]")
        kind, name, rest = (part.strip() for part in match.groups())
        pointer = f"(*{name}){rest}" if rest else f"*{name}"
        start = f'::simulator::dynamic_shared<{alignment}>("{name}", sizeof({kind})'
        value = f"reinterpret_cast<{kind} (*){rest}>({start}"
        made = f"[[maybe_unused]] {kind} {pointer} = {value}))"
        if local:
            return made
        self._make_in_functions(position, [name], f"{made};")
        return f"extern {declaration}"
