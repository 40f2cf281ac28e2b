"""Addresses in a library -> lines of the student's file, through inlined functions, skipping the simulator's own."""

import re
import shutil
import subprocess
from itertools import pairwise

import pytest

from common.inspect.source_lines import (
    DEVICE_HEADERS,
    SIMULATOR,
    Place,
    SourceLines,
    bare_name,
    instance_of,
    place_of,
    students_place,
)

SOURCE = """
void touched(int) __attribute__((noinline));
void touched(int) { __asm__ volatile("" ::: "memory"); }
inline __attribute__((always_inline)) void helper(int i) {
    touched(i);
}
static inline __attribute__((always_inline)) void own_helper() { touched(4); }
void kernel(int n) {
    helper(n);
    touched(2);
    helper(3);
    own_helper();
}
"""


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("softmax_kernel(float const*, float*, int)", "softmax_kernel"),
        ("void block_reduce<Max>(float*, Max)", "block_reduce"),
        ("void (anonymous namespace)::load<32, std::pair<int, int> >(float (&) [32][33], int)", "load"),
        ("simulator::Place::shown() const", "shown"),
        ("main", "main"),
    ],
)
def test_bare_names(function, name):
    assert bare_name(function) == name


def test_lines_of_calls_and_of_what_they_were_inlined_into(tmp_path):
    if not shutil.which("g++") or not shutil.which("addr2line"):
        pytest.skip("needs g++ and addr2line")
    source, library = tmp_path / "kernel.cpp", tmp_path / "kernel.so"
    source.write_text(SOURCE)
    subprocess.run(["g++", "-O1", "-g", "-fPIC", "-shared", source, "-o", library], check=True)
    text = subprocess.run(["objdump", "-d", library], capture_output=True, text=True, check=True).stdout
    body = text.split("<_Z6kerneli>:")[1].split("\n\n")[0]
    code = [line.split(":", 1) for line in body.splitlines() if re.match(r"\s+[0-9a-f]+:\t", line)]
    returned = [int(after, 16) for (_, call), (after, _) in pairwise(code) if "call" in call]
    lines = SourceLines(library)
    places = [lines.places(returned)[address] for address in returned]
    assert [(place.line, place.function, [caller.line for caller in place.callers]) for place in places] == [
        (5, "helper", [9]),
        (10, "kernel", []),
        (5, "helper", [11]),
        (7, "", [12]),
    ]
    assert places[0].text == "touched(i);" and places[0].file == str(source)
    assert places[2].inlined_at == "in helper, called from line 11" and places[1].inlined_at == ""
    assert places[3].inlined_at == "called from line 12"  # its name is not reported


def test_the_students_frame_is_the_first_outside_the_simulator():
    own = Place("/course/task2/kernel.cu", 71, "void load_tile<32>(float*)")
    kernel = Place("/course/task2/kernel.cu", 209, "void gemm_kernel<32, 64>(float const*)")
    header = Place(str(DEVICE_HEADERS / "warp.cuh"), 12, "warp_sum(float)")
    inner = Place(str(SIMULATOR / "include/simulator/atomics.h"), 40, "atomicAdd<float>(float*, float)")
    launch = Place(own.file, 300, "auto gemm(float*)::{lambda((auto:1)...)#6}::operator()<float*>(float*) const")
    runs = Place(str(SIMULATOR / "include/simulator/thread.h"), 90, "call(void*)")
    found = students_place([inner, header, own, kernel, launch, runs])
    assert found == Place(own.file, 71, "load_tile", (Place(kernel.file, 209, "gemm_kernel"),))
    assert found.instance == "gemm_kernel<32, 64>"
    assert students_place([inner, header, runs]) == Place(header.file, 12, "warp_sum")
    assert students_place([inner, launch, runs]) is None
    lambda_of_their_own = Place(own.file, 72, "gemm_kernel(float const*)::{lambda(int)#1}::operator()(int) const")
    assert students_place([lambda_of_their_own, kernel]).line == 72


def test_a_kernels_template_arguments_are_told_by_its_places():
    places = [Place("k.cu", 1, instance="flash_kernel<64, true>"), Place("k.cu", 2, instance="helper"), None]
    assert instance_of("flash_kernel<D, CAUSAL>", places) == "flash_kernel<64, true>"
    assert instance_of("other<D>", places) == "other<D>"
    both = [*places, Place("k.cu", 1, instance="flash_kernel<128, true>")]
    assert instance_of("flash_kernel<D, CAUSAL>", both) == "flash_kernel<D, CAUSAL>"
    assert both[0] == both[3].__class__("k.cu", 1)  # places compare by value


def test_an_unknown_address_has_no_place(tmp_path):
    library = tmp_path / "empty.so"
    library.write_bytes(b"")
    assert SourceLines(library).places([17]) == {17: None}


def test_places_read_their_line(tmp_path):
    file = tmp_path / "kernel.cu"
    file.write_text("first\n    second;\n")
    assert place_of(f"{file}:2").text == "second;"
    assert place_of(f"{file}:9").text == "" and place_of("nowhere") is None
    assert Place("/does/not/exist.cu", 3).text == ""


def test_a_kernel_that_is_launched_through_a_variable_keeps_its_name(tmp_path):
    """`auto kernel = flash_kernel<64>; kernel<<<...>>>`: found from the accesses, not from an uninlined function."""
    file = tmp_path / "kernel.cu"
    file.write_text(
        "template <int D> __global__ void __launch_bounds__(256) flash_kernel(float* x) {}\n"
        "__global__ void softmax_kernel(float* x) {}\n__device__ void reduce(float* x) {}\n"
    )

    def places(*instances):
        return [Place(str(file), 1, name, instance=name) for name in instances]

    assert instance_of("kernel", places("flash_kernel<64>", "flash_kernel<64>")) == "flash_kernel<64>"
    assert instance_of("kernel", places("flash_kernel<64>", "reduce")) == "flash_kernel<64>"
    assert instance_of("softmax_kernel", places("reduce")) == "softmax_kernel"
    assert instance_of("softmax_kernel", places("flash_kernel<64>")) == "softmax_kernel"
    assert instance_of("flash_kernel<D>", places("flash_kernel<64>")) == "flash_kernel<64>"
    assert instance_of("kernel", places("flash_kernel<64>", "softmax_kernel")) == "kernel"
    assert instance_of("kernel", []) == "kernel"
