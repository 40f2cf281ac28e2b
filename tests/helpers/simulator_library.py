"""CUDA files of the tests as shared libraries, called through ctypes.

compile_library(sources, folder)      by the simulator; checked=True: its checked build
compile_with_nvcc(sources, folder)    for a GPU
Library(path).name(arrays, ...)       calls an EXPORTed function
"""

import ctypes
import hashlib
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from common.compiling import toolchain
from common.compiling.locking import locked
from common.compiling.runtime import simulator_runtime
from common.console.paths import ROOT
from common.simulator import rewriter
from common.simulator.targets import target_for_program

HERE = ROOT / "tests" / "common" / "simulator"


def run(command: list) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def digest_of(sources: list[Path], *more: object) -> str:
    """Of all that may go into the library: the files beside the sources, those of common/cuda and of the simulator."""
    folders = {source.parent for source in sources} | {ROOT / "common" / "cuda", ROOT / "common" / "simulator"}
    files = sorted(
        file for folder in folders for file in folder.rglob("*") if file.suffix in (".cu", ".cuh", ".h", ".py")
    )
    digest = hashlib.sha256(repr((sources, more)).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def compile_library(sources: list[Path], folder: Path, checked: bool = False, processes: int = 2) -> Path:
    """The library with the simulator's runtime, unless the folder has it; fails when the compiler says anything at all.

    The folder may be that of all processes and sessions: one compiles, the others wait for it.
    """
    runtime = simulator_runtime(checked)
    compiler = toolchain.host_compiler()
    flags = [*rewriter.CXX_FLAGS, *(rewriter.CHECKED_FLAGS if checked else []), "-DCUDA_SIMULATOR", "-fPIC"]
    flags += ["-DSIMULATOR_CHECKED"] if checked else []
    library = folder / f"kernels-{digest_of(sources, compiler, flags, runtime.name)}.so"

    def compile_one(source: Path) -> Path:
        target = target_for_program([source.read_text()])
        translated = folder / target.name
        file = rewriter.translate(source, translated, [ROOT], target).path
        result = folder / f"{file.name}.o"
        includes = [f"-I{place}" for place in (translated, ROOT, rewriter.INCLUDE_DIR)]
        said = run([compiler, *flags, *target.flags, *includes, "-c", file, "-o", result])
        assert not said, said
        return result

    with locked(folder):
        if not library.exists():
            for old in folder.glob("kernels-*.so"):
                old.unlink()
            with ThreadPoolExecutor(processes) as pool:
                objects = list(pool.map(compile_one, sources))
            run([compiler, "-shared", "-pthread", *objects, runtime, "-o", library, "-ldl"])
    return library


def compile_with_nvcc(sources: list[Path], folder: Path) -> Path:
    nvcc = toolchain.find_nvcc()
    library = folder / "kernels_gpu.so"
    flags = ["-std=c++20", "-arch=native", "-shared", "-Xcompiler=-fPIC", f"-I{ROOT}"]
    run([nvcc.path, *flags, *sources, "-o", library])
    return library


class Library:
    """library.name(arrays and integers): calls an EXPORTed function; an error becomes a RuntimeError."""

    def __init__(self, path: Path, on_gpu: bool = False):
        self.path, self.on_gpu, self.functions = path, on_gpu, ctypes.CDLL(str(path))

    def __getattr__(self, name: str):
        return lambda *arguments: self.call(name, *arguments)

    def call(self, name: str, *arguments) -> None:
        function = getattr(self.functions, name)
        function.restype = ctypes.c_char_p
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        places = {id(a): self.place(a) if self.on_gpu else a.ctypes.data for a in arrays}
        values = [ctypes.c_void_p(places[id(a)]) if isinstance(a, np.ndarray) else ctypes.c_long(a) for a in arguments]
        message = function(*values)
        if self.on_gpu:
            for a in arrays:
                ctypes.memmove(a.ctypes.data, places[id(a)], a.nbytes)
                self.functions.managed_free(ctypes.c_void_p(places[id(a)]))
        if message is not None:
            raise RuntimeError(message.decode())

    def place(self, array: np.ndarray) -> int:
        """A copy that the GPU can read and write."""
        address = ctypes.c_void_p()
        self.functions.managed_allocate(ctypes.byref(address), ctypes.c_long(max(1, array.nbytes)))
        ctypes.memmove(address, array.ctypes.data, array.nbytes)
        return address.value


SOURCES = sorted((HERE / "kernels").glob("*.cu"))


def line_of(file: str, comment: str) -> str:
    """`errors.cu:17` for the line with `// line: comment`."""
    lines = (HERE / "kernels" / file).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"// line: {comment}")]
    return f"{file}:{number}"


def fails(simulator, function: str, *arguments) -> str:
    import pytest  # not there where compare_sanitizer.py may run

    with pytest.raises(RuntimeError) as caught:
        getattr(simulator, function)(*arguments)
    out = np.zeros(8, np.float32)
    simulator.launch_fine(out)
    assert (out == 3).all(), "the next launch works"
    return str(caught.value)
