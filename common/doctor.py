"""python -m common.doctor: what this machine has and, for each problem, the command that fixes it.

Exit status 0: tasks can be built and run (on the GPU or in the simulator). 1: they cannot. It needs nothing but the
standard library, so that it can say what is not installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.compiling import toolchain
from common.compiling.flags import LANGUAGE
from common.console.paths import build_root

MINIMUM_PYTHON = (3, 10)
MINIMUM_TORCH = (2, 10)
INSTALL = "pip install -e . -c constraints.txt"
REINSTALL_TORCH = "pip install --force-reinstall torch -c constraints.txt"
PACKAGES = (  # in addition to torch, ninja and transformers
    "filelock",
    "matplotlib",
    "numpy",
    "rich",
    "tree_sitter",
    "tree_sitter_cuda",
    "watchfiles",
)
RED, YELLOW, GREEN, BOLD = "31", "33", "32", "1"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `mend` is the command for a problem; `stops` says that nothing can be built with it."""

    what: str
    found: str
    mend: str | None = None
    stops: bool = False


def _python() -> Finding:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < MINIMUM_PYTHON:
        return Finding(
            "Python",
            f"{found}; at least 3.10 is needed",
            "python3.12 -m venv .venv && . .venv/bin/activate",
            True,
        )
    return Finding("Python", found)


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", "not installed", INSTALL, True)
    try:
        import torch
    except (ImportError, OSError) as error:
        why = str(error).strip().splitlines()[:1]
        return Finding("torch", f"installed, but cannot be imported: {' '.join(why)}", REINSTALL_TORCH, True)

    found = f"{torch.__version__}, " + (f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < MINIMUM_TORCH:
        return Finding("torch", f"{found}; at least 2.10 is needed", INSTALL, True)
    return Finding("torch", found)


def _packages() -> Finding:
    """What the commands need in addition to torch; see the dependencies in pyproject.toml."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        return Finding("packages", f"not installed: {', '.join(missing)}", INSTALL, True)
    return Finding("packages", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES))


def _gpu() -> Finding:
    gpu = toolchain.find_gpu()
    if gpu:
        return Finding("GPU", f"{gpu.name}, compute capability {gpu.capability[0]}.{gpu.capability[1]} ({gpu.arch})")
    if name := toolchain.driver_gpu_name():
        return Finding(
            "GPU",
            f"{name}, but torch cannot use it",
            REINSTALL_TORCH,
        )
    return Finding("GPU", "none; the simulator runs the kernels on the CPU")


def _nvcc() -> Finding:
    nvcc = toolchain.find_nvcc()
    others = [f"{one.version[0]}.{one.version[1]} at {one.path}" for one in toolchain.all_nvccs()]
    if nvcc:
        return Finding("nvcc", f"{nvcc.version[0]}.{nvcc.version[1]} from {nvcc.origin} ({nvcc.path})")
    wanted = toolchain.torch_cuda_version()
    if wanted is None:
        return Finding("nvcc", "none; the simulator does not need it")
    found = f"none for torch's CUDA {wanted[0]}.{wanted[1]}" + (f"; found only {', '.join(others)}" if others else "")
    return Finding("nvcc", found, toolchain.INSTALL_CUDA if toolchain.find_gpu() else None)


def _host_compiler() -> Finding:
    try:
        path = toolchain.host_compiler()
    except toolchain.ToolchainError as error:
        return Finding("C++ compiler", str(error), "sudo apt-get install g++", True)
    found = f"{toolchain.compiler_version(path)} ({path})"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(
            "#include <concepts>\ntemplate <std::integral T> T one() { return 1; }\nint x = one<int>();\n"
        )
        done = subprocess.run([path, LANGUAGE, "-c", source, "-o", source.with_suffix(".o")], capture_output=True)
    if done.returncode:
        return Finding(
            "C++ compiler",
            f"{found}; it cannot compile C++20",
            "sudo apt-get install g++-12 && export CXX=g++-12",
            True,
        )
    return Finding("C++ compiler", found)


def _nvcc_accepts_host() -> Finding | None:
    nvcc = toolchain.find_nvcc()
    if nvcc is None:
        return None
    host = os.environ.get("CC")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cu")
        source.write_text("#include <cuda_runtime.h>\n__global__ void probe(float* x) { *x = 1.0f; }\n")
        command = [
            nvcc.path,
            LANGUAGE,
            *(["-ccbin", host] if host else []),
            "-c",
            source,
            "-o",
            os.devnull,
        ]
        command += [f"-I{include}" for include in nvcc.include_dirs()]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        why = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        return Finding("nvcc + C++ compiler", f"nvcc does not accept it: {why}", "export CC=gcc-12 CXX=g++-12")
    return Finding("nvcc + C++ compiler", "nvcc accepts it")


def _ninja() -> Finding:
    try:
        path = toolchain.find_ninja()
    except toolchain.ToolchainError as error:
        return Finding("ninja", str(error), "pip install ninja", True)
    return Finding("ninja", f"{toolchain.compiler_version(path)} ({path})")


def _transformers() -> Finding:
    if importlib.util.find_spec("transformers") is None:
        return Finding("transformers", "not installed; task 7 needs it", INSTALL)
    return Finding("transformers", importlib.metadata.version("transformers"))


def _build_folder() -> Finding:
    folder = build_root()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(
            "build folder",
            f"{folder}: {error.strerror}",
            "export ATTENTION_BUILD_DIR=/a/folder/you/can/write",
            True,
        )
    free = shutil.disk_usage(folder).free / 2**30
    if free < 0.5:
        return Finding(
            "build folder",
            f"{folder}, only {free:.2f} GiB free",
            "export ATTENTION_BUILD_DIR=/a/roomier/folder",
        )
    return Finding("build folder", f"{folder}, {free:.0f} GiB free")


def examine() -> list[Finding]:
    """Every check in turn; those that need torch are left out without it."""
    if windows := toolchain.refused_windows():
        return [Finding("system", windows, "wsl --install", True)]
    findings = [_python(), _torch()]
    if not findings[-1].stops:
        findings += [_gpu(), _nvcc()]
    findings.append(_packages())
    checks: list[Callable[[], Finding | None]] = [_host_compiler, _ninja, _transformers, _build_folder]
    if not findings[1].stops:
        checks.insert(1, _nvcc_accepts_host)
    findings += [finding for check in checks if (finding := check())]
    if not any(finding.stops for finding in findings):
        chosen = toolchain.choose_backend()
        findings.append(Finding("backend", f"{chosen.name} ({chosen.problem or chosen.reason})"))
    return findings


def main() -> int:
    """Prints the table and the mending commands; returns the exit status."""
    findings = examine()
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark, color = ("x ", RED) if finding.stops else ("! ", YELLOW) if finding.mend else ("ok", GREEN)
        text = _filled(f"{finding.what:<{width}}  {finding.found}", indent=len(mark) + 1 + width + 2)
        print(_colored(mark, color), text[len(mark) + 1 :])
    for finding in findings:
        if finding.mend:
            print(_colored(f"{finding.what}: run  {finding.mend}", BOLD))
    if any(finding.stops for finding in findings):
        print(_colored("tasks cannot be built yet", RED))
        return 1
    print("tasks can be built. The first is task1/README.md; python -m common.course progress says where you are")
    return 0


def _colored(text: str, color: str) -> str:
    with_colors = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return f"\x1b[{color}m{text}\x1b[0m" if with_colors else text


def _filled(text: str, indent: int) -> str:
    """The text after a mark and a blank; on a terminal it breaks between words."""
    text = f"   {text}"
    if not sys.stdout.isatty():
        return text
    width = max(shutil.get_terminal_size().columns, 2 * indent)
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    raise SystemExit(main())
