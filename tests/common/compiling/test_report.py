"""Compiler output, in the order a student needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.compiling import report as compile_report
from common.compiling.errors import explain_failure, unbalanced

GCC = """\
[1/3] c++ -MMD -MF x.o.d -c kernel.cu.cpp -o kernel.o
FAILED: kernel.o
In file included from /usr/include/thing.h:3:
/usr/include/thing.h:7:3: error: something deep in a header
    7 |   deep;
/course/task2/attention_kernel.cu: In function 'void softmax()':
/course/task2/attention_kernel.cu:41:9: error: 'sum' was not declared in this scope
   41 |         sum += x;
      |         ^~~
/course/task2/attention_kernel.cu:41:9: note: suggested alternative: 'num'
/course/task2/attention_kernel.cu:50:5: warning: unused variable 'n' [-Wunused-variable]
ninja: build stopped: subcommand failed.
"""
NVCC = """\
/course/task2/attention_kernel.cu(57): error: identifier "tile" is undefined
      float x = tile[0];
                ^

1 error detected in the compilation of "/course/task2/attention_kernel.cu".
"""
PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z14softmax_kernelPKfPfi' for 'sm_90a'
ptxas info    : Function properties for _Z14softmax_kernelPKfPfi
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compiling entry function '_Z12flash_kernelILi64ELb1EEvPKf' for 'sm_90a'
ptxas info    : Function properties for _Z12flash_kernelILi64ELb1EEvPKf
    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""
OWN = [Path("/course/task2/attention_kernel.cu")]


def test_the_students_own_lines_come_first():
    text = explain_failure(GCC, OWN, Path("/course/build/compile.log"))
    first, rest = text.split("\n", 1)
    assert first == "/course/task2/attention_kernel.cu:41: error: 'sum' was not declared in this scope"
    assert "sum += x" in rest and "^~~" in rest and "suggested" not in rest, "three lines for an error"
    assert rest.index("thing.h:7") > rest.index("sum += x")
    assert "compile.log" in rest and "FAILED" not in text and "-MMD" not in text


def test_nvcc_errors_are_read_too():
    text = explain_failure(NVCC, OWN, Path("log"))
    assert text.startswith('/course/task2/attention_kernel.cu:57: error: identifier "tile" is undefined')
    assert "tile[0]" in text


SOURCE = """\
#define TWICE(x) \\
    { x; x; }
namespace course {
template <typename T>
__global__ void scale(const T* x, float* y, int n) {
    if (threadIdx.x < n) {
        y[threadIdx.x] = x->size;
    }
}

void launch_scale(const float* x, float* y, int n) {
    scale<<<1, n>>>(
        y, x);
}
}  // namespace course
"""


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "kernel.cu"
    file.write_text(SOURCE)
    return file


def test_an_error_inside_a_template_takes_three_lines_and_is_told_once(source):
    """g++ repeats it for each type, preceded by the instantiation context."""
    log = "".join(
        f"{source}: In instantiation of 'void scale(const T*, float*, int) [with T = {kind}]':\n"
        f"{source}:12:10:   required from 'launch_scale()::<lambda(auto:15 ...)>'\n"
        f"/course/common/simulator/include/simulator/language.h:152:37:   required from 'operator()'\n"
        f"{source}:7:29: error: '{kind}' has no member named 'size'\n"
        f"    7 |         y[threadIdx.x] = x->size;\n      |                          ~~~^~~~\n"
        for kind in ("simulator::Float16<simulator::Fp16Format>", "float")
    )
    assert explain_failure(log, [source], Path("log")).splitlines() == [
        f"{source}:7: error: '__half' has no member named 'size'",
        "    7 |         y[threadIdx.x] = x->size;",
        "      |                          ~~~^~~~",
        "(the compiler's whole output: log)",
    ]


def test_an_error_in_a_header_stands_at_the_line_that_led_there(source):
    log = (
        f"In file included from {source}:1:\n/course/common/cuda/warp.h: In instantiation of 'T warp_max(T)':\n"
        f"{source}:7:10:   required from here\n/course/common/cuda/warp.h:9:3: error: no match for 'operator<'\n"
        "    9 |   a < b\n      |   ~~^~~\n"
    )
    told = explain_failure(log, [source], Path("log")).splitlines()
    assert told[0] == f"{source}:7: error: no match for 'operator<' (in /course/common/cuda/warp.h:9)"
    assert told[1] == "    7 |         y[threadIdx.x] = x->size;"


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (
            "/x/common/simulator/include/simulator/language.h:176:71: error: no matching function for call to 'scale("
            "float*&, const float*&)'\n  176 |  SIMULATOR_NAME(__VA_ARGS__)\n{source}:12:10: note: in expansion of "
            "macro 'SIMULATOR_KERNEL'\n   12 |    scale<<<1, n>>>(\n{source}:5:17: note: candidate: 'void scale(T*)'\n",
            "12: error: scale is called with 2 arguments where it takes 3",
        ),
        (
            '{source}(12): error: no instance of function template "scale" matches the argument list\n',
            "12: error: scale",
        ),
        ("{source}(13): error: too few arguments in function call\n", "13: error: scale is called with 2 arguments"),
    ],
)
def test_a_kernel_call_says_what_the_kernel_takes(source, log, says):
    told = explain_failure(log.replace("{source}", str(source)), [source], Path("log")).splitlines()
    assert told[0].startswith(f"{source}:{says}")
    assert told[1:3] == ["    takes: const T* x, float* y, int n", "    given: y, x"]


def test_another_error_in_a_kernel_call_is_told_as_it_is(source):
    told = explain_failure(f"{source}:13:9: error: 'z' was not declared in this scope\n", [source], Path("log"))
    assert told.startswith(f"{source}:13: error: 'z' was not declared in this scope\n(the compiler's")


def test_a_missing_brace_points_at_the_function_that_was_not_closed(source):
    assert unbalanced(source) == ""
    source.write_text(SOURCE.replace("    }\n}\n\nvoid", "    }\n\nvoid"))
    log = f"{source}:10:70: error: a function-definition is not allowed here before '{{' token\n" * 9
    told = explain_failure(log, [source], Path("log")).splitlines()
    assert told[0] == (
        f"{source}:5: error: scale() is never closed: it lacks a }} before line 10, where the next function begins"
    )
    assert len(told) == 3


def test_a_brace_too_many_points_at_the_one_that_closes_the_function(source):
    source.write_text(SOURCE.replace("x->size;\n    }\n", "x->size;\n    }\n    }\n"))
    assert unbalanced(source).startswith(
        f"{source}:9: error: this }} closes scale(), which begins in line 5: there is one }} too many"
    )


def test_warnings_in_the_students_file():
    assert len(compile_report.own_warnings(GCC, OWN)) == 1
    assert compile_report.own_warnings(GCC, [Path("/other.cu")]) == []


@pytest.mark.parametrize(
    "words",
    [
        "kernel.so: undefined symbol: softmax(float const*)",
        "/usr/bin/ld: binding.o: in function `op':\nbinding.cpp:9: undefined reference to `softmax(float const*)'",
    ],
)
def test_a_missing_definition_names_the_symbol(words):
    text = explain_failure(words, OWN, Path("log"))
    assert "no definition of softmax(float const*)" in text


def test_kernel_table():
    softmax, flash = compile_report.kernel_resources(PTXAS)
    assert (softmax.name, softmax.registers, softmax.shared, softmax.spill_stores) == ("softmax_kernel", 32, 1024, 0)
    assert flash.name.startswith("flash_kernel<64") and flash.arch == "sm_90a"
    assert (flash.registers, flash.stack, flash.spill_stores, flash.spill_loads) == (255, 8, 16, 24)
