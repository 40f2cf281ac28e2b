"""python -m common.nvcc_check [FILE ...]: nvcc on every .cu for several architectures; no GPU needed.

Skeletons, solutions and the fast kernels of common/kernels, or the files named. Exit status 0 only if everything
compiles without a warning. Every binding.cpp goes through the host's compiler as in a build for a GPU: device code in
one of its headers would not compile there.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import track

from common.cli.options import EXPECTED_ERRORS
from common.compiling import report as compile_report
from common.compiling import toolchain
from common.compiling.flags import LANGUAGE
from common.compiling.nvcc import compile_only
from common.console.paths import ROOT, build_root, shown_path
from common.console.terminal import say
from common.console.words import counted, error_words
from common.simulator.rewriter import local_sources

# Turing, Ampere, Ada, Hopper, Blackwell: in the data center and on a desk
ARCHS = ("sm_75", "sm_80", "sm_89", "sm_90a", "sm_100", "sm_120")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m common.nvcc_check",
        usage="%(prog)s [FILE ...] [--arch sm_XX ...] [--optimize sm_XX ...]",
        description=__doc__.split(": ")[1].split("\n")[0],
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="a .cu or .cpp file; default: all of the tasks and common/kernels"
    )
    parser.add_argument("--arch", nargs="+", default=list(ARCHS), metavar="sm_XX", help=f"default: {' '.join(ARCHS)}")
    parser.add_argument(
        "--optimize",
        nargs="+",
        metavar="sm_XX",
        help="optimize for these only, and only what issues wgmma, which ptxas warns of when it optimizes: faster. "
        "All else goes through all of nvcc, and its spills are not counted",
    )
    options = parser.parse_args(argv)
    for name in options.files:
        if not name.endswith((".cu", ".cpp")) or not Path(name).is_file():
            parser.error(f"FILE is {name!r}; it must be a .cu or .cpp file that exists")
    console = Console()
    sources = sorted({Path(name).resolve() for name in options.files} or _every_source())
    compiled: Counter[str] = Counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(
            lambda one: check(one, options.arch, optimized_for(one, options.arch, options.optimize)), sources
        )
        shown = track(
            zip(sources, done, strict=True), "nvcc", len(sources), console=console, disable=not console.is_terminal
        )
        for source, (ok, words) in shown:
            compiled[source.suffix] += ok
            say(console, words)
    number = Counter(source.suffix for source in sources)
    if number[".cu"]:
        archs = ", ".join(options.arch)
        say(console, f"{compiled['.cu']} of {number['.cu']} compiled without a warning for {archs}")
    if number[".cpp"]:
        say(console, f"{compiled['.cpp']} of {counted(number['.cpp'], 'binding')} compiled as for a GPU")
    return 0 if sources and compiled == number else 1


def optimized_for(source: Path, archs: Sequence[str], optimize: Sequence[str] | None) -> Sequence[str]:
    """The architectures that nvcc optimizes a source for. ptxas has to optimize to warn that it serializes wgmma."""
    if optimize is None:
        return archs
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in local_sources(source, [ROOT]))
    return optimize if any("wgmma.mma_async" in text for text in texts) else []


def alike(archs: Sequence[str], source: Path) -> list[tuple[str, ...]]:
    """The architectures in groups for which a source and the headers of the course that it includes take the same
    branches: a group shares its PTX."""
    files = local_sources(source, [ROOT])
    borders = sorted({one for file in files for one in borders_of(file)})
    by_feature = any("__CUDA_ARCH_FEAT" in file.read_text(encoding="utf-8", errors="replace") for file in files)
    groups: dict[tuple, list[str]] = {}
    for arch in archs:
        digits, feature = re.fullmatch(r"sm_(\d+)(\w*)", arch).groups()
        group = (feature if by_feature else "", *(10 * int(digits) >= one for one in borders))
        groups.setdefault(group, []).append(arch)
    return [tuple(group) for group in groups.values()]


def borders_of(file: Path) -> set[int]:
    """The values of __CUDA_ARCH__ from which on a branch of a file is another one."""
    compared = re.findall(r"__CUDA_ARCH__\s*([<>=!]=?)\s*(\d+)", file.read_text(encoding="utf-8", errors="replace"))
    steps = {">=": (0,), "<": (0,), ">": (1,), "<=": (1,)}
    return {int(number) + step for how, number in compared for step in steps.get(how, (0, 1))}


def _every_source() -> list[Path]:
    kernels = [*ROOT.glob("task*/*.cu"), *ROOT.glob("task*/solution/*.cu"), *ROOT.glob("common/kernels/*/*.cu")]
    return [*kernels, *ROOT.glob("task*/given/binding.cpp"), *ROOT.glob("common/kernels/*/binding.cpp")]


def check(source: Path, archs: Sequence[str], optimized: Sequence[str]) -> tuple[bool, str]:
    """Whether a source compiles without a warning for all archs, optimized or not, and a line about it."""
    return _compile_binding(source) if source.suffix == ".cpp" else _compile(source, archs, optimized)


def _compile_binding(source: Path) -> tuple[bool, str]:
    """Whether it compiles for a GPU, and a line about it; torch's headers warn, so warnings are left out."""
    from torch.utils.cpp_extension import include_paths

    try:
        compiler, nvcc = toolchain.host_compiler(), toolchain.nvcc_for_build()
    except EXPECTED_ERRORS as error:
        return False, f"{shown_path(source)}: {error_words(error)}"
    include = [f"-I{folder}" for folder in (ROOT, *nvcc.include_dirs(), *include_paths())]
    flags = ["-fsyntax-only", "-w", LANGUAGE, "-DTASK_NAMESPACE=checked"]
    done = subprocess.run([compiler, *flags, *include, source], capture_output=True, text=True)
    return done.returncode == 0, f"{shown_path(source)}: {done.stderr.strip() if done.returncode else 'ok'}"


def _compile(source: Path, archs: Sequence[str], optimized: Sequence[str]) -> tuple[bool, str]:
    """Whether it compiles without a warning, and a line about it; a folder of its own, so that several can run."""
    folder = build_root() / "nvcc_check" / shown_path(source).strip("/").replace("/", "-")
    spilling: Counter[str] = Counter()
    warned: dict[str, None] = {}
    quick = alike([arch for arch in archs if arch not in optimized], source)
    passes = [([arch for arch in archs if arch in optimized], ()), (quick, ("-Ofc=max",))]
    for number, (chosen, further) in enumerate([one for one in passes if one[0]]):
        try:
            result = compile_only([source], chosen, folder, further, with_host=number == 0)
        except EXPECTED_ERRORS as error:
            return False, f"{shown_path(source)}: {error_words(error)}"
        log = (folder / "compile.log").read_text()
        warnings = [one for one in compile_report.diagnostics(log) if one.kind == "warning"]
        warned |= dict.fromkeys(line for one in warnings for line in one.lines)
        if not further:
            spilling.update(one.arch for one in result.kernels if one.spill_stores or one.spill_loads)
    notes = "".join(f"; {counted(number, 'kernel')} for {arch} spill" for arch, number in spilling.items())
    return not warned, f"{shown_path(source)}: {chr(10).join(warned) or 'ok'}{notes}"


if __name__ == "__main__":
    raise SystemExit(main())
