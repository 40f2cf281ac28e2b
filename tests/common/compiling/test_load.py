"""The build: what is rebuilt and when, what errors look like, and what happens if tools or arguments are wrong.

Every step that compiles runs in its own process with its own build folder, as it does for a student.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from forked_python import run_python

from common.compiling import toolchain
from common.compiling.load import build, load
from common.compiling.manifest import tasks
from common.compiling.plan import plans_of
from common.compiling.request import BuildRequest
from common.console.paths import ROOT

pytestmark = pytest.mark.slow
KERNEL = """\
#include "common/cuda/check.h"
#include "offset.cuh"
#include "task2/given/attention_kernel.h"
__global__ void add(const float* x, float* y, int cols) {
    int i = threadIdx.x;
    if (i < cols) y[i] = x[i] + OFFSET;
}
void softmax(const float* x, float* y, int64_t, int cols, cudaStream_t stream) {
    add<<<1, 32, 0, stream>>>(x, y, cols);
    CUDA_CHECK_LAUNCH();
}
void row_sum(const float*, float*, int64_t, int, cudaStream_t) {}
void gemm_nn(const float*, const float*, float*, int64_t, int, int, int, cudaStream_t) {}
void gemm_nt(const float*, const float*, float*, int64_t, int, int, int, cudaStream_t) {}
void custom_attention(const float*, const float*, const float*, float*, float*, int64_t, int, int, int, float, bool,
                      AttentionMask, cudaStream_t) {}
"""


class Course:
    """A scratch build folder and a tiny kernel with a header, standing in for task 2's.

    Its cache of objects is $ATTENTION_CACHE_DIR, or without one its own.
    """

    def __init__(self, folder: Path, backend: str) -> None:
        self.source = folder / "kernel.cu"
        self.header = folder / "offset.cuh"
        self.backend = backend
        self.environment = {**os.environ, "ATTENTION_BUILD_DIR": str(folder / "build")}
        self.source.write_text(KERNEL)
        self.header.write_text("#pragma once\n#define OFFSET 1.0f\n")

    def script(self, code: str) -> str:
        preamble = f"""
            import sys, torch
            from common.compiling.load import build, load
            from common.compiling.request import BuildRequest
            where = dict(backend={self.backend!r}, sources=[{str(self.source)!r}], label="scratch")
        """
        return textwrap.dedent(preamble) + textwrap.dedent(code)

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess:
        return run_python(["-c", self.script(code)], ROOT, {**self.environment, **environment}, 300)

    def build(self, **environment: str) -> tuple[bool, float]:
        """Builds and calls softmax on a zero: (whether anything was compiled, the offset that the kernel adds)."""
        done = self.run(
            """
            rebuilt = build(BuildRequest("task2", **where))[0].rebuilt
            ops = load(BuildRequest("task2", **where))
            print(int(rebuilt), float(ops.softmax(torch.zeros(1, 1, device=ops.device))))
            """,
            **environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        rebuilt, value = done.stdout.split()
        return bool(int(rebuilt)), float(value)


@pytest.fixture(scope="module")
def kept_objects(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def warm(monkeypatch, kept_objects):
    """One cache for these tests: only the first compiles the simulator's runtime and precompiled headers."""
    monkeypatch.setenv("ATTENTION_CACHE_DIR", kept_objects)


@pytest.fixture
def course(tmp_path, backend, warm):
    return Course(tmp_path, backend)


@pytest.fixture
def cold_course(tmp_path, backend, monkeypatch):
    monkeypatch.delenv("ATTENTION_CACHE_DIR", raising=False)
    return Course(tmp_path, backend)


def test_rebuilds_what_changed_and_nothing_else(course):
    assert course.build() == (True, 1.0)
    assert course.build() == (False, 1.0)
    course.header.write_text("#pragma once\n#define OFFSET 2.0f\n")
    assert course.build() == (True, 2.0)
    course.source.write_text(KERNEL.replace("+ OFFSET", "- OFFSET"))
    assert course.build() == (True, -2.0)
    assert course.build() == (False, -2.0)


def test_ninja_is_found_when_it_is_not_on_path(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    ninja = toolchain.find_ninja()
    assert ninja.exists() and str(ninja.parent) in os.environ["PATH"].split(os.pathsep)


def test_a_killed_build_does_not_hang_the_next_one(cold_course):
    """Killed while the compiler runs, together with its children; a lock's file is left behind."""
    left = "lock" if cold_course.backend == "cuda" else "cache/??/*.lock"
    cold_course.source.write_text(KERNEL + "\n".join(f"template <int N> struct F{i} {{}};" for i in range(20000)))
    command = [sys.executable, "-c", cold_course.script('load(BuildRequest("task2", **where))')]
    victim = subprocess.Popen(command, cwd=ROOT, env=cold_course.environment, start_new_session=True)
    folder = cold_course.source.parent / "build"
    deadline = time.monotonic() + 120
    while not list(folder.rglob(left)):
        assert time.monotonic() < deadline and victim.poll() is None
        time.sleep(0.02)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    assert list(folder.rglob(left)), "the killed build was expected to leave a lock behind"
    cold_course.source.write_text(KERNEL)
    assert cold_course.build() == (True, 1.0)


def test_two_builds_at_once(cold_course):
    command = [sys.executable, "-c", cold_course.script('print(load(BuildRequest("task2", **where)).softmax)')]
    both = [
        subprocess.Popen(
            command, cwd=ROOT, env=cold_course.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(2)
    ]
    for one in both:
        out, _ = one.communicate(timeout=300)
        assert one.returncode == 0, out.decode()


def test_a_compile_error_starts_with_the_students_line(course):
    course.source.write_text(KERNEL.replace("x[i] + OFFSET", "z[i] + OFFSET"))
    done = course.run('load(BuildRequest("task2", **where))')
    message = done.stderr[done.stderr.index("BuildError: ") + len("BuildError: ") :]
    assert message.startswith(f"{course.source}:6: error:") and "z" in message.splitlines()[0]
    assert "-isystem" not in message


def test_what_a_failed_build_leaves_is_no_damage(course):
    for line in ("z[i] + OFFSET", "x[i] + OFFSET"):  # the binding builds, the kernels do not
        course.source.write_text(KERNEL.replace("x[i] + OFFSET", line))
        done = course.run('load(BuildRequest("task2", **where))')
        assert "the last build left" not in done.stderr and (done.returncode == 0) == line.startswith("x")


def test_a_missing_launcher_is_named(course):
    course.source.write_text(KERNEL.replace("void gemm_nt(", "void my_gemm_nt("))
    done = course.run('load(BuildRequest("task2", **where))')
    assert "BuildError: " in done.stderr and "gemm_nt" in done.stderr.split("BuildError: ")[1]


def test_two_variants_live_in_one_process(backend, tmp_path, warm):
    first, second = Course(tmp_path, backend), tmp_path / "second"
    second.mkdir()
    (second / "offset.cuh").write_text("#pragma once\n#define OFFSET 5.0f\n")
    (second / "kernel.cu").write_text(KERNEL)
    done = first.run(
        f"""
        one = load(BuildRequest("task2", **where))
        two = load(BuildRequest("task2", **{{**where, "sources": [{str(second / "kernel.cu")!r}], "label": "other"}}))
        zero = torch.zeros(1, 1, device=one.device)
        print(float(one.softmax(zero)), float(two.softmax(zero)), float(one.softmax(zero)))
        """
    )
    assert done.stdout.split() == ["1.0", "5.0", "1.0"], done.stderr


def test_one_name_for_two_sources_is_refused(backend, tmp_path, warm):
    course = Course(tmp_path, backend)
    other = tmp_path / "other.cu"
    other.write_text(KERNEL)
    done = course.run(
        f"""
        load(BuildRequest("task2", **where))
        load(BuildRequest("task2", **{{**where, "sources": [{str(other)!r}]}}))
        """
    )
    assert "ValueError: task2_scratch_" in done.stderr and "give the other sources a label" in done.stderr


def test_a_checkout_with_a_space_in_its_path(backend, tmp_path, warm):
    folder = tmp_path / "my course"
    folder.mkdir()
    assert Course(folder, backend).build() == (True, 1.0)


def test_unfilled_gaps_raise_with_file_and_line(course):
    source = KERNEL.replace("y[i] = x[i] + OFFSET;", "NOT_IMPLEMENTED();")
    course.source.write_text('#include "common/cuda/not_implemented.h"\n' + source)
    done = course.run(
        """
        ops = load(BuildRequest("task2", **where))
        ops.gemm_nn(torch.zeros(1, 1, 1, device=ops.device), torch.zeros(1, 1, 1, device=ops.device))
        ops.softmax(torch.zeros(1, 1, device=ops.device))
        """
    )
    assert "NotImplementedError: task2 softmax is not implemented yet: " in done.stderr
    assert f"{course.source}:7 in add" in done.stderr


def test_every_unfilled_skeleton_builds_and_reports_its_gaps(backend):
    assert len(tasks()) == 7
    for task in tasks():
        [result] = build(BuildRequest(task, backend=backend))
        assert result.gaps and not result.warnings, task
        for gap in result.gaps:
            assert "NOT_IMPLEMENTED" in gap.file.read_text().splitlines()[gap.line - 1]


def test_a_tensor_on_the_wrong_device_is_refused():
    """With a second device that torch knows: on a GPU machine the GPU, elsewhere the dispatcher's own error."""
    import torch

    ops = load(BuildRequest("task2", "solution", "simulator"))
    other = "cuda" if torch.cuda.is_available() else "meta"
    dispatched = ops.softmax if other == "cuda" else ops._checked("softmax", no_kernel)
    with pytest.raises(ValueError, match=rf"softmax: a tensor is on '{other}'; the simulator backend works on 'cpu'"):
        dispatched(torch.zeros(2, 2, device=other))


def no_kernel(x):
    raise NotImplementedError("Could not run 'softmax' with arguments from the backend")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"task": "task99"}, ValueError, "task99.*task2"),
        ({"task": "task2", "backend": "gpu"}, ValueError, "'gpu'.*auto, cuda or simulator"),
        ({"task": "task2", "backend": "simulator", "arch": "sm_80"}, ValueError, "the simulator runs code for sm_89"),
        ({"task": "task2", "backend": "cuda", "arch": "80"}, ValueError, "sm_75, sm_80 or sm_90a"),
        ({"task": "task2", "sources": ["missing.cu"], "label": "other"}, FileNotFoundError, "missing.cu"),
        ({"task": "task2", "sources": ["missing.cu"]}, ValueError, "label"),
        ({"task": "task2", "variant": "fast"}, ValueError, "variant is 'fast'.*'student', 'solution', 'tuned'"),
        ({"task": "task1", "variant": "tuned"}, FileNotFoundError, "task1 has no tuned versions"),
        ({"task": "gemm", "variant": "solution"}, ValueError, "common/kernels/gemm holds tuned kernels only"),
        ({"task": "task2", "variant": "tuned", "sources": [__file__], "label": "x"}, ValueError, "softmax, gemm"),
    ],
)
def test_bad_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        build(BuildRequest(**arguments))


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(toolchain.ToolchainError, match="CXX=no-such-compiler"):
        toolchain.host_compiler()


def test_a_gpu_without_a_matching_nvcc_runs_in_the_simulator_and_says_so(monkeypatch):
    monkeypatch.setattr(toolchain, "find_gpu", lambda: toolchain.Gpu("NVIDIA T4", (7, 5)))
    monkeypatch.setattr(toolchain, "torch_cuda_version", lambda: (13, 0))
    monkeypatch.setattr(toolchain, "all_nvccs", lambda: (toolchain.Nvcc(Path("nvcc"), Path("."), (11, 8), "PATH"),))
    chosen = toolchain.choose_backend()
    assert chosen.name == "simulator"
    assert "NVIDIA T4" in chosen.problem and toolchain.INSTALL_CUDA in chosen.problem


def test_the_matching_nvcc_is_preferred(monkeypatch):
    versions = ((12, 8), (13, 2), (13, 0))
    nvccs = tuple(toolchain.Nvcc(Path(f"{a}.{b}"), Path("."), (a, b), "PATH") for a, b in versions)
    monkeypatch.setattr(toolchain, "all_nvccs", lambda: nvccs)
    monkeypatch.setattr(toolchain, "torch_cuda_version", lambda: (13, 0))
    assert toolchain.find_nvcc().version == (13, 0)
    monkeypatch.setattr(toolchain, "torch_cuda_version", lambda: (13, 1))
    assert toolchain.find_nvcc().version == (13, 2)
    monkeypatch.setattr(toolchain, "torch_cuda_version", lambda: (11, 8))
    assert toolchain.find_nvcc() is None


@pytest.mark.parametrize(("capability", "arch"), [((7, 5), "sm_75"), ((8, 9), "sm_89"), ((9, 0), "sm_90a")])
def test_the_target_follows_from_the_gpu(capability, arch):
    assert toolchain.Gpu("a GPU", capability).arch == arch


@pytest.mark.parametrize(
    ("how", "optimized"), [({}, "-Og"), ({"checked": True}, "-O2"), ({"counted": True}, "-O2")], ids=str
)
def test_kernels_compile_quickly_unless_instructions_are_counted(how, optimized):
    (plan,) = plans_of(BuildRequest("task2", "solution", "simulator", **how))
    (_, flags), *_ = plan.for_simulator()[0]
    assert [one for one in flags if one.startswith("-O")][-1] == optimized
