"""compute-sanitizer output -> findings. The samples follow the format in its documentation (13.0)."""

import io

import pytest
from rich.console import Console

from common.compiling.toolchain import ToolchainError
from common.inspect import gpu_tools
from common.inspect.findings import compute_sanitizer as sanitizer
from common.inspect.findings.model import grouped
from common.inspect.findings.report import print_findings
from common.inspect.findings.words import explained, happened

MEMCHECK = """\
========= COMPUTE-SANITIZER
@case softmax: 7 x 31
========= Invalid __global__ read of size 4 bytes
=========     at softmax_kernel(const float *, float *, int)+0x160 in /build/attention_kernel.cu:7
=========     by thread (31,0,0) in block (6,0,0)
=========     Access at 0x7f31dfa00404 is out of bounds
=========     and is 5 bytes after the nearest allocation at 0x7f31dfa00000 of size 1,024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: softmax(float const*, float*) in attention_kernel.cu:20 [0x2a] in a.so
=========
========= Invalid __global__ read of size 4 bytes
=========     at softmax_kernel(const float *, float *, int)+0x160 in /build/attention_kernel.cu:7
=========     by thread (32,0,0) in block (6,0,0)
=========     Access at 0x7f31dfa00408 is out of bounds
=========     and is 9 bytes after the nearest allocation at 0x7f31dfa00000 of size 1,024 bytes
=========
========= Invalid __shared__ write of size 16 bytes
=========     at load_tile(float *)+0x40 in /build/attention_kernel.cu:2
=========     by thread (3,1,0) in block (0,0,0)
=========     Address 0x404 is misaligned
=========     Device Frame: void gemm_kernel<(int)64>(const float *)+0xb0 in /build/attention_kernel.cu:12
=========
========= Invalid __global__ write of size 4 bytes
=========     at void at::native::vectorized_elementwise_kernel<(int)4>(int)+0x160 in /pytorch/Loops.cuh:99
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f31dfa00408 is out of bounds
=========
pass
@case gemm: A B, K = 1
pass
========= ERROR SUMMARY: 4 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at softmax_kernel(float *)+0x90 in /build/attention_kernel.cu:7
=========     and Read access at softmax_kernel(float *)+0x100 in /build/attention_kernel.cu:9 [508 hazards]
=========     and Write access at softmax_kernel(float *)+0x90 in /build/attention_kernel.cu:7 [4 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
INITCHECK = """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at softmax_kernel(const float *, float *, int)+0x70 in attention_kernel.cu:9
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """\
========= Barrier error detected. Divergent thread(s) in block.
=========     at softmax_kernel(const float *, float *, int)+0x11f0 in /build/attention_kernel.cu:8
=========     by thread (32,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
CLEAN = "========= COMPUTE-SANITIZER\n@case softmax: 7 x 31\npass \n========= ERROR SUMMARY: 0 errors\n"


@pytest.fixture
def sources(tmp_path):
    file = tmp_path / "attention_kernel.cu"
    file.write_text("".join(f"line {number};\n" for number in range(1, 20)))
    return [file]


def test_memcheck(sources):
    out, misaligned = sanitizer.read_output(MEMCHECK, sources)
    assert (out.kind, out.kernel, out.space, out.count) == ("out_of_bounds", "softmax_kernel", "global", 2)
    (access,) = out.accesses
    assert (access.action, access.bytes, access.thread, access.block) == ("read", 4, (31, 0, 0), (6, 0, 0))
    assert (access.place.file, access.place.line, access.place.text) == (str(sources[0]), 7, "line 7;")
    assert "It is 5 bytes after an allocation of 1,024 bytes" in explained(out)
    assert (misaligned.kind, misaligned.kernel, misaligned.space) == ("misaligned", "gemm_kernel<64>", "shared")
    place = misaligned.accesses[0].place
    assert (place.line, place.inlined_at) == (2, "in load_tile, called from line 12")
    assert "16 bytes (float4)" in explained(misaligned)


def test_racecheck_names_each_pair(sources):
    read, write = sanitizer.read_output(RACECHECK, sources)
    assert (read.kind, read.space, read.count, write.count) == ("race", "shared", 508, 4)
    assert [(one.action, one.place.line) for one in read.in_order] == [("write", 7), ("read", 9)]
    assert "Put a __syncthreads() between line 7 and line 9." in explained(read)
    assert happened(read) == "race in softmax_kernel: shared memory"
    text = io.StringIO()
    print_findings(Console(file=text, width=120), grouped([("racecheck", [read, write])]))
    assert ": a thread writes" in " ".join(text.getvalue().split()) and "512 times" in text.getvalue()


def test_initcheck_finds_the_source_by_its_name(sources):
    (found,) = sanitizer.read_output(INITCHECK, sources)
    assert (found.kind, found.accesses[0].place.file) == ("uninitialized", str(sources[0]))
    assert "before any kernel has written it" in explained(found)


def test_synccheck(sources):
    (found,) = sanitizer.read_output(SYNCCHECK, sources)
    assert (found.kind, found.launch.line, found.accesses) == ("barrier", 8, ())
    assert happened(found) == "barrier not reached by all in softmax_kernel"
    assert "let no thread return before it" in explained(found)


def test_nothing_found(sources):
    assert sanitizer.read_output(CLEAN, sources) == []


def test_cases_are_told_apart():
    parts = dict(gpu_tools.by_case(MEMCHECK))
    assert list(parts) == ["", "softmax: 7 x 31", "gemm: A B, K = 1"]
    assert "out of bounds" in parts["softmax: 7 x 31"] and "Invalid" not in parts["gemm: A B, K = 1"]


def test_all_four_tools_run_and_an_unfinished_one_is_told(monkeypatch, sources):
    outputs = {"memcheck": MEMCHECK, "racecheck": RACECHECK, "initcheck": CLEAN, "synccheck": SYNCCHECK}
    commands = []

    def run(command, **environment):
        if "--help" in command:
            return "  --target-processes arg  ...\n  --racecheck-report arg  ...\n"
        commands.append(command)
        assert environment == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        return outputs[command[2]]

    monkeypatch.setattr(gpu_tools, "output_of", run)
    found = sanitizer.findings_of("compute-sanitizer", ["python", "-m", "task2.test"], sources)
    assert [command[2] for command in commands] == list(outputs)
    assert all(command[-3:] == ["python", "-m", "task2.test"] for command in commands)
    assert commands[1][3:-3] == ["--target-processes", "all", "--racecheck-report", "analysis"]
    assert commands[2][3:-3] == ["--target-processes", "all"]  # options unknown to the installed version are dropped
    assert [(case, [one.kind for one in findings]) for case, findings in found] == [
        ("softmax: 7 x 31", ["out_of_bounds", "misaligned"]),
        ("", ["race", "race"]),
        ("", ["barrier"]),
    ]
    outputs["initcheck"] = "========= Error: Target application terminated before first instrumented API call\n"
    with pytest.raises(ToolchainError, match=r"--tool initcheck did not finish:\n.*terminated before first"):
        sanitizer.findings_of("compute-sanitizer", [], sources)


def test_a_missing_tool_is_explained(monkeypatch):
    monkeypatch.setattr(gpu_tools.shutil, "which", lambda name: None)
    monkeypatch.setattr(gpu_tools.toolchain, "all_nvccs", lambda: iter(()))
    with pytest.raises(ToolchainError, match=r"compute-sanitizer was found neither .* 'cuda-toolkit\[sanitizer\]'"):
        gpu_tools.find("compute-sanitizer")
    with pytest.raises(ToolchainError, match=r"ncu was found neither .* --backend simulator"):
        gpu_tools.find("ncu")
