"""Inputs that only kernels can see: kernels go on as before, host code that reads them dies, and is counted."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.console.paths import ROOT
from common.course.grading.at_work import FEW_IN_BLOCK, at_work, at_work_in_block, too_few
from common.testing.calling import CallFailed
from common.testing.case import Case
from common.testing.hidden_inputs import HiddenInputs
from common.testing.judging import judge

SOURCE = """
#include "task3/given/online_softmax.h"
#include "common/cuda/check.h"

__global__ void twice(const float* x, float* y, int64_t size) {
    const int64_t i = blockIdx.x * int64_t{64} + threadIdx.x;
    if (i < size) y[i] = 2 * x[i];
}

__global__ void twice_alone(const float* x, float* y, int64_t size) {
    if (blockIdx.x || threadIdx.x) return;
    for (int64_t i = 0; i < size; ++i) y[i] = 2 * x[i];
}
__global__ void twice_by_first_lanes(const float* x, float* y, int64_t size) {
    if (threadIdx.x) return;
    for (int64_t i = blockIdx.x * int64_t{64}; i < size && i < (blockIdx.x + 1) * int64_t{64}; ++i) y[i] = 2 * x[i];
}

// What is tried stands in the number of columns: 1 a kernel, 2 a loop on the host, 3 a copy to the host and back,
// 4 a kernel that works where its output is NaN alone, 5 writes to its input, 6 one thread of all works,
// 7 one of each block.
void online_softmax(const float* x, float* y, float* lse, int64_t rows, int64_t cols, cudaStream_t stream) {
    const unsigned blocks = ceil_div(rows * cols, int64_t{64});
    lse[0] = 0;
    if (cols == 1) twice<<<blocks, 64, 0, stream>>>(x, y, rows * cols);
    if (cols == 2) for (int64_t i = 0; i < rows * cols; ++i) y[i] = 2 * x[i];
    if (cols == 3) {
        float* mine = new float[rows * cols];
        cudaMemcpy(mine, x, sizeof(float) * rows * cols, cudaMemcpyDeviceToHost);
        for (int64_t i = 0; i < rows * cols; ++i) y[i] = 2 * mine[i];
        delete[] mine;
    }
    if (cols == 4 && y[0] != y[0]) twice<<<blocks, 64, 0, stream>>>(x, y, rows * cols);
    if (cols == 6) twice_alone<<<blocks, 64, 0, stream>>>(x, y, rows * cols);
    if (cols == 7) twice_by_first_lanes<<<blocks, 64, 0, stream>>>(x, y, rows * cols);
    if (cols == 5) twice<<<blocks, 64, 0, stream>>>(x, const_cast<float*>(x), rows * cols);
}
void merge_states(const float*, const float*, float*, float*, int64_t, int64_t, int64_t, cudaStream_t) {}
"""


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory):
    source = tmp_path_factory.mktemp("hidden") / "online_softmax.cu"
    source.write_text(SOURCE)
    return load(BuildRequest("task3", backend="simulator", sources=[source], label="hidden_inputs", counted=True))


def case(cols: int) -> Case:
    return Case(
        f"{cols}",
        "part",
        lambda generator: {"x": torch.randn(5000, cols, generator=generator)},
        lambda ops, x: ops.online_softmax(x)[0],
        lambda x: 2 * x,
        floor=1e-6,
        axes=("row", "col"),
        draws=1,
    )


def hidden(ops) -> HiddenInputs:
    caller = HiddenInputs(ops)
    caller.hide = True
    return caller


def test_a_kernel_sees_them(ops) -> None:
    caller = hidden(ops)
    verdict = judge(case(1), caller, bare=True)
    assert verdict.ok and counts(caller) == {"launches": 1, "threads": 5056, "read_back": 0}


def test_who_works_is_counted(ops) -> None:
    seen = {}
    for cols in (1, 6, 7):
        caller = hidden(ops)
        assert judge(case(cols), caller, bare=True).ok
        seen[cols] = at_work(caller.more), at_work_in_block(caller.more)
    # each of 79 blocks of 64 threads has the same work, the last of them a little less
    assert seen[1][0] > 0.9 * 5000 and 60 < seen[1][1] <= 64
    assert seen[6][0] == 1 and seen[6][1] < FEW_IN_BLOCK  # 5,055 threads look whether they are the first
    # one thread of each of 547 blocks; the last block has fewer elements
    assert 546 < seen[7][0] <= 547 and 1 <= seen[7][1] < 1.1


def test_a_build_that_does_not_count_says_nothing_of_work(ops) -> None:
    plain = HiddenInputs(load(BuildRequest("task3", "solution", backend="simulator")))
    plain.hide = True
    plain.call(case(1), {"x": torch.ones(3, 40)})
    assert plain.more["launches"] and not plain.more["work"]
    assert too_few(plain.more) == "What the threads of its kernels do could not be counted."


def counts(caller: HiddenInputs) -> dict[str, int]:
    """Without those of work."""
    return {name: caller.more[name] for name in ("launches", "threads", "read_back")}


HOST_LOOP = """
import sys, ctypes, torch
from common.testing.hidden_inputs import Pages
torch.ops.load_library(sys.argv[1])
page, library = Pages(torch.ones(5000, 2)), ctypes.CDLL(sys.argv[1])
if sys.argv[2] == "hidden":
    library.simulator_hide(ctypes.c_void_p(page.address), ctypes.c_size_t(page.bytes))
y, _ = getattr(torch.ops, sys.argv[3]).online_softmax(page.tensor)
assert torch.equal(y, 2 * torch.ones(5000, 2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how, ends", [("hidden", -signal.SIGSEGV), ("open", 0)])
def test_a_loop_on_the_host_dies_where_they_are_hidden(ops, how: str, ends: int) -> None:
    (library,) = ops.libraries
    command = [sys.executable, "-c", HOST_LOOP, str(library.path), how, library.name]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == ends


def test_what_is_copied_to_the_host_is_counted(ops) -> None:
    caller = hidden(ops)
    assert judge(case(3), caller, bare=True).ok
    assert counts(caller) == {"launches": 0, "threads": 0, "read_back": 4 * 3 * 5000}


def test_a_kernel_that_waits_for_poison_gives_nothing(ops) -> None:
    assert judge(case(4), HiddenInputs(ops)).ok
    for _ in range(20):
        caller = hidden(ops)
        torch.empty(5000, 4).fill_(1.0)  # what the allocator is likely to give out again
        judge(case(4), caller, bare=True)
        if not caller.more["launches"]:
            return
    pytest.fail("its output held NaN 20 times, and nobody had filled it")


def test_a_changed_input_is_a_problem(ops) -> None:
    called = hidden(ops).call(case(5), {"x": torch.ones(5000, 5)})
    assert called.problems == ["The input x was changed; the operator must only read it."]


def test_an_error_inside_opens_them_again(ops) -> None:
    caller = hidden(ops)

    def fails(ops, x):
        raise RuntimeError("inside")

    with pytest.raises(CallFailed, match="inside"):
        caller.call(replace(case(1), call=fails), {"x": torch.ones(3)})
    assert judge(case(1), caller, bare=True).ok
