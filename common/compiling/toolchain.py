"""Finds this machine's tools: nvcc, the host compiler, ninja, the GPU, and chooses the backend accordingly.

find_nvcc()        the nvcc whose version matches torch's CUDA: a system toolkit first, then the PyPI wheels
nvcc_for_build()   the same, or an error that says how to get one
host_compiler()    the C++ compiler, from $CXX, else g++ or clang++
find_ninja()       ninja on PATH or from the PyPI package
find_gpu()         the current GPU's name and architecture
choose_backend()   "cuda" or "simulator", and why
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BACKENDS = ("cuda", "simulator")
INSTALL_CUDA = "pip install -e '.[cuda]' -c constraints.txt"


class ToolchainError(RuntimeError):
    """Something a build needs is missing; the message says what, and which command installs it."""


@dataclass(frozen=True)
class Nvcc:
    """One nvcc: its executable, the toolkit folder above it, its (major, minor) version and where it came from."""

    path: Path
    home: Path
    version: tuple[int, int]
    origin: str

    def include_dirs(self) -> list[Path]:
        """The toolkit's headers. CUDA 12's wheels spread them over one folder per package."""
        folders = [self.home / "include", self.home / "include" / "cccl"]
        if self.home.name == "cuda_nvcc":
            folders += sorted(self.home.parent.glob("cuda_*/include"))
        return [folder for folder in folders if folder.is_dir()]

    def cudart(self) -> Path | None:
        """The CUDA runtime library (a versioned name in the wheels), or None if the linker finds it by itself."""
        folders = [self.home / "lib64", self.home / "lib", self.home.parent / "cuda_runtime" / "lib"]
        found = [file for folder in folders for file in sorted(folder.glob("libcudart.so*"))]
        return found[0] if found else None


@dataclass(frozen=True)
class Gpu:
    """The GPU that will be used: its name and compute capability."""

    name: str
    capability: tuple[int, int]

    @property
    def arch(self) -> str:
        """nvcc's target; from sm_90 on with the suffix "a", which enables architecture-specific instructions."""
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


@dataclass(frozen=True)
class Backend:
    """The backend a build will use and the reason; `problem` is set when a GPU had to be left unused."""

    name: str
    reason: str
    problem: str | None = None


def _run(*command: str | Path) -> subprocess.CompletedProcess[str] | None:
    """The finished process; None if it does not start or end."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _first_line(*command: str | Path) -> str:
    done = _run(*command)
    return (done.stdout.splitlines() or [""])[0] if done and done.returncode == 0 else ""


def _nvcc_version(path: Path) -> tuple[int, int] | None:
    done = _run(path, "--version")
    match = re.search(r"release (\d+)\.(\d+)", done.stdout) if done else None
    return (int(match[1]), int(match[2])) if match else None


def _nvcc_candidates() -> list[tuple[Path, str]]:
    candidates: list[tuple[Path, str]] = []
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            candidates.append((Path(os.environ[variable], "bin", "nvcc"), f"${variable}"))
    if on_path := shutil.which("nvcc"):
        candidates.append((Path(on_path), "PATH"))
    for folder in [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True)]:
        candidates.append((folder / "bin" / "nvcc", "system toolkit"))
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec else []:
        for nvcc in [*sorted(Path(folder).glob("cu[0-9]*/bin/nvcc")), Path(folder, "cuda_nvcc", "bin", "nvcc")]:
            candidates.append((nvcc, "PyPI wheels"))
    return [(path, origin) for path, origin in candidates if path.is_file()]


def _toolkit_of(path: Path) -> tuple[Path, Path]:
    """The real nvcc and its toolkit: /usr/local/bin/nvcc may be a link or a script that starts another one."""
    dry = _run(path, "--dryrun", "-c", "-x", "cu", "/dev/null")
    match = re.search(r"^#\$ TOP=(.*)$", dry.stderr, re.MULTILINE) if dry else None
    home = Path(match[1]).resolve() if match else path.resolve().parent.parent
    return (home / "bin" / "nvcc" if (home / "bin" / "nvcc").is_file() else path), home


@functools.cache
def _examine(candidate: Path, origin: str) -> Nvcc | None:
    path, home = _toolkit_of(candidate)
    version = _nvcc_version(path)
    return Nvcc(path, home, version, origin) if version else None


def all_nvccs() -> Iterator[Nvcc]:
    """Every nvcc, system toolkits before wheels, each toolkit once; lazy, since each one costs two processes."""
    homes: set[Path] = set()
    for candidate, origin in _nvcc_candidates():
        nvcc = _examine(candidate.resolve(), origin)
        if nvcc and nvcc.home not in homes:
            homes.add(nvcc.home)
            yield nvcc


def torch_cuda_version() -> tuple[int, int] | None:
    """The CUDA version torch was built for, None for a CPU build. Does not import torch, which takes a second."""
    version = runpy.run_path(str(torch_folder() / "version.py"))["cuda"]
    if not version:
        return None
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def find_nvcc() -> Nvcc | None:
    """The nvcc to build with: the first whose version equals torch's CUDA, else the first with the same major version.

    With a CPU build of torch nothing can be loaded, only compiled, and any version will do.
    """
    wanted = torch_cuda_version()
    same_major = None
    for nvcc in all_nvccs():
        if wanted is None or nvcc.version == wanted:
            return nvcc
        if nvcc.version[0] == wanted[0]:
            same_major = same_major or nvcc
    return same_major


def nvcc_for_build() -> Nvcc:
    """find_nvcc(), or ToolchainError that says what to install."""
    nvcc = find_nvcc()
    if nvcc is None:
        wanted = torch_cuda_version()
        version = f" {wanted[0]}.{wanted[1]}, the version torch was built for," if wanted else ""
        raise ToolchainError(f"no nvcc{version} was found; install it: {INSTALL_CUDA}")
    return nvcc


def host_compiler() -> Path:
    """The C++ compiler for the simulator and for binding.cpp: $CXX, else g++, c++ or clang++."""
    if named := os.environ.get("CXX"):
        found = shutil.which(named)
        if not found:
            raise ToolchainError(f"CXX={named}: no such compiler on PATH; unset CXX or name an installed one")
        return Path(found)
    for name in ("g++", "c++", "clang++"):
        if found := shutil.which(name):
            return Path(found)
    raise ToolchainError("no C++ compiler found; install one: sudo apt-get install g++ (macOS: xcode-select --install)")


@functools.cache
def torch_folder() -> Path:
    """The folder of torch, found without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ToolchainError("torch is not installed: pip install -e . -c constraints.txt")
    return Path(spec.origin).parent


def compiler_version(path: Path) -> str:
    """The first line of `path --version`."""
    return _first_line(path, "--version")


def find_ninja() -> Path:
    """ninja: on PATH, next to this Python or in the `ninja` package; added to this process's PATH."""
    found = shutil.which("ninja")
    if not found:
        folders = [Path(sysconfig.get_path("scripts")), Path(sys.executable).parent]
        if importlib.util.find_spec("ninja"):
            import ninja

            folders.append(Path(ninja.BIN_DIR))
        found = shutil.which("ninja", path=os.pathsep.join(map(str, folders)))
        if not found:
            raise ToolchainError("ninja was not found; install it: pip install ninja")
        os.environ["PATH"] = str(Path(found).parent) + os.pathsep + os.environ.get("PATH", "")
    return Path(found)


def find_gpu() -> Gpu | None:
    """The current CUDA device, None if torch sees none."""
    import torch

    if not torch.cuda.is_available():
        return None
    device = torch.cuda.current_device()
    return Gpu(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))


def driver_gpu_name() -> str:
    """The first GPU's name from nvidia-smi, whether or not torch can use it; "" without a driver."""
    return _first_line("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") if shutil.which("nvidia-smi") else ""


def refused_windows() -> str:
    """The message for native Windows, where neither the simulator nor the tests' processes run; "" elsewhere."""
    if sys.platform != "win32":
        return ""
    return (
        "Windows itself is not supported; its Linux is. Install WSL2 (`wsl --install` in PowerShell, then restart), "
        "open Ubuntu, and follow README.md there; a GPU is seen from inside WSL2, too."
    )


def choose_backend(requested: str = "auto") -> Backend:
    """ "auto" takes the GPU if torch sees one and there is a matching nvcc, else the simulator, with the reason.

    Raises:
        ValueError: `requested` is not auto, cuda or simulator.
        ToolchainError: this is native Windows rather than WSL.
    """
    if windows := refused_windows():
        raise ToolchainError(windows)
    if requested not in ("auto", *BACKENDS):
        raise ValueError(f"backend is {requested!r}; it must be auto, cuda or simulator")
    if requested != "auto":
        return Backend(requested, "asked for with --backend")
    gpu = find_gpu()
    if gpu is None:
        name = driver_gpu_name()
        if name:
            import torch

            why = f"{name} is there, but torch {torch.__version__} cannot use it"
            return Backend("simulator", why, f"{why}; install a CUDA build of torch: pip install torch")
        return Backend("simulator", "no GPU")
    if find_nvcc() is None:
        wanted = ".".join(map(str, torch_cuda_version() or ()))
        why = f"{gpu.name} is there, but no nvcc {wanted} to build for it"
        return Backend("simulator", why, f"{why}; install it: {INSTALL_CUDA}")
    return Backend("cuda", gpu.name)
