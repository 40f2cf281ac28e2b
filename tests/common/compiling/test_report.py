"""What compilers print, in the order a student needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.compiling import report as compile_report

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
    text = compile_report.explain_failure(GCC, OWN, Path("/course/build/compile.log"))
    first, rest = text.split("\n", 1)
    assert first == "/course/task2/attention_kernel.cu:41: error: 'sum' was not declared in this scope"
    assert "sum += x" in rest and "suggested alternative" in rest
    assert rest.index("thing.h:7") > rest.index("sum += x")
    assert "compile.log" in rest and "FAILED" not in text and "-MMD" not in text


def test_nvcc_errors_are_read_too():
    text = compile_report.explain_failure(NVCC, OWN, Path("log"))
    assert text.startswith('/course/task2/attention_kernel.cu:57: error: identifier "tile" is undefined')
    assert "tile[0]" in text


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
    text = compile_report.explain_failure(words, OWN, Path("log"))
    assert "no definition of softmax(float const*)" in text


def test_kernel_table():
    softmax, flash = compile_report.kernel_resources(PTXAS)
    assert (softmax.name, softmax.registers, softmax.shared, softmax.spill_stores) == ("softmax_kernel", 32, 1024, 0)
    assert flash.name.startswith("flash_kernel<64") and flash.arch == "sm_90a"
    assert (flash.registers, flash.stack, flash.spill_stores, flash.spill_loads) == (255, 8, 16, 24)
