"""Builds a task's kernels for grading, in a sandbox where student code never runs.

    build(request) -> the library's bytes, the addresses of its kernels and variables, the compilers' log

nvcc and ptxas decide what a kernel is: they compile every .cu for a GPU, and only kernels found there may run on the
device (common/simulator/runtime/apart.cpp). They must see the same text that the simulator compiles, so macros and
conditionals are resolved once, before the rewriter (_flat). Objects must not contain code that runs when they are
loaded, and only their launchers are visible to the course's objects.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import resource
import secrets
import shutil
import signal
import struct
import subprocess
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from common.compiling import toolchain
from common.compiling.errors import CUDA_NAMES, explain_failure
from common.compiling.flags import LANGUAGE, UNFILLED_NVCC_FLAGS
from common.compiling.gaps import with_own_headers
from common.compiling.manifest import read_manifest, tasks
from common.compiling.objects import CompilerFailed, compile_objects
from common.compiling.plan import Plan, plans_of
from common.compiling.request import BuildRequest
from common.compiling.result import BuildError
from common.console.files import write_whole
from common.console.paths import ROOT
from common.course.grading.elf import (
    ALLOCATED,
    EXECUTABLE,
    FINI_ARRAY,
    FUNCTION,
    IFUNC,
    INIT_ARRAY,
    OBJECT,
    PREINIT_ARRAY,
    Elf,
    Symbol,
)
from common.course.grading.inside import settle
from common.simulator import rewriter
from common.simulator.architecture import Conditionals
from common.simulator.text import blanked

PLAIN = (".text", ".rodata", ".data", ".bss", ".tdata", ".tbss", ".eh_frame", ".gcc_except_table", ".note", ".lrodata")
KERNELS, ENDBR = "__patchable_function_entries", 4  # the section, and the bytes that a function may begin with
PLAIN += ("simulator_kernels", KERNELS)  # see SIMULATOR_REGISTER and __global__
ARCH = "sm_89"  # the simulator's __CUDA_ARCH__
COUNTER = "__sanitizer_cov_trace_pc"  # see common/simulator/runtime/work.cpp
ASTRAY = 2**32 - 1  # as in work.cpp
CODE = "theirs"  # the library's section with all student code
CALLS_BY_ADDRESS = (
    " kernel calls a function through an address, which can't be graded: call it by its name, or pass it as a template "
    "argument (template <typename F> and an F, for a functor or a lambda)."
)
BY_ADDRESS = ".callprototype"  # in PTX: an indirect call
NO_ALLOCA = ", because of alloca or recursion. It is device memory: the handout asks for attention without a workspace."
# C library functions that store: student code gets those of common/simulator/runtime/stores.cpp instead
STORING = ("memcpy", "memmove", "memset", "modf", "modff", "frexp", "frexpf", "remquo", "remquof", "sincos", "sincosf")
REPLACED = (*STORING, "printf", "vprintf")
NAMES = f"-fmacro-prefix-map={ROOT}/="  # __FILE__ is the same for both compilers
NOT_THERE = "No such file or directory"
MAY_INCLUDE = "\nOf the course's headers graded code may include those that the files given out include, no others."
COMPILER_SECONDS = 60  # CPU time of each compiler process; honest files take less than 10
MOST_LOG = 60_000  # characters
MOST_JOINED = 400  # lines of a directive
MOST_BLANK = 100  # lines without a line marker
HEADERS = "headers"  # in line markers, the file that includes the student's headers
SECRET = secrets.token_hex(8)  # in names of intermediate files, so that code can't detect a build step by __has_include
UNKNOWN_ATTRIBUTE = 1097  # nvcc's diagnostic number
ENTRY = ".nv.constant0."  # prefix of a section that only kernels have
MOST_THREADS = 1024  # per block
MOST_LOCAL = 3 << 10  # bytes of local memory per thread without a workspace; honest kernels spill up to 528
# Of the simulator's runtime: what only host code calls
HOST_FILES = ["apart.cpp", "graphs.cpp", "host_api.cpp", "launch.cpp", "memory.cpp", "program.cpp", "streams.cpp"]
HOST_FILES += ["tensor_map.cpp"]
WITH_SIZE, STACK = 4, 0x12  # in a cubin's .nv.info: entries of variable size; a kernel's stack, with what it calls
# __launch_bounds__ and __block_size__ in PTX
_BOUNDS = re.compile(r"\.entry\s+([\w$]+)\s*\([^)]*\)[^{;]*?\.(?:maxntid|reqntid)\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")
_ALLOCA = re.compile(r"^\s*alloca\.", re.MULTILINE)
_FUNC = re.compile(r"^[ \t.\w]*\.(?:func|entry)\b(?:\s*\([^)]*\))?\s*([\w$]+)", re.MULTILINE)
_CALL = re.compile(r"\bcall(?:\.uni)?\s+(?:\([^)]*\)\s*,\s*)?([\w$]+)")
_VARIABLE = re.compile(
    r"^\s*(?:\.visible\s+|\.weak\s+|\.common\s+)*\.(?:global|const)\s[^;={]*?([\w$]+)(?:\[\d*\])*\s*[;=]", re.M
)
# Line markers, by which a file could attribute its lines to another file. Matched after splicing, and in comments, too,
# where clean_tree.py has changed all but those after a splice
LINE_NUMBERS = re.compile(
    r"""(?:^|\*/)[^\S\n]*(?:\#|%:)[ \t\f\v]*(?:/\*|line\b|\d[\w']*[ \t\f\v]*(?:/\*|["\\$A-Z_a-z\x80-\U0010ffff]))""",
    re.M | re.X,
)
# SIMD instructions, which work on several of a thread's numbers: 16-byte ones (with 32 and 64 bytes, all count as SIMD)
_PACKED = re.compile(
    r"v?(?:p(?:add|sub|mul|madd|max|min)\w*|(?:add|sub|mul|div|max|min|sqrt|rcp|rsqrt|hadd|dp|fn?m\w+)p[sd])"
)
# The address that an instruction refers to: the target of a jump or call, the operand of lea
_TARGET = re.compile(r"^\s*(?:\w+ )?([0-9a-f]+) <|# ([0-9a-f]+)")
_ELSEWHERE = re.compile(r"<([^>]+)@plt")  # a call's target in another library
# libgcc's arithmetic functions, some for complex numbers, except those that store a remainder
_ARITHMETIC = re.compile(r"__(?!\w*divmod)[a-z]+[hsdt][cif]\d?")
_COMPLEX = re.compile(r"c(?:abs|arg|exp|log|log10|pow|proj|sqrt|a?(?:sin|cos|tan)h?)f?")  # of libm
_INSTRUCTION = re.compile(r"^ *([0-9a-f]+):\t(\S+)(.*)", re.MULTILINE)
_TOO_LONG = re.compile("cpu time limit exceeded", re.IGNORECASE)
_MARK = re.compile(r'(\d+) "((?:[^"\\\n]|\\.)*)"[^\n]*')  # after "# "
_INDENT = re.compile(r"^[^\S\n]+(?=# \d)", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_SPLICE = re.compile(r"\\[ \t\f\v]*\n")  # as gcc has it
# Tokens of preprocessed code; strings (raw ones, too) and characters are one token each
_TOKEN = re.compile(
    r"""(?:u8|[uUL])?R"(?P<end>[^()\\\s]{0,16})\(.*?(?:\)(?P=end)"|\Z)
    | (?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*(?:"|)|'(?:\\.|[^'\\\n])*'?) | \.?\d(?:[eEpP][+-]|'?[\w$]|\.)*
    | (?:[A-Za-z_$]|[^\x00-\x7f]|\\[uU])(?:[\w$]|[^\x00-\x7f]|\\[uU])* | (?:\[|<:)\s*(?:\[|<:)
    | ^[ \t]*(?P<directive>\#|%:)[^\n]* | \S""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
# CUDA's attributes as nvcc expands them, and the keywords for them; the simulator's forms of CUDA's variables
_ATTRIBUTES = ("global", "device", "host", "shared", "constant", "managed", "grid_constant", "noinline")
_ATTRIBUTES += (_CALLED := ("launch_bounds", "maxnreg", "cluster_dims", "block_size"))
_KEYWORDS = [f"__{one}__" for one in _ATTRIBUTES]
_INDICES = {
    tuple(match[0] for match in _TOKEN.finditer(f"(::simulator::current_{of}()->{which})")): name
    for name, of, which in (
        ("threadIdx", "thread", "index"),
        ("blockIdx", "block", "index"),
        ("blockDim", "block", "size"),
        ("gridDim", "block", "grid"),
    )
}
_KEPT = [*_KEYWORDS, *_INDICES.values()]  # the rewriter reads them
_INDEX_TOKENS = len(next(iter(_INDICES)))
# The simulator's own attributes: of a registered kernel (launch_api.h), and __global__ (language.h)
_OURS = re.compile(
    r'\[\[gnu::section\("simulator_kernels"\), gnu::used\]\]'
    r"|__attribute__\(\(patchable_function_entry\(5, 0\), noipa\)\)"
)
_ASSEMBLY = ("asm", "__asm", "__asm__")
# Attributes that neither exempt code from checks and counting nor reach the assembler; gnu and using may precede them
_HARMLESS = re.compile(
    "gnu|using|align|aligned|always_inline|cold|const|deprecated|fallthrough|format|hot|likely|may_alias|maybe_unused|"
    "no_unique_address|nodiscard|noinline|nonnull|noreturn|nothrow|packed|pure|unlikely|unused|visibility|"
    "warn_unused_result"
)
# Allowed among the directives that preprocessing leaves: they pass no text to the assembler and rename no function
_PRAGMA = re.compile(
    r"[ \t]*#[ \t]*pragma[ \t]+(?:(?:GCC )?(?:unroll|ivdep|diagnostic)|nounroll|nv_\w+|diag_\w+|once"
    r"|(?:end)?region|mark|message|STDC|omp|clang)\b.*"
    r"|[ \t]*#[ \t]*pragma[ \t]+pack[ \t]*\([ \t]*(?:(?:push|pop)[ \t]*(?:,[ \t]*\d+[ \t]*)?|\d+[ \t]*)?\)[ \t]*"
)
# Names that differ between the simulator's headers and nvcc's, and the prefix nvcc gives to a file's internal names
_OTHERWISE = [
    (re.compile(r"\b_INTERNAL_\w+::"), ""),
    *((re.compile(name), cuda) for name, cuda in CUDA_NAMES.items()),
    (re.compile(r" (?=>)"), ""),
]


def serve(root: str, file: str, cpu: str, file_bytes: str, *_) -> None:
    """Answers requests until the grader closes the connection: a task's name gets the result of build(), a name with
    addresses their source lines."""
    settle({resource.RLIMIT_CPU: int(cpu), resource.RLIMIT_FSIZE: int(file_bytes), resource.RLIMIT_CORE: 0})
    limit_compilers(COMPILER_SECONDS)
    if Path("/runtime").is_dir():  # objects that every build links
        unused = shutil.ignore_patterns("*.gch")  # unused under a file size limit, and as large as all the rest
        shutil.copytree("/runtime", os.environ["ATTENTION_BUILD_DIR"], ignore=unused, dirs_exist_ok=True)
    connection = Connection(int(file))
    while True:
        try:
            task, *addresses = connection.recv_bytes(4096).decode().split()
        except (EOFError, OSError):
            return
        try:
            request = BuildRequest(task, "student", "simulator", counted=True)
            about, library = (_lines_at(request, addresses), b"") if addresses else build(request)
        except (BuildError, CompilerFailed, OSError, ValueError) as error:
            about, library = {"problem": str(error).replace(rewriter.LEFT_OUT, "")[:MOST_LOG]}, b""
        connection.send_bytes(json.dumps(about).encode())
        connection.send_bytes(library)


def limit_compilers(seconds: int) -> None:
    """Limits each child process to this many seconds of CPU time; this process's hard limit is unchanged."""
    signal.signal(signal.SIGXCPU, lambda *_: None)  # children don't inherit the handler
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def build(request: BuildRequest) -> tuple[dict, bytes]:
    """({"name", "kernels", "variables", "log"}, the library).

    Raises:
        BuildError: the student's files do not compile, or contain code that can't be graded; the message says what.
    """
    (plan,) = plans_of(request)
    own = with_own_headers(plan.place.kernels)
    for file in filter(Path.is_file, {one for source in plan.place.kernels for one in _files(source)}):
        text = "" if file.suffix == ".py" else file.read_text(errors="replace")  # raw strings keep their splices
        if LINE_NUMBERS.search(_SPLICE.sub("", text)) or LINE_NUMBERS.search(text):
            raise BuildError(f"{file.name}: #line, or a # before a number and a word or comment, can't be graded.")
        for one in Conditionals(blanked(text)).all if file in own else ():
            if one.side == "host":
                line = text.count("\n", 0, one.branches[0].start) + 1
                words = "code that only the host compiles, because it has no __CUDA_ARCH__, can't be graded"
                raise BuildError(f"{file.name}:{line}: {words}: write it without this condition.")
    log, jobs, linker_flags = "", *plan.for_simulator()
    count = len(plan.place.kernels)
    try:
        flat = {one: _flat(plan, one, jobs[0][1]) for one in plan.place.kernels}
        jobs, linker_flags = plan.for_simulator({source: one.text for source, one in flat.items()})
        jobs[:count] = _checked(plan, jobs[:count])
        made = compile_objects(jobs)
        log = "\n".join(one.log for one in made)
        limits, entries, variables = _as_nvcc_sees(plan, flat)
        library = _linked(plan, [one.path for one in made], linker_flags)
    except CompilerFailed as error:
        if _TOO_LONG.search(str(error)):
            seconds = resource.getrlimit(resource.RLIMIT_CPU)[0]
            raise BuildError(f"Compiling takes longer than allowed: {seconds} seconds of CPU for a step.") from None
        missing = NOT_THERE in str(error)
        raise BuildError(explain_failure(str(error), own, None) + MAY_INCLUDE * missing) from None
    whole = Elf(library.read_bytes())
    symbols = [one for one in whole.symbols if one.section]
    marked = _marked(whole)
    kernels = _with_limits([one for one in symbols if one.type == FUNCTION and one.value in marked], limits, entries)
    objects = _named([one for one in symbols if one.type == OBJECT], variables)
    places = {"kernels": [(address, *its) for address, its in kernels.items()]}
    places["variables"] = [(one.value, one.size) for one, name in objects if name in variables]
    places["blocks"] = _blocks(whole, library, list(kernels))
    return {"name": plan.name, "log": log[-MOST_LOG:], **places}, library.read_bytes()


def _blocks(library: Elf, path: Path, kernels: Sequence[int]) -> list[int]:
    """For each basic block: the return address of its counting call << 32 | its bytes of code from there to its end.

    The bytes of a SIMD instruction count once for each number that it works on. In functions that no kernel can reach,
    the low half is ASTRAY.

    Raises:
        BuildError: a kernel makes an indirect call, or calls a function that GPUs don't have or a host function of the
            simulator, which nvcc may have removed, such as in a branch with undefined behavior.
    """
    counter = next(one.value for one in library.symbols if one.name == COUNTER)
    text = next(one for one in library.sections if one.name == CODE)
    calls = (match.end() for match in re.finditer(rb"\xe8(?=....)", text.data, re.DOTALL))
    places = [
        at + 4
        for at in calls
        if text.address + at + 4 + int.from_bytes(text.data[at : at + 4], "little", signed=True) == counter
    ]
    functions = [one for one in library.symbols if one.type == FUNCTION and one.size]
    ends, last = sorted(one.value + one.size - text.address for one in functions), len(text.data)
    listed = _INSTRUCTION.findall(_run(["objdump", "-d", "--no-show-raw-insn", f"--section={CODE}", path]))
    starts, sums, calls = [int(place, 16) - text.address for place, *_ in listed], [0], set()
    begins = sorted({one.value - text.address for one in functions})
    named: dict[int, set[int]] = {}  # for each function: the addresses that it calls, jumps to or loads
    for start, following, (_, name, operands) in zip(starts, [*starts[1:], last], listed, strict=True):
        if target := _TARGET.search(operands):
            own = begins[bisect_right(begins, start) - 1]
            named.setdefault(own, set()).add(int(target[1] or target[2], 16) - text.address)
        sums.append(sums[-1] + (following - start) * _numbers_of(name, operands))
        if name.startswith("call") and operands.split()[:1] == [f"{counter:x}"]:
            calls.add(following)
    places, found = [at for at in places if at in calls], []  # a constant may contain the bytes of a call
    known, found_kernels = set(), [one - text.address for one in kernels]
    while found_kernels:
        at = found_kernels.pop()
        own = begins[max(0, bisect_right(begins, at) - 1)]
        if 0 <= at < last and own not in known:
            known.add(own)
            found_kernels += named.get(own, ())
    beyond = {at: own for own in known for at in named.get(own, ()) if not 0 <= at < last}  # of the simulator's runtime
    _check_calls(path, {text.address + at: text.address + own for at, own in beyond.items()})
    counted = {begins[bisect_right(begins, at - 1) - 1] for at in places}  # excludes a few functions of the simulator
    for start, (*_, operands) in zip(starts, listed, strict=True):
        own, far, what = begins[bisect_right(begins, start) - 1], _ELSEWHERE.search(operands), ""
        if own in known and (far and far[1] not in _functions_of_gpus()):
            what = f" kernel calls {_readable([far[1]])[0]}, which is no function of a GPU."
        elif own in known & counted and "*" in operands:
            what = CALLS_BY_ADDRESS
        if what:
            places = [one for one in _lines(path, [hex(text.address + start)]) if ":" in one]
            raise BuildError(f"{places[0] + ': a' if places else 'A'}{what}")
    for at, following in pairwise([*places, last]):
        end = min(following, ends[min(bisect_right(ends, at), len(ends) - 1)])
        size = max(1, sums[bisect_left(starts, end)] - sums[bisect_left(starts, at)])
        is_known = begins[bisect_right(begins, at - 1) - 1] in known
        found.append((text.address + at) << 32 | (size if is_known else ASTRAY))
    return found


def _check_calls(path: Path, callers: Mapping[int, int]) -> None:
    """Raises BuildError if a kernel calls a host function of the simulator; callers: runtime function -> its caller."""
    found = _run(["addr2line", "-e", path, *map(hex, callers)]).splitlines() if callers else ()
    for caller, line in zip(callers.values(), found, strict=bool(callers)):
        if Path(line.partition(":")[0]).name in HOST_FILES:
            place = _lines(path, [hex(caller)])
            raise BuildError(f"{place[0] if place else 'A kernel'} calls a host function of the simulator.")


@functools.cache
def _functions_of_gpus() -> set[str]:
    """Library functions that kernels may call: clock() and math functions, which CUDA has, too, complex ones, and the
    compiler's helper functions (arithmetic, unwinding)."""
    mathematics, compilers = (
        Elf(Path(_run([toolchain.host_compiler(), f"-print-file-name={name}"]).strip()).read_bytes()).defined()
        for name in ("libm.so.6", "libgcc_s.so.1")
    )
    headers = [one / "crt" / "math_functions.h" for one in toolchain.nvcc_for_build().include_dirs()]
    words = {word for one in headers if one.is_file() for word in re.findall(r"\w+", one.read_text(errors="replace"))}
    named = {*filter(_COMPLEX.fullmatch, mathematics), *filter(_ARITHMETIC.fullmatch, compilers)}
    return {"_Unwind_Resume", "clock", *(words & mathematics), *named}


def _numbers_of(name: str, operands: str) -> int:
    """How many numbers an instruction works on: 1, or the lanes of a SIMD instruction."""
    for register, numbers in (("%zmm", 16), ("%ymm", 8)):
        if register in operands:
            return numbers
    return 4 if "%xmm" in operands and _PACKED.fullmatch(name) else 1


@dataclass(frozen=True)
class _Flat:
    """A source without macros and conditionals.

    Attributes:
        lines: the preprocessor's output that still has macros.
        tokens: (place, token) of the student's code, without CUDA's keywords.
        text: for the rewriter: the includes of headers, then the student's code.
    """

    lines: str
    tokens: list[tuple[str, str]]
    text: str


def _flat(plan: Plan, source: Path, flags: Sequence[str]) -> _Flat:
    """The source as the simulator's headers make it. CUDA's keywords and variables are not expanded.

    Raises:
        BuildError: a macro changed a line of a header, since headers are not checked, or has a name of the simulator's.
    """
    files = _files(source)
    whole, alone = (plan.folder / f"{source.stem}-{one}-{SECRET}.cpp" for one in ("whole", "headers"))
    expand = [toolchain.host_compiler(), "-E", "-xc++", NAMES, *(one for one in flags if not one.startswith("-I"))]
    expand += ["-include", "simulator/nvcc_names.h", f"-I{ROOT}", f"-I{rewriter.INCLUDE_DIR}"]
    lines, parts, headers, is_own = _run([*expand, "-fdirectives-only", source]), [], [], False
    _look_at_names(lines, files, _folders())
    for number, file, text in _pieces(lines):
        path, was_own = _resolved(file), is_own
        if is_own := number > 0 and path in files:
            parts.append(f'#line {number} "{file}"\n{text}')
        elif was_own and not file.startswith("<"):
            folders = (rewriter.INCLUDE_DIR, ROOT, *sorted(_folders_of_headers(), key=lambda one: -len(one.parts)))
            name = next(path.relative_to(one) for one in folders if path.is_relative_to(one))
            headers.append(f"#include <{name}>")
            parts.append(f'#line {2 * len(headers)} "{HEADERS}"\n{headers[-1]}')  # after it, the number is odd
    keywords = [f"#undef {one}" for one in _KEPT]
    write_whole(whole, "\n".join([*keywords, *parts]))
    write_whole(alone, "\n".join([*keywords, *headers]))
    expanded, known = _run([*expand, whole]), set(_pieces_of(_run([*expand, alone]), files, theirs=False))
    others = [one for one in _pieces_of(expanded, files, theirs=False) if one not in known]
    names = {Path(file).name for _, file, _ in others}
    known = {one for piece in known if Path(piece[1]).name in names for one in _lines_of_piece(*piece)}
    for place, line in (one for piece in others for one in _lines_of_piece(*piece)):
        if (place, line) not in known:
            words = "a header has this line only because of macros before it, which can't be graded"
            raise BuildError(f"{place}: {words}: {line.strip()[:80]}")
    tokens = _tokens(source, expanded)
    _check_attributes(tokens)
    for place, token in tokens:
        is_ours = "simulator" in token.lower() or token.startswith("_Unwind_")
        if is_ours and not token.endswith(('"', "'")):
            raise BuildError(f"{place}: this name is the simulator's or the compiler's own: {token[:80]}")
    pieces = [one for one in _pieces(expanded) if one[1] == HEADERS or _resolved(one[1]) in files]
    code, macros = _joined(pieces, headers), set(re.findall(r"^#define (\w+)", lines, re.MULTILINE))
    words = {match[0] for match in _TOKEN.finditer(code)}.difference(_KEPT)
    # Names that are left must not be expanded again
    undone = "".join(f"\n#undef {one}" for one in sorted(words) if one in macros or one.startswith("__"))
    return _Flat(lines, tokens, code.replace("\n#line", f"{undone}\n#line", 1))


def _joined(pieces: Sequence[tuple[int, str, str]], headers: Sequence[str]) -> str:
    """The pieces, with the headers in place and few line markers: the rewriter reads no statement with one inside."""
    made, name, at, last = [], "", 0, ""  # at: the last line's number
    for number, file, text in pieces:
        if file == HEADERS:
            made += [f"\n{headers[number // 2 - 1]}"] * (number % 2 == 0)
        elif file != name or number > at + MOST_BLANK:
            made.append(f'\n#line {number} "{file}"\n{text}')
            at = number
        else:
            is_directive = "#" in (last.lstrip()[:1], text.lstrip()[:1])
            blank = max(number - at, int(is_directive))
            made.append(("\n" * blank or " ") + text)
            at += blank
        name, at, last = file, at + text.count("\n"), f"{last}{made[-1]}".rpartition("\n")[2]
    return "".join(made)


def _checked(plan: Plan, jobs: Sequence[tuple[Path, Sequence[str]]]) -> list[tuple[Path, list[str]]]:
    """The jobs with all macros expanded, so that the text checked here is the text compiled, whatever a file finds out
    about the process that preprocesses it.

    Raises:
        BuildError: the code contains assembly (all PTX has become C++ by then), or attributes or directives other than
            harmless ones: some put text into the compiler's assembly, rename a function or keep it from being counted.
    """
    made = []
    for source, (translated, flags) in zip(plan.place.kernels, jobs, strict=True):
        text = _run([toolchain.host_compiler(), "-E", NAMES, *flags, translated])
        lines = _lines_of(text, _files(source))
        code = _OURS.sub("", "\n".join(line for _, line in lines))
        _check_attributes((source.name, match[0]) for match in _TOKEN.finditer(code))
        for match in _TOKEN.finditer(code):
            token, what = match[0], ""
            if match["directive"] and not _PRAGMA.fullmatch(token):
                what = "this directive can't be graded, unlike #pragma unroll, pack, GCC diagnostic, nv_* and region"
            elif token in _ASSEMBLY:
                what = "assembly that the simulator doesn't translate can't be graded"
            if what:
                raise BuildError(f"{lines[code.count(chr(10), 0, match.start())][0]}: {what}: {token[:80]}")
        made.append((plan.folder / f"{source.stem}-{SECRET}.cpp", [*flags, "-fpreprocessed"]))
        made[-1][0].write_text(text, errors="surrogateescape")
    return made


def _check_attributes(tokens: Iterable[tuple[str, str]]) -> None:
    """Raises BuildError if an attribute in these (place, token) is not harmless."""
    depth = None  # of brackets within an attribute
    for place, token in tokens:
        is_name = re.match(r"[^\W\d]|[$\\]", token)
        begins = token in ("__attribute__", "__attribute") or (token[0] in "[<" and len(token) > 1)  # [[, <:<:
        if depth is not None:
            depth += (token in "([") - (token in ")]")
            if begins or (depth == 2 and is_name and not _HARMLESS.fullmatch(token.strip("_"))):
                allowed = _HARMLESS.pattern.replace("|", ", ")
                raise BuildError(f"{place}: this attribute can't be graded: {token[:80]}; allowed are {allowed}")
            depth = depth or None
        elif begins:
            depth = 0 if is_name else 2


def _lines_at(request: BuildRequest, addresses: Sequence[str]) -> dict:
    """{"lines": ["task3/online_softmax.cu:57 in row_max(...)", ...]}: lines of student code, innermost first."""
    (plan,) = plans_of(request)
    return {"lines": _lines(plan.library, [*filter(re.compile("0x[0-9a-f]+").fullmatch, addresses)])}


def _lines(library: Path, addresses: Sequence[str]) -> list[str]:
    found = []
    for line in _run(["addr2line", "-Cfpie", library, *addresses]).splitlines():
        function, _, place = line.strip().removeprefix("(inlined by) ").rpartition(" at ")
        if not any(word in line for word in ("??", "/simulator/include/", "/simulator/runtime/", "::_FUN(")):
            found.append(f"{place.removeprefix(f'{ROOT}/')} in {function}")
    return found[:6]


def _named(symbols: Sequence[Symbol], seen: Counter[str]) -> list[tuple[Symbol, str]]:
    """The symbols with their names. Raises BuildError if more of them share a name than nvcc has seen."""
    names = _readable([one.name for one in symbols])
    number = Counter(names)
    if many := [name for name in seen if number[name] > seen[name]]:
        raise BuildError(
            f"{many[0]} is a kernel or a variable of the device in one file and something else in another."
        )
    return list(zip(symbols, names, strict=True))


def _marked(library: Elf) -> set[int]:
    """The addresses of the functions that were declared with __global__, which leaves them in a section."""
    marks, moved = ([one for one in library.sections if one.name == name] for name in (KERNELS, ".rela.dyn"))
    found = struct.iter_unpack("<QQQ", moved[0].data) if moved else ()
    here = range(marks[0].address, marks[0].address + len(marks[0].data)) if marks else ()
    return {address - skipped for place, _, address in found if place in here for skipped in (0, ENDBR)}


def _with_limits(
    marked: Sequence[Symbol], limits: Mapping[str, tuple[int, int]], entries: Counter[str]
) -> dict[int, tuple[int, int]]:
    """Address -> limits of those that nvcc has made kernels of. Where the compilers name a parameter's type or a
    template argument differently: the looser limits of all kernels whose names are equal but for these."""
    alike: dict[str, list[tuple[int, int]]] = {}
    for name, its in limits.items():
        alike.setdefault(_without_types(name), []).append(its)
    found = {}
    for one, name in _named(marked, entries):
        its = [limits[name]] if name in limits else alike.get(_without_types(name), [])
        if its and "[clone" not in name:
            found[one.value] = max(threads for threads, _ in its), min(registers for _, registers in its)
    return found


def _without_types(name: str) -> str:
    return re.split(r"[<(]", name.removeprefix("void ").replace("(anonymous namespace)", "_"), maxsplit=1)[0]


def _linked(plan: Plan, objects: Sequence[Path], flags: Sequence[str]) -> Path:
    """Links the library. Only those student symbols stay global that the binding needs and the runtime doesn't."""
    count = len(plan.place.kernels)
    theirs, (*runtime, binding) = objects[:count], objects[count + 1 :]
    for source, path in zip(plan.place.kernels, theirs, strict=True):
        _look_at(Elf(path.read_bytes()), source.name)
    whole, names, library = (plan.folder / name for name in ("theirs.o", "kept.txt", plan.library.name))
    plan.folder.mkdir(parents=True, exist_ok=True)
    _run(["ld", "-r", "--force-group-allocation", *theirs, "-o", whole])
    all_theirs, ours = Elf(whole.read_bytes()), [Elf(one.read_bytes()) for one in runtime]
    kept = Elf(binding.read_bytes()).undefined() & all_theirs.defined()
    kept -= set().union(*(one.undefined() for one in ours))
    if COUNTER in {one.name for one in all_theirs.symbols if one.section}:
        raise BuildError(f"The function {COUNTER} is the simulator's and can't be defined again.")
    names.write_text("".join(f"{name}\n" for name in sorted(kept)))
    others = [f"--redefine-sym={one}=simulator_stores_{one}" for one in REPLACED]
    others += [f"--rename-section={one.name}={CODE}" for one in all_theirs.sections if one.name.startswith(".text")]
    _run(["objcopy", f"--keep-global-symbols={names}", *others, whole])
    _run([toolchain.host_compiler(), whole, *objects[count:], *flags, "-Wl,-z,now", "-o", library])
    return library


def _look_at(elf: Elf, name: str) -> None:
    """Raises BuildError for an object that contains code that runs when it is loaded."""
    arrays = (INIT_ARRAY, FINI_ARRAY, PREINIT_ARRAY)
    for one in elf.sections:
        if one.flags & EXECUTABLE and not one.name.startswith(".text"):
            raise BuildError(
                f"{name}: code in the section {one.name} can't be graded: leave the section to the compiler."
            )
    strange = [one for one in elf.sections if one.flags & ALLOCATED and not one.name.startswith(PLAIN)]
    if strange or any(one.type in arrays for one in elf.sections) or any(one.type == IFUNC for one in elf.symbols):
        what = strange[0].name if strange else "IFUNC"
        raise BuildError(
            f"{name}: something in it runs when the library is loaded ({what}): a global or static object with a "
            "constructor (std::vector, std::string, #include <iostream>), or __attribute__((constructor)). Graded code "
            "can't have that: make the object inside a function."
        )


def _as_nvcc_sees(
    plan: Plan, flat: Mapping[Path, _Flat]
) -> tuple[dict[str, tuple[int, int]], Counter[str], Counter[str]]:
    """(limits, names of the kernels, names of the device variables) according to nvcc. A kernel's limits are its
    maximum number of threads per block and its registers per thread.

    Args:
        flat: each source as the simulator compiles it.

    Raises:
        CompilerFailed: nvcc or ptxas rejects a file, such as a kernel that calls a host function.
        BuildError: nvcc and the simulator compile different text, or a kernel makes an indirect call.
    """
    nvcc = toolchain.nvcc_for_build()
    limits: dict[str, tuple[int, int]] = {}
    entries: Counter[str] = Counter()
    variables: Counter[str] = Counter()
    flags = [
        LANGUAGE,
        f"-arch={ARCH}",
        "-Wno-deprecated-gpu-targets",
        f"-Xcompiler={NAMES},-O2,-U_FORTIFY_SOURCE",  # as in the simulator's build, since macros depend on these
        *(UNFILLED_NVCC_FLAGS if plan.gaps else []),
    ]
    include = [f"-I{path}" for path in (ROOT, *nvcc.include_dirs())]
    for source in plan.place.kernels:
        ptx = plan.folder / f"{source.stem}-{SECRET}.ptx"
        _run([nvcc.path, "-ptx", *flags, f"-diag-error={UNKNOWN_ATTRIBUTE}", *include, source, "-o", ptx])
        assembly = ptx.read_text(errors="replace")
        if BY_ADDRESS in assembly:
            raise BuildError(f"{source.name}: a{CALLS_BY_ADDRESS}")
        if not read_manifest(plan.place.name).workspace and (_ALLOCA.search(assembly) or _is_recursive(assembly)):
            raise BuildError(f"{source.name}: the size of a kernel's local memory isn't known to nvcc{NO_ALLOCA}")
        _run([nvcc.path.with_name("ptxas"), f"-arch={ARCH}", ptx, "-o", cubin := ptx.with_suffix(".cubin")])
        sections = Elf(cubin.read_bytes()).sections
        registers = {one.name: one.info >> 24 for one in sections}
        local = max((_largest_stack(one.data) for one in sections if one.name == ".nv.info"), default=0)
        if local > MOST_LOCAL and not read_manifest(plan.place.name).workspace:
            raise BuildError(
                f"{source.name}: a kernel takes {local:,} bytes of local memory per thread (arrays, spills), which is "
                f"device memory. The handout asks for attention without a workspace: {MOST_LOCAL:,} are allowed."
            )
        mangled = [one.removeprefix(ENTRY) for one in registers if one.startswith(ENTRY)]
        bounds = {name: math.prod(int(one or 1) for one in sizes) for name, *sizes in _BOUNDS.findall(assembly)}
        for name, one in zip(names := _readable(mangled), mangled, strict=True):
            threads, needed = bounds.get(one, MOST_THREADS), registers.get(f".text.{one}", 0)
            most, least = limits.get(name, (0, needed))  # static kernels of two files: the looser limits
            limits[name] = max(most, threads), min(least, needed)
        entries.update(names)
        variables.update(_readable(_VARIABLE.findall(assembly)))
        line = [nvcc.path, "-E", *flags, *include, source]
        _look_at_names(theirs := _run([*line, "-Xcompiler=-fdirectives-only"]), _files(source), _folders())
        _compare(source, theirs, flat[source].lines)
        _compare_tokens(_tokens(source, _run(line)), flat[source].tokens)
    return limits, entries, variables


def _is_recursive(ptx: str) -> bool:
    """Whether a function calls itself, perhaps through others."""
    _, *pieces = _FUNC.split(ptx)
    waiting: dict[str, set[str]] = {}
    for name, body in zip(pieces[::2], pieces[1::2], strict=True):
        waiting.setdefault(name, set()).update(_CALL.findall(body))
    while done := [name for name, called in waiting.items() if not called & waiting.keys()]:
        for name in done:
            del waiting[name]
    return bool(waiting)


def _largest_stack(info: bytes) -> int:
    """Bytes of local memory per thread: the most of all kernels."""
    at, most = 0, 0
    while at + 4 <= len(info):
        kind, what, size = struct.unpack_from("<BBH", info, at)
        if (kind, what) == (WITH_SIZE, STACK):
            most = max(most, *struct.unpack_from("<I", info, at + 8))  # after the kernel's number
        at += 4 + size * (kind == WITH_SIZE)
    return most


def _compare(source: Path, theirs: str, ours: str) -> None:
    """Raises BuildError if nvcc and the simulator compile different lines of the student's files."""
    seen, here = (_lines_of(text, _files(source)) for text in (theirs, ours))
    for number, (one, other) in enumerate(zip([*seen, ("", "")], [*here, ("", "")], strict=False)):
        if one != other or (number == len(seen)) != (number == len(here)):
            place, line = one if one[0] else other
            raise BuildError(
                f"{place}: nvcc and the simulator compile different lines of this file (conditional compilation that "
                f"tells them apart), which can't be graded. The first one is: {line.strip()[:200]}"
            )


def _compare_tokens(theirs: Sequence[tuple[str, str]], ours: Sequence[tuple[str, str]]) -> None:
    """Raises BuildError if the code differs after macro expansion, other than in the keywords that CUDA adds to C++."""
    end = [("", "")]
    for one, other in zip([*theirs, *end], [*ours, *end], strict=False):
        is_named = one[1][:1].isdigit() and other[1].startswith("cuda")  # a macro in nvcc's headers, an enumerator here
        if one[1] != other[1] and not is_named:
            _refuse_difference(one if one[1] else other)


def _tokens(source: Path, text: str) -> list[tuple[str, str]]:
    """(place, token) of the student's lines, without CUDA's keywords for functions and variables."""
    lines = _lines_of(text, _files(source))
    code, found, at, line = "\n".join(line for _, line in lines), [], 0, 0
    for match in _TOKEN.finditer(code):
        line, at = line + code.count("\n", at, match.start()), match.start()
        found.append((lines[line][0], match[0]))
    return list(_without_cuda_words(found))


def _without_cuda_words(tokens: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    at, words = 0, [token for _, token in tokens]
    while at < len(tokens):
        if words[at] == "__attribute__" and words[at + 1 : at + 3] == ["(", "("] and words[at + 3] in _ATTRIBUTES:
            depth, at = 2, at + 3
            while depth and at < len(tokens):
                depth, at = depth + (words[at] == "(") - (words[at] == ")"), at + 1
        elif name := _INDICES.get(tuple(words[at : at + _INDEX_TOKENS])):
            yield tokens[at][0], name
            at += _INDEX_TOKENS
        elif words[at] in _KEYWORDS:
            depth, at = 0, at + 1
            while at < len(tokens) and (depth or (words[at - 1].strip("_") in _CALLED and words[at] == "(")):
                depth, at = depth + (words[at] == "(") - (words[at] == ")"), at + 1
        else:
            yield tokens[at]
            at += 1


def _refuse_difference(where: tuple[str, str]) -> NoReturn:
    raise BuildError(
        f"{where[0]}: nvcc and the simulator compile different text here (a macro, or a string made of one, that tells "
        f"them apart), which can't be graded: {where[1][:80]}"
    )


def _files(source: Path) -> set[Path]:
    """The files that students write."""
    return {source, *(one.folder / name for one in map(read_manifest, tasks()) for name in one.files)}


@functools.cache  # files don't change during a build, and there are thousands of calls
def _resolved(file: str) -> Path:
    return Path(ROOT, file).resolve()


def _pieces(text: str) -> Iterator[tuple[int, str, str]]:
    """(number of the first line, file, lines) of the text after each of the preprocessor's line markers."""
    mark, lines = None, []
    for piece in [*f"\n{text}".split("\n# ")[1:], None]:
        following = piece is not None and _MARK.match(piece)
        if mark and (following or piece is None):
            yield int(mark[1]), mark[2], "\n# ".join(lines)
        if following:
            mark, lines = following, [piece[following.end() + 1 :]]
        elif piece is not None:  # a line that only begins like a line marker
            lines.append(piece)


def _lines_of(text: str, files: set[Path]) -> list[tuple[str, str]]:
    """(place, line) of the non-blank lines from these files.

    Raises BuildError if one of the files is Python.
    """
    return [one for piece in _pieces_of(text, files, theirs=True) for one in _lines_of_piece(*piece)]


def _pieces_of(text: str, files: set[Path], theirs: bool) -> Iterator[tuple[int, str, str]]:
    """Those of _pieces() from these files or, if not `theirs`, from all others. BuildError: one of them is Python."""
    wanted: dict[str, bool] = {}
    for number, file, lines in _pieces(text):
        if file not in wanted:
            path = _resolved(file)
            if path in files and path.suffix == ".py":
                raise BuildError(f"{path.name} is Python, and a .cu file includes it.")
            wanted[file] = (path in files) is theirs
        if wanted[file]:
            yield number, file, lines


def _lines_of_piece(number: int, file: str, lines: str) -> list[tuple[str, str]]:
    name, every = Path(file).name, enumerate(lines.split("\n"), number)
    return [(f"{name}:{at}", line) for at, line in every if line and not line.isspace()]


def _look_at_names(text: str, files: set[Path], folders: tuple[Path, ...]) -> None:
    """Checks that no line of a student's file passes for a header's by way of changed file names and line numbers.

    Raises:
        BuildError: a line of the preprocessor's output (macros not expanded) is attributed to another file that does
            not contain it, or that is outside these folders.
    """
    there, begun = "", False  # the header; "" in a student's file
    for number, file, lines in _pieces(_INDENT.sub("", text)):
        if not file.endswith("//"):  # the compiler's working directory
            there = "" if _resolved(file) in files else file
            begun |= not there and number > 0  # after the compiler's own definitions
        if there and (begun or _lines_of_header(there, folders)):
            _look_at_piece(there, number, lines, folders)


@functools.cache  # most files include the same headers
def _look_at_piece(file: str, number: int, lines: str, folders: tuple[Path, ...]) -> None:
    there = _lines_of_header(file, folders)
    for at, line in enumerate(map(str.strip, lines.split("\n")), number):
        if line and not _is_at(line, there, at):
            raise BuildError(f"{file} has no such line {at}, which can't be graded: {line[:200]}")


@functools.cache
def _folders() -> tuple[Path, ...]:
    """The folders that headers may be in."""
    nvcc = toolchain.nvcc_for_build()
    return (ROOT, *(one.resolve() for one in (nvcc.home, *nvcc.include_dirs())), *_folders_of_headers())


@functools.cache
def _folders_of_headers() -> list[Path]:
    """The compiler's default include directories."""
    command = [toolchain.host_compiler(), "-xc++", "-E", "-v", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True).stderr
    return [Path(one).resolve() for one in re.findall(r"^ (/\S+)$", said, re.MULTILINE)]


@functools.cache
def _lines_of_header(name: str, folders: tuple[Path, ...]) -> list[str]:
    if name.startswith("<"):
        return []
    path = _resolved(name)
    if not path.is_file() or not any(path.is_relative_to(one) for one in folders):
        raise BuildError(f"{name} is no header of the course, the compilers, or CUDA, and can't be included.")
    return [line.strip() for line in path.read_text(errors="replace").split("\n")]


def _is_at(line: str, lines: Sequence[str], number: int) -> bool:
    """Whether lines[number - 1] is this line; all are stripped. For a directive, whose lines the preprocessor joins and
    whose comments it removes, compares the joined lines without comments and blanks."""
    if not 0 < number <= len(lines):
        return False
    if lines[number - 1] == line or not line.startswith("#"):
        return lines[number - 1] == line
    rest = "\n".join(lines[number - 1 : number + MOST_JOINED])
    one, other = (_COMMENT.sub("", _SPLICE.sub("", text)).partition("\n")[0].split() for text in (line, rest))
    return "".join(one) == "".join(other)


def _readable(names: Sequence[str]) -> list[str]:
    """Demangles names, so that they are the same for both compilers."""
    lines = _run(["c++filt"], "\n".join(names)).splitlines() if names else []
    for pattern, other in _OTHERWISE:
        lines = [pattern.sub(other, line) for line in lines]
    return lines


def _run(command: Sequence[object], given: str = "") -> str:
    done = subprocess.run([*map(str, command)], cwd=ROOT, input=given, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise CompilerFailed(done.stdout + done.stderr)
    return done.stdout
