"""The rewriter's own behavior: files, lines, what it rejects, and what it doesn't redo."""

import os
import subprocess
import sys

import pytest

from common.simulator import rewriter


def rewritten(text: str) -> str:
    return rewriter.rewrite(text, "student.cu")


def test_lines_keep_their_numbers():
    text = (
        "__global__ void k(int* p) {\n  __shared__ int a[3],\n    b;\n  p[0] = 1;\n}\n"
        "#define RUN(n) \\\n  k<<<1, \\\n    n>>>(0, \\\n    p)\n"
        "void f(int* p) {\n  k<<<\n  1,\n  1\n>>>(\n p);\n}\n"
    )
    result = rewritten(text).split("\n", 2)
    assert result[1] == '#line 1 "student.cu"'
    lines, original = result[2].split("\n"), text.split("\n")
    assert len(lines) == len(original)
    assert lines[3] == original[3] and lines[9] == original[9]
    for i, line in enumerate(original):  # a macro's continued lines stay continued
        assert line.endswith("\\") == lines[i].endswith("\\")


def test_comments_and_strings_are_left_alone():
    text = (
        '// k<<<1, 2>>>(x); __shared__ int a;\nconst char* s = "k<<<1, 2>>>(x) __shared__ int b; asm(";\n'
        'auto r = R"(k<<<1, 2>>>(x))"; char c = \'"\'; int n = 1\'000; /* asm volatile("bar"); */\n'
    )
    assert rewritten(text).endswith(text)


def test_a_launch_keeps_its_kernels_text():
    kernel = "k<'r', sizeof(\"a  b\"), // why\n 2>"
    assert f"SIMULATOR_KERNEL({kernel}), 1, 2)(p)" in rewritten(f"void f(int* p) {{ {kernel}<<<1, 2>>>(p); }}")


@pytest.mark.parametrize(
    "statement, said",
    [
        ('asm("tcgen05.mma %0;" :: "r"(1));', "the simulator does not know the PTX instruction tcgen05.mma"),
        ('asm("bar.red.popc.u32 q, 1, 64, p;");', "the simulator does not know the PTX instruction bar.red.popc.u32"),
        ('asm("add.s32 %0, %1, %3;" : "=r"(x) : "r"(y));', "add.s32 names operand %3, but there are 2"),
        ('asm("add.s32 q, 1, 2;");', "add.s32: q is no register that this asm statement declares"),
        ('asm("bra nowhere;");', "the simulator does not know the PTX instruction bra"),
        ('asm("add.u32 %0, %1;" : "=r"(x) : "r"(y));', "cannot read the operands of add.u32 %0, %1"),
        ('asm("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {q}, %0, %0, p, 1, 1, 0, 0;" :: "l"(y));', "wgmma"),
        ('asm("ld.global.s32 %0, [%1, 4];" : "=r"(x) : "l"(y));', r"ld.global.s32: cannot read the address \[%1, 4\]"),
        ("asm(x);", "cannot read this asm statement"),
    ],
)
def test_unknown_inline_ptx_is_refused_with_its_line(statement, said):
    with pytest.raises(rewriter.RewriteError, match=rf"^student.cu:3: {said}"):
        rewritten(f"#include <x>\n__device__ void f() {{\n  {statement}\n}}\n")


def test_inline_ptx_keeps_the_lines():
    statement = '  asm volatile("add.s32 %0, %0, 1;\\n\\t"\n    "mov.u32 %0, %0;"\n    : "+r"(x)::"memory");\n'
    text = f"void f(int& x) {{\n{statement}  g();\n}}\n"
    lines = rewritten(text).split('#line 1 "student.cu"\n')[1].splitlines()
    assert lines[4] == "  g();" and "ptx0_" in lines[1] and not lines[2].strip()


@pytest.mark.parametrize(
    "text, said",
    [
        ("#include <thrust/sort.h>\n", "has no Thrust"),
        ('#include "cublas_v2.h"\n', "has no cuBLAS"),
        ("#include <curand_kernel.h>\n", "has no cuRAND"),
        ("\n__global__ void k(cudaTextureObject_t t) {}\n", "has no textures"),
        ("\ntemplate <int A> extern __shared__ char s[];\n", "has no __shared__ templates"),
    ],
)
def test_what_is_not_there_says_so(text, said):
    with pytest.raises(rewriter.RewriteError, match=rf"^student.cu:{1 if text[0] == '#' else 2}: the simulator {said}"):
        rewritten(text)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("dim3 blockDim(16, 16), gridDim(a); f(blockDim.x);", "dim3 blockDim_(16, 16), gridDim_(a); f(blockDim_.x);"),
        (
            "void f(dim3 gridDim) { g(gridDim); } int x = gridDim.x;",
            "void f(dim3 gridDim_) { g(gridDim_); } int x = gridDim.x;",
        ),
        (
            "{ const dim3 &blockDim = b; g(blockDim); } g(blockDim);",
            "{ const dim3 &blockDim_ = b; g(blockDim_); } g(blockDim);",
        ),
        ("c.gridDim = 4; p->blockDim = 5;", "c.gridDim_ = 4; p->blockDim_ = 5;"),
        (
            "i = b * blockDim.x + threadIdx.x; return blockDim.y;",
            "i = b * blockDim.x + threadIdx.x; return blockDim.y;",
        ),
        ("int i = blockIdx.x, j = f(blockDim);", "int i = blockIdx.x, j = f(blockDim);"),
        ("unsigned mine(threadIdx.x);", "unsigned mine(threadIdx.x);"),
    ],
)
def test_variables_called_like_cudas_own(text, expected):
    assert rewritten(f"void h() {{ {text} }}\n").endswith(f"void h() {{ {expected} }}\n")


def test_barriers_on_one_line_are_numbered():
    text = rewritten("void f() { if (a) __syncthreads(); else __syncthreads_or(b); __syncwarp(); }\n__syncthreads();\n")
    assert "here_number(1)); else __syncthreads_or(b, ::simulator::here_number(2)); __syncwarp();" in text
    assert text.endswith("\n__syncthreads();\n")


def test_a_shared_union():
    text = rewritten("__global__ void k() { __shared__ union { int a; float b; } both; both.a = 1; }\n")
    assert "union { int a; float b; } both; };" in text and "auto& both" in text


@pytest.mark.parametrize(
    "condition",
    [
        "#ifndef CUDA_SIMULATOR",
        "#if !defined(CUDA_SIMULATOR)",
        "#if !defined CUDA_SIMULATOR && 1",
        "#if __CUDA_ARCH__ >= 900",
        "#ifndef __CUDACC__",
    ],
)
def test_inline_ptx_for_the_gpu_only(condition):
    text = f'{condition}\nvoid f() {{ asm("x"); }}\n#endif\n'
    assert rewritten(text).endswith(text)
    with pytest.raises(rewriter.RewriteError):
        rewritten(text.replace("#endif", '#else\nvoid g() { asm("y"); }\n#endif'))


def test_inline_ptx_behind_nested_conditions():
    inner = "#if OTHER\n{}\n#else\n{}\n#endif"
    for before, after in (("", ""), ('asm("x");', ""), ("", 'asm("x");')):
        for_the_gpu = inner.format(before, after)
        text = f"#ifdef CUDA_SIMULATOR\nint x;\n{inner.format('', '')}\n#else\n{for_the_gpu}\n#endif\n"
        assert rewritten(text).endswith(text)
        if before or after:
            with pytest.raises(rewriter.RewriteError):
                rewritten(f"#ifdef CUDA_SIMULATOR\n{for_the_gpu}\n#endif\n")


def test_a_condition_that_holds_ends_the_others():
    rewritten('#if defined(CUDA_SIMULATOR)\n#elif 1\nvoid f() { asm("x"); }\n#else\nasm("y");\n#endif\n')


def test_unreadable_source_is_refused_with_its_line():
    with pytest.raises(rewriter.RewriteError, match=r"^student.cu:2: cannot read this launch"):
        rewritten("void f() {\n  k<<<1, 2>>>;\n}\n")
    with pytest.raises(rewriter.RewriteError, match=r"^student.cu:2: .*initializer"):
        rewritten("__global__ void k() {\n  __shared__ int a = 3;\n}\n")


def test_noinline_and_unrolling():
    assert "__attribute__((noinline)) int f();" in rewritten("__noinline__ int f();")
    assert "#pragma GCC unroll 4\n" in rewritten("#pragma unroll 4 // four\nfor (;;);\n")
    assert "#pragma GCC unroll 32\n" in rewritten("  #pragma unroll\nfor (;;);\n")


def test_headers_are_mirrored_and_written_only_when_they_change(tmp_path):
    includes = '#include <math.h>\n#include "mine.cuh"\n#include "common/tile.cuh"\n#include "cuda.h"\n'
    project, student, out = tmp_path / "project", tmp_path / "student", tmp_path / "out"
    for path, text in {
        project / "common" / "tile.cuh": '#pragma once\n#include "../other/deep.h"\n',
        project / "other" / "deep.h": "__device__ void deep() { __shared__ int d[4]; d[0] = 0; }\n",
        student / "mine.cuh": "__noinline__ void mine();\n",
        student / "kernel.cu": includes,
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = rewriter.translate(student / "kernel.cu", out, [project])
    assert result.path == out / "kernel.cu.cpp"
    names = [str(path.relative_to(tmp_path)) for path in result.inputs]
    assert sorted(names) == [
        "project/common/tile.cuh", "project/other/deep.h", "student/kernel.cu", "student/mine.cuh",
    ]  # fmt: skip
    assert "shared_variable" in (out / "other" / "deep.h").read_text()
    assert "noinline" in (out / "mine.cuh").read_text()
    text = result.path.read_text()
    assert f'#include "{out}/mine.cuh"' in text and '#include "cuda.h"' in text and "#include <math.h>" in text
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    rewriter.translate(student / "kernel.cu", out, [project])
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before
    (student / "mine.cuh").write_text("__noinline__ int mine();\n")
    rewriter.translate(student / "kernel.cu", out, [project])
    changed = [path.name for path, when in before.items() if path.stat().st_mtime_ns != when]
    assert changed == ["mine.cuh"]


REWRITTEN = """
import sys
from pathlib import Path
from common.compiling.objects import kept_text
from common.simulator import rewriter
rewrite, names = rewriter.rewrite, []
rewriter.rewrite = lambda text, name, *more: names.append(Path(name).name) or rewrite(text, name, *more)
rewriter.translate(Path(sys.argv[1]), Path(sys.argv[2]), keep=kept_text)
print(*names)
"""


def test_no_other_process_and_no_other_build_rewrites_what_one_has_rewritten(tmp_path):
    header = tmp_path / "mine.cuh"
    header.write_text("__noinline__ void mine();\n")
    (tmp_path / "kernel.cu").write_text('#include "mine.cuh"\n')

    def rewritten(build: str) -> list[str]:
        """What a separate process rewrites for this build."""
        command = [sys.executable, "-c", REWRITTEN, tmp_path / "kernel.cu", tmp_path / build]
        environment = os.environ | {"ATTENTION_CACHE_DIR": str(tmp_path / "cache")}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    assert rewritten("first") == ["kernel.cu", "mine.cuh"]
    assert rewritten("first") == rewritten("second") == []
    header.write_text("__noinline__ int mine();\n")
    assert rewritten("second") == ["mine.cuh"]
    assert "noinline)) int mine" in (tmp_path / "second" / "mine.cuh").read_text()
    assert "noinline)) void mine" in (tmp_path / "first" / "mine.cuh").read_text()
    assert f'"{tmp_path}/second/mine.cuh"' in (tmp_path / "second" / "kernel.cu.cpp").read_text()
    assert rewritten("first") == []


def test_a_kernel_asks_for_its_launch_bounds():
    text = "template <int A, int B>\n__global__ void __launch_bounds__(max(A,\n B), 2) k(int* p) {\n*p = A; }\n"
    assert " k(int* p) { ::simulator::keep_launch_bounds(max(A, B));\n*p = A; }" in rewriter.rewrite(text, "student.cu")
    other = "__global__ void __launch_bounds__(64) declared(int* p);\n__global__ void none(int* p) {}\n"
    assert "keep_launch_bounds" not in rewriter.rewrite(other, "student.cu")


def test_declared_clusters_are_registered():
    result = rewriter.rewrite("__global__ void __cluster_dims__(2) k(int* p) {}\n", "student.cu")
    assert 'ClusterDims simulator_cluster_k("k", {2, 1, 1})' in result
    both = "__global__ void __launch_bounds__(64) __cluster_dims__(1, 4, 1) other(const float* (&x)[2]) {}\n"
    assert '("other", {1, 4, 1})' in rewriter.rewrite(both, "student.cu")
    assert "ClusterDims" not in rewriter.rewrite("__global__ void k(int* p) {}\n", "student.cu")
