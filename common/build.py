"""A task's sources -> loaded operators, by nvcc or by the simulator.

    ops = load("task2", solution=True)          compile if anything changed, load, return the operators
    result = compile_task("task2", ...)         the same without loading: what `python -m taskN.compile` prints
    compile_only(["task2/attention_kernel.cu"], "sm_80")     nvcc on the kernels alone; needs no GPU and no CUDA torch

One folder per build: build/<backend and architecture>/<variant>/<task>/. torch.utils.cpp_extension.load writes the
ninja file and runs ninja there. A lock that the operating system drops with its process keeps two builds apart, so a
killed build never blocks the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common import compile_report, toolchain
from common.compile_report import KernelResources
from common.gaps import Gap, find_gaps, gaps_of_operator, registered_operators, with_own_headers
from common.toolchain import ToolchainError

ROOT = Path(__file__).resolve().parent.parent
LANGUAGE = "-std=c++20"
GAP_BEGINS = "BEGIN SOLUTION"
NVCC_FLAGS = [
    LANGUAGE,
    "-O3",
    "-lineinfo",
    "-Xptxas=-v",
    "-Wno-deprecated-gpu-targets",
    # torch's own flags take half's operators away; CUDA C++ without torch has them
    *(
        f"-U__CUDA_NO_{name}__"
        for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
    ),
]
# A launcher that is missing shall be the linker's error, not the loader's; and a compiler that links libstdc++
# statically must not mix its copy's symbols with torch's libstdc++
LINKER_FLAGS = ["-Wl,--no-undefined", "-Wl,--exclude-libs,ALL"] if sys.platform == "linux" else []
# What an unfilled gap leaves unused is no mistake of the student's
UNFILLED_NVCC_FLAGS = ["-diag-suppress=177,550", "-Xcompiler=-Wno-unused"]


class BuildError(RuntimeError):
    """A compile failed; the message starts with the compiler's words on the student's own lines."""


@dataclass(frozen=True)
class BuildResult:
    """What one build did: where the library is, how long it took, what the compiler had to say."""

    name: str
    folder: Path
    library: Path | None
    seconds: float
    rebuilt: bool
    warnings: list[str] = field(default_factory=list)
    kernels: list[KernelResources] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


class Operators:
    """The operators of one loaded library; calling `ops.softmax(x)` runs `torch.ops.<name>.softmax(x)`.

    Attributes:
        task, variant, backend: "task2", "solution" or "student" (or a test's own name), "cuda" or "simulator".
        device: where the tensors must live.
        sources: the .cu files and binding.cpp that were compiled.
        library: the shared library's path.

    Calling an operator raises NotImplementedError (file and line of each gap) while its kernels have unfilled gaps,
    ValueError for a bad argument, RuntimeError for what goes wrong inside a kernel.
    """

    def __init__(self, task: str, variant: str, backend: str, name: str, sources: list[Path], library: Path) -> None:
        import torch

        self.task = task
        self.variant = variant
        self.backend = backend
        self.device = torch.device("cuda" if backend == "cuda" else "cpu")
        self.sources = sources
        self.library = library
        self._namespace = getattr(torch.ops, name)

    def __repr__(self) -> str:
        return f"Operators({self.task}, {self.variant}, {self.backend})"

    def __getattr__(self, operator: str) -> Callable:
        if operator.startswith("_"):
            raise AttributeError(operator)
        gaps = gaps_of_operator(operator, self.sources)
        if gaps:
            where = "; ".join(map(str, gaps))
            others = len(find_gaps(self.sources)) - len(gaps)
            more = f" (and {others} more gaps, some of them perhaps behind these)" if others else ""

            def call(*args, **kwargs):
                raise NotImplementedError(f"{self.task} {operator} is not implemented yet: {where}{more}")
        else:
            call = self._checked(operator, getattr(self._namespace, operator))
        setattr(self, operator, call)
        return call

    def _checked(self, operator: str, function: Callable) -> Callable:
        def call(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except NotImplementedError:  # the dispatcher has no kernel for these tensors' device
                import torch

                tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
                wrong = sorted({x.device.type for x in tensors} - {self.device.type})
                if not wrong:
                    raise
                raise ValueError(
                    f"{self.task} {operator}: a tensor is on {wrong[0]!r}; the {self.backend} backend works on "
                    f"{self.device.type!r} tensors: move it with .to({self.device.type!r})"
                ) from None

        return call


def build_root() -> Path:
    """build/ in the checkout, or $ATTENTION_BUILD_DIR."""
    return Path(os.environ.get("ATTENTION_BUILD_DIR") or ROOT / "build").resolve()


def kernel_sources(task: str, solution: bool = False, tuned: bool = False) -> list[Path]:
    """The task's .cu files: the student's, or those under solution/.

    A solution that the handout teaches has marked gaps; one without them is a tuned version, made by an engineer for
    those who want more, with a solution/binding.cpp of its own.

    Args:
        task: "task2", ...
        solution: the taught solution's files.
        tuned: the tuned versions' files.

    Raises:
        ValueError: no such task.
        FileNotFoundError: the folder has no .cu file.
    """
    folder = ROOT / task
    if not task.startswith("task") or not folder.is_dir():
        known = ", ".join(sorted(path.parent.name for path in ROOT.glob("task*/binding.cpp")))
        raise ValueError(f"task is {task!r}; tasks with kernels are {known}")
    folder = folder / "solution" if solution or tuned else folder
    sources = sorted(folder.glob("*.cu"))
    if solution or tuned:
        sources = [source for source in sources if (GAP_BEGINS in source.read_text()) != tuned]
    if tuned and not sources:
        raise FileNotFoundError(f"{task} has no tuned kernels: no .cu file without gaps in {folder.relative_to(ROOT)}")
    if not sources:
        raise FileNotFoundError(
            f"no .cu file in {folder.relative_to(ROOT)}; python -m common.skeleton {task} writes it"
        )
    return sources


def binding_source(task: str, tuned: bool = False) -> Path:
    """The task's binding.cpp, or that of its tuned versions."""
    return ROOT / task / "solution" / "binding.cpp" if tuned else ROOT / task / "binding.cpp"


def operator_names(task: str, tuned: bool = False) -> set[str]:
    """The operators that a binding registers."""
    binding = binding_source(task, tuned)
    if not binding.is_file():
        raise FileNotFoundError(f"{task} has no {'tuned versions' if tuned else 'binding.cpp'}")
    return registered_operators(binding)


@dataclass(frozen=True)
class _Plan:
    """Everything that decides a build: what is compiled, with what, and where it goes."""

    task: str
    variant: str
    backend: str
    arch: str | None
    kernels: list[Path]
    binding: Path
    checked: bool
    gaps: list[Gap]

    @property
    def name(self) -> str:
        return f"{self.task}_{self.variant}_{self.target}"

    @property
    def folder(self) -> Path:
        target = self.target if self.arch is None else f"{self.target}-{self.arch}"
        return build_root() / target / self.variant / self.task

    @property
    def target(self) -> str:
        """The backend, or the simulator's checked build."""
        return "checked" if self.checked else self.backend

    @property
    def log_file(self) -> Path:
        return self.folder / "compile.log"


def _plan(
    task: str,
    solution: bool,
    backend: str,
    arch: str | None,
    sources: Iterable[Path] | None,
    variant: str | None,
    tuned: bool,
    checked: bool,
) -> _Plan:
    kernels = [Path(source).resolve() for source in sources] if sources else kernel_sources(task, solution, tuned)
    missing = [str(kernel) for kernel in kernels if not kernel.is_file()]
    if missing:
        raise FileNotFoundError(f"no such source: {', '.join(missing)}")
    chosen = toolchain.choose_backend(backend).name
    if chosen == "cuda" and arch is None:
        gpu = toolchain.find_gpu()
        if gpu is None:
            raise ToolchainError("no GPU to take the architecture from; name one, for example --arch sm_80")
        arch = gpu.arch
    if chosen == "simulator" and arch is not None:
        raise ValueError(f"arch is {arch!r}, but the simulator has no architectures; leave --arch out")
    if arch is not None and not _is_arch(arch):
        raise ValueError(f"arch is {arch!r}; it must look like sm_75, sm_80 or sm_90a")
    if checked and chosen != "simulator":
        raise ValueError(f"checked is True with backend {chosen!r}; only the simulator has a checked build")
    variant = variant or ("tuned" if tuned else "solution" if solution else "student")
    return _Plan(task, variant, chosen, arch, kernels, binding_source(task, tuned), checked, find_gaps(kernels))


def _is_arch(arch: str) -> bool:
    digits = arch.removeprefix("sm_").rstrip("af")
    return arch.startswith("sm_") and digits.isdigit() and len(digits) in (2, 3)


def _gencode(arch: str) -> str:
    number = arch.removeprefix("sm_")
    return f"-gencode=arch=compute_{number},code=sm_{number}"


def _nvcc_for_build() -> toolchain.Nvcc:
    nvcc = toolchain.find_nvcc()
    if nvcc is None:
        wanted = toolchain.torch_cuda_version()
        version = f" {wanted[0]}.{wanted[1]}, the version torch was built for," if wanted else ""
        raise ToolchainError(f"no nvcc{version} was found; install it: {toolchain.INSTALL_CUDA}")
    return nvcc


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock; the operating system releases it when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # torch's own lock file outlives a killed build and would be waited for forever. Nobody else is building here.
        (folder / "lock").unlink(missing_ok=True)
        yield


# torch keeps what it is building, and CUDA_HOME, in module globals: one build at a time per process
_one_build = threading.Lock()


def _load_arguments(plan: _Plan) -> dict:
    """What torch's load() is given. The compilers' output goes to a file, since load() drops it on success."""
    log = f">>{plan.log_file.name} 2>&1"
    defines = [f"-DTASK_NAMESPACE={plan.name}"]
    if plan.backend == "cuda":
        nvcc = _nvcc_for_build()
        linker = list(LINKER_FLAGS)
        if runtime := nvcc.cudart():
            link = plan.folder / "libcudart.so"
            link.unlink(missing_ok=True)
            link.symlink_to(runtime)
            linker.append(f"-L{shlex.quote(str(plan.folder))}")
        return {
            "sources": [str(source) for source in (*plan.kernels, plan.binding)],
            "extra_cflags": ["-O1", LANGUAGE, *defines, log],
            "extra_cuda_cflags": [
                *NVCC_FLAGS,
                *(UNFILLED_NVCC_FLAGS if plan.gaps else []),
                _gencode(plan.arch or ""),
                *defines,
                log,
            ],
            "extra_ldflags": linker,
            "extra_include_paths": [str(folder) for folder in (ROOT, *nvcc.include_dirs())],
            "with_cuda": True,
        }
    from common.simulator import rewriter

    mirror = plan.folder / "translated"
    mirror.mkdir(parents=True, exist_ok=True)
    include_dirs = [ROOT, *{kernel.parent for kernel in plan.kernels}]
    try:
        translated = [rewriter.translate(kernel, mirror, include_dirs).path for kernel in plan.kernels]
    except rewriter.RewriteError as error:
        raise BuildError(str(error)) from None
    checked = rewriter.CHECKED_FLAGS if plan.checked else []
    unused = ["-Wno-unused"] if plan.gaps else []
    return {
        "sources": [str(source) for source in (*translated, plan.binding)],
        "extra_cflags": [*rewriter.CXX_FLAGS, *checked, *unused, "-DCUDA_SIMULATOR", *defines, log],
        "extra_ldflags": [shlex.quote(str(_simulator_runtime(plan.checked))), *LINKER_FLAGS],
        "extra_include_paths": [str(folder) for folder in (mirror, ROOT, rewriter.INCLUDE_DIR)],
        "with_cuda": False,
    }


def _simulator_runtime(checked: bool) -> Path:
    """The simulator's runtime as an object file. Every task links the same one, so it is compiled once.

    The checked build's kernels report each load and store to the runtime, which itself must not: hence other flags, and
    an object of its own.
    """
    from common.simulator import rewriter

    compiler = toolchain.host_compiler()
    flags = [*rewriter.CXX_FLAGS, *(["-DSIMULATOR_CHECKED"] if checked else []), "-DCUDA_SIMULATOR", "-fPIC"]
    digest = hashlib.sha256(f"{compiler} {compiler.stat().st_mtime_ns} {flags}".encode())
    for source in sorted([*rewriter.HERE.glob("runtime/*"), *rewriter.HERE.glob("include/**/*.h")]):
        digest.update(source.read_bytes())
    folder = build_root() / ("checked" if checked else "simulator") / "runtime"
    runtime = folder / f"runtime-{digest.hexdigest()[:16]}.o"
    with _locked(folder):
        if not runtime.exists():
            for old in folder.glob("runtime-*.o"):
                old.unlink()
            unfinished = runtime.with_suffix(".tmp")
            command = [compiler, *flags, f"-I{rewriter.INCLUDE_DIR}", "-c", *rewriter.RUNTIME_SOURCES, "-o", unfinished]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise BuildError(f"the simulator's runtime does not compile:\n{done.stderr}")
            unfinished.replace(runtime)
    return runtime


def _run_build(plan: _Plan) -> None:
    """Runs torch's load(): ninja builds what is out of date, then the library is loaded into this process."""
    from torch.utils import cpp_extension

    arguments = _load_arguments(plan)
    if plan.backend == "cuda":
        cpp_extension.CUDA_HOME = str(_nvcc_for_build().home)
    plan.log_file.write_text("")
    try:
        cpp_extension.load(name=plan.name, build_directory=str(plan.folder), is_python_module=False, **arguments)
    except (RuntimeError, OSError) as error:
        _remembered_kernels(plan)
        log = plan.log_file.read_text() + "\n" + compile_report.demangled(f"{error}\n{error.__cause__ or ''}")
        plan.log_file.write_text(log)
        raise BuildError(compile_report.explain_failure(log, with_own_headers(plan.kernels), plan.log_file)) from None


def _remembered_kernels(plan: _Plan) -> list[KernelResources]:
    """ptxas reports only what it compiles; its last report is kept for builds that had nothing to do."""
    memory = plan.folder / "kernels.json"
    kernels = compile_report.kernel_resources(plan.log_file.read_text())
    if kernels:
        memory.write_text(json.dumps([asdict(kernel) for kernel in kernels]))
        return kernels
    return [KernelResources(**kernel) for kernel in json.loads(memory.read_text())] if memory.exists() else []


_results: dict[str, tuple[_Plan, BuildResult]] = {}


def _build(plan: _Plan) -> BuildResult:
    """Builds and loads, once per process and name."""
    with _one_build:
        if plan.name in _results:
            loaded, result = _results[plan.name]
            if loaded.kernels != plan.kernels:
                raise ValueError(
                    f"{plan.name} is loaded already, from {loaded.kernels}; give the other sources a variant"
                )
            return result
        toolchain.find_ninja()
        os.environ["CXX"] = str(toolchain.host_compiler())
        import torch.utils.cpp_extension  # not part of the build: the seconds below are the compilers' and the loader's

        library = plan.folder / f"{plan.name}{torch.utils.cpp_extension.LIB_EXT}"
        start = time.perf_counter()
        with _locked(plan.folder):
            before = library.stat().st_mtime_ns if library.exists() else None
            _run_build(plan)
            log = plan.log_file.read_text()
            result = BuildResult(
                plan.name,
                plan.folder,
                library,
                time.perf_counter() - start,
                library.stat().st_mtime_ns != before,
                compile_report.own_warnings(log, with_own_headers(plan.kernels)),
                _remembered_kernels(plan) if plan.backend == "cuda" else [],
                plan.gaps,
            )
        _results[plan.name] = plan, result
        return result


def compile_only(sources: Iterable[Path], arch: str, folder: Path | None = None) -> BuildResult:
    """Compiles the kernels for `arch` with nvcc and throws the object away: for machines that cannot load them.

    Args:
        sources: .cu files.
        arch: sm_75, sm_80, sm_90a, ...
        folder: where the log goes; default build/cuda-<arch>/check.

    Raises:
        BuildError: a file does not compile.
        ToolchainError: there is no nvcc.
    """
    if not _is_arch(arch):
        raise ValueError(f"arch is {arch!r}; it must look like sm_75, sm_80 or sm_90a")
    nvcc = _nvcc_for_build()
    sources = [Path(source).resolve() for source in sources]
    folder = folder or build_root() / f"cuda-{arch}" / "check"
    gaps = find_gaps(sources)
    flags = [*NVCC_FLAGS, *(UNFILLED_NVCC_FLAGS if gaps else []), _gencode(arch)]
    include = [f"-I{path}" for path in (ROOT, *nvcc.include_dirs())]
    log, start = "", time.perf_counter()
    with _locked(folder):
        log_file = folder / "compile.log"
        for source in sources:
            command = [
                str(nvcc.path),
                "-c",
                *flags,
                *include,
                str(source),
                "-o",
                os.devnull,
                "-Xcompiler=-fPIC",
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            log += done.stdout + done.stderr
            log_file.write_text(log)
            if done.returncode:
                raise BuildError(compile_report.explain_failure(log, with_own_headers(sources), log_file))
    return BuildResult(
        f"nvcc {arch}",
        folder,
        None,
        time.perf_counter() - start,
        True,
        compile_report.own_warnings(log, with_own_headers(sources)),
        compile_report.kernel_resources(log),
        gaps,
    )


def compile_task(
    task: str,
    solution: bool = False,
    backend: str = "auto",
    arch: str | None = None,
    sources: Iterable[Path] | None = None,
    variant: str | None = None,
    tuned: bool = False,
    checked: bool = False,
) -> BuildResult:
    """Brings a task's library up to date; only what changed is compiled.

    Args:
        task: "task2", ...
        solution: the reference solution instead of the student's files.
        backend: "auto", "cuda" or "simulator".
        arch: nvcc's target such as "sm_90a"; default: the GPU that is present.
        sources: other .cu files than the task's own, built with the task's binding.cpp.
        variant: a name for those; part of the build folder and of the operators' namespace.
        tuned: the tuned versions under solution/ with their own binding.cpp; see kernel_sources.
        checked: the simulator's checked build, which can look for races and bad accesses and count transactions.

    Returns:
        BuildResult; its library is None where the kernels could be compiled but not loaded (nvcc on a machine whose
        torch has no CUDA).

    Raises:
        BuildError: the sources do not compile. ToolchainError: a tool is missing. ValueError: a bad argument.
    """
    plan = _plan(task, solution, backend, arch, sources, variant, tuned, checked)
    if plan.backend == "cuda" and toolchain.torch_cuda_version() is None:
        return compile_only(plan.kernels, plan.arch or "", plan.folder)
    return _build(plan)


def load(
    task: str,
    solution: bool = False,
    backend: str = "auto",
    arch: str | None = None,
    sources: Iterable[Path] | None = None,
    variant: str | None = None,
    tuned: bool = False,
    checked: bool = False,
) -> Operators:
    """Builds what is out of date and returns the task's operators. Arguments and errors: see compile_task."""
    plan = _plan(task, solution, backend, arch, sources, variant, tuned, checked)
    if plan.backend == "cuda" and toolchain.torch_cuda_version() is None:
        raise ToolchainError(
            "this torch has no CUDA, so kernels built by nvcc cannot be loaded; use --backend simulator"
        )
    result = _build(plan)
    assert result.library is not None
    sources = [*plan.kernels, plan.binding]
    return Operators(plan.task, plan.variant, plan.backend, result.name, sources, result.library)
