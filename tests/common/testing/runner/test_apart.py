"""Host code without device memory: what a launcher can reach, what is counted, what the build rejects."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from common.compiling import toolchain
from common.compiling.plan import plans_of
from common.compiling.request import BuildRequest
from common.compiling.result import BuildError
from common.compiling.runner import runner_program
from common.console.paths import ROOT
from common.course.grading.build import _lines_at, build
from common.testing.calling import CallFailed
from common.testing.runner.apart import ApartProcess, Built
from common.testing.runner.process import TENSOR, Argument

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="grading needs Linux"),
    pytest.mark.skipif(not toolchain.find_nvcc(), reason="grading needs nvcc"),
]

LABEL = f"apart{os.environ.get('PYTEST_XDIST_WORKER', '')}"  # of the folder in which each process builds
FORMS = (ROOT / "tests/common/simulator/kernels/helper/launch_forms.cuh").read_text(encoding="utf-8")
SOURCE = """
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/cuda/check.h"
#include "task3/given/online_softmax.h"

struct Large { double a; int64_t many[5]; float b; };
__constant__ float factor[2] = {2, 3};
namespace {
template <typename T>
__global__ void twice(const T* x, T* y, T f, Large large, int64_t size, double d, dim3 e) {
    const int64_t i = blockIdx.x * int64_t{64} + threadIdx.x;
    __shared__ float more[64];
    more[threadIdx.x] = float(large.a + large.many[4] + large.b + d) + e.z;
    if (i < size) y[i] = f * x[i] + more[threadIdx.x] - 11;
}
}  // namespace
static __global__ void constant(const float* x, float* y, int64_t size) {
    const int64_t i = blockIdx.x * int64_t{64} + threadIdx.x;
    if (i < size) y[i] = factor[0] * x[i];
}
// y[i] = the sum of the block's x. In HOW 0 all threads add without an atomic, in 1 they sleep instead of a barrier.
template <int HOW>
__global__ void sum_of_block(const float* x, float* y, int64_t size) {
    const int64_t i = blockIdx.x * int64_t{64} + threadIdx.x;
    __shared__ float part[64];
    __shared__ int lock;
    const auto wait = [] { if constexpr (HOW == 1) __nanosleep(1); else __syncthreads(); };
    const float mine = i < size ? x[i] : 0;
    if (threadIdx.x == 0) lock = 0;
    part[threadIdx.x] = HOW == 1 || HOW == 2 ? mine : 0;
    wait();
    if constexpr (HOW == 0) part[0] += mine;
    if constexpr (HOW == 3) atomicAdd(&part[0], mine);
    if constexpr (HOW == 4) {
        while (atomicCAS(&lock, 0, 1)) __nanosleep(20);
        part[0] += mine;
        __threadfence_block();
        atomicExch(&lock, 0);
    }
    for (int active = 32; (HOW == 1 || HOW == 2) && active > 0; active /= 2) {
        if (threadIdx.x < active) part[threadIdx.x] += part[threadIdx.x + active];
        wait();
    }
    wait();
    if (i < size) y[i] = part[0];
}
// y[0] = the sum of all x, to which each block adds. In HOW 0 it adds without an atomic; in 2 there is a lock.
__device__ int one_at_a_time = 0;
template <int HOW>
__global__ void sum_of_blocks(const float* x, float* y, int64_t size) {
    float mine = 0;
    for (int64_t i = blockIdx.x * 64; i < blockIdx.x * 64 + 64 && i < size; ++i) mine += x[i];
    if (threadIdx.x > 0) return;
    if constexpr (HOW == 1) atomicAdd(y, mine);
    while (HOW == 2 && atomicCAS(&one_at_a_time, 0, 1)) __nanosleep(20);
    if constexpr (HOW != 1) *y += mine;
    __threadfence();
    if constexpr (HOW == 2) atomicExch(&one_at_a_time, 0);
}
static void on_host(const float* x, float* y, int64_t size) { for (int64_t i = 0; i < size; ++i) y[i] = 2 * x[i]; }
LAUNCH_FORMS

// The number of columns selects what is tried.
void online_softmax(const float* x, float* y, float* lse, int64_t rows, int64_t cols, cudaStream_t stream) {
    cudaMemsetAsync(lse, 0, 4 * rows, stream);
    const dim3 blocks(ceil_div(rows * cols, int64_t{64}));
    float value = 2;
    const Large large{1, {0, 0, 0, 0, 2}, 3};
    if (cols == 1 && !std::thread::hardware_concurrency()) return;
    if (cols == 1) twice<<<blocks, 64, 0, stream>>>(x, y, 2.0f, large, rows * cols, 4.0, dim3(1, 2, 1));
    if (cols == 2) constant<<<blocks, 64, 0, stream>>>(x, y, rows * cols);
    if (cols == 3) y[0] = x[0];
    void (*f)(const float*, float*, int64_t) = on_host;
    if (cols == 4) f<<<1, 64>>>(x, y, rows * cols), CUDA_CHECK_LAUNCH();
    if (cols == 5) {
        cudaMemcpyToSymbol(factor, &value, 4, 4);
        cudaMemcpyFromSymbol(&value, factor, 4, 4);
        std::vector<float> copy(rows * cols, value);
        float* own = nullptr;
        cudaMalloc(&own, 4 * copy.size());
        cudaMemcpy(own, copy.data(), 4 * copy.size(), cudaMemcpyHostToDevice);
        cudaMemcpy(y, own, 4 * copy.size(), cudaMemcpyDeviceToDevice);
        cudaFree(own);
    }
    if (cols == 6) syscall(SYS_mprotect, (uint64_t)x & ~4095ull, 4096, 3), value = x[0];
    if (cols == 7) fopen("/tmp/anything", "w");
    if (cols == 8) std::thread([] {}).join();
    if (cols == 9) constant<<<blocks, 64>>>(x + (1ll << 40), y, rows * cols), CUDA_CHECK_LAUNCH();
    if (cols == 10) constant<<<blocks, 64>>>(x, y, rows * cols + 9);
    if (cols == 11) constant<<<blocks, 2048>>>(x, y, rows * cols), CUDA_CHECK_LAUNCH();
    float* both = nullptr;
    if (cols == 12 && cudaMallocManaged(&both, 4)) throw std::runtime_error("no managed memory");
    if (cols == 13 && cudaStreamCreate(&stream)) throw std::runtime_error("no other stream");
    for (int i = 0; cols == 14 && i < 2000; ++i) cudaMalloc(&both, 4);
    for (int i = 0; cols == 15 && i < 2000; ++i) constant<<<blocks, 64>>>(x, y, rows * cols);
    if (cols == 16) sum_of_block<0><<<blocks, 64>>>(x, y, rows * cols);
    if (cols == 17) sum_of_block<1><<<blocks, 64>>>(x, y, rows * cols);
    if (cols == 18) sum_of_block<2><<<blocks, 64>>>(x, y, rows * cols);
    if (cols == 19) sum_of_block<3><<<blocks, 64>>>(x, y, rows * cols);
    if (cols == 20) sum_of_block<4><<<blocks, 64>>>(x, y, rows * cols);
    if (cols >= 40) cudaMemsetAsync(y, 0, 4 * rows * cols, stream);
    if (cols == 40) sum_of_blocks<0><<<blocks, 64>>>(x, y, rows * cols);
    if (cols == 41) sum_of_blocks<1><<<blocks, 64>>>(x, y, rows * cols);
    if (cols == 42) sum_of_blocks<2><<<blocks, 64>>>(x, y, rows * cols);
    if (cols == 43) launch_forms(y, stream);
    if (cols == 44) f<<<1, 64>>>(x, y, 0), CUDA_CHECK_LAUNCH();
}
void merge_states(const float*, const float*, float*, float*, int64_t, int64_t, int64_t, cudaStream_t) {}
""".replace("LAUNCH_FORMS", FORMS.replace("#pragma once", ""))


def request(folder: Path, text: str) -> BuildRequest:
    source = folder / "source.cu"
    source.write_text(text)
    return BuildRequest("task3", backend="simulator", counted=True, sources=[source], label=LABEL)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("apart")
    asked = request(folder, SOURCE)
    about, library = build(asked)
    (folder / "library.so").write_bytes(library)
    (plan,) = plans_of(asked)
    made = ApartProcess(runner_program(), Built.of(folder / "library.so", about, plan.place.binding))
    made._lines = lambda addresses: "".join(f"\n  at {one}" for one in _lines_at(asked, addresses)["lines"])
    yield made
    made.close()


def run(process: ApartProcess, cols: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(x, y)."""
    process.begin()
    x = torch.arange(float(3 * cols)).view(3, cols)
    name = process.schemas[0].split("(")[0]
    return x, process.call(name, [Argument(TENSOR, x)], 2)[0]


@pytest.mark.parametrize("cols", [1, 2])
def test_kernels_get_their_arguments_and_are_counted(process: ApartProcess, cols: int) -> None:
    x, y = run(process, cols)
    assert torch.equal(y, 2 * x)
    counts = process.counts  # in bytes of machine code: more than the number of basic blocks
    assert (counts["launches"], counts["threads"], counts["read_back"]) == (1, 64, 0)
    assert counts["work"] >= counts["most_work"] > 40
    variables = sum(size for _, size in process._built.variables)
    assert variables <= counts["allocated"] < variables + 128  # the outputs' alignment


def test_every_form_of_launch_is_graded(process: ApartProcess) -> None:
    _, y = run(process, 43)
    assert y.flatten().tolist() == [1] * 14 + [0] * (3 * 43 - 14)


def test_what_comes_back_to_the_host_is_counted(process: ApartProcess) -> None:
    _, y = run(process, 5)
    assert torch.equal(y, torch.full((3, 5), 2.0)) and process.counts["read_back"] == 4


@pytest.mark.parametrize(("cols", "right"), [(16, False), (17, False), (18, True), (19, True), (20, True)])
def test_a_thread_that_is_held_up_before_a_store_shows_a_race(process: ApartProcess, cols: int, right: bool) -> None:
    x, y = run(process, cols)
    assert torch.equal(y, torch.full_like(y, x.sum())) is right


@pytest.mark.parametrize(("cols", "right"), [(40, False), (41, True), (42, True)])
def test_a_block_that_is_held_up_before_a_store_shows_a_race(process: ApartProcess, cols: int, right: bool) -> None:
    found = [run(process, cols) for _ in range(8)]
    assert all(float(y[0, 0]) == float(x.sum()) for x, y in found) is right


@pytest.mark.parametrize(
    ("cols", "words"),
    [
        (3, "Segmentation fault"),  # host code reads device memory
        (4, "host code uses device memory"),  # launches a host function
        (44, "invalid device function"),
        (7, "Bad system call"),
        (8, "Bad system call"),
        (9, r"illegal memory access[^\n]*\n[^\n]*in kernel constant[^\n]*\n  at \S*source.cu:27.* in constant"),
        (10, "past the end of an output"),
        (11, "invalid argument"),
        (12, "no managed memory"),
        (13, "no other stream"),
    ],
)
def test_host_code_reaches_nothing(process: ApartProcess, cols: int, words: str) -> None:
    with pytest.raises((CallFailed, RuntimeError), match=words):
        run(process, cols)
    assert torch.equal(*(one * f for one, f in zip(run(process, 2), (2, 1), strict=True)))  # the next call works


def test_memory_that_host_code_opens_is_not_the_devices(process: ApartProcess) -> None:
    _, y = run(process, 6)
    assert not y.any()  # x holds other numbers, and y is unchanged


def test_how_much_the_device_answers_is_bounded(process: ApartProcess) -> None:
    with pytest.raises(CallFailed):  # 2,000 addresses
        run(process, 14)
    x, y = run(process, 15)  # 2,000 launches
    assert torch.equal(y, 2 * x)


EMPTY = """
#include "task3/given/online_softmax.h"
void online_softmax(const float*, float*, float*, int64_t, int64_t, cudaStream_t) {}
void merge_states(const float*, const float*, float*, float*, int64_t, int64_t, int64_t, cudaStream_t) {}
"""
PASTE = "#define P(a, b) P_(a, b)\n#define P_(a, b) a##b\n"
PICKED = 'extern "C" { static void (*pick())() { return nullptr; } void picked() __attribute__((ifunc("pick"))); }'


REFUSED = [
    ("__attribute__((no_sanitize_coverage)) void f() {}", "this attribute can't be graded"),
    (f'{PASTE}P(as, m)("nop");', "does not know the PTX instruction nop"),
    ("#ifdef threadIdx\nint other;\n#endif", "different lines"),
]
# nvcc removes it, since the shift is undefined; g++ doesn't
UNDEFINED = "__global__ void k(void* x, int n) { n = 33; if ((1 << n) == 2 || (1 << n) == 0) "
OTHERS_REFUSED = [
    (f"{UNDEFINED}cudaMalloc(&x, 4); }}", "calls a host function of the simulator"),
    (
        'extern "C" __device__ unsigned __int128 __udivmodti4(unsigned __int128, unsigned __int128, void*);\n'
        + UNDEFINED
        + "__udivmodti4(n, 1, x); }",
        "a kernel calls __udivmodti4, which is no function of a GPU",
    ),
    ("#include <vector>\nstatic std::vector<int> kept(3);", "runs when the library is loaded"),
    ("__global__ void k(void (*f)(int)) { f(1); }", "calls a function through an address"),
    (
        f"{PASTE}namespace P(simu, lator) {{ void f(); }}",
        "own: simulator",
    ),
    ('extern "C" void _Unwind_Resume(void*);', "own: _Unwind_Resume"),
    ("#include <algorithm>\n__global__ void k(float* x) { std::stable_sort(x, x + 9); }", "not allowed"),
    (
        "static int n;\n__attribute__((constructor)) static void first() { ++*(volatile int*)&n; }",
        "this attribute can't be graded",
    ),
    (PICKED, "this attribute can't be graded"),
    (
        f"{PASTE}#define NO_SIMULATOR_UNCHECKED\n#define NO___attribute__(x) __attribute__(x)\n"
        "P(NO_, SIMULATOR_UNCHECKED) void f() {}",
        "this attribute can't be graded",
    ),
    ('__attribute__((section(".text; nop; .section .data"))) int n = 1;', "this attribute can't be graded"),
    ('extern "C" void __sanitizer_cov_trace_pc() {}', "__sanitizer_cov_trace_pc is the simulator's"),
    (f"{PASTE}char a = '\"'; P(as, m)(\"\"); char b = '\"';", "source.cu:[0-9]+: error: expected unqualified-id"),
    (f'{PASTE}auto a = R"(")"; P(as, m)(""); auto b = R"(")";', "source.cu:[0-9]+: error: expected unqualified-id"),
    ('#\\ \nline 7 "other.h"', "#line"),
    ("extern __device__ int other(int);\n__global__ void k(int* x) { *x = other(1); }", "nresolved extern function"),
    ("/* a */ # /* b */ line 7", "#line"),
    ('%:  7 "other.h"', "#line"),
]


@pytest.mark.parametrize(
    ("more", "words"), [*REFUSED, *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS_REFUSED)]
)
def test_what_cannot_be_graded_is_not_built(tmp_path: Path, more: str, words: str) -> None:
    with pytest.raises(BuildError, match=words):
        build(request(tmp_path, f"{EMPTY}{more}\n"))


@pytest.mark.slow
def test_a_compiler_that_adds_calls_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ubuntu's hardening flags: stack protection, and checked variants of C library functions."""
    compiler = tmp_path / "g++"
    own = "-fstack-protector-strong -fstack-clash-protection -fcf-protection -D_FORTIFY_SOURCE=3"
    compiler.write_text(f'#!/bin/sh\nexec {toolchain.host_compiler()} {own} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    array = '__global__ void k(float* x, int i) { float a[8] = {}; a[i] = x[0]; printf("%f", a[0]); x[1] = a[i]; }\n'
    about, _ = build(request(tmp_path, SOURCE.replace("static void on_host(", array + "static void on_host(")))
    assert about["kernels"]
