"""The settings of one build: sources, flags, and output folder.

One folder per build: build/<backend and architecture>/<variant>/<place>/. The simulator's objects are in the cache
(objects.py); its libraries and rewritten sources are here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from common.compiling import toolchain
from common.compiling.flags import (
    FAST_KERNELS,
    LANGUAGE,
    LINKER_FLAGS,
    NVCC_FLAGS,
    QUICK,
    UNFILLED_NVCC_FLAGS,
    check_arch,
    gencode,
)
from common.compiling.gaps import Gap, find_gaps
from common.compiling.objects import kept_text
from common.compiling.places import Place
from common.compiling.request import BuildRequest
from common.compiling.result import BuildError
from common.compiling.toolchain import ToolchainError
from common.console.files import write_whole
from common.console.paths import ROOT, build_root
from common.simulator import rewriter
from common.simulator.targets import DEFAULT, Target, target_of

NAMESPACE = 'extern "C" {{ extern const char task_namespace[]; const char task_namespace[] = "{name}"; }}\n'


@dataclass(frozen=True)
class Plan:
    """One library to be built.

    Attributes:
        place: its sources.
        variant: whose they are, or the request's label.
        backend: "cuda" or "simulator".
        arch: nvcc's target, or the simulator's if not the default; else None.
        checked: whether it is the simulator's checked build.
        counted: whether it is the simulator's build that counts each thread's work.
    """

    place: Place
    variant: str
    backend: str
    arch: str | None
    checked: bool
    counted: bool = False

    @cached_property
    def gaps(self) -> list[Gap]:
        """The unfilled gaps."""
        return find_gaps(self.place.kernels)

    @property
    def name(self) -> str:
        """The name of the library and of the operators' namespace."""
        return f"{self.place.name}_{self.variant}_{self.target}"

    @property
    def simulated(self) -> Target:
        """The simulator's target architecture."""
        return target_of(self.arch or DEFAULT)

    @property
    def folder(self) -> Path:
        target = self.target if self.arch is None else f"{self.target}-{self.arch}"
        return build_root() / target / self.variant / self.place.name

    @property
    def target(self) -> str:
        """The backend, or the simulator's checked or counted build."""
        return "checked" if self.checked else "counted" if self.counted else self.backend

    @property
    def log_file(self) -> Path:
        return self.folder / "compile.log"

    @property
    def library(self) -> Path:
        return self.folder / f"{self.name}.so"

    def for_nvcc(self) -> dict:
        """Arguments for torch's load(). The compilers' output goes to a file, since load() drops it on success."""
        nvcc = toolchain.nvcc_for_build()
        define_and_log = [f"-DTASK_NAMESPACE={self.name}", f">>{self.log_file.name} 2>&1"]
        linker = list(LINKER_FLAGS)
        if runtime := nvcc.cudart():
            link = self.folder / "libcudart.so"
            link.unlink(missing_ok=True)
            link.symlink_to(runtime)
            linker.append(f"-L{shlex.quote(str(self.folder))}")
        unfilled = UNFILLED_NVCC_FLAGS if self.gaps else []
        return {
            "sources": [str(source) for source in (*self.place.kernels, self.place.binding)],
            "extra_cflags": ["-O1", LANGUAGE, *define_and_log],
            "extra_cuda_cflags": [*NVCC_FLAGS, *unfilled, gencode(self.arch or ""), *define_and_log],
            "extra_ldflags": linker,
            "extra_include_paths": [str(folder) for folder in (ROOT, *nvcc.include_dirs())],
            "with_cuda": True,
        }

    def for_simulator(
        self, texts: Mapping[Path, str] = MappingProxyType({})
    ) -> tuple[list[tuple[Path, list[str]]], list[str]]:
        """The sources with their flags, for compile_objects, and the linker flags.

        The binding comes last, so that the linker takes inline functions of shared headers from the kernels or the
        runtime: the binding is not instrumented in the checked build.

        Args:
            texts: of the sources whose files are not to be read.

        Raises:
            BuildError: a source contains something that the simulator cannot run.
        """
        mirror = self.folder / "translated"
        include_dirs = [ROOT, *{kernel.parent for kernel in self.place.kernels}]
        translated = [self._translated(one, mirror, include_dirs, text=texts.get(one)) for one in self.place.kernels]
        further = rewriter.CHECKED_FLAGS if self.checked else rewriter.COUNTED_FLAGS if self.counted else [QUICK]
        is_watched = further != [QUICK] or not self.place.binding.is_relative_to(FAST_KERNELS)
        basis = rewriter.CXX_FLAGS if is_watched else rewriter.RUNTIME_FLAGS
        flags = [*basis, *further, *(["-Wno-unused"] if self.gaps else []), *self._defines]
        flags += [f"-I{folder}" for folder in (mirror, ROOT, rewriter.INCLUDE_DIR)]
        namespace = self.folder / "namespace.cpp"
        write_whole(namespace, NAMESPACE.format(name=self.name))
        jobs = [(source, flags) for source in translated] + [(namespace, ["-fPIC"]), *self.shared_jobs()]
        libraries = f"-L{toolchain.torch_folder() / 'lib'}"
        return jobs, ["-shared", *LINKER_FLAGS, libraries, "-lc10", "-ltorch_cpu", "-ltorch"]

    def shared_jobs(self) -> list[tuple[Path, list[str]]]:
        """The jobs for the runtime and the binding, whose objects all variants and builds of the place share.

        Raises: see for_simulator.
        """
        headers = build_root() / "headers" / self.simulated.name / self.place.name
        self._translated(self.place.binding, headers, [ROOT], headers_only=True)
        flags = [*rewriter.RUNTIME_FLAGS, "-O0", *self._defines]
        flags += [f"-I{folder}" for folder in (headers, ROOT, rewriter.INCLUDE_DIR)]
        flags += [f"-isystem{toolchain.torch_folder() / 'include'}"]
        return [*rewriter.runtime_jobs(self.checked), (self.place.binding, flags)]

    @property
    def _defines(self) -> list[str]:
        return ["-fPIC", *self.simulated.flags, "-DCUDA_SIMULATOR"]

    def _translated(
        self, source: Path, folder: Path, include_dirs: list[Path], headers_only: bool = False, text: str | None = None
    ) -> Path:
        try:
            return rewriter.translate(source, folder, include_dirs, self.simulated, headers_only, kept_text, text).path
        except rewriter.RewriteError as error:
            raise BuildError(str(error)) from None


def plans_of(request: BuildRequest) -> list[Plan]:
    """A plan for each place of the request.

    Raises:
        ValueError: an invalid argument of the request; see also BuildRequest.places.
        ToolchainError: no GPU from which to take the architecture.
    """
    places = request.places
    backend = toolchain.choose_backend(request.backend).name
    arch = request.arch
    if backend == "cuda" and arch is None:
        gpu = toolchain.find_gpu()
        if gpu is None:
            raise ToolchainError("no GPU to take the architecture from; name one, for example --arch sm_80")
        arch = gpu.arch
    if backend == "simulator":
        target = target_of(arch)
        arch = None if target.name == DEFAULT else target.name
    if arch is not None:
        check_arch(arch)
    if request.checked and backend != "simulator":
        raise ValueError(f"checked is True with backend {backend!r}; only the simulator has a checked build")
    if request.counted and backend != "simulator":
        raise ValueError(f"counted is True with backend {backend!r}; only the simulator counts")
    variant = request.label or request.variant.value
    return [Plan(place, variant, backend, arch, request.checked, request.counted) for place in places]
