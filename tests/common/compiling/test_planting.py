"""The tool that plants mistakes: a version selected by number behaves exactly as its replacement alone would."""

import subprocess

import pytest
from planted import SWITCH, places, switched_texts

from common.compiling import toolchain

# The planted mistake is selected on the command line here
PROGRAM = """\
#include <cstdio>
#include <cstdlib>
extern "C" void plant(int);
int main(int, char** arguments) {
    plant(atoi(arguments[1]));
    int sum = 1;
    for (int i = 0; i < 4; ++i) sum += i * 2;
    sum += 100;
    if (sum > 5000) sum = 0;
    printf("%d", sum);
}
"""
MISTAKES = [
    [("i * 2", "i * 3", 1)],
    [("sum += i * 2;", "sum = i * 2;", 1)],  # contains the first one
    [("sum += 100;", "", 1), ("i < 4", "i < 3", 1)],
    [("i * 2", "0", 1)],
    [("«sum += 100;»\n    if", "sum += 1000;\n    sum *= 2;", 1)],
    [("if (sum > 5000) sum = 0;", "sum = 1;", 1)],  # inside the next one, and ends differently
    [("sum += 100;\n    if (sum > 5000) sum = 0;", ";", 1)],
]


def test_each_number_chooses_its_mistake(tmp_path):
    names = "#define CUDA_SIMULATOR\n#define __host__\n#define __device__\n"
    (tmp_path / "program.cpp").write_text(names + switched_texts([PROGRAM], MISTAKES)[0])
    program = tmp_path / "program"
    subprocess.run([toolchain.host_compiler(), tmp_path / "program.cpp", "-o", program], check=True)
    said = [int(subprocess.check_output([program, str(number)])) for number in range(len(MISTAKES) + 1)]
    assert said == [113, 119, 106, 7, 101, 2026, 1, 13]


def test_what_does_not_stand_there_as_often_as_it_should_is_refused():
    with pytest.raises(AssertionError, match="'sum' occurs 6 times in the solution, not 1"):
        switched_texts([PROGRAM], [[("sum", "total", 1)]])
    assert places(PROGRAM, ("sum += «100»;", "", 1)) == [(PROGRAM.index("100"), PROGRAM.index("100") + 3)]


def test_a_header_is_switched_with_its_source():
    header, source = switched_texts(["a = 1;", "b = 2;"], [[("a = 1;", "a = 3;", 1)], [("2", "4", 1)]])
    assert "planted(1)" in header and "a = 3;" in header and SWITCH not in header
    assert source == SWITCH + "b = (planted(2) ? (4) : (2));"


def test_two_texts_that_overlap_are_refused():
    with pytest.raises(ValueError, match="overlap"):
        switched_texts([PROGRAM], [[("sum += i", "", 1)], [("i * 2;", "", 1)]])
