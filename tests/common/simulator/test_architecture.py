"""How code under __CUDA_ARCH__ conditions is handled; features/architecture.cu runs such code."""

import re

import pytest

from common.simulator import rewriter

PTX = 'asm("no.such.instruction;");'


def rewritten(text: str) -> str:
    return rewriter.rewrite(text, "student.cu").split('#line 1 "student.cu"\n')[1]


@pytest.mark.parametrize(
    "function",
    [
        "__global__ void k() {{\n{}\n}}\n",
        "__device__ void f() {{\n{}\n}}\n",
        "struct S {{ __device__ void f() {{\n{}\n}} }};\n",
        "int main() {{ run([=] __device__ (int i) {{\n{}\n}}); }}\n",
    ],
)
def test_device_code_takes_what_a_gpu_takes(function):
    for condition in ("#if __CUDA_ARCH__ < 700", "#ifndef __CUDA_ARCH__", "#if __CUDA_ARCH__ >= 900"):
        text = function.format(f"{condition}\n{PTX}\n#endif")
        assert rewritten(text) == text
    for condition in ("#if __CUDA_ARCH__ >= 700", "#ifdef __CUDA_ARCH__", "#if defined __CUDA_ARCH__ && 1"):
        with pytest.raises(rewriter.RewriteError, match=r"^student.cu:3: .*no\.such"):
            rewritten(function.format(f"{condition}\n{PTX}\n#endif"))


def test_host_code_takes_what_the_host_takes():
    text = "int main() {{\n#{}\n  a();\n#elif {}\n  b();\n#endif\n}}\n"
    asked = text.format("ifdef __CUDA_ARCH__", "!defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 1")
    assert rewritten(asked) == text.format("if 0", "!0 && 0 < 1")
    assert rewritten(f"int main() {{\n#ifdef __CUDA_ARCH__\n{PTX}\n#endif\n}}\n").count(PTX) == 1  # not rejected


@pytest.mark.parametrize("head", ["__host__ __device__ int f()", "HD int f()", "constexpr int f()"])
def test_a_function_of_both_has_both_bodies(head):
    text = f"{head} {{\n#ifdef __CUDA_ARCH__\n  return 1;\n#else\n  return 2;\n#endif\n}}\nint g;\n"
    lines = rewritten(text).split("\n")
    assert lines[0] == f"{head} {{ if (::simulator::runs_on_device()) {{"
    assert lines[6:9] == ["}", "#line 1", "else {"]  # the next line is line 2 again
    assert lines[9] == "#if 0" and lines[14:16] == ["} }", "int g;"]


def test_lines_go_on_where_the_two_bodies_are_left_out():
    both = "HD int f() {\n#ifdef __CUDA_ARCH__\n  return 1;\n#else\n  return 2;\n#endif\n}\n"
    new = rewritten(f"#ifdef OTHER\n{both}#else\nint g;\n#endif\nint h;\n")
    assert new.endswith("#else\n#line 10\nint g;\n#endif\n#line 12\nint h;\n") and new.count("return 1") == 2
    text = f"#ifndef CUDA_SIMULATOR\n{both}#endif\nint h;\n"  # certainly excluded
    assert rewritten(text) == text


def test_a_condition_that_all_answer_alike_changes_nothing():
    text = (
        "__host__ __device__ int f() {\n#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 700\n  return 1;\n#endif\n}\n"
    )
    assert rewritten(text) == text
    text = "__host__ __device__ void f() {\n#if __CUDA_ARCH__ >= 900\nasm(x);\n#endif\n}\n"  # called by no function
    assert rewritten(text) == text


def test_outside_of_functions_the_device_decides():
    text = f"#if __CUDA_ARCH__ < 600\n__device__ double atomicAdd(double* p) {{ {PTX} }}\n#endif\n"
    assert rewritten(text) == text
    text = "#ifndef __CUDA_ARCH__\n#include <vector>\nint host() { return 1; }\n#endif\n"
    assert rewritten(text) == text.replace("ifndef __CUDA_ARCH__", "if 1")


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "int a;\n#ifdef __CUDA_ARCH__\n__device__ int f() { return 1; }\n#else\nint f() { return 2; }\n#endif\n",
            "lines 5 to 5 are for the host",
        ),
        (
            "int a;\n#if __CUDA_ARCH__ >= 700\n#define N 1\n#else\n#define N 2\n#endif\nint main() { return N; }\n",
            r"main\(\) runs on the host and uses N, whose definition for the host is left out",
        ),
    ],
)
def test_what_cannot_be_right_is_warned_of(text, said):
    new = rewritten(text)
    before, rest = new.split("#pragma GCC warning ")
    warning, rest = rest.split("\n", 1)
    assert before == "int a;\n" and rest.startswith("#line 2\n#if") and text.endswith(rest.split("\n", 1)[1])
    assert re.search(said, warning)


def test_macros_that_only_the_device_uses_give_no_warning():
    text = "#if __CUDA_ARCH__ >= 700\n#define N 1\n#else\n#define N 2\n#endif\n__device__ int f() { return N; }\n"
    assert "GCC warning" not in rewritten(text + "int main() { return 0; }\n")
