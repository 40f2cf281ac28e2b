"""The tests' CUDA files as shared libraries, called through ctypes.

compile_library(sources, folder)      with the simulator; checked=True: its checked build
compile_with_nvcc(sources, folder)    for a GPU
Library(path).name(arrays, ...)       calls an EXPORTed function
"""

import ctypes
import subprocess
from pathlib import Path

import numpy as np

from common.compiling import toolchain
from common.compiling.locking import locked
from common.compiling.objects import compile_objects, kept_text, link
from common.console.paths import ROOT
from common.simulator import rewriter
from common.simulator.targets import target_for_program

HERE = ROOT / "tests" / "common" / "simulator"


def compile_library(sources: list[Path], folder: Path, checked: bool = False) -> Path:
    """The library with the simulator's runtime; fails on any compiler output.

    Several processes may share the folder.
    """
    flags = [*rewriter.CXX_FLAGS, *(rewriter.CHECKED_FLAGS if checked else []), "-fPIC"]
    jobs, library = [], folder / "kernels.so"
    with locked(folder):
        for source in sources:
            target = target_for_program([source.read_text()])
            translated = folder / target.name
            file = rewriter.translate(source, translated, [ROOT], target, keep=kept_text).path
            includes = [f"-I{place}" for place in (translated, ROOT, rewriter.INCLUDE_DIR)]
            jobs.append((file, [*flags, *target.flags, "-DCUDA_SIMULATOR", *includes]))
        objects = compile_objects([*jobs, *rewriter.runtime_jobs(checked)])
        assert not any(one.log for one in objects), "\n".join(one.log for one in objects)
        link(objects, ["-shared", "-pthread", "-ldl"], library)
    return library


def compile_with_nvcc(sources: list[Path], folder: Path) -> Path:
    nvcc = toolchain.find_nvcc()
    library = folder / "kernels_gpu.so"
    flags = ["-std=c++20", "-arch=native", "-shared", "-Xcompiler=-fPIC", f"-I{ROOT}"]
    subprocess.run([nvcc.path, *flags, *sources, "-o", library], check=True)
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
    import pytest  # missing where compare_sanitizer.py runs

    with pytest.raises(RuntimeError) as caught:
        getattr(simulator, function)(*arguments)
    out = np.zeros(8, np.float32)
    simulator.launch_fine(out)
    assert (out == 3).all(), "the next launch works"
    return str(caught.value)
