"""The command line of every benchmark, on a problem that takes no time."""

from __future__ import annotations

import json

import pytest
import torch
from made_up_times import LIMITS, Bytes, Clock, Sleep, takes

from common.cli import benchmark as command
from common.cli.benchmark import benchmark_main
from common.measure import report
from common.measure.benchmark.goals import Goal
from common.measure.benchmark.problem import Benchmark
from common.measure.benchmark.runner import Runner
from common.testing import results


def problems(options) -> list[Sleep]:
    if options.size == 0:
        raise ValueError("size is 0; it must be at least 1")
    return [Sleep(options.size, setting) for setting in ("short", "long") if options.size > 0]


def made(**versions) -> Benchmark:
    return Benchmark(
        "common.benchmark sleep",
        "Sleeps.",
        {"mine": "mine", "peer": "peer"},
        problems,
        lambda options: lambda problem: versions,
        Sleep,
        lambda parser: parser.add_argument("--size", type=int, default=40),
        [Goal("mine", ("peer",), "all", lambda problem: True, mean=1.0)],
        lambda records: [f"{len(records)} [records]"],
        block="sleep",
    )


FINE = {"mine": takes(0.01, name="mine", ours=True), "peer": takes(0.02, name="peer")}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A GPU with made-up times; Results.md is a copy."""
    file = tmp_path / "Results.md"
    file.write_text("<!-- BEGIN sleep -->\n<!-- END sleep -->\n")
    clock = Clock()
    monkeypatch.setattr(report, "gpu_is_there", lambda console: True)
    monkeypatch.setattr(report, "machine", lambda: {"gpu": "none"})
    monkeypatch.setattr(command, "measure_limits", lambda matmul, rounds: LIMITS)
    monkeypatch.setattr(command, "Runner", lambda *given: Runner(*given, clock, Bytes(), "cpu", clock))
    monkeypatch.setattr(results, "RESULTS", file)
    return file


def test_it_measures_prints_and_writes(machine, tmp_path, capsys):
    out = tmp_path / "out"
    assert benchmark_main(made(**FINE), ["--rounds", "4", "--output", str(out), "--report"]) == 0
    said = capsys.readouterr().out
    assert "short: TFLOP/s" in said and "long: TFLOP/s" in said and "speedups" in said and "4 [records]" in said
    content = json.loads((out / "results.json").read_text())
    assert content["command"].startswith("python -m common.benchmark") and "--rounds 4" in content["command"]
    assert [one["version"] for one in content["results"]] == ["mine", "peer"] * 2
    assert all(len(one["runs"]) == 4 for one in content["results"])
    assert "| short | 40 | 10.0 ms | 20.0 ms |" in machine.read_text()
    drawn = {file.name for file in out.glob("*.png")}
    assert benchmark_main(made(), ["--draw", str(out / "results.json"), "--pictures", str(tmp_path / "again")]) == 0
    assert {file.name for file in (tmp_path / "again").glob("*.png")} == drawn != set()


def test_versions_are_chosen_by_name(machine, capsys):
    assert benchmark_main(made(**FINE), ["--versions", "peer"]) == 0
    said = capsys.readouterr().out
    assert "peer" in said and "│ mine" not in said


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"mine": takes(0.01, ours=True, error=NotImplementedError("a gap: file.cu:3"))}, 1),
        ({"peer": takes(0.01, error=RuntimeError("No available kernel"))}, 0),
    ],
)
def test_only_what_is_ours_has_to_run(machine, capsys, wrong, status):
    assert benchmark_main(made(**FINE | wrong), []) == status
    assert "a gap: file.cu:3" in (said := capsys.readouterr().out) or "No available kernel" in said


def test_what_was_measured_before_the_gpu_was_lost_stays(machine, capsys, tmp_path, monkeypatch):
    class Lost(Runner):
        def run(self, problem, versions, share):
            if problem.setting == "long":
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return super().run(problem, versions, share)

    clock = Clock()
    monkeypatch.setattr(command, "Runner", lambda *given: Lost(*given, clock, Bytes(), "cpu", clock))
    file = tmp_path / "new" / "times.json"
    assert benchmark_main(made(**FINE), ["--json", str(file)]) == 1
    assert "illegal memory access" in capsys.readouterr().out
    assert len(json.loads(file.read_text())["results"]) == 2


def test_a_report_that_cannot_be_written_is_told(machine, capsys):
    machine.write_text("no markers\n")
    assert benchmark_main(made(**FINE), ["--report"]) == 1
    assert "it has no line <!-- BEGIN sleep -->" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so(capsys, tmp_path):
    assert benchmark_main(made(**FINE), ["--output", str(tmp_path / "out")]) == report.NEEDS_GPU
    assert "A benchmark needs a GPU" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "many"], "--rounds: it is 'many'; it must be a number above 0"),
        (["--rounds", "0"], "--rounds: it is '0'; it must be a number above 0"),
        (["--seconds", "nan"], "--seconds: it is 'nan'; it must be a number above 0"),
        (["--versions", "nobody"], "invalid choice: 'nobody'"),
        (["--size", "0"], "size is 0; it must be at least 1"),
        (["--size", "-1"], "there is nothing to measure"),
        (["--draw", "/nowhere.json"], "--draw /nowhere.json: "),
    ],
)
def test_bad_options_are_named(arguments, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark_main(made(**FINE), arguments)
    assert stopped.value.code == 2 and words in " ".join(capsys.readouterr().err.split())
