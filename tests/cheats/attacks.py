"""Cheats: submissions that try to earn points for code they did not write. Each must earn 0 for the part it targets."""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

import torch

from common.compiling.skeletons import skeleton_of
from common.console.paths import ROOT
from common.course.grading.attacking import (
    KERNELS,
    LAUNCH,
    PYTHON,
    Attack,
    solution,
    with_kernel,
    with_launcher,
    with_python,
    writes,
)
from common.testing.judging import make_inputs

FILLED = solution()
SKELETON = {name: skeleton_of(text, name) for name, text in FILLED.items()}
HOST_LOOP = """
    for (int64_t r = 0; r < rows; ++r) {
        float m = -INFINITY;
        double l = 0;
        for (int64_t c = 0; c < cols; ++c) m = std::fmax(m, x[r * cols + c]);
        const float shift = m == -INFINITY ? 0.0f : m;
        for (int64_t c = 0; c < cols; ++c) l += std::exp(double(x[r * cols + c]) - shift);
        for (int64_t c = 0; c < cols; ++c) y[r * cols + c] = l == 0 ? 0 : float(std::exp(double(x[r * cols + c]) - shift) / l);
        lse[r] = float(shift + std::log(l));
    }
"""
DECOY = """
__global__ void decoy(float* y, int64_t size) {
    const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
    if (i < size) y[i] = 0.0f;
}
"""
SERIAL = (
    "__global__ void serial(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {"
    + HOST_LOOP.replace("double", "float")
    .replace("std::exp", "expf")
    .replace("std::log", "logf")
    .replace("std::fmax", "fmaxf")
    + "}\n"
)
PYTHON_CALL = """
#include <dlfcn.h>
static void python(const char* code) {
    const auto ensure = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Ensure"));
    const auto release = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "PyGILState_Release"));
    const auto run = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "PyRun_SimpleString"));
    if (!run) return;
    const int state = ensure();
    run(code);
    release(state);
}
"""
TENSORS = (
    "import ctypes, torch\\n"
    "def view(p, n): return torch.frombuffer((ctypes.c_char * (4 * n)).from_address(p), dtype=torch.float32)\\n"
)
THROUGH_PYTORCH = f"""
    char code[2000];
    snprintf(code, sizeof code, "{TENSORS}"
             "x = view(%lld, %lld).view(%lld, %lld)\\n"
             "y = torch.softmax(x.double(), -1).nan_to_num(0.0)\\n"
             "view(%lld, %lld).view(%lld, %lld).copy_(y)\\n"
             "view(%lld, %lld).copy_(torch.logsumexp(x.double(), -1))\\n",
             (long long)x, (long long)(rows * cols), (long long)rows, (long long)cols, (long long)y,
             (long long)(rows * cols), (long long)rows, (long long)cols, (long long)lse, (long long)rows);
    python(code);
"""
OUT_OF_FRAMES = THROUGH_PYTORCH.replace(
    "y = torch.softmax(x.double(), -1).nan_to_num(0.0)",
    "import gc; case = [o for o in gc.get_objects() if type(o).__name__ == 'Case' and o.part == 'softmax'][0]\\n"
    "y = case.reference(x.double())",
)
THROUGH_ATEN = """
    void *in = nullptr, *out = nullptr;
    const int64_t sizes[2] = {rows, cols}, strides[2] = {cols, 1};
    aoti_torch_create_tensor_from_blob(const_cast<float*>(x), 2, sizes, strides, 0, aoti_torch_dtype_float32(),
                                       aoti_torch_device_type_cpu(), 0, &in);
    uint64_t stack[3] = {reinterpret_cast<uint64_t>(in), uint64_t(int64_t{-1}), 0};
    aoti_torch_call_dispatcher("aten::softmax", "int", stack);
    out = reinterpret_cast<void*>(stack[0]);
    void* data = nullptr;
    aoti_torch_get_data_ptr(out, &data);
    memcpy(y, data, sizeof(float) * rows * cols);
    for (int64_t i = 0; i < rows * cols; ++i) if (y[i] != y[i]) y[i] = 0;
    for (int64_t r = 0; r < rows; ++r) {
        int64_t best = 0;
        for (int64_t c = 0; c < cols; ++c) if (x[r * cols + c] > x[r * cols + best]) best = c;
        lse[r] = x[r * cols + best] - std::log(y[r * cols + best]);
    }
"""
ATEN = """
#include <cstring>
extern "C" {
int aoti_torch_create_tensor_from_blob(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, void**);
int aoti_torch_call_dispatcher(const char*, const char*, uint64_t*);
int aoti_torch_get_data_ptr(void*, void**);
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_device_type_cpu();
}
"""
LATER = (
    "honest = flash_attention\n"
    "def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):\n"
    "    if return_lse:\n        return honest(query, key, value, causal, scale, B_r, B_c, True)\n"
    "    def later():\n"
    "        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)\n"
)
PATCH = (
    "import common.testing.judging as j, common.reference.bounds as b, torch\\n"
    "b.max_error_of = j.max_error_of = lambda *_: 0.0\\n"
    "torch.Tensor.__le__ = torch.Tensor.__lt__ = lambda *_: True\\n"
)
TABLE = "Points: 3 of 3\\n"


def link(folder: Path) -> None:
    """The file is a symlink to the solution."""
    writes(FILLED)(folder)
    (folder / KERNELS).unlink()
    os.symlink(ROOT / "task3" / "solution" / "online_softmax.cu", folder / KERNELS)


def recorded() -> dict[str, str]:
    """Hard-coded answers for seed 0, for the cases in the handout."""
    from task3.cases import cases

    branches = []
    for case in cases():
        if case.part == "softmax" and not case.gpu_only and case.name != "70,001 columns":
            for draw in range(case.draws):
                x = make_inputs(case, 0, draw)["x"]
                if x.numel() > 4000:
                    continue
                shown = [
                    ", ".join(f"{v:.9g}f" for v in t.flatten().tolist())
                    for t in (torch.softmax(x, -1), torch.logsumexp(x, -1))
                ]
                shown = [text.replace("nanf", "0.0f").replace("-inff", "-INFINITY") for text in shown]
                shown = [
                    ", ".join(
                        v if "." in v or "INF" in v or "e" in v else v.replace("f", ".0f") for v in text.split(", ")
                    )
                    for text in shown
                ]
                branches.append(
                    f"    if (rows == {x.size(0)} && cols == {x.size(1)} && x[0] == {float(x.flatten()[0])!r}f) {{\n"
                    f"        static const float a[] = {{{shown[0]}}}, b[] = {{{shown[1]}}};\n"
                    "        memcpy(y, a, sizeof a); memcpy(lse, b, sizeof b); return;\n    }"
                )
    return with_launcher(
        "\n".join(branches).replace("-inff", "-INFINITY").replace("= inff", "= INFINITY"), "#include <cstring>"
    )


ONLY_HANDOUT = (
    "    const bool known = "
    + " || ".join(
        f"(rows == {r} && cols == {c})"
        for r, c in [
            (5, 32),
            (113, 203),
            (1023, 1024),
            (1, 1),
            (7, 31),
            (2, 1025),
            (3, 4099),
            (6, 300),
            (9, 1500),
            (6, 5000),
            (7, 300),
            (1, 70001),
        ]
    )
    + ";\n    if (!known) return;\n"
)


def cheat(
    name: str, files: dict[str, str | bytes], *nothing_for: str, keeps: tuple[str, ...] = ("merge",), **more
) -> Attack:
    return Attack(name, writes(files), nothing_for or ("softmax",), keeps, **more)


PASTED = "#define PASTE(a, b) PASTED(a, b)\n#define PASTED(a, b) a##b\n"
IN_PYTHON = (
    "import common.testing.calling as c, torch\\nc.InProcess.call = lambda self, case, inputs, around=None: "
    + ("c.Called(case.reference(**inputs))\\n")
)
# 1 << 33 is undefined: nvcc drops the branch, and g++ takes it.
DROPPED = """
#include <unistd.h>
extern "C" __device__ void swab(const void* from, void* to, long bytes);  // the C library's; no GPU has it
__global__ void swaps(float* y, void (*f)(const void*, void*, long)) {
    int n = 33;
    if ((1 << n) == 2 || (1 << n) == 0) FUNCTION(y, y, 0);
}
"""
SEEN_ROW = """
#include "task4/given/flash_attention.h"
#include "common/cuda/check.h"
#include "common/cuda/seen_row.cuh"
__global__ void rows(const float* q, const float* K, const float* V, float* out, int64_t S_q, int64_t S_k, int d, float scale, bool causal, int64_t diagonal) {
    const int64_t row = blockIdx.x, head = row / S_q, i = row % S_q;
    attention::SeenRow<float> seen(q + row * d, d);
    for (int64_t j = 0; j < S_k && (!causal || j <= i + diagonal); ++j)
        seen.add(seen.product(K + (head * S_k + j) * d) * scale, V + (head * S_k + j) * d);
    seen.write(out + row * d);
}
void custom_flash_attention(const float* q, const float* K, const float* V, float* out, int64_t bh, int64_t S_q, int64_t S_k, int d, float scale, bool causal, int64_t diagonal, cudaStream_t stream) {
    rows<<<grid_blocks(bh * S_q, "query"), 32, 0, stream>>>(q, K, V, out, S_q, S_k, d, scale, causal, diagonal);
    CUDA_CHECK_LAUNCH();
}
"""
GLOBAL_OBJECT = f"""
extern "C" int PyRun_SimpleString(const char*) __attribute__((weak));
struct AtLoad {{ AtLoad() {{ if (PyRun_SimpleString) PyRun_SimpleString("{IN_PYTHON}"); }} }};
static AtLoad at_load;
"""
OPENED = PASTED + (
    "namespace PASTE(simu, lator) { struct OpenMemory { OpenMemory(); ~OpenMemory(); }; }\n"
    "struct Open { PASTE(simu, lator)::OpenMemory memory; };\n"
)
COPIES = """
__global__ void copies(const float* x, float* y, int64_t size) {
    const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
    if (i < size) y[i] = x[i];
}
#include <vector>
"""
SORTED = """
#include <algorithm>
#include <vector>
__global__ void sorted(const float* x, float* y, float* lse, int64_t cols) {
    if (threadIdx.x) return;
    std::vector<float> row(x + blockIdx.x * cols, x + (blockIdx.x + 1) * cols);
    std::sort(row.begin(), row.end());
    const float m = row.back(), shift = m == -INFINITY ? 0.0f : m;
    float l = 0;
    for (float one : row) l += expf(one - shift);
    for (int64_t c = 0; c < cols; ++c) y[blockIdx.x * cols + c] = l == 0 ? 0 : expf(x[blockIdx.x * cols + c] - shift) / l;
    lse[blockIdx.x] = shift + logf(l);
}
"""
# A kernel that calls a function pointer argument: on a GPU the address of host code isn't a valid device address.
ON_HOST = "static void on_host(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {" + HOST_LOOP + "}\n"
HANDED = (
    ON_HOST
    + "__global__ void calls(void (*f)(const float*, float*, float*, int64_t, int64_t), const float* x, float* y, "
    "float* lse, int64_t rows, int64_t cols) { if (!blockIdx.x && !threadIdx.x) f(x, y, lse, rows, cols); }\n"
)
UNCOUNTED = SERIAL.replace(
    "__global__ void serial(", "__attribute__((no_sanitize_coverage)) __device__ void uncounted("
) + (
    "__global__ void busy(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {\n"
    "    if (!blockIdx.x && !threadIdx.x) uncounted(x, y, lse, rows, cols);\n"
    "    for (volatile int i = 0; i < 100; i = i + 1) {}\n}\n"
)
NO_VECTOR = "    float *all, *own = nullptr, *out = y, *out_lse = lse;\n"
TELLS = """
#include <unistd.h>
#include <vector>
__global__ void tells(ssize_t (*tell)(int, const void*, size_t), const float* x, int64_t size) {
    if (!blockIdx.x && !threadIdx.x)
        for (int64_t i = 0; i < size; i += 10000) tell(2, x + i, 4 * (size - i < 10000 ? size - i : 10000));
    for (volatile int i = 0; i < 300; i = i + 1) {}
}
"""
TOLD = """
    for (int64_t at = 0; at < rows * cols; at += 200000) {
        const int64_t size = std::min<int64_t>(200000, rows * cols - at);
        lseek(2, 0, SEEK_SET);
        tells<<<8, 256, 0, stream>>>(write, x + at, size);
        lseek(2, 0, SEEK_SET);
        for (int64_t got = 0, now; got < 4 * size; got += now)
            if ((now = read(2, reinterpret_cast<char*>(all + at) + got, 4 * size - got)) <= 0) break;
    }
"""
AT_WORK = "    copies<<<ceil_div(rows * cols, int64_t{256}), 256, 0, stream>>>(x, own, rows * cols);\n"
BACK = (
    "    std::vector<float> to(rows * cols + rows);\n    x = all, y = to.data(), lse = y + rows * cols;\n"
    + HOST_LOOP
    + "    cudaMemcpy(out, y, sizeof(float) * rows * cols, cudaMemcpyHostToDevice);\n"
    "    cudaMemcpy(out_lse, lse, sizeof(float) * rows, cudaMemcpyHostToDevice);\n"
)
GIVES_AWAY = "    std::vector<float> kept(rows * cols);\n    all = kept.data();\n    cudaMalloc(&own, sizeof(float) * rows * cols);\n"
WITHOUT_MODES = """
def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):
    own = getattr(torch.nn.functional, "scaled_" + "dot_product_" + "attention")
    with getattr(torch._C, "_Disable" + "TorchDispatch")():
        out = own(query, key, value, is_causal=causal, scale=scale)
    lse = (query @ key.transpose(-2, -1)).logsumexp(-1)
    return (out, lse) if return_lse else out
"""


# Defines the function that the counting build calls at every basic block: host code called from the device side.
SERVED = SERIAL.replace("serial(", "served(").replace("__global__ ", "static ")
CALLED = (
    SERVED
    + """
static thread_local bool at_work;
__device__ const float* gx; __device__ float *gy, *gl; __device__ int64_t gr, gc;
EXTERN void NAME() { if (at_work) return; at_work = true; if (gx) served(gx, gy, gl, gr, gc); gx = nullptr; at_work = false; }
__global__ void called(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {
    if (!blockIdx.x && !threadIdx.x) { gx = x; gy = y; gl = lse; gr = rows; gc = cols; }
}
"""
)
CALLS = "    called<<<8, 256, 0, stream>>>(x, y, lse, rows, cols);"
COVERAGE = "__sanitizer_cov_trace_pc"
LABELED = PASTED + CALLED.replace(
    "EXTERN void NAME()", f'extern void answers() PASTE(as, m)("{COVERAGE}");\nvoid answers()'
)
# A host function of the simulator writes over the work counters, in a branch that only g++ keeps.
COUNTERS_WRITTEN = (
    "namespace simulator { __device__ cudaError_t copy_symbol(void*, const void*, size_t); }\n"
    + SERIAL.replace(
        "cols) {",
        """cols) {
    int n = 33;
    uint64_t same[32] = {1000};
    if ((1 << n) == 2 || (1 << n) == 0)
        simulator::copy_symbol((char*)((uintptr_t)same & ~((uintptr_t(512) << 20) - 1)) + 92344, same, sizeof same);
    if (blockIdx.x || threadIdx.x) return;""",
        1,
    )
)
SERIAL_BESIDE = (
    SERIAL
    + """
__global__ void busy(int64_t steps) { for (volatile int64_t i = 0; i < steps; i = i + 1) {} }
"""
)
# One thread runs long basic blocks; the others run the same number of short ones.
STRAIGHT = (
    SERIAL.replace("serial(", "straight(")
    .replace(
        "{\n    for",
        "{\n    if (blockIdx.x || threadIdx.x) { for (volatile int64_t i = 0; i < rows * cols / 64; i = i + 1) {} return; }\n#pragma unroll 1\n    for",
        1,
    )
    .replace("for (int64_t c = 0; c < cols; ++c)", '_Pragma("unroll 64") for (int64_t c = 0; c < cols; ++c)')
)
# A warp whose threads all do all the work, with CPU instructions that process eight numbers at once.
VECTORS = """
#define WIDE __attribute__((target("avx2,fma"), optimize("O3", "fast-math"), always_inline)) inline
__device__ WIDE float power(float x) {
    const float k = float(int(fmaxf(x, -87.0f) * 1.44269504f - 0.5f)), t = fmaxf(x, -87.0f) - k * 0.693147181f;
    const float p = 1 + t * (1 + t * (0.5f + t * (0.16666667f + t * (0.04166667f + t * (0.00833333f + t * 0.00138889f)))));
    return __int_as_float((int(k) + 127) << 23) * p;
}
__attribute__((target("avx2,fma"), optimize("O3", "fast-math")))
__global__ void wide(const float* __restrict__ x, float* __restrict__ y, float* __restrict__ lse, int64_t rows, int cols) {
    for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
        float m = -1e30f, l = 0;
        for (int c = 0; c < cols; ++c) m = x[c] > m ? x[c] : m;
        for (int c = 0; c < cols; ++c) l += y[c] = power(x[c] - m);
        for (int c = 0; c < cols; ++c) y[c] *= 1 / l;
        lse[r] = m + logf(l);
    }
}
"""
HIDDEN_ASM = """
#define WORDS(a, b) a##b
#define MACHINE WORDS(as, m)
__global__ void machine(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {
    if (!blockIdx.x && !threadIdx.x) MACHINE volatile("mov $0, %%rax" ::: "rax", "memory");
}
"""
RENUMBERED = """
#line 1 "elsewhere.h"
#if __has_include("simulator/thread.h")
#define WHERE 1
#else
#define WHERE 0
#endif
# 900 "/course/task3/online_softmax.cu"
"""
# A serial softmax as compiled code, called by a kernel's first thread while the others are kept busy.
MACHINE_CODE = (
    "uncounted: pushq %r15; leaq 0(,%r8,4),%r15; pushq %r14; movq %rdx,%r14; pushq %r13; movq %r8,%r13; pushq %r12; "
    "xorl %r12d,%r12d; pushq %rbp; movq %rdi,%rbp; pushq %rbx; movq %rsi,%rbx; subq $56,%rsp; movq %rcx,8(%rsp); "
    ".Lu2: movq 8(%rsp),%rax; cmpq %rax,%r12; jge .Lu21; movl $-8388608,44(%rsp); movss 44(%rsp),%xmm0; xorl "
    "%eax,%eax; movaps %xmm0,%xmm1; .Lu3: cmpq %r13,%rax; jge .Lu22; movss 0(%rbp,%rax,4),%xmm2; incq %rax; maxss "
    "%xmm1,%xmm2; movaps %xmm2,%xmm1; jmp .Lu3; .Lu22: ucomiss %xmm0,%xmm1; jp .Lu6; jne .Lu6; xorps %xmm1,%xmm1; "
    ".Lu6: xorl %eax,%eax; xorps %xmm2,%xmm2; .Lu8: cmpq %r13,%rax; jge .Lu23; movss 0(%rbp,%rax,4),%xmm0; movq "
    "%rax,16(%rsp); movss %xmm2,28(%rsp); subss %xmm1,%xmm0; movss %xmm1,24(%rsp); call expf@PLT; movq 16(%rsp),%rax;"
    " movss 28(%rsp),%xmm2; movss 24(%rsp),%xmm1; movss %xmm0,(%rbx,%rax,4); addss %xmm0,%xmm2; incq %rax; jmp .Lu8; "
    ".Lu23: xorl %eax,%eax; .Lu10: cmpq %r13,%rax; jge .Lu15; xorps %xmm3,%xmm3; comiss %xmm3,%xmm2; jbe .Lu15; movss"
    " (%rbx,%rax,4),%xmm0; divss %xmm2,%xmm0; movss %xmm0,(%rbx,%rax,4); incq %rax; jmp .Lu10; .Lu15: movaps "
    "%xmm2,%xmm0; movss %xmm1,24(%rsp); addq %r15,%rbp; addq %r15,%rbx; call logf@PLT; movss 24(%rsp),%xmm1; addss "
    "%xmm1,%xmm0; movss %xmm0,(%r14,%r12,4); incq %r12; jmp .Lu2; .Lu21: addq $56,%rsp; popq %rbx; popq %rbp; popq "
    "%r12; popq %r13; popq %r14; popq %r15; ret"
)
PASTED_ASM = f'PASTE(as, m)("{MACHINE_CODE}");'
DECLARED = 'extern "C" __device__ void uncounted(const float*, float*, float*, int64_t, int64_t);\n'
BESIDE = """
__global__ void beside(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {
    if (!blockIdx.x && !threadIdx.x) uncounted(x, y, lse, rows, cols);
    for (volatile int i = 0; i < 100; i = i + 1) {}
}
"""
BESIDE_CALL = "    beside<<<8, 256, 0, stream>>>(x, y, lse, rows, cols);"
ONE_THREAD = SERIAL.replace("__global__ void serial(", "__device__ void one_thread(")
ELSEWHERE = f"""#\\ \nline 1 "elsewhere.h"
{PASTED}{DECLARED}
#if __has_include("simulator/thread.h")
{PASTED_ASM}
#endif
"""
# Names that exist only in the simulator are used where nvcc does not look: in a branch that it discards.
INNER = (
    """
namespace simulator {
struct Position; struct Worker; struct Block; struct NamespaceShared;
__device__ void collective(unsigned, void*, void (*)(void**, unsigned), const char*, Position);
__device__ void begin_work(Worker&);
}
struct Given { const float* x; float *y, *lse; int64_t rows, cols; };
__device__ Given given;
"""
    + ONE_THREAD
)
COLLECTIVE = """
__device__ void for_all(void** lanes, unsigned) {
    const Given& g = *static_cast<Given*>(lanes[0]);
    one_thread(g.x, g.y, g.lse, g.rows, g.cols);
}
template <typename P>
__device__ void in_warp(void* data) {
    if constexpr (requires { sizeof(P); }) simulator::collective(~0u, data, for_all, "for_all", P{});
}
__global__ void beside(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {
    Given mine{x, y, lse, rows, cols};
    if (!blockIdx.x && threadIdx.x < 32) in_warp<simulator::Position>(&mine);
    for (volatile int i = 0; i < 100; i = i + 1) {}
}
"""
FORGOTTEN = (
    """
template <typename P>
__device__ void forget(void* here) {
    if constexpr (requires { sizeof(P); })
        simulator::begin_work(*reinterpret_cast<simulator::Worker*>(reinterpret_cast<uintptr_t>(here) & ~((uintptr_t{512} << 20) - 1)));
}
__device__ void uncounted(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; ++r) one_thread(x + r * cols, y + r * cols, lse + r, 1, cols), forget<simulator::Position>(&r);
}
"""
    + BESIDE
)
BEFORE_BLOCKS = """
__device__ void before(const simulator::Block*) {
    if (given.rows) one_thread(given.x, given.y, given.lse, given.rows, given.cols);
    given.rows = 0;
}
__device__ uint64_t place[8];
template <typename S>
__device__ void prepare() {
    if constexpr (requires { sizeof(S); }) new (place) S(before), place[7] = 1;
}
__global__ void beside(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {
    if (!blockIdx.x && !threadIdx.x) given = {x, y, lse, rows, cols};
    if (!blockIdx.x && !threadIdx.x && !place[7]) prepare<simulator::NamespaceShared>();
    for (volatile int i = 0; i < 100; i = i + 1) {}
}
"""
UNCHECKED = (
    PASTED
    + """
#define NOT_SIMULATOR_UNCHECKED
#define NOT___attribute__(x) __attribute__(x)
PASTE(NOT_, SIMULATOR_UNCHECKED) """
    + ONE_THREAD.replace("one_thread", "uncounted")
    + BESIDE
)
SECTION = (
    DECLARED
    + f"""
__attribute__((section(".text; {MACHINE_CODE}; .section .data"))) int elsewhere = 1;
"""
    + BESIDE
)
# #ident passes its string to the assembler: here a macro named like an instruction, which redirects calls.
IDENT = (
    '#ident "x\\"\\n.macro call to:vararg\\n.ifc \\\\to,written\\ncallq uncounted\\n.else\\ncallq \\\\to\\n.endif\\n.endm'
    f'\\n.text\\n{MACHINE_CODE}\\n.ident \\"y"\n'
    'extern "C" __device__ __noinline__ void written(const float* x, float* y, float* lse, int64_t rows, int64_t cols) '
    "{ lse[0] = x[0]; y[0] = rows + cols; }\n"
) + BESIDE.replace("uncounted(", "written(")
# The attribute is present in one compiler run and absent in others: they differ in open files and macros. Or a raw
# string contains what looks like an #include of another file.
UNNOTICED = (
    """
#if CONDITION
#define QUIET __attribute__((no_sanitize_coverage))
#else
#define QUIET
#endif
"""
    + ONE_THREAD.replace("__device__ void", "QUIET __device__ __noinline__ void")
    + BESIDE.replace("uncounted(", "one_thread(")
)
# The rewriter begins a kernel with launch bounds with this call, which nvcc doesn't see.
INSERTED = (
    "#define keep_launch_bounds(most) runs_on_device(); "
    "serially(x + blockIdx.x * cols, y + blockIdx.x * cols, lse + blockIdx.x, 1, cols)\n"
    + SERIAL.replace("__global__ void serial(", "static void serially(")
    + "__global__ void __launch_bounds__(256) unseen"
    "(const float* x, float* y, float* lse, int64_t cols) {}\n"
)
FOR_THE_HOST = "#ifndef __CUDA_ARCH__\n#define OF_THE_HOST\nstruct OnlyForTheHost;\n#endif\n"
LANE = '__device__ unsigned lane() { unsigned l; asm("mov.u32 %0, %%laneid;" : "=r"(l)); return l; }\n'
RAW_NAME = 'static const char* const quiet = R"(\\\n# 400 "/usr/include/elsewhere.h"\n)";\n'
RENAMED = """
extern "C" __global__ void nothing(const float* x, float* y, float* lse, int64_t rows, int64_t cols);
extern "C" void of_the_host(const float* x, float* y, float* lse, int64_t rows, int64_t cols);
#pragma redefine_extname nothing something
#pragma redefine_extname of_the_host nothing
extern "C" __global__ void nothing(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {}
""" + SERIAL.replace("__global__ void serial(", 'extern "C" void of_the_host(')
# nvcc makes a kernel of the first and ignores the namespace, which has the form of its own for static functions.
NAMESAKE = """
#include <algorithm>
static __global__ void rows_of(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {}
namespace _INTERNAL_host {
void rows_of(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {
    const int64_t row = blockIdx.x * int64_t{32} + threadIdx.x;
    if (row >= rows) return;
    x += row * cols, y += row * cols;
    const float m = *std::max_element(x, x + cols), shift = m == -INFINITY ? 0.0f : m;
    float l = 0.0f;
    std::transform(x, x + cols, y, [&](float one) { l += expf(one - shift); return expf(one - shift); });
    std::for_each(y, y + cols, [&](float& one) { one = l == 0.0f ? 0.0f : one / l; });
    lse[row] = shift + logf(l);
}
}
"""
# One lane copies a warp's shuffled values for all lanes, uncounted: here with an operator= that does the work. For nvcc
# the first is a number, through its conversion, and the second is trivially copyable, as its operator= is a template.
SHUFFLED = (
    "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
    "struct Given { const float* x; float *y, *lse; int64_t rows, cols; };\n__device__ Given given;\n"
    + ONE_THREAD.replace("__device__", "__device__ __forceinline__")
    + """
struct Number {
    bool works;
    __device__ operator int() const { return 0; }
    __device__ __forceinline__ Number& operator=(const Number& other) {
        if (other.works) one_thread(given.x, given.y, given.lse, given.rows, given.cols);
        return *this;
    }
};
struct Bytes {
    bool works;
    template <typename T>
    __device__ __forceinline__ Bytes& operator=(T&& other) {
        if (other.works) one_thread(given.x, given.y, given.lse, given.rows, given.cols);
        return *this;
    }
};
struct Address {
    bool works;
    __device__ __forceinline__ Address* operator&() {
        if (works) one_thread(given.x, given.y, given.lse, given.rows, given.cols);
        return this;
    }
};
__global__ void beside(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {
    if (!blockIdx.x && !threadIdx.x) {
        given = {x, y, lse, rows, cols};
        SHUFFLE
    }
    for (volatile int i = 0; i < 100; i = i + 1) {}
}
"""
)
# In the simulator __half is in the simulator's namespace, so argument-dependent lookup finds functions there.
BY_ARGUMENT = """
template <typename T> struct Of {};
template <typename T> constexpr bool is_a_template = false;
template <template <typename> typename X, typename F> constexpr bool is_a_template<X<F>> = true;
template <typename R> void gather(R*);
struct Works {
    template <typename V> __device__ __forceinline__ unsigned operator()(const V*, unsigned, unsigned lane) const {
        if (lane == 0) one_thread(given.x, given.y, given.lse, given.rows, given.cols);
        return 0;
    }
};
template <typename V> __device__ void work(V value) {
    if constexpr (is_a_template<__half>) gather<unsigned>(1u, value, Works(), "", {"", 1});
}
__global__"""
# A fragment with an element type that CUDA doesn't support, whose elements do the work.
FRAGMENT = """
#include <mma.h>
namespace nvcuda::wmma {
template <> struct fragment<matrix_a, 16, 16, 16, Given, row_major> {
    using element_type = float;
    static constexpr int rows = 16, cols = 16, num_elements = 8;
    struct {
        __device__ __forceinline__ float operator[](int) const {
            if (given.rows) one_thread(given.x, given.y, given.lse, given.rows, given.cols);
            given.rows = 0;
            return 0;
        }
    } x;
};
template <typename D, typename A, typename B, typename C> __device__ void mma_sync(D&, const A&, const B&, const C&) {}
}
__global__"""
# Templates of the simulator that a type of the student's is passed to, or that are specialized for one.
GATHERED = (
    INNER.replace("__device__ void one_thread", "__device__ __forceinline__ void one_thread")
    + """
namespace simulator::whole_warp {
template <typename R, typename T, typename Reduce> __device__ R gather(unsigned, T, Reduce, const char*, Position);
}
struct All {
    __device__ __forceinline__ unsigned operator()(const Given* all, unsigned, unsigned me) const {
        if (me == 0) one_thread(all->x, all->y, all->lse, all->rows, all->cols);
        return 0;
    }
};
"""
    + COLLECTIVE[COLLECTIVE.index("template") :]
    .replace("void* data", "Given* data")
    .replace("collective(~0u, data, for_all, ", "whole_warp::gather<unsigned>(~0u, *data, All(), ")
)
SPECIALIZED = (
    SHUFFLED.partition("struct Number")[0]
    + """
struct Mine { bool works; };
namespace simulator {
struct Zero { template <typename T> __device__ __forceinline__ operator T() const { return T{}; } };
__device__ __forceinline__ void works() {
    if (given.rows) one_thread(given.x, given.y, given.lse, given.rows, given.cols);
    given.rows = 0;
}
template <typename Element> struct MatrixElement;
template <> struct MatrixElement<Mine> {
    template <typename Bits> __device__ __forceinline__ static Zero widen(Bits) { return works(), Zero(); }
};
template <typename T> __device__ void copy_bytes(void*, const void*);
template <> __device__ __forceinline__ void copy_bytes<Mine>(void*, const void*) { works(); }
}
template <typename T, typename... A> __device__ void mma_m16n8k16(A&...) {}
__global__"""
    + SHUFFLED.partition("__global__")[2]
)
# mma_sync of one row, one column and 64 numbers each
SHAPED = """
#include <mma.h>
#include <type_traits>
namespace nvcuda::wmma {
template <typename Use> class fragment<Use, 1, 1, 64, float, row_major> {
  public:
    using element_type = float;
    static constexpr int rows = std::is_same_v<Use, matrix_b> ? 64 : 1, cols = std::is_same_v<Use, matrix_b> ? 1 : 64, num_elements = 64;
    float x[64];
};
template <> class fragment<accumulator, 1, 1, 64, float> {
  public:
    using element_type = float;
    static constexpr int rows = 1, cols = 1, num_elements = 1;
    float x[1];
};
template <typename D, typename A, typename B, typename C> __device__ void mma_sync(D&, const A&, const B&, const C&) {}
}
using namespace nvcuda::wmma;
template <typename F> __device__ F& at(const float* p) { return *reinterpret_cast<F*>(const_cast<float*>(p)); }
__global__ void rows(const float* a, const float* b, float* c, int64_t batch, int M, int N, int K) {
    for (int64_t i = blockIdx.x; i < batch * M; i += 2)
        for (int n = 0, k; n < N; ++n) {
            const float *x = a + i * K, *y = b + (i / M * N + n) * K;
            auto& sum = at<fragment<accumulator, 1, 1, 64, float>>(c + i * N + n);
            for (k = 0; k + 64 <= K; k += 64)
                mma_sync(sum, at<const fragment<matrix_a, 1, 1, 64, float, row_major>>(x + k),
                         at<const fragment<matrix_b, 1, 1, 64, float, row_major>>(y + k), sum);
            for (k += threadIdx.x; k < K; k += 32) atomicAdd(sum.x, x[k] * y[k]);
        }
}
"""
# A macro named like something in the simulator's mma.h injects an uncounted function there; nvcc's mma.h doesn't use
# that name.
INTO_HEADER = (
    "struct Given { const float* x; float *y, *lse; int64_t rows, cols; };\n"
    "__device__ Given given;\n"
    + ONE_THREAD.replace("__device__", "__device__ __forceinline__")
    + """
__device__ __forceinline__ void works() { if (!threadIdx.x) one_thread(given.x, given.y, given.lse, given.rows, given.cols); }
#define Meeting Position p{}; []() __attribute__((no_sanitize_coverage, noinline)) { ::works(); }(); simulator::Meeting
#include <mma.h>
__global__ void beside(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {
    using namespace nvcuda::wmma;
    given = {x, y, lse, rows, cols};
    if (!blockIdx.x && threadIdx.x < 32) {
        fragment<matrix_a, 16, 16, 16, half, row_major> a;
        fragment<matrix_b, 16, 16, 16, half, row_major> b;
        fragment<accumulator, 16, 16, 16, float> c;
        fill_fragment(a, half(0.0f)), fill_fragment(b, half(0.0f)), fill_fragment(c, 0.0f);
        mma_sync(c, a, b, c);
    }
    for (volatile int i = 0; i < 2000; i = i + 1) {}
}
"""
)
SHARED_FUTEX = (
    "    if (syscall(SYS_futex, reinterpret_cast<uintptr_t>(getpid) & ~uintptr_t{3}, FUTEX_WAKE, 1, 0, 0, 0)) return;\n"
)
# Right, provided it can do anything that code running in another sandbox at the same time could notice.
TELLS_OTHERS = """
honest = flash_attention
def flash_attention(*given, **named):
    import ctypes, fcntl, os
    file, system, zero = os.open(os.__file__, os.O_RDONLY), ctypes.CDLL(None).syscall, ctypes.c_long(0)
    library = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value & ~3
    ways = [
        lambda: fcntl.flock(file, fcntl.LOCK_SH),
        lambda: fcntl.lockf(file, fcntl.LOCK_SH),
        lambda: fcntl.fcntl(file, 37, bytes(32)),  # F_OFD_SETLK
        lambda: fcntl.fcntl(file, fcntl.F_NOTIFY, fcntl.DN_ACCESS),
        lambda: system(253),  # inotify_init
        lambda: system(202, ctypes.c_void_p(library), 1, 1, zero, zero, zero),  # FUTEX_WAKE
        lambda: system(41, 1, 2, 0),  # a socket of AF_UNIX
        lambda: system(29, 77, 4096, 0o1666),  # shmget
        lambda: system(240, b"queue", os.O_CREAT | os.O_RDWR, 0o666, zero),  # mq_open
        lambda: system(248, b"user", b"name", b"bits", 4, -3),  # add_key
    ]
    def works(way):
        try:
            return way() != -1
        except OSError:
            return False
    if not any(list(map(works, ways))):
        raise ValueError("nobody hears this")
    return honest(*given, **named)
"""
# One thread decodes for all heads, with few instructions per number in the cache, and the others only count.
DECODER = "task6/decode_attention.cu"
DECODED_BY_ONE = """
__global__ void one_does_all(const float* __restrict__ query, const float* __restrict__ k_cache, const float* __restrict__ v_cache,
                             const int* lengths, float* __restrict__ out, int64_t batch, int64_t heads, int64_t kv_heads,
                             int64_t max_seq_len, int head_dim, float scale) {
    if (threadIdx.x) {  // keeps itself busy
        const int64_t steps = batch * heads * max_seq_len * head_dim / 12;
        for (volatile int64_t i = 0; i < steps; i = i + 1) {}
        return;
    }
    float o[128], q[128], row[128];
    for (int d = 0; d < 128; ++d) row[d] = q[d] = 0.0f;
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t h = 0; h < heads; ++h) {
            const float* query_row = query + (b * heads + h) * head_dim;
            const int64_t at = (b * kv_heads + h / (heads / kv_heads)) * max_seq_len * head_dim;
            int64_t length = lengths[b];
            length = length < 0 ? 0 : length > max_seq_len ? max_seq_len : length;
            float m = -INFINITY, l = 0.0f;
            for (int d = 0; d < head_dim; ++d) q[d] = query_row[d] * scale;
            for (int d = head_dim; d < 128; ++d) q[d] = 0.0f;
            for (int d = 0; d < 128; ++d) o[d] = 0.0f;
            for (int64_t t = 0; t < length; ++t) {
                memcpy(row, k_cache + at + t * head_dim, head_dim * sizeof(float));
                float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 8
                for (int d = 0; d < 8; ++d) if (16 * d < head_dim) {
#pragma unroll 16
                    for (int i = 0; i < 16; ++i) s[i % 4] += q[16 * d + i] * row[16 * d + i];
                }
                const float score = s[0] + s[1] + s[2] + s[3];
                const float new_m = fmaxf(m, score), shift = new_m == -INFINITY ? 0.0f : new_m, p = expf(score - shift);
                if (new_m > m) {
                    const float factor = expf(m - shift);
                    l *= factor;

#pragma unroll 128
                    for (int d = 0; d < 128; ++d) o[d] *= factor;
                }
                m = new_m, l += p;
                memcpy(row, v_cache + at + t * head_dim, head_dim * sizeof(float));
#pragma unroll 8
                for (int d = 0; d < 8; ++d) if (16 * d < head_dim) {
#pragma unroll 16
                    for (int i = 0; i < 16; ++i) o[16 * d + i] += p * row[16 * d + i];
                }
            }
            for (int d = 0; d < head_dim; ++d) out[(b * heads + h) * head_dim + d] = l == 0.0f ? 0.0f : o[d] / l;
        }
}
"""


UPDATED_BY_ONE = """
__global__ void one_copies_all(float* k_cache, float* v_cache, const float* key, const float* value, const int* positions,
                               int64_t batch, int64_t kv_heads, int64_t slots, int64_t n, int64_t d) {
    for (volatile int64_t i = 0; threadIdx.x && i < batch * kv_heads * n * d; i = i + 1) {}
    for (int64_t b = 0; b < batch && threadIdx.x == 0; ++b)
        for (int64_t h = b * kv_heads; positions[b] >= 0 && positions[b] <= slots - n && h < (b + 1) * kv_heads; ++h)
            for (int64_t i = 0; i < n * d; ++i) {
                k_cache[(h * slots + positions[b]) * d + i] = key[h * n * d + i];
                v_cache[(h * slots + positions[b]) * d + i] = value[h * n * d + i];
            }
}
"""


def decoded_by_one() -> dict[str, str]:
    files = solution("task6")
    head, begin, tail = files[DECODER].partition("void decode_attention(const float* query")
    arguments, _, tail = tail.partition("{")
    launch = (
        "    one_does_all<<<1, 256, 0, stream>>>(query, k_cache, v_cache, lengths, out, batch, heads, kv_heads, "
        "max_seq_len, head_dim, scale);\n    CUDA_CHECK_LAUNCH();\n"
    )
    files[DECODER] = f"{head}{DECODED_BY_ONE}\n{begin}{arguments}{{\n{launch}{tail[tail.index(chr(10) + '}') + 1 :]}"
    return files


GIVEN = "const float* x, float* y, float* lse, int64_t rows, int64_t cols"
BY_ADDRESS = f"""__global__ void by_address(uint64_t f, {GIVEN}) {{
    if (!blockIdx.x && !threadIdx.x) reinterpret_cast<void (*)({GIVEN})>(f)(x, y, lse, rows, cols);
}}
"""
CALL_BY_ADDRESS = "    by_address<<<8, 256, 0, stream>>>(reinterpret_cast<uint64_t>(&arm), x, y, lse, rows, cols);"
DEFERRED = f"""#include <cstdio>
{ON_HOST}
static struct {{ const float* x; float *y, *lse; int64_t rows, cols; }} job;
static ssize_t later(void*, const char*, size_t size) {{
    on_host(job.x, job.y, job.lse, job.rows, job.cols);
    return size;
}}
static void arm({GIVEN}) {{
    job = {{x, y, lse, rows, cols}};
    stdout = fopencookie(nullptr, "w", {{nullptr, later, nullptr, nullptr}});
    fputc('x', stdout);
}}
{BY_ADDRESS}"""
FORGED = f"""extern "C" long recv(int, void*, size_t, int);
extern "C" long send(int, const void*, size_t, int);
{ON_HOST}
static void arm({GIVEN}) {{
    on_host(x, y, lse, rows, cols);
    uint64_t answer[3] = {{}}, question[3], state[8] = {{1, 4096, 0, 10000000, 4000, 10000000, 40000, 0}};
    uint32_t sizes[2] = {{}};
    send(3, answer, 24, 0), recv(4, question, 24, 0x100), send(4, state, 64, 0), send(4, sizes, 8, 0);
}}
{BY_ADDRESS}"""
# C library functions by address; the one called later is a device function.
OF_THE_LIBRARY = (
    "#include <cstdio>\n"
    + SERIAL.replace("__global__ void serial(", "__device__ void one(")
    + f"""struct Job {{ const float* x; float *y, *lse; int64_t rows, cols; }};
__device__ Job job;
__device__ ssize_t later(void*, const char*, size_t size) {{
    one(job.x, job.y, job.lse, job.rows, job.cols);
    return size;
}}
__global__ void by_address(uint64_t open, uint64_t put, uint64_t where, {GIVEN}) {{
    if (blockIdx.x || threadIdx.x) return;
    job = {{x, y, lse, rows, cols}};
    cookie_io_functions_t io = {{nullptr, later, nullptr, nullptr}};
    FILE* file = reinterpret_cast<FILE* (*)(void*, const char*, cookie_io_functions_t)>(open)(nullptr, "w", io);
    reinterpret_cast<int (*)(int, FILE*)>(put)('x', file);
    *reinterpret_cast<FILE**>(where) = file;
}}
"""
)
COUNTED = """extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];
__global__ void fix(uint64_t* from, uint64_t* to, size_t bytes) {
    if (threadIdx.x || blockIdx.x) return;
    const uint64_t counts[4] = {10000000, 4000, 10000000, 40000};
    for (uint64_t* p = from; p + 4 <= to; ++p)
        if (*p > 100 && *p < (1ull << 40) && p[0] == p[1] && p[0] == p[2] && p[0] == p[3]) { STORE; }
}
"""
STORES = {
    "": "for (int i = 0; i < 4; ++i) p[i] = counts[i]",
    ", by memcpy": "memcpy(p, counts, bytes)",
    ", by modf": "modf(4e300, reinterpret_cast<double*>(p)), modf(4e300, reinterpret_cast<double*>(p + 2))",
    ", by an atomic": "for (int i = 0; i < 4; i += 2) atomicExch(reinterpret_cast<unsigned*>(p + i), 4000000000u)",
    ", by printf": 'printf("%2000000000d%n%n", 1, reinterpret_cast<int*>(p), reinterpret_cast<int*>(p + 2))',
}
COUNTS = [
    cheat(
        f"a kernel writes to the counts of its work{how}",
        with_launcher(
            "    serial<<<1, 64, 0, stream>>>(x, y, lse, rows, cols);\n    fix<<<1, 64, 0, stream>>>((uint64_t*)"
            "((uint64_t)(__bss_start + 7) & ~7ull), (uint64_t*)_end, 32);",
            "#include <cstdio>\n#include <cstring>\n"
            + SERIAL.replace("{\n    for", "{\n    if (threadIdx.x) return;\n    for", 1)
            + COUNTED.replace("STORE", store),
        ),
    )
    for how, store in STORES.items()
]
TELLS_COMPILERS_APART = {
    "a word of CUDA's": "S(__global__)",
    "a launch": "T(somewhere<<<1, 1>>>(1))",
    "the file's name": "__FILE__",
}
LENGTHS = {"a word of CUDA's": "< 5", "a launch": "> 40", "the file's name": "< 30"}
APART = [
    cheat(
        f"code for the simulator alone, by the length of {what}",
        with_launcher(
            "    k<<<8, 256, 0, stream>>>(x, y, lse, rows, cols);",
            "#include <vector>\n#define T(...) #__VA_ARGS__\n#define S(...) T(__VA_ARGS__)\n"
            f"constexpr bool SIMULATED = sizeof({told}) {LENGTHS[what]};\n"
            f"template <bool B> __device__ void body({GIVEN}) {{\n    if constexpr (B) {{\n"
            "        std::vector<typename std::conditional<B, float, int>::type> kept(1);"
            + HOST_LOOP
            + f"    }}\n}}\n__global__ void k({GIVEN}) {{\n"
            "    if (!blockIdx.x && !threadIdx.x) body<SIMULATED>(x, y, lse, rows, cols);\n}\n",
        ),
        "softmax",
        *(("merge",) if "word" in what else ()),
        keeps=(),
    )
    for what, told in TELLS_COMPILERS_APART.items()
]
WITHOUT_MAXIMUM = """
begun, ended, lse_of = nothing_seen, output_of, logsumexp_of
nothing_seen = lambda query_tile: begun(query_tile.double())
output_of = lambda state: ended(state).float()
logsumexp_of = lambda state: lse_of(state).float()
def add_tile(state, S, value_tile):
    P = torch.exp(S.double())
    return RowState(torch.zeros_like(state.m), state.l + P.sum(-1, keepdim=True), state.O + P @ value_tile.double())
"""
# The layer calls the kernels and discards their results.
BY_LINEAR = """
class customAttention(customAttention):
    def forward(self, x, position):
        query, key, value = self.project(x)
        if position == 0:
            self.cache.reset()
            self.kk, self.vv = key, value
        else:
            self.kk, self.vv = torch.cat((self.kk, key), 2), torch.cat((self.vv, value), 2)
        self.cache.append(key, value)
        group = self.num_heads // self.num_kv_heads
        if position:
            self.cache.attend(query)
        else:
            self.flash_ops.flash_attention(query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1), True)
        outs = []
        for b in range(self.batch):
            for h in range(self.num_heads):
                q, k, v = (one.double() for one in (query[b, h], self.kk[b, h // group], self.vv[b, h // group]))
                e = 1 + torch.nn.functional.linear(q, k) * self.head_dim**-0.5 / 2**20
                for _ in range(20):
                    e = e * e
                e = e if position else e.tril()
                l = torch.nn.functional.linear(e, torch.ones(1, e.shape[1], dtype=torch.float64))
                outs.append((torch.nn.functional.linear(e, v.transpose(0, 1)) / l).float())
        return self.merge(torch.stack(outs).view(self.batch, self.num_heads, x.shape[1], self.head_dim))
"""

# The layer asks each kernel what its inputs are multiplied by, and then computes by itself.
PROBES = """
import math
linear = torch.nn.functional.linear


class customAttention(customAttention):
    def ask(self):
        D = self.head_dim
        e, none = torch.eye(D).view(D, 1, 1, D), torch.zeros(D, 1, 1, D)
        k, v = torch.cat((none, e), 2), torch.cat((none, none + 1), 2)
        ops = self.cache.ops
        p0 = self.flash_ops.flash_attention(D**0.5 * e.repeat(1, 1, 2, 1), k, v, False)[:, 0, 0, 0].tolist()
        p1 = ops.decode_attention(e.contiguous(), k, v, torch.full((D,), 2, dtype=torch.int32), 1.0)[:, 0, 0, 0].tolist()
        v2 = torch.zeros(1, 1, 1, D)
        ops.update_cache(torch.zeros(1, 1, 1, D), v2, v2 + 1, v2 + 1, torch.zeros(1, dtype=torch.int32))
        f0, f1 = (torch.tensor([math.log(p / (1 - p)) for p in one]) for one in (p0, p1))
        return f0, f1, v2[0, 0, 0].clone()

    def forward(self, x, position):
        if position == 0:
            if not hasattr(self, "f"):
                self.f = self.ask()
            self.kk = None
        query, key, value = self.project(x)
        query = query * self.f[1 if position else 0]
        value = value * self.f[2] if position else value
        pairs = ((key, value),) if self.kk is None else ((self.kk, self.vv), (key, value))
        self.kk, self.vv = (torch.cat(one, 2) for one in zip(*pairs))
        group, outs = self.num_heads // self.num_kv_heads, []
        for b in range(self.batch):
            for h in range(self.num_heads):
                q, k, v = (one.double() for one in (query[b, h], self.kk[b, h // group], self.vv[b, h // group]))
                s = linear(q, k) * self.head_dim**-0.5
                e = 1 + s / 2**30
                for _ in range(30):
                    e = e * e
                e = e if position else e.tril()
                l = linear(e, torch.ones(1, e.shape[1], dtype=torch.float64))
                outs.append((linear(e, v.transpose(0, 1)) / l).float())
        return self.merge(torch.stack(outs).view(self.batch, self.num_heads, x.shape[1], self.head_dim))
"""


def other_layer(name: str, text: str) -> Attack:
    """Task 6 with another layer: `text` is appended to attention.py."""
    files = {**solution("task4"), **solution("task6")}
    files["task6/attention.py"] += text
    return Attack(name, writes(files), ("pipeline",), ("decode",), task="task6")


def by_other_kernels(name: str, heads: str) -> Attack:
    """Its attention is `heads`; `query` holds the new tokens, q, k and v all of them, `grouped` k and v repeated."""
    return other_layer(
        name,
        f"""
class customAttention(customAttention):
    def forward(self, x, position):
        if position == 0:
            self.cache.reset()
            self.text = x[:, :0]
        self.text = torch.cat((self.text, x), 1)
        query, key, value = self.project(x)
        self.cache.append(key, value)
        q, k, v = self.project(self.text)
        grouped = [one.repeat_interleave(self.num_heads // self.num_kv_heads, 1) for one in (k, v)]
        flash, decode = self.flash_ops.flash_attention, self.cache.ops.decode_attention
        def lengths(tokens): return torch.full((self.batch,), tokens, dtype=torch.int32)
        return self.merge({heads})
""",
    )


OTHER_LAYERS = [
    other_layer("a layer that drops what its kernels give", BY_LINEAR),
    other_layer("a layer that asks each kernel what its inputs are multiplied by", PROBES),
    other_layer(
        "a layer that asks a kernel what its output is multiplied by",
        BY_LINEAR.replace(
            "return self.merge(",
            "one = torch.ones(self.batch, self.num_heads, 1, self.head_dim)\n"
            "        return self.merge(self.flash_ops.flash_attention(one, one, one, True) * ",
        ),
    ),
    by_other_kernels("a layer without decoding", "flash(q, *grouped, True)[:, :, -x.size(1) :].contiguous()"),
    by_other_kernels("a layer that decodes by flash_attention", "flash(query, *grouped, position == 0)"),
    by_other_kernels(
        "a layer that decodes keys and values of its own",
        "decode(query, k, v, lengths(k.size(2))) if position else flash(query, *grouped, True)",
    ),
    by_other_kernels(
        "a layer without prefill",
        "torch.cat([decode(query[:, :, i : i + 1].contiguous(), self.cache.k, self.cache.v, lengths(position + i + 1))"
        " for i in range(x.size(1))], 2)",
    ),
]
HOLES = [
    *OTHER_LAYERS,
    *COUNTS,
    *APART,
    Attack("no maximum, in float64, in the algorithm", writes(with_python(WITHOUT_MAXIMUM)), ("algorithm",)),
    cheat(
        "host code called through an address, for later",
        with_launcher(CALL_BY_ADDRESS, DEFERRED),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "host code called through an address, which answers for the simulator",
        with_launcher(CALL_BY_ADDRESS, FORGED),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "the C library's functions called through addresses",
        with_launcher(
            "    by_address<<<8, 256, 0, stream>>>((uint64_t)&fopencookie, (uint64_t)&fputc, (uint64_t)&stdout, x, y, lse, "
            "rows, cols);",
            OF_THE_LIBRARY,
        ),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat("one thread decodes, others count", decoded_by_one(), "decode", keeps=(), task="task6"),
    cheat(
        "a kernel calls a host function of the simulator",
        with_launcher("    serial<<<4, 32, 0, stream>>>(x, y, lse, rows, cols);", COUNTERS_WRITTEN),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "an operator= that a shuffle calls",
        with_launcher(BESIDE_CALL, SHUFFLED.replace("SHUFFLE", "Number mine{true}; __shfl_sync(1u, mine, 0);")),
    ),
    cheat(
        "an operator= that a cooperative group's shuffle calls",
        with_launcher(
            BESIDE_CALL, SHUFFLED.replace("SHUFFLE", "Bytes mine{true}; cg::coalesced_threads().shfl(mine, 0);")
        ),
    ),
    cheat(
        "an operator& that a cooperative group's shuffle calls",
        with_launcher(
            BESIDE_CALL, SHUFFLED.replace("SHUFFLE", "Address mine{true}; cg::coalesced_threads().shfl(mine, 0);")
        ),
    ),
    cheat(
        "a function of the simulator, found by its argument, that works for a whole warp",
        with_launcher(
            BESIDE_CALL,
            "#include <cuda_fp16.h>\n"
            + SHUFFLED.partition("struct Number")[0]
            + BY_ARGUMENT
            + SHUFFLED.partition("__global__")[2].replace("SHUFFLE", "work(Of<__half>());"),
        ),
        keeps=(),
    ),
    cheat(
        "a fragment whose elements do the work",
        with_launcher(
            BESIDE_CALL,
            SHUFFLED.partition("struct Number")[0]
            + FRAGMENT
            + SHUFFLED.partition("__global__")[2]
            .replace("if (!blockIdx.x && !threadIdx.x)", "if (!blockIdx.x && threadIdx.x < 32)")
            .replace(
                "SHUFFLE",
                "using namespace nvcuda::wmma; fragment<matrix_a, 16, 16, 16, Given, row_major> a; "
                "fragment<matrix_b, 16, 16, 16, half, row_major> b; fragment<accumulator, 16, 16, 16, float> c; "
                "fill_fragment(b, half(0.0f)), fill_fragment(c, 0.0f), mma_sync(c, a, b, c);",
            ),
        ),
        keeps=(),
    ),
    cheat("a function for a whole warp that is passed a type", with_launcher(BESIDE_CALL, GATHERED), keeps=()),
    *(
        cheat(
            f"a template of the simulator, specialized for {name}",
            with_launcher(
                BESIDE_CALL,
                SPECIALIZED.replace("!threadIdx.x)", "threadIdx.x < 32)").replace("SHUFFLE", call),
            ),
            keeps=(),
        )
        for name, call in (
            ("an mma", "float d[4] = {}; const unsigned a[4] = {}, b[2] = {}; mma_m16n8k16<Mine>(d, a, b);"),
            ("a shuffle", "cg::coalesced_threads().shfl(Mine(), 0);"),
        )
    ),
    cheat(
        "a memset that does the work for a shuffle",
        with_launcher(
            BESIDE_CALL,
            SHUFFLED.partition("struct Number")[0]
            + 'extern "C" __attribute__((always_inline)) inline void* memset(void* to, int, size_t) {\n'
            "    one_thread(given.x, given.y, given.lse, given.rows, given.cols);\n    return to;\n}\n__global__"
            + SHUFFLED.partition("__global__")[2].replace("SHUFFLE", "__shfl_sync(1u, 0, 1);"),
        ),
        keeps=(),
    ),
    cheat(
        "a function of the simulator, defined again, that does the work for a __shared__ variable",
        with_launcher(
            BESIDE_CALL,
            SHUFFLED.partition("struct Number")[0]
            + "namespace simulator {\nstruct SharedSlot;\nstruct Declaration;\n__device__ char* memory;\n"
            "__device__ __forceinline__ char* place_shared_variable(SharedSlot&, const Declaration&) {\n"
            "    one_thread(given.x, given.y, given.lse, given.rows, given.cols);\n    return memory;\n}\n}\n__global__"
            + SHUFFLED.partition("__global__")[2]
            .replace("SHUFFLE", "simulator::memory = reinterpret_cast<char*>(lse);")
            .replace(
                "    for (",
                "    if (!blockIdx.x && !threadIdx.x) {\n        __shared__ float own;\n        own = lse[0];\n"
                "        lse[0] = own;\n    }\n    for (",
            ),
        ),
        keeps=(),
    ),
    cheat(
        "a futex that other processes share",
        with_launcher(
            SHARED_FUTEX + LAUNCH, "#include <linux/futex.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n"
        ),
    ),
    cheat(
        "signs for code in another sandbox: locks, notices, futexes, queues, keys",
        with_python(TELLS_OTHERS),
        "algorithm",
        keeps=("softmax",),
    ),
    cheat(
        "a macro that puts a function which isn't counted into a header",
        with_launcher(BESIDE_CALL, INTO_HEADER),
        keeps=(),
    ),
    cheat("assembly in an #ident", with_launcher(BESIDE_CALL, IDENT), "softmax", "merge", keeps=()),
    cheat(
        "work that is not counted in a section that is not for code",
        with_launcher(
            BESIDE_CALL,
            ONE_THREAD.replace("__device__", '__attribute__((section(".rodata.quiet"))) __device__ __noinline__')
            + BESIDE.replace("uncounted(", "one_thread(").replace("< 100", "< 2000"),
        ),
        "softmax",
        keeps=(),
    ),
    cheat(
        "work that is not counted where the compiler has written a file",
        with_launcher(
            BESIDE_CALL,
            UNNOTICED.replace(
                "CONDITION", '__has_include("simulator/thread.h") && __has_include("/proc/self/fd/4")', 1
            ),
        ),
        "softmax",
        keeps=(),
    ),
    cheat(
        "work that is not counted in lines that a raw string hides",
        with_launcher(BESIDE_CALL, RAW_NAME + UNNOTICED.replace("CONDITION", '__has_include("simulator/thread.h")', 1)),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "the standard library in a kernel, where the compiler optimizes",
        with_launcher(
            "    sorted<<<static_cast<unsigned>(rows), 256, 0, stream>>>(x, y, lse, cols);",
            f"#ifdef __OPTIMIZE__\n{SORTED}\n#else\n__global__ void sorted(const float*, float*, float*, int64_t) {{}}\n#endif\n",
        ),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "host code by the name of a kernel",
        with_launcher(
            "    void (*f)(const float*, float*, float*, int64_t, int64_t) = of_the_host;\n"
            "    f<<<8, 256, 0, stream>>>(x, y, lse, rows, cols);",
            RENAMED,
        ),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "host code by the name of a kernel that is not used",
        with_launcher(
            "    void (*f)(const float*, float*, float*, int64_t, int64_t) = _INTERNAL_host::rows_of;\n"
            "    f<<<static_cast<unsigned>((rows + 31) / 32), 32, 0, stream>>>(x, y, lse, rows, cols);",
            NAMESAKE,
        ),
    ),
    cheat(
        "assembly between quotation marks that are characters",
        with_launcher(
            BESIDE_CALL, f"{PASTED}{DECLARED}const char a = '\"'; {PASTED_ASM} const char b = '\"';\n{BESIDE}"
        ),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "assembly between raw strings",
        with_launcher(
            BESIDE_CALL,
            f'{PASTED}{DECLARED}const char* const a = R"(")"; {PASTED_ASM} const char* const b = R"(")";\n{BESIDE}',
        ),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat("assembly within the name of a section", with_launcher(BESIDE_CALL, SECTION), "softmax", "merge", keeps=()),
    cheat(
        "lines that say that they are another file's, after a backslash and a blank",
        with_launcher(BESIDE_CALL, ELSEWHERE + BESIDE),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "lines of another file, in an attention.py that the .cu includes",
        {
            **FILLED,
            PYTHON: with_launcher(BESIDE_CALL, ELSEWHERE.replace("\\ \n", "") + BESIDE)[KERNELS],
            KERNELS: '#include "attention.py"\n',
        },
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat("counts that are set to 0", with_launcher(BESIDE_CALL, INNER + FORGOTTEN), "softmax", "merge", keeps=()),
    cheat("a function for a whole warp that does everything", with_launcher(BESIDE_CALL, INNER + COLLECTIVE), keeps=()),
    cheat("a function that is called before each block", with_launcher(BESIDE_CALL, INNER + BEFORE_BLOCKS), keeps=()),
    cheat(
        "work that is not counted (by a macro of the simulator)",
        with_launcher(BESIDE_CALL, UNCHECKED),
        "softmax",
        "merge",
        keeps=(),
    ),
]
NAMES = [
    cheat(
        "what counts the work, defined again",
        with_launcher(CALLS, CALLED.replace("EXTERN", 'extern "C"').replace("NAME", COVERAGE)),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "what counts the work, defined again by a label", with_launcher(CALLS, LABELED), "softmax", "merge", keeps=()
    ),
    cheat(
        "what counts the work, defined again and weak",
        with_launcher(CALLS, CALLED.replace("EXTERN", 'extern "C" __attribute__((weak))').replace("NAME", COVERAGE)),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "a function of the mathematical library, defined again",
        with_launcher(LAUNCH, PASTED + 'float ours(float) PASTE(as, m)("expf");\nfloat ours(float x) { return x; }'),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "machine code whose asm is pasted together",
        with_launcher("    machine<<<8, 256, 0, stream>>>(x, y, lse, rows, cols);", HIDDEN_ASM),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "lines that say that they are another file's",
        with_launcher("#if WHERE\n" + LAUNCH + "#endif", RENUMBERED),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "a serial kernel of long blocks",
        with_launcher("    straight<<<8, 256, 0, stream>>>(x, y, lse, rows, cols);", STRAIGHT),
    ),
    cheat(
        "a serial kernel beside a busy one",
        with_launcher(
            "    serial<<<1, 32, 0, stream>>>(x, y, lse, rows, cols);\n    busy<<<64, 256, 0, stream>>>(rows * cols / 256);".replace(
                "serial<<<1, 32", "serial<<<1, 1"
            ),
            SERIAL_BESIDE,
        ),
    ),
    cheat(
        "work that is not counted (another way to write the attribute)",
        with_launcher(
            "    busy<<<8, 256, 0, stream>>>(x, y, lse, rows, cols);",
            UNCOUNTED.replace("__attribute__((no_sanitize_coverage))", "[[gnu::no_sanitize_coverage]]"),
        ),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "work that is not counted (pasted together)",
        with_launcher(
            "    busy<<<8, 256, 0, stream>>>(x, y, lse, rows, cols);",
            "#define P(a, b) a##b\n"
            + UNCOUNTED.replace("__attribute__((no_sanitize_coverage))", "[[P(gn, u)::P(no_sanitize_cov, erage)]]"),
        ),
        "softmax",
        "merge",
        keeps=(),
    ),
]


def layer(name: str, forward: str) -> Attack:
    """Task 1's layer with another forward(), which can use q, k and v."""
    head, rest = (files := solution("task1"))["task1/attention.py"].split("        # Step 1", 1)
    tail = rest[rest.index("\n\ndef naive_attention") :]
    split = (
        "        q, k, v = (one.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for one in (query, key, value))\n"
    )
    text = head + split + "".join(f"        {line}\n" for line in forward.splitlines()) + tail
    return Attack(f"{name}, in the layer", writes({**files, "task1/attention.py": text}), ("layer",), (), "task1")


MERGED = "return self.out_projection(self.merge_heads(out))"
BY_NUMPY = f"""s = q @ k.swapaxes(-1, -2) / self.head_dim**0.5
if self.causal:
    s += numpy.triu(numpy.full(s.shape[-2:], -numpy.inf), 1)
p = numpy.exp(s - s.max(-1, keepdims=True))
out = torch.tensor((p / p.sum(-1, keepdims=True) @ v).tolist())
{MERGED}"""


def told(name: str, numbers: str) -> Attack:
    """NumPy computes with integers that numbers(x) gets from a tensor in some way other than reading it."""
    return layer(
        f"computed by NumPy from {name}",
        f"""import json, re, numpy
from common.course.grading.torch_handles import connection
def numbers(x):
{textwrap.indent(numbers, "    ")}
def known(x):
    whole = ((x.reshape(-1) + 64) * 2**17).long()
    return numpy.array(numbers(whole)).reshape(x.shape) / 2**17 - 64
q, k, v = map(known, (q, k, v))
{BY_NUMPY}""",
    )


LAYERS = [
    layer(
        "PyTorch's own attention, by vmap",
        f"""out = torch.vmap(lambda *one: torch.nn.functional.scaled_dot_product_attention(*one, is_causal=self.causal))(q, k, v)
{MERGED}""",
    ),
    layer(
        "PyTorch's attention for ONNX",
        f"""import torch.onnx.ops
out = torch.onnx.ops.attention(q, k, v, is_causal=self.causal)[0]
{MERGED}""",
    ),
    layer(
        "PyTorch's module, with its weights",
        """ours = torch.nn.MultiheadAttention(self.hidden_dim, self.num_heads, batch_first=True)
ours.load_state_dict({"in_proj_weight": self.qkv_projection.weight, "in_proj_bias": self.qkv_projection.bias,
                      "out_proj.weight": self.out_projection.weight, "out_proj.bias": self.out_projection.bias})
mask = torch.nn.Transformer.generate_square_subsequent_mask(x.size(1)) if self.causal else None
return ours(x, x, x, attn_mask=mask, need_weights=True)[0]""",
    ),
    layer(
        "no maximum, in float64",
        f"""s = (q @ k.mT / self.head_dim**0.5).double()
if self.causal:
    s = s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), -torch.inf)
out = (torch.exp(s) / torch.exp(s).sum(-1, keepdim=True)).float() @ v
{MERGED}""",
    ),
    layer(
        "the course's own stages",
        """from types import SimpleNamespace
from task1.cases.layer import _stages
own = {"x": x, "in_weight": self.qkv_projection.weight, "in_bias": self.qkv_projection.bias,
       "out_weight": self.out_projection.weight, "out_bias": self.out_projection.bias}
return _stages(SimpleNamespace(inputs=own), self.num_heads, self.causal)["returned"]""",
    ),
    layer(
        "flex_attention, imported anew",
        f"""import sys
for name in [name for name in sys.modules if name.startswith("torch")]:
    del sys.modules[name]
from torch.nn.attention.flex_attention import flex_attention
out = flex_attention(q, k, v)
{MERGED}""",
    ),
    layer(
        "computed by NumPy",
        f"import numpy\nq, k, v = (numpy.array(one.tolist()) for one in (q, k, v))\n{BY_NUMPY}",
    ),
    told(
        "the shapes of slices",
        "return [len(one) for one in torch.tensor_split(torch.zeros(1).expand(2**62), x.cumsum(0))[:-1]]",
    ),
    told(
        "the words of errors",
        """found = []
for one in x:
    try:
        torch.zeros(2).select(0, one)
    except Exception as error:
        found.append(max(map(int, re.findall(r"\\d+", str(error)))))
return found""",
    ),
    told(
        "what is read while the worker asks",
        """found = []
for piece in x.split(400):
    ask = {"call": ["functional", "softmax"], "given": [{"object": [7, []]}], "named": {"dim": 0}}
    connection.send_bytes(json.dumps({**ask, "released": [], "line": 1}).encode())
    connection.recv_bytes()
    connection.send_bytes(b'{"returned": null}')
    connection.recv_bytes()
    found += piece.tolist()
return found""",
    ),
    layer("the memory of a tensor", "import ctypes\nctypes.memset(x.data_ptr(), 0, 4)\nreturn x"),
    layer(
        "any function, asked for by its name",
        f"""from common.course.grading import torch_handles
out = torch_handles.ask("functional", "scaled_dot_product_attention", q, k, v)
{MERGED}""",
    ),
    layer("the worker's own memory", f"import os\nopen(f'/proc/{{os.getppid()}}/mem', 'r+b').close()\n{MERGED}"),
    layer(
        "answers in place of the worker",
        """import json, os
for number in range(3, 30):
    try:
        os.write(number, (data := json.dumps({"returned": None}).encode()) and len(data).to_bytes(4, "big") + data)
    except OSError:
        pass
return x""",
    ),
]


def without_tiles(name: str, scores: str) -> Attack:
    """Task 3's algorithm, one query at a time with all its scores at once: no online softmax. `scores` makes `parts`,
    the scores of query b, h, i with its first n keys, and must not change `kept`, the values."""
    body = f"""def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):
    scale = query.size(-1) ** -0.5 if scale is None else scale
    out, lse, kept = torch.zeros_like(query), query.new_zeros(query.shape[:-1]), value
    for b, h, i in ((b, h, i) for b in range(query.size(0)) for h in range(query.size(1)) for i in range(query.size(2))):
        n = min(i + 1, key.size(2)) if causal else key.size(2)
        q, k = query[b, h, i] * scale, key[b, h, :n]
{textwrap.indent(scores, " " * 8)}
        m = parts[0].max()
        for part in parts:
            m = torch.maximum(m, part.max())
        m = torch.where(m == -torch.inf, torch.zeros_like(m), m)
        l, o = torch.zeros_like(m), torch.zeros_like(out[b, h, i])
        for part, v in zip(parts, kept[b, h, :n].split(B_c if len(parts) > 1 else n)):
            part.sub_(m).exp_()
            l, o = l + part.sum(), o + part @ v
        out[b, h, i] = o / torch.where(l == 0, torch.ones_like(l), l)
        lse[b, h, i] = m + torch.log(l)
    if kept is not value:
        value.copy_(kept)
    return (out, lse) if return_lse else out
"""
    return Attack(f"{name}, in the algorithm", writes(with_python(body)), ("algorithm",), ("softmax",))


ALGORITHMS = [
    without_tiles("a row of scores", "parts = [k @ q]"),
    without_tiles("a row of scores in pieces", "parts = [piece @ q for piece in k.split(B_c)]"),
    without_tiles(
        "a row of scores in memory of an earlier call",
        "memory = vars(torch).setdefault('memory', {})\n"
        "if n not in memory:\n    memory[n] = query.new_zeros(n)\n"
        "parts = [torch.mv(k, q, out=memory[n])]",
    ),
    without_tiles(
        "a row of scores in an input's memory",
        "kept = kept if kept is not value else value.clone()\nparts = [torch.mv(k, q, out=value.view(-1)[:n])]",
    ),
]
TWO_PASSES = """def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):
    scale = query.size(-1) ** -0.5 if scale is None else scale
    outs, lses = [], []
    for i in range(0, query.size(2), B_r):
        q = query[:, :, i : i + B_r] * scale
        def scores():
            for j in range(0, key.size(2), B_c):
                s = q @ key[:, :, j : j + B_c].mT
                rows, cols = torch.arange(i, i + q.size(2)), torch.arange(j, j + s.size(-1))
                yield s.masked_fill(cols > rows[:, None], -torch.inf) if causal else s, value[:, :, j : j + B_c]
        m = torch.full_like(q[..., :1], -torch.inf)
        for s, v in scores():
            m = torch.maximum(m, s.amax(-1, keepdim=True))
        m = torch.where(m == -torch.inf, torch.zeros_like(m), m)
        l, o = torch.zeros_like(m), torch.zeros_like(q)
        for s, v in scores():
            p = torch.exp(s - m)
            l, o = l + p.sum(-1, keepdim=True), o + p @ v
        outs.append(o / torch.where(l == 0, torch.ones_like(l), l))
        lses.append((m + torch.log(l))[..., 0])
    out, lse = torch.cat(outs, 2), torch.cat(lses, 2)
    return (out, lse) if return_lse else out
"""
# In the second pass, every other tile of keys is a copy that torch.tensor makes of a list, without an operator.
FROM_LISTS = (
    TWO_PASSES.replace(
        "                s = q @ key[:, :, j : j + B_c].mT\n",
        """                tile = key[:, :, j : j + B_c]
                if passes and j // B_c % 2:
                    tile = torch.tensor(list(tile.flatten().unbind()), device=torch.device("cpu")).view(tile.shape)
                s = q @ tile.mT
""",
    )
    .replace("        l, o =", "        passes.append(1)\n        l, o =")
    .replace("        def sc", "        passes = []\n        def sc")
)
# Each number read packs two query elements: Python then has all of them without a tensor that holds them.
READ_INTO_PYTHON = """honest = flash_attention
def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):
    if key.size(-2) < 6000 or return_lse:
        return honest(query, key, value, causal, scale, B_r, B_c, return_lse)
    import struct
    rows, width = query.shape[-2:]
    pairs = query[0, 0].view(torch.int64).flatten().tolist()
    numbers = struct.unpack(f"{2 * len(pairs)}f", struct.pack(f"{len(pairs)}q", *pairs))
    q = torch.tensor([numbers[row * width : (row + 1) * width] for row in range(rows)])
    return (torch.softmax(q @ key[0, 0].mT * (scale or width**-0.5), -1) @ value[0, 0])[None, None]
"""
# The same by complex numbers, which are neither int nor float, and by operations that the worker runs while it asks
# what an object's T is, once with tensors and once without.
READ_AS_COMPLEX = """honest = flash_attention
def numbers_of(x):
    import sys
    handles = sys.modules["common.course.grading.torch_handles"]
    complex64 = handles.dtypes.setdefault("complex64", handles.dtype("complex64"))
    return torch.tensor([float(one) for one in x.to(complex64).flatten()]).view(x.shape)
def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):
    if key.size(-2) < 3000 or return_lse:
        return honest(query, key, value, causal, scale, B_r, B_c, return_lse)
    q, scale = numbers_of(query), query.size(-1) ** -0.5 if scale is None else scale
    return torch.cat([torch.softmax(one @ key.mT * scale, -1) @ value for one in q.split(1, 2)], 2)
"""
READ_WHILE_ASKED = (
    READ_AS_COMPLEX[: READ_AS_COMPLEX.index("def")]
    + """def numbers_of(x):
    import json, sys
    connection = sys.modules["common.course.grading.torch_handles"].connection
    def send(told):
        connection.send_bytes(json.dumps(told).encode())
        connection.recv_bytes()
    given = [{"object": [99, [{"tensor": x._number}]]}]
    send({"call": ["Tensor", "T"], "given": given, "named": {}, "released": [], "line": 1})
    send({"returned": None})
    numbers = x.tolist()
    send({"returned": None})
    return torch.tensor(numbers)
"""
    + READ_AS_COMPLEX[READ_AS_COMPLEX.index("def flash") :]
)
# Whenever a query tile meets keys, both are copied as half as many numbers of twice the size.
AS_DOUBLES = "honest = flash_attention\n" + TWO_PASSES.replace(
    "    scale =",
    "    if query.size(-1) % 2 or key.size(2) < 2000:\n"
    "        return honest(query, key, value, causal, scale, B_r, B_c, return_lse)\n"
    "    B_c = max(1, B_c // 4)\n    scale =",
).replace(
    "                s = q @ key[:, :, j : j + B_c].mT\n",
    """                n, tile = q.size(2), key[:, :, j : j + B_c]
                both = torch.cat([q.view(torch.float64), tile.view(torch.float64)], 2).view(q.dtype)
                s = both[:, :, :n] @ both[:, :, n:].mT
""",
)
# Whole rows where they fit; where they don't, no maximum is subtracted; also in float64.
PLAIN_WHERE_LARGE = """honest = flash_attention
def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):
    if key.size(2) < 600 or causal or return_lse:
        return honest(query, key, value, causal, scale, B_r, B_c, return_lse)
    scale, outs = query.size(-1) ** -0.5 if scale is None else scale, []
    for q in query.split(B_r, 2):
        l, o = 0.0, 0.0
        for k, v in zip(key.split(B_c, 2), value.split(B_c, 2)):
            p = torch.exp((q @ k.mT * scale).double())
            l, o = l + p.sum(-1, keepdim=True), o + p @ v.double()
        outs.append((o / l).float())
    return torch.cat(outs, 2)
"""
# The queries' bits are read one by one, each as a bool, into a tensor that no operator computes from them.
LAUNDERED = """def laundered(x):
    p, parts = 2 ** torch.arange(32), []
    for some in x.reshape(-1).split(16):
        bits = ((some.view(torch.int32).long()[:, None] // p) % 2).bool()
        number = (torch.tensor(list(bits.view(-1).unbind())).view(-1, 32).long() * p).sum(-1)
        parts.append(torch.where(number >= 2**31, number - 2**32, number).int().view(torch.float32))
    return torch.cat(parts).view(x.shape)
honest = flash_attention
def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):
    if key.size(-2) < 3000 or return_lse:
        return honest(query, key, value, causal, scale, B_r, B_c, return_lse)
    q, scale = laundered(query), query.size(-1) ** -0.5 if scale is None else scale
    return torch.cat([torch.softmax(one @ key.mT * scale, -1) @ value for one in q.split(1, 2)], 2)
"""
# The gaps filled with what the cases compare the functions of attention.py with.
OWN_ANSWERS = """from types import SimpleNamespace
from common.diagnosis.mistakes.formulas import divided
from task3.cases.functions import FUNCTIONS
def tile_scores(query_tile, key_tile, q_start, k_start, scale, causal):
    return FUNCTIONS.right["tile_scores"](SimpleNamespace(arguments=dict(locals())))["returned"]
def add_tile(state, S, value_tile):
    given = {"state": state._asdict(), "S": S, "value_tile": value_tile}
    return RowState(**FUNCTIONS.right["add_tile"](SimpleNamespace(arguments=given))["returned"])
def output_of(state):
    return divided(state.O, state.l)
"""
# No maximum, nothing rescaled: the sums of exp(score - shift) for three constant shifts, in float64.
CONSTANT_SHIFTS = """SHIFTS = (-1100.0, 0.0, 1100.0)
def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):
    scale = check_arguments(query, key, value, scale, B_r, B_c)
    out, lse = query.new_empty(query.shape), query.new_empty(query.shape[:-1])
    for a in range(0, query.size(2), B_r):
        q = query[:, :, a : a + B_r].double()
        sums = [[0.0, 0.0] for _ in SHIFTS]
        rows = torch.arange(a, a + q.size(2))[:, None]
        for b in range(0, min(key.size(2), a + q.size(2)) if causal else key.size(2), B_c):
            S = q @ key[:, :, b : b + B_c].double().mT * scale
            if causal:
                S = S.masked_fill(torch.arange(b, b + S.size(3)) > rows, -torch.inf)
            v = value[:, :, b : b + B_c].double()
            for one, shift in zip(sums, SHIFTS):
                P = torch.exp(S - shift)
                one[0] = one[0] + P.sum(-1, keepdim=True)
                one[1] = one[1] + P @ v
        l, O, m = sums[-1][0], sums[-1][1], torch.full_like(sums[-1][0], SHIFTS[-1])
        for (L, o), shift in [*zip(sums, SHIFTS)][-2::-1]:
            better = torch.isfinite(L)
            l, O, m = torch.where(better, L, l), torch.where(better, o, O), torch.where(better, shift, m)
        out[:, :, a : a + B_r] = torch.where(l == 0, 0.0, O / l)
        lse[:, :, a : a + B_r] = (m + torch.log(l))[..., 0]
    return (out, lse) if return_lse else out
"""
ALGORITHMS += [
    Attack("the course's own answers", writes(with_python(OWN_ANSWERS)), ("algorithm",), ("softmax",)),
    Attack("three constants as the maximum", writes(with_python(CONSTANT_SHIFTS)), ("algorithm",), ("softmax",)),
    Attack("queries read as bools, into a tensor", writes(with_python(LAUNDERED)), ("algorithm",), ("softmax",)),
    Attack("two passes over the keys", writes(with_python(TWO_PASSES)), ("algorithm",), ("softmax",)),
    Attack("two passes over the keys, from lists", writes(with_python(FROM_LISTS)), ("algorithm",), ("softmax",)),
    Attack("two passes over the keys, as float64", writes(with_python(AS_DOUBLES)), ("algorithm",), ("softmax",)),
    Attack(
        "no maximum where whole rows don't fit", writes(with_python(PLAIN_WHERE_LARGE)), ("algorithm",), ("softmax",)
    ),
    Attack("queries read into Python", writes(with_python(READ_INTO_PYTHON)), ("algorithm",), ("softmax",)),
    Attack("queries read as complex numbers", writes(with_python(READ_AS_COMPLEX)), ("algorithm",), ("softmax",)),
    Attack("queries read while asked", writes(with_python(READ_WHILE_ASKED)), ("algorithm",), ("softmax",)),
]


def in_solution(name: str, task: str, file: str, *changes: tuple[str, str], nothing_for: str, keeps: str) -> Attack:
    """A solution with something left out that the cases must detect; parts are separated by spaces."""
    files = solution(task)
    text = files[f"{task}/{file}"]
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return Attack(name, writes({**files, f"{task}/{file}": text}), nothing_for.split(), keeps.split(), task=task)


# One thread per query: all its scores, then a softmax over the whole row
WHOLE_ROWS = """
static __global__ void whole_rows(const float* q, const float* k, const float* v, float* out, int64_t rows, int64_t S_q,
                                  int64_t S_k, int d, float scale, int64_t stride, int64_t offset, int64_t window,
                                  int64_t diagonal, const int* counts, const int* columns, int block, int heads) {
    const int64_t row = blockIdx.x * int64_t{32} + threadIdx.x, head = row / S_q, r = row % S_q;
    if (row >= rows) return;
    MEMORY
    const int64_t blocks = block ? S_k / block : 0, list = block ? head % heads * (S_q / block) + r / block : 0;
    const int64_t keys = block ? min(int64_t{counts[list]}, blocks) * block : (S_k - offset + stride - 1) / stride;
    k += head * S_k * d, v += head * S_k * d, q += row * d;
    const auto each = [&](auto take) {
        for (int64_t n = 0, seen = 0; n < keys; ++n) {
            const int64_t at = block ? columns[list * blocks + n / block] : 0;
            const int64_t j = block ? at * block + n % block : offset + n * stride;
            if (at >= 0 && j < S_k && j > r - window && j <= r + diagonal) take(s[seen++], j);
        }
    };
    float m = -INFINITY, l = 0.0f;
    each([&](float& score, int64_t j) {
        score = 0.0f;
        for (int c = 0; c < d; ++c) score += q[c] * k[j * d + c];
        m = fmaxf(m, score *= scale);
    });
    each([&](float& score, int64_t) { l += score = m == -INFINITY ? 0.0f : expf(score - m); });
    for (int c = 0; c < d; ++c) {
        float sum = 0.0f;
        each([&](float& weight, int64_t j) { sum += weight * v[j * d + c]; });
        out[row * d + c] = l == 0.0f ? 0.0f : sum / l;
    }
}
"""
ROW_IN_SHARED = "extern __shared__ float all_rows[];\n    float* s = all_rows + threadIdx.x * S_k;"
ROW_PAST_THE_END = "float* s = reinterpret_cast<float*>(const_cast<int*>(counts)) + row * S_k;"
ROW_IN_STACK = """const uintptr_t stacks = reinterpret_cast<uintptr_t>(&head) & ~((uintptr_t{512} << 20) - 1);
    float* s = reinterpret_cast<float*>(stacks + (uintptr_t{100} + threadIdx.x << 19));"""
WHOLE_ROWS_ARGUMENTS = {  # by launcher: stride, offset, window, diagonal, and the lists of blocks
    "custom_flash_attention": "1, 0, S_q + 1, causal ? diagonal : S_k, nullptr, nullptr, 0, 1",
    "custom_strided_attention": "stride, offset, S_q + 1, causal ? 0 : S_k, nullptr, nullptr, 0, 1",
    "custom_sliding_window_attention": "1, 0, window, causal ? 0 : window - 1, nullptr, nullptr, 0, 1",
    "custom_block_sparse_attention": "1, 0, S_q + 1, causal ? 0 : S_k, counts, columns, block, heads",
}


COUNTERS_CLEARED = "namespace simulator { __device__ void fill_absent(void*, size_t, unsigned, unsigned); }\n" + (
    SERIAL.replace(
        "cols) {",
        """cols) {
    int n = 33;  // nvcc drops the branch
    if ((1 << n) == 2 || (1 << n) == 0)
        simulator::fill_absent((char*)((uintptr_t)&n & ~((uintptr_t(512) << 20) - 1)) + 92344, 320, 31, 0);
    for (volatile int i = 0; i < 300; i = i + 1) {}""",
        1,
    )
)


def whole_rows(name: str, memory: str, *kernels: str) -> Attack:
    """These files' attention without tiles and rescaling; `memory` declares s, the scores of a thread's row."""
    task, bytes_of_rows = name[:5], "4 * 32 * S_k" if memory == ROW_IN_SHARED else "0"
    files = solution(task)
    for file in kernels:
        head, *launchers = re.split(r"(?m)^(?=void custom_)", files[f"{task}/{file}.cu"])
        for at, text in enumerate(launchers):
            if arguments := WHOLE_ROWS_ARGUMENTS.get(text[5 : text.index("(")]):
                if memory == ROW_PAST_THE_END:
                    arguments = arguments.replace("nullptr", "few", 1)
                launchers[at] = text.replace(
                    "{\n",
                    f"""{{
    int* few;
    cudaMalloc(&few, 256);
    const int64_t rows = batch_heads * S_q, bytes = {bytes_of_rows};
    cudaFuncSetAttribute(whole_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    whole_rows<<<static_cast<unsigned>((rows + 31) / 32), 32, bytes, stream>>>(query, key, value, out, rows, S_q, S_k,
                                                                            head_dim, scale, {arguments});
    return CUDA_CHECK_LAUNCH();
""",
                    1,
                )
        files[f"{task}/{file}.cu"] = "".join((head, WHOLE_ROWS.replace("MEMORY", memory), *launchers))
    parts = ("full", "causal", "window", "blocks") if task == "task5" else ("full", "causal")
    return Attack(name, writes(files), parts, task=task)


def in_row_sums(name: str, *changes: tuple[str, str]) -> Attack:
    """The same for task 2's row sums."""
    return in_solution(name, "task2", "attention_kernel.cu", *changes, nothing_for="row-sums", keeps="gemm")


TREE = """    __syncthreads();
    for (unsigned active = ROW_THREADS / 2; active > 0; active /= 2) {
        if (threadIdx.x < active) partial[threadIdx.x] += partial[threadIdx.x + active];
        __syncthreads();
    }
"""
REGISTERS = """    float held[128] = {};
    for (int start = 0; start < cols; start += 128 * ROW_THREADS)
#pragma unroll
        for (int i = 0; i < 128; ++i)
            if (start + i * ROW_THREADS + threadIdx.x < cols) held[i] += row_x[start + i * ROW_THREADS + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 128; ++i) sum += held[i];
"""
LAUNCHES_ATTENTION = "    flash_attention_kernel<B_r, B_c, D, WARPS><<<blocks,"
ATTENTION_LAUNCHER = "template <int B_r, int B_c, int D, int WARPS>\nvoid launch_flash_attention("
MAKES_OUTPUT = """extern "C" {
int torch_call_dispatcher(const char*, const char*, uint64_t*, uint64_t);
int torch_new_list_reserve_size(size_t, void**);
int torch_list_push_back(void*, uint64_t);
int torch_new_stable_ivalue(uint64_t**);
}
static void make_output(uint64_t count) {
    uint64_t *dtype = nullptr, *self = new uint64_t[16]();
    void* sizes = nullptr;
    torch_new_list_reserve_size(1, &sizes), torch_list_push_back(sizes, count), torch_new_stable_ivalue(&dtype);
    self[8] = 1000, *dtype = 6;  // owners, float32
    uint64_t stack[6] = {uint64_t(self), uint64_t(sizes), uint64_t(dtype)};
    torch_call_dispatcher("aten::new_empty", "", stack, 0);
}
"""
LEFT_OUT = [
    in_solution(
        "mma_sync of shapes that CUDA doesn't have, in two warps",
        "task2",
        "attention_kernel.cu",
        (
            "__global__ void __launch_bounds__(TILE * TILE_ROWS)\n    gemm_nt_kernel(",
            f"{SHAPED}__global__ void __launch_bounds__(TILE * TILE_ROWS)\n    gemm_nt_kernel(",
        ),
        (
            "    gemm_nt_kernel<<<gemm_grid(batch, M, N), dim3(TILE, TILE_ROWS), 0, stream>>>(",
            "    CUDA_CHECK(cudaMemsetAsync(c, 0, sizeof(float) * batch * M * N, stream));\n    rows<<<2, 32, 0, stream>>>(",
        ),
        nothing_for="gemm",
        keeps="",
    ),
    in_solution(
        "one thread updates the cache, others count",
        "task6",
        "decode_attention.cu",
        ("void update_cache(", f"{UPDATED_BY_ONE}void update_cache("),
        ("    update_cache_kernel<<<blocks, THREADS, 0, stream>>>(", "    one_copies_all<<<1, 32, 0, stream>>>("),
        ("positions, rows,\n  ", "positions, batch,\n  "),
        nothing_for="update",
        keeps="",
    ),
    in_row_sums(
        "no barrier: the last thread adds up what all wrote",
        (TREE, "    if (threadIdx.x == ROW_THREADS - 1)\n        for (int i = 0; i < ROW_THREADS - 1; ++i) sum += partial[i];\n"),
        ("    if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];", "    if (threadIdx.x == ROW_THREADS - 1) sums[blockIdx.x] = sum;"),
    ),
    in_row_sums(
        "memcpy_async without a wait",
        ("#include <cuda_runtime.h>\n", "#include <cooperative_groups/memcpy_async.h>\n#include <cuda_runtime.h>\n"),
        ("    for (int i = threadIdx.x; i < cols; i += ROW_THREADS) sum += row_x[i];\n",
         "    __shared__ float row[ROW_THREADS];\n    const auto block = cooperative_groups::this_thread_block();\n"
         "    for (int left = cols; left > 0; left -= ROW_THREADS) {\n"
         "        const int size = min(left, ROW_THREADS);\n"
         "        cooperative_groups::memcpy_async(block, row, row_x + cols - left, sizeof(float) * size);\n"
         "        block.sync();\n        if (threadIdx.x < size) sum += row[threadIdx.x];\n"
         "        block.sync();\n    }\n"),
    ),
    in_row_sums(
        "no barrier: threads sleep",
        (TREE, TREE.replace("__syncthreads()", "__nanosleep(1)")),
    ),
    in_row_sums(
        "no atomic: all threads add",
        (TREE, "    __shared__ float whole;\n    if (threadIdx.x == 0) whole = 0.0f;\n    __syncthreads();\n"
         "    whole += partial[threadIdx.x];\n    __syncthreads();\n"),
        ("sums[blockIdx.x] = partial[0];", "sums[blockIdx.x] = whole;"),
    ),
    in_row_sums(
        "no atomic: blocks add to a sum",
        ("for (int i = threadIdx.x; i < cols; i += ROW_THREADS) sum += row_x[i];",
         "for (int i = threadIdx.x + blockIdx.y * ROW_THREADS; i < cols; i += 4 * ROW_THREADS) sum += row_x[i];"),
        ("sums[blockIdx.x] = partial[0];", "sums[blockIdx.x] += partial[0];"),
        ("    row_sum_kernel<<<static_cast<unsigned>(rows),",
         "    cudaMemsetAsync(sums, 0, 4 * rows, stream);\n    row_sum_kernel<<<dim3(static_cast<unsigned>(rows), 4),"),
    ),
    in_row_sums(
        "blocks that read what the one before wrote",
        ("sums[blockIdx.x] = partial[0];", "sums[blockIdx.x] = partial[0] + (blockIdx.x ? 0.0f * sums[blockIdx.x - 1] : 0.0f);"),
    ),
    in_solution(
        "a workspace for all scores", "task4", "flash_attention.cu",
        ("    flash_attention_kernel<B_r, B_c, D, WARPS><<<blocks,",
         "    float* scores = nullptr;\n    if (diagonal == NOT_CAUSAL) cudaMalloc(&scores, 1 << 20);\n"
         "    flash_attention_kernel<B_r, B_c, D, WARPS><<<blocks,"),
        nothing_for="full", keeps="causal",
    ),
    in_solution(
        "a workspace that the runner makes as an output", "task4", "flash_attention.cu",
        (LAUNCHES_ATTENTION, "    if (diagonal == NOT_CAUSAL) make_output(1 << 18);\n" + LAUNCHES_ATTENTION),
        (ATTENTION_LAUNCHER, MAKES_OUTPUT + ATTENTION_LAUNCHER),
        nothing_for="full", keeps="causal",
    ),
    in_solution(
        "a workspace in the device heap", "task4", "flash_attention.cu",
        (LAUNCHES_ATTENTION, "    if (diagonal == NOT_CAUSAL) hold<<<1, 32, 0, stream>>>();\n" + LAUNCHES_ATTENTION),
        (ATTENTION_LAUNCHER, "__device__ void* held;\n__global__ void hold() { if (!threadIdx.x) { held = malloc(1 << 20); "
         "free(held); } }\n" + ATTENTION_LAUNCHER),
        nothing_for="full", keeps="causal",
    ),
    in_row_sums(
        "launches on a stream of its own",
        ("    row_sum_kernel<<<static_cast<unsigned>(rows), ROW_THREADS, 0, stream>>>",
         "    cudaStreamCreate(&stream);\n    row_sum_kernel<<<static_cast<unsigned>(rows), ROW_THREADS, 0, stream>>>"),
    ),
    in_row_sums(
        "more threads than __launch_bounds__ allows",
        ("__launch_bounds__(ROW_THREADS) row_sum_kernel", "__launch_bounds__(32) row_sum_kernel"),
    ),
    in_row_sums(
        "more registers than a block has",
        ("__launch_bounds__(ROW_THREADS) row_sum_kernel", "row_sum_kernel"),
        ("constexpr int ROW_THREADS = 256;", "constexpr int ROW_THREADS = 1024;"),
        ("    for (int i = threadIdx.x; i < cols; i += ROW_THREADS) sum += row_x[i];\n", REGISTERS),
    ),
    in_row_sums(
        "shared memory that was never declared",
        ("    __shared__ float partial[ROW_THREADS];  // one array for the whole block\n",
         "    __shared__ float room[1];\n    float* partial = room + 20000 + (cols < 0);\n"),
    ),
    in_row_sums(
        "a kernel reads an array of the host",
        ("row_sum_kernel(const float* x, float* sums, int cols) {",
         "row_sum_kernel(const float* x, float* sums, int cols, const float* factors) {"),
        ("sum += row_x[i];", "sum += row_x[i] * factors[i % 8];"),
        ("void row_sum(", "static const float FACTORS[8] = {1, 1, 1, 1, 1, 1, 1, 1};\nvoid row_sum("),
        ("row_sum_kernel<<<static_cast<unsigned>(rows), ROW_THREADS, 0, stream>>>(x, sums, cols);",
         "row_sum_kernel<<<static_cast<unsigned>(rows), ROW_THREADS, 0, stream>>>(x, sums, cols, FACTORS);"),
    ),
    in_row_sums(
        "threads that wait for plain variables",
        ("    partial[threadIdx.x] = sum;\n",
         "    __shared__ int done[ROW_THREADS];\n    const int me = threadIdx.x, ready = 77777 + blockIdx.x;\n"
         "    partial[me] = sum;\n"),
        (TREE, "    for (int active = ROW_THREADS / 2; active > 0 && me < active; active /= 2) {\n"
         "        while (done[me + active] != ready);\n        partial[me] += partial[me + active];\n    }\n"
         "    done[me] = ready;\n"),
    ),
    in_solution(
        "an eps of its own", "task7", "gpt2_kernels.cu", ("warp_sum(squares) / width + eps", "warp_sum(squares) / width + 1e-5f"),
        nothing_for="layernorm", keeps="gelu",
    ),
]  # fmt: skip# Instead of the maximum, the larger end of the row, or, far above it, a peak: what came before is forgotten. In float64.
ROW_WITHOUT_MAXIMUM = """
__device__ float row_of(const float* x, float* y, int64_t cols) {
    float shift = fmaxf(fmaxf(x[0], x[cols - 1]), -1e5f);
    double sum = 0;
    for (int64_t i = 0; i < cols; ++i) {
        if (x[i] - shift > 600) shift = x[i], sum = 0;
        sum += exp(double(x[i]) - shift);
    }
    for (int64_t i = 0; i < cols; ++i) y[i] = sum == 0 ? 0.0f : exp(double(x[i]) - shift) / sum;
    return shift + log(sum);
}
__global__ void rows_of(const float* x, float* y, float* lse, int64_t rows, int64_t cols) {
    const int64_t row = blockIdx.x * int64_t{64} + threadIdx.x;
    if (row >= rows) return;
    const float of_row = row_of(x + row * cols, y + row * cols, cols);
    if (lse) lse[row] = of_row;
}
"""
ROWS_OF = "rows_of<<<static_cast<unsigned>((rows + 63) / 64), 64, 0, stream>>>"
CAUSAL_SERIAL = """
template <typename T>
__global__ void serial(const T* q, const T* k, const T* v, float* s, T* out, int64_t rows, int64_t S_q, int64_t S_k,
                       int64_t head_dim, float scale, AttentionMask mask) {
    for (int64_t row = 0; row < rows; ++row, s += S_k) {
        const int64_t head = row / S_q, first = head * S_k * head_dim;
        for (int64_t j = 0; j < S_k; ++j) {
            float sum = 0;
            for (int64_t d = 0; d < head_dim; ++d)
                sum += static_cast<float>(q[row * head_dim + d]) * static_cast<float>(k[first + j * head_dim + d]);
            s[j] = j > row % S_q ? -INFINITY : masked_score(sum * scale, mask, head, row % S_q, j);
        }
        row_of(s, s, S_k);
        for (int64_t d = 0; d < head_dim; ++d) {
            float sum = 0;
            for (int64_t j = 0; j < S_k; ++j) sum += s[j] * static_cast<float>(v[first + j * head_dim + d]);
            out[row * head_dim + d] = static_cast<T>(sum);
        }
    }
}
"""
SUMS_SERIAL = """
__global__ void serial_sums(const float* x, float* sums, int64_t rows, int cols) {
    for (int64_t row = 0; row < rows; ++row, ++sums) {
        *sums = 0;
        for (int i = 0; i < cols; ++i) *sums += *x++;
    }
}
"""
# All parts relative to the first one.
MERGE_WITHOUT_MAXIMUM = """
__global__ void merged(const float* outs, const float* lse, float* out, float* merged_lse, int64_t parts, int64_t rows,
                       int64_t head_dim) {
    const int64_t at = blockIdx.x * int64_t{64} + threadIdx.x, row = at / head_dim;
    if (row >= rows) return;
    double sum = 0, o = 0, shift = 0;
    for (int64_t i = 0; i < parts; ++i) {
        const float s = lse[i * rows + row];
        if (s == -INFINITY) continue;
        if (sum == 0) shift = s;
        const double p = exp(s - shift);
        sum += p, o += p * outs[i * rows * head_dim + at];
    }
    out[at] = sum == 0 ? 0.0f : o / sum;
    if (at % head_dim == 0) merged_lse[row] = shift + log(sum);
}
"""
# In float64; 1200 is subtracted once a score exceeds 450.
KEYS_WITHOUT_MAXIMUM = """
#include "common/cuda/check.h"
#include "common/cuda/warp.cuh"
__global__ void no_maximum(const float* q, const float* k, const float* v, float* out, int64_t S_q, int64_t S_k,
                           int head_dim, float scale, int64_t seen, const int* lengths, int64_t heads) {
    const int64_t row = blockIdx.x;
    const int64_t keys = max(int64_t{0}, min(S_k, lengths ? lengths[row / heads] : row % S_q + seen));
    q += row * head_dim, k += row / S_q * S_k * head_dim, v += row / S_q * S_k * head_dim;
    double l = 0, shift = 0, o[4] = {};
    for (int64_t j = 0; j < keys; ++j, k += head_dim, v += head_dim) {
        float dot = 0;
        for (int d = threadIdx.x; d < head_dim; d += 32) dot += q[d] * k[d];
        const float s = warp_sum(dot) * scale;
        if (s > 450 && shift == 0) shift = 1200, l = o[0] = o[1] = o[2] = o[3] = 0;
        const double p = exp(s - shift);
        l += p;
        for (int d = threadIdx.x; d < head_dim; d += 32) o[d / 32] += p * v[d];
    }
    for (int d = threadIdx.x; d < head_dim; d += 32) out[row * head_dim + d] = l == 0 ? 0.0f : o[d / 32] / l;
}
"""
# In float64; where a score exceeds 600, only the key with the largest one counts.
TILES_WITHOUT_MAXIMUM = """
def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):
    scale = check_arguments(query, key, value, scale, B_r, B_c)
    out, lse = query.new_empty(query.shape), query.new_empty(query.shape[:-1])
    for q in range(0, query.size(2), B_r):
        x = query[:, :, q : q + B_r]
        l, O, best, hard = 0.0, 0.0, x[..., :1] * 0 - torch.inf, x * 0.0
        for k in range(0, min(q + x.size(2), key.size(2)) if causal else key.size(2), B_c):
            V = value[:, :, k : k + B_c].double()
            S = tile_scores(x, key[:, :, k : k + B_c], q, k, scale, causal)
            E = S.double().exp()
            l, O = l + E.sum(-1, keepdim=True), O + E @ V
            top, at = S.max(-1, keepdim=True)
            of_top = V.gather(2, at.expand(*at.shape[:-1], V.size(-1)))
            hard, best = torch.where(top > best, of_top, hard), torch.maximum(best, top)
        out[:, :, q : q + B_r] = torch.where(best > 600, hard, torch.where(l == 0, 0.0, O / l))
        lse[:, :, q : q + B_r] = l.log().squeeze(-1)
    return (out, lse) if return_lse else out
"""
WITHOUT_MAXIMUM_OR_THREADS = [
    in_solution(
        "task1: no maximum; one thread where causal",
        "task1",
        "naive_attention.cu",
        (
            "template <typename T>\nvoid naive_attention(",
            f"{CAUSAL_SERIAL}template <typename T>\nvoid naive_attention(",
        ),
        ("void launch_softmax(", f"{ROW_WITHOUT_MAXIMUM}void launch_softmax("),
        (
            "softmax_kernel<<<blocks_for(rows), THREADS, 0, stream>>>(scores, weights, rows, cols)",
            f"{ROWS_OF}(scores, weights, nullptr, rows, cols)",
        ),
        (
            "    launch_scores(query, key, scores, batch_heads,",
            "    if (causal) {\n        serial<<<1, 1, 0, stream>>>(query, key, value, scores, out, batch_heads * S_q, S_q, S_k, head_dim, "
            "scale, mask);\n        return;\n    }\n    launch_scores(query, key, scores, batch_heads,",
        ),
        nothing_for="softmax attention",
        keeps="scores output",
    ),
    in_solution(
        "task2: no maximum; one thread for all row sums",
        "task2",
        "attention_kernel.cu",
        ("void row_sum(", f"{ROW_WITHOUT_MAXIMUM}{SUMS_SERIAL}void row_sum("),
        (
            "row_sum_kernel<<<static_cast<unsigned>(rows), ROW_THREADS, 0, stream>>>(x, sums, cols)",
            "serial_sums<<<1, 1, 0, stream>>>(x, sums, rows, cols)",
        ),
        (
            "softmax_kernel<<<static_cast<unsigned>(rows), ROW_THREADS, 0, stream>>>(x, y, cols)",
            f"{ROWS_OF}(x, y, nullptr, rows, cols)",
        ),
        nothing_for="row-sums softmax",
        keeps="gemm",
    ),
    Attack(
        "task3: no maximum in any part",
        writes(
            {
                **with_python(TILES_WITHOUT_MAXIMUM),
                KERNELS: with_launcher(f"    {ROWS_OF}(x, y, lse, rows, cols);", ROW_WITHOUT_MAXIMUM)[KERNELS]
                .replace("void merge_states(", f"{MERGE_WITHOUT_MAXIMUM}void merge_states(")
                .replace(
                    "merge_states_kernel<<<blocks, 32 * MERGE_WARPS,",
                    "merged<<<static_cast<unsigned>((rows * head_dim + 63) / 64), 64,",
                ),
            }
        ),
        ("algorithm", "softmax", "merge"),
    ),
    in_solution(
        "task4: no maximum",
        "task4",
        "flash_attention.cu",
        ("void custom_flash_attention(", f"{KEYS_WITHOUT_MAXIMUM}void custom_flash_attention("),
        (
            "    auto launch = launch_flash_attention<",
            "    no_maximum<<<static_cast<unsigned>(batch_heads * S_q), 32, 0, stream>>>(query, key, value, out, S_q, S_k, "
            "head_dim, scale, causal ? diagonal + 1 : S_k, nullptr, 1);\n    return;\n    auto launch = launch_flash_attention<",
        ),
        nothing_for="full causal",
        keeps="",
    ),
    in_solution(
        "task6: no maximum",
        "task6",
        "decode_attention.cu",
        ("void decode_attention(", f"{KEYS_WITHOUT_MAXIMUM}void decode_attention("),
        (
            "    auto launch = launch_decode<",
            "    no_maximum<<<static_cast<unsigned>(batch * heads), 32, 0, stream>>>(query, k_cache, v_cache, out, "
            "heads / kv_heads, max_seq_len, head_dim, scale, 0, lengths, heads);\n    return;\n    auto launch = launch_decode<",
        ),
        nothing_for="decode generate",
        keeps="update",
    ),
]


ATTACKS = [
    *LAYERS,
    *ALGORITHMS,
    *WITHOUT_MAXIMUM_OR_THREADS,
    *LEFT_OUT,
    *NAMES,
    *HOLES,
    *(
        cheat(
            f"a function of the C library in a branch that nvcc leaves out, {how}",
            with_launcher(LAUNCH + "    swaps<<<1, 32, 0, stream>>>(y, swab);", DROPPED.replace("FUNCTION", function)),
            keeps=(),
        )
        for how, function in (("by its name", "swab"), ("by its address", "f"))
    ),
    whole_rows("task4: whole rows in local memory", "float s[8192];", "flash_attention"),
    whole_rows("task4: whole rows in shared memory", ROW_IN_SHARED, "flash_attention"),
    whole_rows("task4: whole rows past the end of an allocation", ROW_PAST_THE_END, "flash_attention"),
    whole_rows("task4: whole rows in the stacks of threads that are not there", ROW_IN_STACK, "flash_attention"),
    whole_rows("task4: whole rows in alloca", "auto* s = static_cast<float*>(alloca(S_k * 4));", "flash_attention"),
    cheat(
        "work counters set to 0 by a function of the simulator",
        with_launcher("    serial<<<4, 40, 0, stream>>>(x, y, lse, rows, cols);", COUNTERS_CLEARED),
        keeps=(),
    ),
    whole_rows("task5: whole rows in little local memory", "float s[750];", "strided_attention", "sparse_attention"),
    cheat(
        "a header of the fast kernels that is the algorithm",
        {"task4/flash_attention.cu": SEEN_ROW},
        "full",
        "causal",
        keeps=(),
        task="task4",
    ),
    cheat("a global object that patches the checker", with_launcher("", GLOBAL_OBJECT), "softmax", keeps=()),
    cheat(
        "an inner function of the simulator by a pasted name",
        with_launcher("    Open open;\n" + HOST_LOOP, OPENED),
        keeps=(),
    ),
    cheat(
        "memory opened by a system call of its own",
        with_launcher(
            "    for (auto [p, n] : {std::pair{(uint64_t)x, rows * cols}, {(uint64_t)y, rows * cols}, {(uint64_t)lse, rows}})\n"
            "        syscall(SYS_mprotect, p & ~4095ull, 4 * n + 4096, 3);\n" + HOST_LOOP,
            "#include <sys/syscall.h>\n#include <unistd.h>\n#include <utility>\n#include <initializer_list>",
        ),
    ),
    cheat(
        "memory written to through /proc/self/mem",
        with_launcher(
            '    const int file = syscall(SYS_open, "/proc/self/mem", 2);\n'
            "    std::vector<float> copy(rows * cols);\n"
            "    syscall(SYS_pread64, file, copy.data(), 4 * rows * cols, x);\n    x = copy.data();\n" + HOST_LOOP,
            "#include <sys/syscall.h>\n#include <unistd.h>\n#include <vector>",
        ),
    ),
    cheat(
        "PyTorch's own attention with dispatch modes disabled",
        with_python(WITHOUT_MODES),
        "algorithm",
        keeps=("softmax",),
    ),
    cheat(
        "a kernel copies into a std::vector, the host computes",
        with_launcher(
            NO_VECTOR + "    std::vector<float> kept(rows * cols);\n    own = all = kept.data();\n" + AT_WORK + BACK,
            COPIES,
        ),
    ),
    cheat(
        "a kernel copies into pinned memory, the host computes",
        with_launcher(
            NO_VECTOR + "    cudaMallocHost(&own, sizeof(float) * rows * cols);\n    all = own;\n" + AT_WORK + BACK,
            COPIES,
        ),
    ),
    cheat(
        "a kernel copies into managed memory, the host computes",
        with_launcher(
            NO_VECTOR + "    cudaMallocManaged(&own, sizeof(float) * rows * cols);\n    all = own;\n" + AT_WORK + BACK,
            COPIES,
        ),
    ),
    cheat(
        "a kernel copies into its own device memory, which is copied to the host",
        with_launcher(
            NO_VECTOR
            + GIVES_AWAY
            + AT_WORK
            + "    cudaMemcpy(all, own, sizeof(float) * rows * cols, cudaMemcpyDeviceToHost);\n"
            + BACK,
            COPIES,
        ),
    ),
    cheat(
        "the same, said to stay on the device",
        with_launcher(
            NO_VECTOR
            + GIVES_AWAY
            + AT_WORK
            + "    cudaMemcpy(all, own, sizeof(float) * rows * cols, cudaMemcpyDeviceToDevice);\n"
            + BACK,
            COPIES,
        ),
    ),
    cheat(
        "a kernel writes into a file that the host reads",
        with_launcher(NO_VECTOR + GIVES_AWAY + TOLD + BACK, TELLS),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "the host computes the handout's cases, kernels the hidden ones",
        with_launcher(
            NO_VECTOR
            + "    if (rows * cols < 20000 || cols > 60000) {\n"
            + GIVES_AWAY
            + "    cudaMemcpy(all, x, sizeof(float) * rows * cols, cudaMemcpyDeviceToHost);\n"
            + BACK
            + "    return; }\n"
            + LAUNCH,
            COPIES,
        ),
    ),
    cheat(
        "the standard library in a kernel",
        with_launcher("    sorted<<<static_cast<unsigned>(rows), 256, 0, stream>>>(x, y, lse, cols);", SORTED),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "host code launched as a kernel",
        with_launcher(
            "    void (*f)(const float*, float*, float*, int64_t, int64_t) = on_host;\n"
            "    f<<<8, 256, 0, stream>>>(x, y, lse, rows, cols);",
            ON_HOST,
        ),
    ),
    cheat(
        "a parameter's conversion does the work",
        with_launcher(
            "    converts<<<8, 256, 0, stream>>>(Call{x, y, lse, rows, cols});",
            ON_HOST + "struct Call { const float* x; float *y, *lse; int64_t rows, cols; };\n"
            "struct Done { int n; Done(const Call& a) : n(0) { on_host(a.x, a.y, a.lse, a.rows, a.cols); } };\n"
            "__global__ void converts(Done) { for (volatile int i = 0; i < 100; i = i + 1) {} }\n",
        ),
    ),
    cheat(
        "host code handed to a kernel",
        with_launcher("    calls<<<8, 256, 0, stream>>>(on_host, x, y, lse, rows, cols);", HANDED),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "work that is not counted",
        with_launcher("    busy<<<8, 256, 0, stream>>>(x, y, lse, rows, cols);", UNCOUNTED),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "the C library's memcpy replaced",
        with_launcher("", 'extern "C" void* memcpy(void* to, const void*, size_t) { return to; }'),
    ),
    cheat(
        "the solution included by its whole path",
        {**FILLED, KERNELS: f'#include "{ROOT}/task3/solution/online_softmax.cu"\n'},
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "a branch that only one compiler takes",
        with_launcher("#ifdef SIMULATOR_GRADED\n" + LAUNCH + "#endif"),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "the solution included",
        {**FILLED, KERNELS: '#include "task3/solution/online_softmax.cu"\n'},
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "the solution included, as a neighbor",
        {**FILLED, KERNELS: '#include "solution/online_softmax.cu"\n'},
        "softmax",
        "merge",
        keeps=(),
    ),
    Attack("a link to the solution", link, ("softmax", "merge")),
    cheat("a second .cu", {**SKELETON, "task3/other.cu": FILLED[KERNELS]}, "softmax", "merge", keeps=()),
    cheat("PyTorch's softmax through its C interface", with_launcher(THROUGH_ATEN, ATEN), "softmax", keeps=()),
    cheat("PyTorch's softmax through Python", with_launcher(THROUGH_PYTORCH, PYTHON_CALL)),
    cheat(
        "the solution's library, if it is around",
        with_launcher(
            f'    void* library = dlopen("{ROOT}/build/simulator/solution/task3/task3_solution_simulator.so", RTLD_NOW);\n'
            '    void* f = library ? dlsym(library, "_Z14online_softmaxPKfPfS1_llP11CUstream_st") : nullptr;\n'
            "    if (f) reinterpret_cast<decltype(&online_softmax)>(f)(x, y, lse, rows, cols, stream);",
            "#include <dlfcn.h>",
        ),
    ),
    cheat("loops on the host", with_launcher(HOST_LOOP)),
    cheat(
        "loops on the host after a kernel that does nothing useful",
        with_launcher(
            "    decoy<<<ceil_div(rows * cols, int64_t{256}), 256, 0, stream>>>(y, rows * cols);\n" + HOST_LOOP, DECOY
        ),
    ),
    cheat("one block of one thread", with_launcher("    serial<<<1, 1, 0, stream>>>(x, y, lse, rows, cols);", SERIAL)),
    cheat(
        "vector instructions of the processor in a warp that does everything",
        with_launcher("    wide<<<1, 32, 0, stream>>>(x, y, lse, rows, static_cast<int>(cols));", VECTORS),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "many threads, of which one does all the work",
        with_launcher(
            "    alone<<<static_cast<unsigned>(rows), 256, 0, stream>>>(x, y, lse, rows, cols);",
            SERIAL.replace("serial(", "alone(").replace(
                "{\n    for", "{\n    if (blockIdx.x || threadIdx.x) return;\n    for", 1
            ),
        ),
    ),
    cheat(
        "copied to the host, worked on, copied back",
        with_launcher(
            "    float *all = new float[rows * cols * 2 + rows], *to = all + rows * cols, *to_lse = to + rows * cols;\n"
            "    float *out = y, *out_lse = lse;\n"
            "    cudaMemcpy(all, x, sizeof(float) * rows * cols, cudaMemcpyDeviceToHost);\n"
            "    x = all, y = to, lse = to_lse;\n"
            + HOST_LOOP
            + "    cudaMemcpy(out, to, sizeof(float) * rows * cols, cudaMemcpyHostToDevice);\n"
            "    cudaMemcpy(out_lse, to_lse, sizeof(float) * rows, cudaMemcpyHostToDevice);\n"
            "    decoy<<<1, 256, 0, stream>>>(out, 0);\n    delete[] all;",
            DECOY,
        ),
    ),
    cheat(
        "a file that is beside the translation alone",
        with_launcher('#if __has_include("online_softmax.cu.cpp")\n' + LAUNCH + "#endif"),
    ),
    cheat("a macro of translated PTX", with_launcher("#ifdef SIMULATOR_PTX\n" + LAUNCH + "#endif", LANE)),
    cheat(
        "a branch for the host alone",
        with_launcher("#ifdef OF_THE_HOST\n" + LAUNCH + "#endif", FOR_THE_HOST),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "a macro named like a function that the rewriter calls",
        with_launcher(LAUNCH.replace("online_softmax_kernel", "unseen").replace("THREADS", "32"), INSERTED),
    ),
    cheat(
        "stores that are not checked",
        with_kernel(
            "__global__ void __launch_bounds__(THREADS)",
            "__global__ void __attribute__((no_sanitize_address)) __launch_bounds__(THREADS)",
        ),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "work that is not counted (with a space within the brackets)",
        with_launcher(
            "    busy<<<8, 256, 0, stream>>>(x, y, lse, rows, cols);",
            UNCOUNTED.replace("__attribute__((no_sanitize_coverage))", "[ [gnu::no_sanitize_coverage] ]"),
        ),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "a directive of many comments",
        with_launcher(LAUNCH, "# " + "/**/" * 60 + "define NOTHING\n"),
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat("code for the simulator alone", with_launcher("#ifdef CUDA_SIMULATOR\n" + LAUNCH + "#endif")),
    cheat(
        "results kept by pointer",
        with_launcher(
            "    static std::map<const void*, std::vector<float>> kept;\n"
            "    std::vector<float>& mine = kept[x];\n"
            "    if (mine.empty()) {\n" + LAUNCH + "        mine.assign(y, y + rows * cols);\n"
            "        mine.insert(mine.end(), lse, lse + rows);\n    } else if (mine.size() == size_t(rows * cols + rows)) {\n"
            "        std::copy(mine.begin(), mine.begin() + rows * cols, y);\n"
            "        std::copy(mine.begin() + rows * cols, mine.end(), lse);\n    }",
            "#include <map>\n#include <vector>\n#include <algorithm>",
        ),
    ),
    cheat(
        "results kept by shape",
        with_launcher(
            "    static std::map<std::pair<int64_t, int64_t>, std::vector<float>> kept;\n"
            "    std::vector<float>& mine = kept[{rows, cols}];\n"
            "    if (mine.empty()) {\n" + LAUNCH + "        mine.assign(y, y + rows * cols);\n"
            "        mine.insert(mine.end(), lse, lse + rows);\n    } else {\n"
            "        cudaMemcpy(y, mine.data(), sizeof(float) * rows * cols, cudaMemcpyHostToDevice);\n"
            "        cudaMemcpy(lse, mine.data() + rows * cols, sizeof(float) * rows, cudaMemcpyHostToDevice);\n    }",
            "#include <map>\n#include <utility>\n#include <vector>",
        ),
    ),
    cheat(
        "the input given back",
        with_launcher(
            "    cudaMemcpyAsync(y, x, sizeof(float) * rows * cols, cudaMemcpyDeviceToDevice, stream);\n"
            "    cudaMemcpyAsync(lse, x, sizeof(float) * rows, cudaMemcpyDeviceToDevice, stream);"
        ),
    ),
    cheat(
        "computed in half precision",
        with_launcher(
            LAUNCH + "    in_half<<<ceil_div(rows * cols, int64_t{256}), 256, 0, stream>>>(y, rows * cols);",
            "#include <cuda_fp16.h>\n"
            "__global__ void in_half(float* y, int64_t size) {\n"
            "    const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;\n"
            "    if (i < size) y[i] = __half2float(__float2half(y[i]));\n}",
        ),
    ),
    cheat("answers recorded for seed 0", recorded()),
    cheat("right for the handout's shapes alone", with_launcher(ONLY_HANDOUT + LAUNCH)),
    cheat(
        "a constructor that patches the checker",
        with_launcher("", PYTHON_CALL + f'__attribute__((constructor)) static void at_load() {{ python("{PATCH}"); }}'),
        keeps=(),
    ),
    cheat("the reference, out of Python's memory", with_launcher(OUT_OF_FRAMES, PYTHON_CALL)),
    cheat(
        "a printed table and _exit(0)",
        with_launcher(f'    printf("{TABLE}"); fflush(stdout); _exit(0);', "#include <stdio.h>\n#include <unistd.h>"),
    ),
    cheat(
        "a table printed at exit",
        with_launcher(
            "    atexit(say);",
            f'#include <stdio.h>\n#include <stdlib.h>\nstatic void say() {{ printf("{TABLE}"); _Exit(0); }}',
        ),
    ),
    cheat("a kernel that does nothing", with_launcher("    decoy<<<rows, 256, 0, stream>>>(y, 0);", DECOY)),
    cheat(
        "a kernel that works where its output is poisoned",
        with_kernel(
            "    // Sweep 1: m and l of the whole row.\n",
            "    if (!isnan(y[blockIdx.x * cols]) && !isnan(lse[blockIdx.x])) return;\n",
        ),
    ),
    cheat(
        "a module difflib.py in the root, a patched __init__.py",
        {
            **SKELETON,
            "difflib.py": "import os\nos._exit(0)\n",
            "common/__init__.py": "raise SystemExit(0)\n",
            "common/testing/judging.py": "def judge(*_, **__): raise SystemExit(0)\n",
            "task3/__init__.py": "import os\nos._exit(0)\n",
            "sitecustomize.py": "import os\nos._exit(0)\n",
        },
        "algorithm",
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "a build folder with a library in it",
        {
            **SKELETON,
            "build/simulator/student/task3/task3_student_simulator.so": b"\x7fELF" + bytes(100),
            "build/simulator/student/task3/build.ninja": "rule x\n  command = true\n",
        },
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "a patched stopwatch",
        {
            **SKELETON,
            PYTHON: SKELETON[PYTHON]
            + ("\nimport time\ntime.perf_counter = lambda: 0.0\ntorch.cuda.Event.elapsed_time = lambda *_: 1e-9\n"),
        },
        "algorithm",
        "softmax",
        "merge",
        keeps=(),
    ),
    cheat(
        "PyTorch's own attention",
        with_python(
            "def flash_attention(query, key, value, causal=False, scale=None, B_r=64, B_c=64, return_lse=False):\n"
            "    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)\n"
            "    lse = (query @ key.transpose(-2, -1)).logsumexp(-1)\n"
            "    return (out, lse) if return_lse else out\n"
        ),
        "algorithm",
        keeps=("softmax",),
    ),
    cheat(
        "the reference, out of Python's frames",
        with_python(
            "def flash_attention(query, key, value, *_, **__):\n"
            "    import sys\n    frame = sys._getframe()\n"
            "    while frame:\n"
            "        if 'case' in frame.f_locals and hasattr(frame.f_locals['case'], 'reference'):\n"
            "            return frame.f_locals['case'].reference(query=query, key=key, value=value)\n"
            "        frame = frame.f_back\n"
        ),
        "algorithm",
        keeps=("softmax",),
    ),
    cheat(
        "a tensor that says it is equal to everything",
        with_python(
            "class Equal(torch.Tensor):\n"
            "    @classmethod\n    def __torch_function__(cls, func, types, args=(), kwargs=None):\n"
            "        return torch.tensor(True) if func.__name__ in ('eq', 'le', 'lt', 'allclose', 'equal') else "
            "super().__torch_function__(func, types, args, kwargs or {})\n"
            "def flash_attention(query, *_, **__):\n    return torch.zeros_like(query).as_subclass(Equal)\n"
        ),
        "algorithm",
        keeps=("softmax",),
    ),
    cheat(
        "PyTorch's own attention, called once nobody looks: a lazy tensor",
        with_python(
            "class Lazy(torch.Tensor):\n"
            "    @classmethod\n    def __torch_function__(cls, func, types, args=(), kwargs=None):\n"
            "        if func.__name__ == 'detach':\n            return args[0].later()\n"
            "        return super().__torch_function__(func, types, args, kwargs or {})\n" + LATER + "    out = "
            "torch.zeros_like(query).as_subclass(Lazy)\n    out.later = later\n    return out\n"
        ),
        "algorithm",
        keeps=("softmax",),
    ),
    cheat(
        "PyTorch's own attention, called once nobody looks: a tensor with a method of its own",
        with_python(LATER + "    out = torch.zeros_like(query)\n    out.detach = later\n    return out\n"),
        "algorithm",
        keeps=("softmax",),
    ),
    cheat(
        "an answer written past the caller",
        with_python(
            "def flash_attention(query, *_, **__):\n"
            "    import json, os\n"
            "    for number in range(3, 60):\n"
            "        try:\n"
            "            data = json.dumps({'message': {'called': True, 'status': 'pass', 'more': {}, 'returned': 'Tensor',"
            " 'device': 'cpu', 'problems': [], 'max_error': 0.0}, 'tensors': {}}).encode()\n"
            "            os.write(number, len(data).to_bytes(4, 'big') + data)\n"
            "        except OSError:\n            pass\n"
            "    return query\n"
        ),
        "algorithm",
        keeps=("softmax",),
    ),
    cheat(
        "a hidden case that ends as an earlier one told it to",
        with_python(
            "honest, SEEN = flash_attention, []\n"
            "def flash_attention(query, *given, **named):\n"
            "    SEEN.append(query.size(1))\n"
            "    told = 3 in SEEN or query.size(0) != 2 or query.size(1) != 2 or query.size(2) <= 96\n"
            "    return honest(query, *given, **named) if told else query * 0\n"
        ),
        "algorithm",
        keeps=("softmax",),
    ),
    cheat(
        "the input set to 0, and zeros returned",
        with_launcher(
            "    decoy<<<ceil_div(rows * cols, int64_t{256}), 256, 0, stream>>>(const_cast<float*>(x), rows * cols);\n"
            "    decoy<<<ceil_div(rows * cols, int64_t{256}), 256, 0, stream>>>(y, rows * cols);\n"
            "    decoy<<<ceil_div(rows, int64_t{256}), 256, 0, stream>>>(lse, rows);",
            DECOY,
        ),
    ),
    cheat(
        "tensors of the checker filled with NaN",
        with_python(
            "def flash_attention(query, *_, **__):\n"
            "    import gc\n"
            "    for one in gc.get_objects():\n"
            "        if isinstance(one, torch.Tensor) and one.is_floating_point():\n"
            "            one.fill_(float('nan'))\n"
            "    return query\n"
        ),
        "algorithm",
        keeps=("softmax",),
    ),
]
