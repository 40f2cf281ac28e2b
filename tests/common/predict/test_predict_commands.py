"""--predict on the command line: programs, benchmarks, bad input; planted slow variants are predicted slower."""

import json
import os

import pytest
import torch
from compare_predictions import PLANTED, PROGRAMS, predicted_program
from forked_python import run_python

from common.cli import machine
from common.cli.benchmark import benchmark_main
from common.compiling.load import load, simulated
from common.compiling.request import BuildRequest
from common.measure.benchmark.problem import Benchmark
from common.measure.benchmarks.softmax import SoftmaxProblem, operator_version
from common.measure.gpus import find
from common.predict.counters import SAMPLE
from common.predict.launches import Counting
from common.testing import results


def run(*arguments, root):
    return run_python(["-m", *arguments], cwd=root, env=os.environ, timeout=300)


@pytest.fixture(scope="module")
def planted(request):
    """Kernel -> its prediction for an H100, with estimated registers."""
    return predicted_program(PROGRAMS / "planted.cu", 1 << 22, find("H100"), use_nvcc=False)


@pytest.mark.parametrize(("slow", "fast"), PLANTED)
def test_a_planted_slowness_is_predicted(planted, slow, fast):
    assert planted[slow].seconds > 1.15 * planted[fast].seconds


def test_the_bounds_of_planted_kernels(planted):
    assert planted["row_sum"].bound.resource == "DRAM"
    assert planted["copy_small_blocks"].bound.resource == "starting blocks"
    assert planted["transpose_conflicts"].bound.resource == "shared memory"
    assert planted["fma_one_warp"].bound.resource == planted["copy_low_occupancy"].bound.resource
    assert planted["fma_one_warp"].bound.resource == "latency at this occupancy"


def test_a_sample_counts_as_the_whole_grid(planted):
    """2^22 floats read and written: 2^17 requests each, of 4 sectors, however many blocks ran."""
    kernel = planted["copy"].launch.kernel
    assert len(planted["copy"].launch.sample.blocks) <= SAMPLE < kernel.blocks
    assert {(one.action, one.requests, one.transactions) for one in kernel.lines} == {
        ("read", 1 << 17, 1 << 19),
        ("write", 1 << 17, 1 << 19),
    }
    assert planted["copy"].traffic.read == pytest.approx(4 << 22, rel=0.01)
    tiled = planted["matmul_32"]  # 1024^3 in tiles of 32: every tile of A and B is read by 32 blocks
    assert tiled.launch.total("transactions", "global", "read") * 32 == 2 * 4 * 1024**3 / 32
    assert tiled.traffic.read == pytest.approx(2 * 4 * 1024**2, rel=0.05)


def test_the_command_predicts_a_program_and_refuses_an_unknown_gpu(root, tmp_path):
    source = tmp_path / "one.cu"
    source.write_text(
        "#include <cuda_runtime.h>\n"
        "__global__ void fill(float* x, int n) { int i = blockIdx.x * 256 + threadIdx.x; if (i < n) x[i] = 1; }\n"
        "int main() { float* x; cudaMalloc(&x, 4 << 20); fill<<<4096, 256>>>(x, 1 << 20); return 0; }\n"
    )
    done = run("common.run", "--predict", "--gpu", "A100", str(source), root=root)
    assert done.returncode == 0, done.stderr
    assert "fill (4096) x (256)" in done.stdout and "A100" in done.stdout and "not measured" in done.stdout
    wrong = run("common.run", "--predict", "--gpu", "H1000", str(source), root=root)
    assert wrong.returncode == 2 and "did you mean H100" in wrong.stderr


@pytest.mark.slow
def test_a_benchmark_predicts_and_reports(tmp_path, monkeypatch, capsys):
    """Task 2's taught softmax: its table, and the block of Results.md, where every time is marked as predicted."""
    file = tmp_path / "Results.md"
    file.write_text("<!-- BEGIN task2 predicted -->\n<!-- END task2 predicted -->\n")
    monkeypatch.setattr(results, "RESULTS", file)

    def versions(options):
        ops = load(BuildRequest("task2", "solution", "cuda"))
        return lambda problem: {
            "taught": operator_version("taught", ops.softmax),
            "torch": operator_version("torch", None, ours=False),
            "wrong": operator_version("wrong", ops.gemm_nn),
        }

    labels = {name: name for name in ("taught", "torch", "wrong")}
    sizes = [SoftmaxProblem(256, 1024), SoftmaxProblem(4096, 1024)]
    benchmark = Benchmark("task2.benchmark", "", labels, lambda options: sizes, versions, SoftmaxProblem)
    chosen = ["--predict", "--gpu", "a100", "--report", "--versions", "taught"]
    assert benchmark_main(benchmark, chosen) == 0
    said, block = capsys.readouterr().out, file.read_text()
    assert "softmax_kernel" in said and "torch" not in said and "bound by" in said
    assert "Predicted by" in block and "for A100 80GB" in block and block.count("(predicted)") == 2
    assert benchmark_main(benchmark, ["--predict"]) == 1  # gemm_nn takes two matrices
    assert "wrong at 256 x 1024:" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        benchmark_main(benchmark, ["--report"])
    assert "add --predict" in capsys.readouterr().err


def test_what_prepares_a_call_computes_nothing():
    """A softmax of zeros gives 1 / 1024 everywhere, if it runs."""
    with simulated(), torch.no_grad():
        ops, made = load(BuildRequest("task2", "solution", "cuda")), []

        def prepare():
            made.append(ops.softmax(torch.zeros(64, 1024)))
            return lambda: made.append(ops.softmax(torch.zeros(4, 1024)))

        (launch,) = Counting(ops.libraries, find("H100"), use_nvcc=False).launches(prepare)
        assert launch.kernel.launches == 1
    prepared, called = made
    assert not (prepared == 1 / 1024).any() and (called == 1 / 1024).all()


@pytest.mark.slow
def test_bad_options_of_a_benchmark(root):
    for options, words in (
        (["--gpu", "H100"], "--gpu is for --predict"),
        (["--predict", "--gpu", "H1000"], "did you mean H100"),
        (["--predict", "--sample", "0"], "--sample is 0; it must be at least 1"),
    ):
        done = run("task2.benchmark", *options, root=root)
        assert done.returncode == 2 and words in done.stderr


def test_the_micro_benchmarks_become_a_table():
    printed = [
        "gpu NVIDIA H100 80GB HBM3",
        "l2 260.5",
        "dram_bandwidth 3.03e12",
        "clock 1.7e9",
        "block 2e-7",
    ]
    lines = machine.table_lines(printed)
    found = json.loads("{" + "".join(lines[2:-1]).rstrip(",") + "}")
    assert lines[0].startswith("# H100 SXM:") and found["l2"] == 260.5 and found["clock"] == 1.7e9
    assert found["block"] == pytest.approx(340)  # in cycles
    assert found["dram_share"] == pytest.approx(3.03 / 3.35, rel=1e-3)
