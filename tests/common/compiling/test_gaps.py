"""Which unfilled gaps an operator reaches."""

from __future__ import annotations

import pytest

from common.compiling.gaps import find_gaps, gaps_of_operator, python_gaps, with_own_headers

KERNELS = """\
#include "common/cuda/not_implemented.h"
// NOT_IMPLEMENTED(); in a comment is no gap, nor is "NOT_IMPLEMENTED()" in a string
namespace {
template <int TILE>
__global__ void gemm_kernel(const float* a, int n) {
    if (n > 0) { NOT_IMPLEMENTED(); }
}
__device__ float helper(float x) { return x; }
__global__ void __launch_bounds__(256) softmax_kernel(const float* x) {
    const char* text = "NOT_IMPLEMENTED()";
    helper(*x);
}
}  // namespace
struct Tile { int rows; };
void launch_gemm(const float* a) { gemm_kernel<32><<<1, 32>>>(a, 1); }
void launch_softmax(const float* x) { softmax_kernel<<<1, 32>>>(x); }
void custom_attention(const float* q) {
    launch_softmax(q);
    launch_gemm(q);
    NOT_IMPLEMENTED();
}
"""
BINDING = """\
Tensor softmax(Tensor x) { launch_softmax(data(x)); return x; }
Tensor gemm(Tensor x) { launch_gemm(data(x)); return x; }
Tensor attention_op(Tensor x) { custom_attention(data(x)); return x; }
TASK_KERNELS(m) {
    m.impl("softmax", TORCH_BOX(&softmax));
    m.impl("gemm", TORCH_BOX(&gemm));
    m.impl("attention", TORCH_BOX(&attention_op));
}
"""


@pytest.fixture
def sources(tmp_path):
    kernels, binding = tmp_path / "kernels.cu", tmp_path / "binding.cpp"
    kernels.write_text(KERNELS)
    binding.write_text(BINDING)
    return [kernels, binding]


def test_finds_every_marker_with_its_line_and_function(sources):
    assert [(gap.line, gap.function) for gap in find_gaps(sources)] == [(6, "gemm_kernel"), (20, "custom_attention")]


@pytest.mark.parametrize(
    ("operator", "lines"), [("softmax", []), ("gemm", [6]), ("attention", [6, 20]), ("unknown", [6, 20])]
)
def test_an_operator_depends_on_what_it_reaches(sources, operator, lines):
    assert [gap.line for gap in gaps_of_operator(operator, sources)] == lines


def test_a_filled_gap_is_no_gap(sources):
    sources[0].write_text(KERNELS.replace("{ NOT_IMPLEMENTED(); }", "{ a += 1; }"))
    assert gaps_of_operator("gemm", sources) == []


def test_a_gap_in_python_has_its_line_and_innermost_function(tmp_path):
    file = tmp_path / "layer.py"
    file.write_text(
        "class Layer:\n    def forward(self):\n        raise NotImplementedError('TODO')\n\n\n"
        "def outer():\n    def inner():\n        raise NotImplementedError\n    raise ValueError\n"
    )
    assert [(gap.line, gap.function) for gap in python_gaps(file)] == [(3, "forward"), (8, "inner")]
    file.write_text("def broken(:")
    assert python_gaps(file) == [] and python_gaps(tmp_path / "missing.py") == []


def test_headers_beside_a_source_are_read_with_it(tmp_path):
    """By bare name only, once, even if two sources or headers include them, or each other."""
    (tmp_path / "rows.cuh").write_text('#include "tiles.cuh"\n__device__ int row() { return 1; }\n')
    (tmp_path / "tiles.cuh").write_text(
        '#include "rows.cuh"\n__device__ void load_tile(int n) {\n    NOT_IMPLEMENTED();\n}\n'
    )
    (tmp_path / "other.cuh").write_text("__device__ void other() { NOT_IMPLEMENTED(); }\n")
    first, second, binding = tmp_path / "first.cu", tmp_path / "second.cu", tmp_path / "binding.cpp"
    first.write_text('#include "tiles.cuh"\n#include "common/other.cuh"\nvoid run_gemm() { load_tile(1); }\n')
    second.write_text('  #  include "tiles.cuh"\n#include "missing.cuh"\nvoid run_softmax() { row(); }\n')
    binding.write_text(
        "void gemm() { run_gemm(); }\nvoid softmax() { run_softmax(); }\n"
        'm.impl("gemm", TORCH_BOX(&gemm)); m.impl("softmax", TORCH_BOX(&softmax));\n'
    )
    sources = [first, second, binding]
    names = [file.name for file in with_own_headers(sources)]
    assert names == ["rows.cuh", "tiles.cuh", "first.cu", "second.cu", "binding.cpp"]
    assert [(gap.file.name, gap.line, gap.function) for gap in find_gaps(sources)] == [("tiles.cuh", 3, "load_tile")]
    assert [gap.line for gap in gaps_of_operator("gemm", sources)] == [3]
    assert gaps_of_operator("softmax", sources) == []
