"""Builds a task's kernels for grading, in a sandbox in which nothing of the student's ever runs.

    build(request) -> a library's bytes, the places of its kernels and variables, the compilers' log

nvcc is the judge of what a kernel is: it compiles every .cu to PTX, and only functions that are an entry there may run
on the device (common/simulator/runtime/apart.cpp). The text it sees must be the one that the simulator compiles.
Objects may hold nothing that runs when they are loaded, and of their names only the launchers are seen by ours.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from common.compiling import toolchain
from common.compiling.errors import CUDA_NAMES, explain_failure
from common.compiling.flags import LANGUAGE, UNFILLED_NVCC_FLAGS
from common.compiling.gaps import with_own_headers
from common.compiling.manifest import read_manifest, tasks
from common.compiling.objects import CompilerFailed, compile_objects
from common.compiling.plan import Plan, plans_of
from common.compiling.request import BuildRequest
from common.compiling.result import BuildError
from common.console.paths import ROOT
from common.course.grading.elf import (
    ALLOCATED,
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

PLAIN = (".text", ".rodata", ".data", ".bss", ".tdata", ".tbss", ".eh_frame", ".gcc_except_table", ".note", ".lrodata")
ARCH = "sm_89"  # the simulator's __CUDA_ARCH__
MOST_LOG = 60_000  # characters
UNKNOWN_ATTRIBUTE = 1097  # nvcc's number for it
_ENTRY = re.compile(r"^\s*(?:\.\w+\s+)*\.entry\s+([\w$]+)", re.MULTILINE)
_VARIABLE = re.compile(
    r"^\s*(?:\.visible\s+|\.weak\s+|\.common\s+)*\.(?:global|const)\s[^;={]*?([\w$]+)(?:\[\d*\])*\s*[;=]", re.M
)
# What the simulator's headers and nvcc's call otherwise, and what nvcc puts before the names of one file
_OTHERWISE = [
    (re.compile(r"\b_INTERNAL_\w+::"), ""),
    *((re.compile(name), cuda) for name, cuda in CUDA_NAMES.items()),
    (re.compile(r" (?=>)"), ""),
]


def serve(root: str, file: str, cpu: str, file_bytes: str, *_) -> None:
    """Builds what is asked for until the grader closes its end: a task's name -> what build() gives."""
    settle({resource.RLIMIT_CPU: int(cpu), resource.RLIMIT_FSIZE: int(file_bytes), resource.RLIMIT_CORE: 0})
    connection = Connection(int(file))
    while True:
        try:
            task = connection.recv_bytes(100).decode()
        except (EOFError, OSError):
            return
        try:
            about, library = build(BuildRequest(task, "student", "simulator", counted=True))
        except (BuildError, OSError, ValueError) as error:
            about, library = {"problem": str(error)[:MOST_LOG]}, b""
        connection.send_bytes(json.dumps(about).encode())
        connection.send_bytes(library)


def build(request: BuildRequest) -> tuple[dict, bytes]:
    """({"name", "kernels", "variables", "log"}, the library).

    Raises:
        BuildError: the student's files do not compile, or hold what can't be graded; its words say what.
    """
    (plan,) = plans_of(request)
    own = with_own_headers(plan.place.kernels)
    log, jobs, linker_flags = "", *plan.for_simulator()
    try:
        made = compile_objects(jobs)
        log = "\n".join(one.log for one in made)
        entries, variables = _as_nvcc_sees(plan)
        library = _linked(plan, [one.path for one in made], linker_flags)
    except CompilerFailed as error:
        raise BuildError(explain_failure(str(error), own, plan.log_file)) from None
    symbols = [one for one in Elf(library.read_bytes()).symbols if one.section]
    kernels = _found(entries, [one for one in symbols if one.type == FUNCTION])
    known = _found(variables, [one for one in symbols if one.type == OBJECT])
    places = {"kernels": [one.value for one in kernels], "variables": [(one.value, one.size) for one in known]}
    return {"name": plan.name, "log": log[-MOST_LOG:], **places}, library.read_bytes()


def _found(wanted: Counter[str], symbols: Sequence[Symbol]) -> list[Symbol]:
    """The symbols of these names. BuildError where more have one of them than nvcc has seen."""
    named = [(one, name) for one, name in zip(symbols, _readable([one.name for one in symbols]), strict=True)]
    number = Counter(name for _, name in named)
    if many := [name for name in wanted if number[name] > wanted[name]]:
        raise BuildError(
            f"{many[0]} is a kernel or a variable of the device in one file and something else in another."
        )
    return [one for one, name in named if name in wanted]


def _linked(plan: Plan, objects: Sequence[Path], flags: Sequence[str]) -> Path:
    """The library. Of the student's names ours see only those that the binding wants and the runtime does not."""
    count = len(plan.place.kernels)
    theirs, binding, *runtime = objects[:count], *objects[count + 1 :]
    for source, path in zip(plan.place.kernels, theirs, strict=True):
        _look_at(Elf(path.read_bytes()), source.name)
    whole, names, library = (plan.folder / name for name in ("theirs.o", "kept.txt", plan.library.name))
    plan.folder.mkdir(parents=True, exist_ok=True)
    _run(["ld", "-r", "--force-group-allocation", *theirs, "-o", whole])
    kept = Elf(binding.read_bytes()).undefined() & Elf(whole.read_bytes()).defined()
    for one in runtime:
        kept -= Elf(one.read_bytes()).undefined()
    names.write_text("".join(f"{name}\n" for name in sorted(kept)))
    _run(["objcopy", f"--keep-global-symbols={names}", whole])
    _run([toolchain.host_compiler(), whole, *objects[count:], *flags, "-Wl,-z,now", "-o", library])
    return library


def _look_at(elf: Elf, name: str) -> None:
    """Raises BuildError for an object that holds what runs when it is loaded."""
    arrays = (INIT_ARRAY, FINI_ARRAY, PREINIT_ARRAY)
    strange = [one for one in elf.sections if one.flags & ALLOCATED and not one.name.startswith(PLAIN)]
    if strange or any(one.type in arrays for one in elf.sections) or any(one.type == IFUNC for one in elf.symbols):
        what = strange[0].name if strange else "IFUNC"
        raise BuildError(
            f"{name}: something in it runs when the library is loaded ({what}): a global or static object with a "
            "constructor (std::vector, std::string, #include <iostream>), or __attribute__((constructor)). Graded code "
            "can't have that: make the object inside a function."
        )


def _as_nvcc_sees(plan: Plan) -> tuple[Counter[str], Counter[str]]:
    """(the names of the kernels, of the variables on the device) that nvcc finds.

    Raises:
        CompilerFailed: nvcc refuses a file. BuildError: nvcc compiles another text than the simulator.
    """
    nvcc = toolchain.nvcc_for_build()
    entries: Counter[str] = Counter()
    variables: Counter[str] = Counter()
    flags = [LANGUAGE, f"-arch={ARCH}", "-Wno-deprecated-gpu-targets", *(UNFILLED_NVCC_FLAGS if plan.gaps else [])]
    include = [f"-I{path}" for path in (ROOT, *nvcc.include_dirs())]
    for source in plan.place.kernels:
        ptx = plan.folder / f"{source.stem}.ptx"
        _run([nvcc.path, "-ptx", *flags, f"-diag-error={UNKNOWN_ATTRIBUTE}", *include, source, "-o", ptx])
        text = ptx.read_text(errors="replace")
        entries.update(_readable(_ENTRY.findall(text)))
        variables.update(_readable(_VARIABLE.findall(text)))
        theirs = _run([nvcc.path, "-E", "-Xcompiler=-fdirectives-only", *flags, *include, source])
        ours = [
            toolchain.host_compiler(),
            "-E",
            "-fdirectives-only",
            "-std=c++20",
            "-xc++",
            "-DCUDA_SIMULATOR",
            "-DSIMULATOR_GRADED",
        ]
        ours += ["-include", "simulator/nvcc_names.h", f"-I{ROOT}", f"-I{rewriter.INCLUDE_DIR}", source]
        _compare(source, theirs, _run(ours))
    return entries, variables


def _compare(source: Path, theirs: str, ours: str) -> None:
    """Raises BuildError where the student's lines that are compiled are not the same."""
    files = {source, *(one.folder / name for one in map(read_manifest, tasks()) for name in one.files)}
    seen, here = _lines_of(theirs, files), _lines_of(ours, files)
    for number, (one, other) in enumerate(zip([*seen, ("", "")], [*here, ("", "")], strict=False)):
        if one != other or (number == len(seen)) != (number == len(here)):
            place, line = one if one[0] else other
            raise BuildError(
                f"{place}: nvcc and the simulator compile different lines of this file (conditional compilation that "
                f"tells them apart), which can't be graded. The first one is: {line.strip()[:200]}"
            )


def _lines_of(text: str, files: set[Path]) -> list[tuple[str, str]]:
    """(place, line) of those that come from these files, but for blank ones."""
    found, file, number = [], "", 0
    names: dict[str, bool] = {}
    for line in text.splitlines():
        if mark := re.match(r'# (\d+) "((?:[^"\\]|\\.)*)"', line):
            number, file = int(mark[1]), mark[2]
            if file not in names:
                names[file] = Path(ROOT, file).resolve() in files
            continue
        if names.get(file) and line.strip():
            found.append((f"{Path(file).name}:{number}", line))
        number += 1
    return found


def _readable(names: Sequence[str]) -> list[str]:
    """Mangled names as C++ writes them, the same for both compilers."""
    lines = _run(["c++filt"], "\n".join(names)).splitlines() if names else []
    for pattern, other in _OTHERWISE:
        lines = [pattern.sub(other, line) for line in lines]
    return lines


def _run(command: Sequence[object], given: str = "") -> str:
    done = subprocess.run([*map(str, command)], cwd=ROOT, input=given, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise CompilerFailed(done.stdout + done.stderr)
    return done.stdout
