"""A .cu file with its own main() -> a program, with nvcc or the simulator.

    program = build_program(Path("saxpy.cu"))
    subprocess.run([program.path, "1024"])

A program is rebuilt when its sources, their local headers, or the command changes.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from common.compiling import report, toolchain
from common.compiling.errors import explain_failure
from common.compiling.flags import FAST_KERNELS, LANGUAGE, QUICK, check_arch, gencode
from common.compiling.freshness import mark_of
from common.compiling.full_disk import no_space
from common.compiling.locking import locked
from common.compiling.objects import CompilerFailed, compile_objects, kept_text, link
from common.compiling.result import BuildError
from common.console.files import read_source, write_whole
from common.console.paths import ROOT, build_root, shown_path
from common.console.terminal import say
from common.simulator import rewriter
from common.simulator.targets import Target, target_for_program, target_of
from common.simulator.text import blanked


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        path: of the executable.
        backend: "cuda" or "simulator".
        sources: the .cu file and the local headers that it includes.
        warnings: the compiler's warnings for these.
    """

    path: Path
    backend: str
    sources: list[Path]
    warnings: list[str] = field(default_factory=list)


def build_program(
    source: Path, backend: str = "auto", arch: str | None = None, checked: bool = False, include: Sequence[Path] = ()
) -> Program:
    """Brings the program up to date.

    Args:
        source: the .cu file.
        backend: "auto", "cuda" or "simulator".
        arch: nvcc's target; None: this machine's GPU; in the simulator, the one that the program needs.
        checked: use the simulator's checked build.
        include: folders to search for headers, in addition to the file's own and the checkout.

    Raises:
        FileNotFoundError: there is no such file. ValueError: it has no main(), or arch is invalid.
        BuildError: it does not compile. ToolchainError: there is no compiler.
    """
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such file")
    source = source.resolve()
    text = read_source(source)
    if not re.search(r"(?<![\w.>:])main\s*\(", blanked(text)):
        raise ValueError(
            f"{shown_path(source)} has no main(): a program needs one; `python -m taskN.test` runs a task's kernels"
        )
    folders = [source.parent, *(folder.resolve() for folder in include), ROOT]
    name = "checked" if checked else toolchain.choose_backend(backend).name
    place = hashlib.sha256(str(source).encode()).hexdigest()[:12]
    folder = build_root() / "programs" / name / f"{source.stem}-{place}"
    if name == "cuda":
        return _by_nvcc(source, folder, arch, folders)
    texts = (file.read_text(errors="replace") for file in rewriter.local_sources(source, folders))
    target = target_for_program(texts) if arch is None else target_of(arch)
    return _by_simulator(source, folder, checked, folders, target)


def _by_simulator(source: Path, folder: Path, checked: bool, include: list[Path], target: Target) -> Program:
    mirror, path = folder / "translated", folder / source.stem
    log_file = path.with_suffix(".log")
    with locked(folder):
        try:
            translation = rewriter.translate(source, mirror, include, target, keep=kept_text)
        except rewriter.RewriteError as error:
            raise BuildError(str(error)) from None
        flags = [*rewriter.CXX_FLAGS, *(rewriter.CHECKED_FLAGS if checked else [])]
        if source.is_relative_to(FAST_KERNELS) and not checked:
            flags = [*rewriter.RUNTIME_FLAGS, QUICK]
        flags += ["-DCUDA_SIMULATOR", "-DSIMULATOR_PROGRAM", *target.flags, "-fPIE"]
        flags += [f"-I{place}" for place in (mirror, *include, rewriter.INCLUDE_DIR)]
        log = ""
        try:
            made = compile_objects([(translation.path, flags), *rewriter.runtime_jobs(checked)])
            log = made[0].log
            link(made, ["-pthread", "-pie", "-ldl"], path)
        except CompilerFailed as error:
            log += str(error)
            raise BuildError(no_space(log, folder) or explain_failure(log, translation.inputs, log_file)) from None
        finally:
            write_whole(log_file, log)
        return Program(path, "simulator", translation.inputs, report.own_warnings(log, translation.inputs))


def _by_nvcc(source: Path, folder: Path, arch: str | None, include: list[Path]) -> Program:
    if arch is not None:
        check_arch(arch)
    nvcc = toolchain.nvcc_for_build()
    path = folder / source.stem
    if arch is None and any(
        "__CUDA_ARCH_FEAT_SM90_ALL" in read_source(file) for file in rewriter.local_sources(source, include)
    ):
        arch = "sm_90a"  # `native` would omit its features
    flags = [
        LANGUAGE,
        "-O3",
        "-lineinfo",
        gencode(arch) if arch else "-arch=native",
        *(f"-I{place}" for place in include),
    ]
    with locked(folder):
        sources = rewriter.local_sources(source, include)
        warnings = _up_to_date(path, [nvcc.path, *flags, source, "-o", path], sources)
        return Program(path, "cuda", sources, warnings)


def _up_to_date(path: Path, command: list, sources: list[Path]) -> list[str]:
    """Runs the command unless the program is up to date; returns the compiler's warnings."""
    digest = hashlib.sha256(repr([*map(str, command)]).encode())
    for source in sources:
        digest.update(source.read_bytes())
    stamp, log_file = path.with_suffix(".sha256"), path.with_suffix(".log")
    was = stamp.read_text(errors="replace") if stamp.exists() else ""
    if was == _stamp(digest.hexdigest(), path, log_file):
        return report.own_warnings(log_file.read_text(errors="replace"), sources)
    if was.startswith(digest.hexdigest()):
        say(Console(stderr=True), f"{shown_path(path)} is not as the last build left it: rebuilt")
    stamp.unlink(missing_ok=True)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    log = done.stdout + done.stderr
    write_whole(log_file, log)
    if done.returncode:
        raise BuildError(no_space(log, path.parent) or explain_failure(log, sources, log_file))
    write_whole(stamp, _stamp(digest.hexdigest(), path, log_file))
    return report.own_warnings(log, sources)


def _stamp(digest: str, *built: Path) -> str:
    """A record of a program's inputs and outputs."""
    return " ".join([digest, *map(mark_of, built)])
