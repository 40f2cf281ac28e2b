"""The speed part of task 4's test, with made-up times. Nothing is timed."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
from types import SimpleNamespace

import pytest
import torch
from forked_python import run_python
from rich.console import Console
from second_per_call import SecondPerCall

from common.measure.timing import Timing
from common.testing.measurement import Earned, TestRun
from task4.cases import speed
from task4.cases.speed import CONFIGURATIONS, FULL_FROM, HALF_FROM, POINTS, Configuration, LayerSpeed, points_for

SMALL = Configuration(2, 33, 24, 3, causal=True)


@pytest.fixture(params=["solution", "tuned"])
def ops(request, backend):
    from common.compiling.load import load
    from common.compiling.request import BuildRequest

    return load(BuildRequest("task4", request.param, backend))


# ---- the layer


@pytest.mark.parametrize("configuration", [SMALL, Configuration(1, 40, 64, 1, causal=False)])
def test_the_layer_computes_what_torchs_module_computes(ops, configuration):
    verdict = speed.judge_layer(configuration, ops)
    assert verdict.ok, (verdict.max_error, verdict.bound, verdict.diagnosis)


def wrong_operators(change) -> SimpleNamespace:
    def flash_attention(query, key, value, causal):
        return change(torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal))

    return SimpleNamespace(device=torch.device("cpu"), variant="student", flash_attention=flash_attention)


def test_a_wrong_kernel_is_seen_in_the_layer():
    assert speed.judge_layer(SMALL, wrong_operators(lambda out: out)).ok
    assert not speed.judge_layer(SMALL, wrong_operators(lambda out: out * 1.001)).ok
    assert not speed.judge_layer(SMALL, wrong_operators(lambda out: out.nan_to_num_(0) * float("nan"))).ok


def test_only_the_tuned_kernels_get_strided_heads():
    for variant, contiguous in (("student", True), ("solution", True), ("tuned", False)):
        seen = []
        ops = wrong_operators(lambda out: out)
        call = ops.flash_attention
        ops.variant = variant
        ops.flash_attention = lambda *given, call=call, seen=seen: seen.extend(given[:3]) or call(*given)
        speed.measure_layer(SMALL, ops, rounds=1, stopwatch=SecondPerCall())
        assert {x.is_contiguous() for x in seen[:3]} == {contiguous}
        assert all(x.stride(-1) == 1 for x in seen)


@pytest.mark.parametrize("causal", [False, True])
def test_all_that_is_timed_computes_the_same(causal):
    """The layer, torch's module without and with weights; the kernel alone has its own inputs."""
    watch = SecondPerCall()
    small = Configuration(2, 33, 24, 3, causal)
    measured = speed.measure_layer(small, wrong_operators(lambda out: out), rounds=2, stopwatch=watch)
    assert measured.speedup == 1.0 and len(measured.layer.runs) == 2
    layer, module, with_weights, kernel = watch.results[:4]
    assert layer.shape == (2, 33, 24) and kernel.shape == (2, 3, 33, 8)
    torch.testing.assert_close(layer, module)
    torch.testing.assert_close(layer, with_weights)


# ---- points and the table


def speed_of(layer: float, torch_layer: float, configuration: Configuration = CONFIGURATIONS[0]) -> LayerSpeed:
    return LayerSpeed(configuration, *(Timing((seconds,)) for seconds in (layer, torch_layer, 1.5e-3, 1e-3)))


def test_points_of_a_speedup():
    share = POINTS / len(CONFIGURATIONS)
    assert len(CONFIGURATIONS) == 4 and share == 0.5
    assert [points_for(x) for x in (9.0, FULL_FROM, FULL_FROM - 1e-6, HALF_FROM, HALF_FROM - 1e-6, 0.0)] == [
        *(share, share, share / 2, share / 2, 0.0, 0.0),
    ]
    assert points_for(float("nan")) == 0.0


def test_the_configurations_are_what_they_say():
    assert all(one.hidden_dim % one.heads == 0 and one.head_dim <= 128 for one in CONFIGURATIONS)
    assert {one.causal for one in CONFIGURATIONS} == {False, True}
    assert len({one.name for one in CONFIGURATIONS}) == 4
    one = Configuration(4, 1024, 1024, 16, causal=False)
    assert one.attention_flops == 4 * 4 * 16 * 1024**2 * 64 and one.head_dim == 64
    assert Configuration(4, 1024, 1024, 16, causal=True).attention_flops == one.attention_flops / 2


def test_table_and_block_say_the_same(monkeypatch):
    monkeypatch.setattr(speed.report, "machine", lambda: {"gpu": "H200"})
    one = speed_of(2e-3, 1e-3)
    block = speed.block([one], 5e13, "python -m task4.test --report")
    console = Console(file=io.StringIO(), width=200)
    console.print(speed.table([one], 5e13))
    row = block.rows[0]
    assert row[0] == "4, 1024, 1024, 16" and row[4] == "0.50 x"
    assert row[5:7] == ["17.2", "34%"]  # 4 * 4 * 16 * 1024^2 * 64 operations in 1 ms, with a peak of 50 TFLOP/s
    assert all(cell in console.file.getvalue() for cell in row)
    assert "50.0 TFLOP/s" in block.notes[0]


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """A GPU on which every layer is right and takes 2 ms, torch 1 ms; Results.md is a copy."""
    results = tmp_path / "Results.md"
    results.write_text("<!-- BEGIN task4 speedups -->\n<!-- END task4 speedups -->\n")
    monkeypatch.setattr(speed.results, "RESULTS", results)
    monkeypatch.setattr(speed.report, "machine", lambda: {"gpu": "H200"})
    monkeypatch.setattr(speed, "judge_layer", lambda *given: SimpleNamespace(ok=True))
    monkeypatch.setattr(speed, "measure_limits", lambda matmul: SimpleNamespace(matmul={"float32": 5e13}))
    monkeypatch.setattr(speed, "measure_layer", lambda configuration, ops: speed_of(2e-3, 1e-3, configuration))
    return results


def measured_part(report: bool) -> tuple[Earned, str]:
    """(the points the part earned, the output)."""
    console = Console(file=io.StringIO(), width=200)
    options = argparse.Namespace(seed=0, report=report)
    run = TestRun(console, None, options, ["speed"], "python -m task4.test --speed --report")
    [earned] = speed.run(run)
    return earned, console.file.getvalue()


def test_the_part_adds_up_its_points_and_reports(made_up):
    earned, said = measured_part(report=True)
    assert earned == Earned("speed", 4 * points_for(0.5))
    assert "python -m task4.test --speed --report" in made_up.read_text() and made_up.read_text().count("0.50 x") == 4
    assert "written to Results.md" in said


def test_without_report_nothing_is_written(made_up):
    before = made_up.read_text()
    measured_part(report=False)
    assert made_up.read_text() == before


def test_a_report_that_cannot_be_written_costs_no_points(made_up):
    made_up.write_text("no markers here\n")
    earned, _ = measured_part(report=True)
    assert earned.points == 4 * points_for(0.5)
    assert "nothing was written: it has no line <!-- BEGIN task4 speedups -->" in earned.problems[0]
    assert made_up.read_text() == "no markers here\n"


def test_a_wrong_layer_is_not_timed(made_up, monkeypatch):
    wrong = SimpleNamespace(ok=False, status="FAIL", diagnosis=["The scale is missing."])
    monkeypatch.setattr(speed, "judge_layer", lambda *given: wrong)
    monkeypatch.setattr(speed, "measure_layer", lambda *given: pytest.fail("it was timed"))
    earned, _ = measured_part(report=True)
    assert earned.points == 0 and "FAIL" in earned.problems[0] and earned.problems[1] == "The scale is missing."


# ---- the command


def task4_test(root, *arguments: str) -> subprocess.CompletedProcess:
    return run_python(["-m", "task4.test", "--solution", "--backend", "simulator", *arguments], root, os.environ, 600)


@pytest.mark.slow
def test_the_command_has_the_part(root):
    before = speed.results.RESULTS.read_text()
    done = task4_test(root, "--speed", "--report")
    assert done.returncode == 2 and "Points: 0 of 2" in done.stdout and "not run in the simulator" in done.stdout
    assert speed.results.RESULTS.read_text() == before
    done = task4_test(root, "--speed", "--case", "64 tokens")
    assert done.returncode == 2 and "--case is about test cases, and --speed has none" in done.stderr
    done = task4_test(root, "--full", "--case", "1 query, 1 key")
    assert done.returncode == 0 and "speed" not in done.stdout
