"""Nsight Compute output -> profiles. The samples follow the format of `ncu --csv`, pages raw and source."""

import io

import pytest
from rich.console import Console

from common.compiling.toolchain import ToolchainError
from common.inspect import gpu_tools
from common.inspect.profile import ncu
from common.inspect.profile.instruction_counts import Operations
from common.inspect.profile.report import print_kernel
from common.measure.gpus import find

KERNELS = """\
// a __global__ void commented_kernel(float* x) is none
template <typename T>
__global__ void __launch_bounds__(max(32, 64))
    gemm_kernel(const float* a) {}
__global__ void softmax_kernel(const float* x) { gemm_kernel<float>(x); }
"""
RAW_METRICS = [
    ("gpu__time_duration.sum", "ns", "2,000", "3,000", "500"),
    ("dram__bytes_read.sum", "byte", "1,000,000", "1,000,000", "64"),
    ("dram__bytes_write.sum", "byte", "500,000", "500,000", "0"),
    ("sm__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", "100", "100", "0"),
    ("sm__sass_thread_inst_executed_op_fmul_pred_on.sum", "inst", "10", "10", "0"),
    ("sm__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", "1,000", "1,000", "0"),
    ("launch__registers_per_thread", "register/thread", "40", "40", "16"),
    ("launch__shared_mem_per_block_static", "byte/block", "1,024", "1,024", "0"),
    ("launch__shared_mem_per_block_dynamic", "byte/block", "512", "512", "0"),
    ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "request", "64", "64", "2"),
    ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "sector", "256", "256", "2"),
    ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum", "request", "32", "32", "0"),
    ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", "sector", "128", "128", "0"),
    ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", "", "90", "90", "0"),
    ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", "", "60", "60", "0"),
    ("sm__sass_inst_executed_op_shared_ld.sum", "inst", "30", "30", "0"),
    ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum", "", "0", "0", "0"),
    ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum", "", "0", "0", "0"),
    ("sm__sass_inst_executed_op_shared_st.sum", "inst", "0", "0", "0"),
]
LAUNCHES = [
    ("softmax_kernel(const float *, float *, int)", "(256, 1, 1)", "(7, 1, 1)"),
    ("softmax_kernel(const float *, float *, int)", "(256, 1, 1)", "(7, 1, 1)"),
    ("void gemm_kernel<(int)64, (bool)1>(const float *)", "(32, 8, 1)", "(4, 2, 1)"),
]


def quoted(*cells) -> str:
    return ",".join(f'"{cell}"' for cell in cells)


def raw_page() -> str:
    first = "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream,Block Size,Grid Size,Device,CC"
    rows = [quoted(*first.split(","), *(name for name, *_ in RAW_METRICS))]
    rows.append(quoted(*[""] * 11, *(unit for _, unit, *_ in RAW_METRICS)))
    for i, (name, block, grid) in enumerate(LAUNCHES):
        cells = i, 4242, "python3", "127.0.0.1", name, 1, 7, block, grid, 0, "9.0", *(row[2 + i] for row in RAW_METRICS)
        rows.append(quoted(*cells))
    return "==PROF== Connected to process 4242\n" + "\n".join(rows) + "\n==PROF== Disconnected\n"


HEADER = quoted(
    *["Line No", "Source", "Address", "Source", "# Samples", "Instructions Executed"],
    *["Predicated-On Thread Instructions Executed", "L1 Wavefronts Shared", "L1 Wavefronts Shared Ideal"],
    *["L2 Theoretical Sectors Global", "L2 Theoretical Sectors Global Ideal"],
)


def section(file: str, function: str, *rows) -> str:
    return "\n".join([quoted("File Path", file), quoted("Function Name", function), HEADER, *rows])


def cuda(line, text, *numbers) -> str:
    return quoted(line, text, "-", "-", 0, *numbers)


def sass(address, text, *numbers) -> str:
    return quoted("", "", address, text, 0, *numbers)


SOFTMAX, GEMM = LAUNCHES[0][0], LAUNCHES[2][0]
SOURCE = "\n".join(
    [
        section(
            "/elsewhere/warp.cuh",
            SOFTMAX,
            cuda(12, "shuffle", 64, 2048, 0, 0, 256, 256),
            sass("0x100", "LDG.E R2, [R2.64]", 64, 2048, 0, 0, 256, 256),  # it is also in the student's file
            sass("0x900", "SHFL.BFLY R1, R2", 64, 2048, 0, 0, 0, 0),
        ),
        section(
            "/build/kernels.cu",
            SOFTMAX,
            cuda(4, "row_max = fmaxf(row_max, row[i]);", 128, 4096, 0, 0, 384, 256),
            sass("0x100", "LDG.E R2, [R2.64]", 64, 2048, 0, 0, 256, 256),
            sass("0x110", "@!P0 LDG.E.CONSTANT R3, [R2.64+0x4]", 64, 2048, 0, 0, 128, 0),
            sass("0x120", "FMNMX R1, R2, R3, !PT", 64, 2048, 0, 0, 0, 0),
            cuda(5, "partial[threadIdx.x] = row_max;", 30, 960, 90, 30, 0, 0),
            sass("0x130", "STS.64 [R4], R2", 30, 960, 90, 30, 0, 0),
            cuda(6, "never", 0, 0, 0, 0, 0, 0),
            sass("0x140", "STG.E.128 [R4.64], R8", 0, 0, 0, 0, 0, 0),
        ),
        section(
            "/build/kernels.cu",
            SOFTMAX,  # the second launch
            cuda(4, "row_max = fmaxf(row_max, row[i]);", 64, 2048, 0, 0, 256, 256),
            sass("0x100", "LDG.E R2, [R2.64]", 64, 2048, 0, 0, 256, 256),
        ),
        section(
            "/build/kernels.cu",
            GEMM,
            cuda(9, "copy", 8, 256, 16, 8, 32, 32),
            sass("0x10", "LDGSTS.E.BYPASS.128 [R1], [R2.64]", 8, 256, 16, 8, 128, 128),
            sass("0x20", "LDSM.16.M88.4 R8, [R1]", 8, 256, 32, 32, 0, 0),
        ),
    ]
)


@pytest.fixture
def sources(tmp_path):
    file = tmp_path / "kernels.cu"
    file.write_text(KERNELS)
    return [file]


def test_the_kernels_of_a_source(sources):
    assert ncu.kernels_in(sources) == ["gemm_kernel", "softmax_kernel"]


def test_launches_alike_are_added_up():
    softmax, gemm = ncu.read_raw(raw_page())
    assert (softmax.kernel, softmax.launches) == ("softmax_kernel", 2)
    assert (softmax.grid, softmax.block, softmax.shared_bytes) == ((7, 1, 1), (256, 1, 1), 1536)
    assert (softmax.registers, softmax.operations) == (40, Operations(2 * (100 + 10 + 2 * 1000)))
    assert softmax.measured_seconds == pytest.approx(5e-6) and softmax.dram_bytes == pytest.approx(3e6)
    assert (gemm.kernel, gemm.grid, gemm.block, gemm.launches) == ("gemm_kernel<64, 1>", (4, 2, 1), (32, 8, 1), 1)


def test_the_totals_stand_in_for_lines():
    softmax, gemm = ncu.read_raw(raw_page())
    found = {(one.space, one.action): (one.requests, one.transactions, one.ideal) for one in softmax.lines}
    assert found == {
        ("global", "read"): (128, 512, 512),
        ("global", "write"): (64, 256, 256),
        ("shared", "read"): (60, 180, 60),
    }
    assert [(one.space, one.requests) for one in gemm.lines] == [("global", 2)]


@pytest.mark.parametrize(("unit", "seconds"), [("ns", 2e-6), ("nsecond", 2e-6), ("usecond", 2e-3), ("msecond", 2.0)])
def test_units(unit, seconds):
    text = raw_page().replace('"ns"', f'"{unit}"').replace('"3,000"', '"0"')
    assert ncu.read_raw(text)[0].measured_seconds == pytest.approx(seconds)


def test_lines_of_the_source_page(sources):
    lines = ncu.read_source(SOURCE, sources)
    read, store = lines["softmax_kernel"]
    assert (read.place.file, read.place.line, read.action) == (str(sources[0]), 4, "read")
    assert (read.requests, read.lanes, read.transactions, read.ideal) == (64 + 64 + 64, 6144, 640, 512)
    assert (store.space, store.action, store.bytes) == ("shared", "write", 8)
    assert (store.place.line, store.requests, store.transactions, store.ideal) == (5, 30, 90, 30)
    copy, load = lines["gemm_kernel<64, 1>"]
    assert (copy.space, copy.action, copy.bytes, copy.transactions) == ("global", "async copy", 16, 128)
    assert (load.space, load.action, load.bytes, load.transactions) == ("shared", "read", 16, 32)


class Tool:
    """A stand-in for ncu: writes its report, then prints its pages."""

    def __init__(self, said="", writes=True):
        self.said, self.writes, self.commands = said, writes, []

    def __call__(self, command, **environment):
        self.commands.append([str(word) for word in command])
        if "--import" not in command:
            if self.writes:
                command[command.index("-o") + 1].write_text("")
            return self.said
        return raw_page() if "raw" in command else SOURCE


def test_profiling_a_command(monkeypatch, sources):
    tool = Tool()
    monkeypatch.setattr(gpu_tools, "output_of", tool)
    softmax, gemm = ncu.profile("ncu", ["python", "-m", "task2.test"], sources)
    assert [one.place.line for one in softmax.lines] == [4, 5] and len(gemm.lines) == 2
    measure, raw, source = tool.commands
    assert "regex:^(gemm_kernel|softmax_kernel)$" in measure and measure[-3:] == ["python", "-m", "task2.test"]
    assert "gpu__time_duration.sum" in measure[measure.index("--metrics") + 1].split(",")
    assert raw[-4:] == ["--page", "raw", "--print-units", "base"]
    assert source[-4:] == ["--page", "source", "--print-source", "cuda,sass"]
    text = io.StringIO()
    print_kernel(Console(file=text, width=120), softmax, find("h200"))
    assert "3 MB measured" in text.getvalue() and "5 us; the longest bound is" in text.getvalue()


def test_a_run_without_kernels_and_a_failed_one(monkeypatch, sources):
    monkeypatch.setattr(gpu_tools, "output_of", Tool("==WARNING== No kernels were profiled.\n", writes=False))
    assert ncu.profile("ncu", [], sources) == []
    monkeypatch.setattr(gpu_tools, "output_of", Tool("==ERROR== Failed to find metric foo\n", writes=False))
    with pytest.raises(ToolchainError, match=r"ncu wrote no report:\n==ERROR== Failed to find metric foo"):
        ncu.profile("ncu", [], sources)
