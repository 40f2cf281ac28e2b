"""Floating-point operations counted in machine code: kernels with known counts, and objdump's notations."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from common.inspect.profile.instruction_counts import (
    NOTHING,
    Operations,
    block_operations,
    operations_of,
    read_disassembly,
    total,
)

# How the checked build's runtime handles the compiler's calls, and nothing else.
COUNTER = """
#include <stdint.h>
#include <map>
static std::map<uintptr_t, uint64_t> counts;
static char* library_start();
extern "C" void __sanitizer_cov_trace_pc() { ++counts[reinterpret_cast<uintptr_t>(__builtin_return_address(0))]; }
#include <dlfcn.h>
static char* library_start() {
    Dl_info here;
    dladdr(reinterpret_cast<void*>(&__sanitizer_cov_trace_pc), &here);
    return static_cast<char*>(here.dli_fbase);
}
extern "C" int take_counts(uint64_t* pairs) {
    int n = 0;
    for (const auto& [pc, times] : counts) {
        pairs[2 * n] = pc - reinterpret_cast<uintptr_t>(library_start());
        pairs[2 * n++ + 1] = times;
    }
    counts.clear();
    return n;
}
"""
KERNELS = """
#include <math.h>
extern "C" void axpy(float* y, const float* x, int n) {
    for (int i = 0; i < n; ++i) y[i] += 3.0f * x[i];
}
extern "C" void softmax_row(float* y, const float* x, int n) {
    float largest = x[0], sum = 0.0f;
    for (int i = 1; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
    for (int i = 0; i < n; ++i) sum += expf(x[i] - largest);
    for (int i = 0; i < n; ++i) y[i] = expf(x[i] - largest) / sum;
}
extern "C" void half_of_them(float* y, const float* x, int n) {
    for (int i = 0; i < n; ++i)
        if (i % 2) y[i] = x[i] * x[i] + 1.0f;
}
extern "C" void roots(float* y, const float* x, int n) {
    for (int i = 0; i < n; ++i) y[i] = 1.0f / sqrtf(x[i]);
}
extern "C" void fused(float* y, const float* x, int n) {
    for (int i = 0; i < n; ++i) y[i] = fmaf(x[i], x[i], y[i]);
}
extern "C" void doubles(double* y, const double* x, int n) {
    for (int i = 0; i < n; ++i) y[i] = x[i] * x[i] - y[i];
}
"""
COMPILERS = [
    pytest.param(("g++", "-fsanitize-coverage=trace-pc"), id="gcc"),
    pytest.param(("clang++", "-fsanitize-coverage=trace-pc,no-prune"), id="clang"),
]


@pytest.fixture(scope="module", params=COMPILERS)
def library(request, tmp_path_factory):
    """(the kernels as a library, its path)."""
    compiler, trace = request.param
    if not shutil.which(compiler) or not shutil.which("objdump"):
        pytest.skip(f"needs {compiler} and objdump")
    folder = tmp_path_factory.mktemp("counts")
    (folder / "counter.cpp").write_text(COUNTER)
    (folder / "kernels.cpp").write_text(KERNELS)
    flags = ["-O2", "-fPIC", "-c"]
    for name, more in (("counter", []), ("kernels", [trace])):
        subprocess.run([compiler, *flags, *more, f"{name}.cpp", "-o", f"{name}.o"], cwd=folder, check=True)
    path = folder / "kernels.so"
    subprocess.run([compiler, "-shared", "kernels.o", "counter.o", "-o", path, "-lm", "-ldl"], cwd=folder, check=True)
    return ctypes.CDLL(str(path)), path


def counted(library, name: str, n: int, dtype=np.float32) -> Operations:
    functions, path = library
    pairs = (ctypes.c_uint64 * 2000)()
    functions.take_counts(pairs)
    x, y = np.full(n, 0.5, dtype), np.zeros(n, dtype)
    getattr(functions, name)(ctypes.c_void_p(y.ctypes.data), ctypes.c_void_p(x.ctypes.data), n)
    found = functions.take_counts(pairs)
    blocks = [(pairs[2 * i], pairs[2 * i + 1]) for i in range(found)]
    assert blocks, "the compiler put no calls into the kernel"
    operations = block_operations(path)
    assert operations is not None
    return total(operations, blocks)


@pytest.mark.parametrize("n", [1, 7, 1000])
@pytest.mark.parametrize(
    ("name", "flops", "special"),
    [
        ("axpy", lambda n: 2 * n, lambda n: 0),
        ("softmax_row", lambda n: 2 * n + 2 * n, lambda n: 2 * n),
        ("half_of_them", lambda n: 2 * (n // 2), lambda n: 0),
        ("roots", lambda n: n, lambda n: n),
        ("fused", lambda n: 2 * n, lambda n: 0),
    ],
)
def test_counts_of_known_kernels(library, name, flops, special, n):
    assert counted(library, name, n) == Operations(flops(n), special(n))


def test_double_precision_counts_like_single(library):
    assert counted(library, "doubles", 100, np.float64) == Operations(200, 0)


@pytest.mark.parametrize(
    ("instruction", "flops", "special"),
    [
        ("addss  %xmm1,%xmm0", 1, 0),
        ("subsd  (%rax),%xmm0", 1, 0),
        ("mulps  %xmm1,%xmm0", 4, 0),
        ("divpd  %xmm1,%xmm0", 2, 0),
        ("vaddps %ymm2,%ymm1,%ymm0", 8, 0),
        ("vmulps %zmm2,%zmm1,%zmm0", 16, 0),
        ("vfmadd231ss %xmm2,%xmm1,%xmm0", 2, 0),
        ("vfnmadd132ps %ymm2,%ymm1,%ymm0", 16, 0),
        ("sqrtss %xmm0,%xmm0", 0, 1),
        ("fadd   s0, s0, s1", 1, 0),
        ("fmadd  s0, s1, s2, s0", 2, 0),
        ("fmul   v0.4s, v0.4s, v1.4s", 4, 0),
        ("fmla   v0.2d, v1.2d, v2.2d", 4, 0),
        ("fsqrt  d0, d0", 0, 1),
        ("call   1040 <expf@plt>", 0, 1),
        ("bl     1040 <exp2f@plt>", 0, 1),
        ("call   1040 <__expf_finite@plt>", 0, 1),
        ("call   1040 <fmaf@plt>", 2, 0),
        ("call   1040 <fmaxf@plt>", 0, 0),
        ("call   1040 <sqrtf@plt>", 0, 0),  # called only for a negative number; the sqrtss before it counts
        ("maxss  %xmm1,%xmm0", 0, 0),
        ("cvtsi2ss %eax,%xmm0", 0, 0),
        ("add    $0x4,%rax", 0, 0),
        ("subq   $0x8,%rsp", 0, 0),
        ("addsubps %xmm1,%xmm0", 0, 0),
        ("fcmp   s0, s1", 0, 0),
    ],
)
def test_instructions(instruction, flops, special):
    mnemonic, operands = instruction.split(None, 1)
    assert operations_of(mnemonic, operands) == Operations(flops, special)


def test_a_block_ends_at_the_next_one_and_where_control_leaves_it():
    text = """
0000000000001000 <kernel>:
    1000:\tmulss  %xmm1,%xmm0
    1004:\tcall   2000 <__sanitizer_cov_trace_pc>
    1009:\taddss  %xmm1,%xmm0
    100d:\tcall   3000 <expf@plt>
    1012:\tjne    1004 <kernel+0x4>
    1014:\taddss  %xmm1,%xmm0        # 2000 <table>
    1018:\tjmp    1030 <kernel+0x30>
    101a:\tdivss  %xmm1,%xmm0
    101e:\tcall   2000 <__sanitizer_cov_trace_pc>
    1023:\tcall   2000 <__sanitizer_cov_trace_pc>
    1028:\tmulss  %xmm1,%xmm0
    102c:\tjne    1038 <kernel+0x38>
    102e:\tsqrtss %xmm0,%xmm0
    1032:\tjmp    1040 <kernel+0x40>
    1034:\tdivss  %xmm1,%xmm0
    1038:\tcall   3010 <logf@plt>
    103d:\tnopl   (%rax)
    1040:\taddss  %xmm1,%xmm0

0000000000001100 <next>:
    1100:\tmulss  %xmm1,%xmm0
"""
    found = read_disassembly(text.splitlines())
    assert found == {0x1009: Operations(2, 1), 0x1028: Operations(2, 2)}
    assert total(found, [[0x1009, 10], [0x1028, 3], [0x9999, 5]]) == Operations(26, 16)
    assert total(found, []) == NOTHING


def test_code_belongs_to_the_block_that_jumps_back_to_it():
    lines = """\
0000000000001000 <f>:
    1000:\tcall   5000 <__sanitizer_cov_trace_pc>
    1005:\tjmp    1020 <f+0x20>
    100a:\tcall   6000 <__ubsan_handle_out_of_bounds_abort>
    1010:\taddss  %xmm1,%xmm0
    1014:\tret
    1020:\tmulss  %xmm1,%xmm0
    1024:\tjmp    1010 <f+0x10>
    1026:\tdivss  %xmm1,%xmm0
"""
    assert read_disassembly(lines.splitlines()) == {0x1005: Operations(2)}


def test_a_block_in_aarch64_code():
    text = """
0000000000001000 <kernel>:
    1000:\tbl\t2000 <__sanitizer_cov_trace_pc>
    1004:\ttbz\tw0, #0, 1014 <kernel+0x14>
    1008:\tfmadd\ts0, s1, s2, s0
    100c:\tldr\ts0, [x1, #4]\t// comment
    1010:\tb\t1020 <kernel+0x20>
    1014:\tfadd\ts0, s0, s1
    1018:\tret
    101c:\tfadd\ts0, s0, s1
"""
    assert read_disassembly(text.splitlines()) == {0x1004: Operations(3, 0)}
