"""Timing, limits and reports, with a stopwatch that hands out times it was given: no GPU, nothing is really timed."""

from __future__ import annotations

import json

import pytest
import torch
from rich.console import Console
from second_per_call import SecondPerCall

from common.measure import limits as limits_module
from common.measure import report
from common.measure.limits import Limits, float32_precision, measure_limits
from common.measure.timing import CudaStopwatch, Timing, measure
from task2.tools import benchmark


class Script:
    """A stopwatch for calls that return their own time."""

    def __init__(self) -> None:
        self.calls = 0

    def seconds(self, call) -> float:
        self.calls += 1
        return call()


def test_the_median_and_the_spread():
    timing = Timing((3.0, 1.0, 2.0, 10.0, 2.5))
    assert (timing.seconds, timing.fastest, timing.slowest) == (2.5, 1.0, 10.0)


def test_every_round_has_new_inputs_and_every_peer_gets_them():
    made, seen = [], {"a": [], "b": [], "c": []}

    def make_inputs():
        made.append(object())
        return made[-1], len(made)

    def peer(name):
        def call(x, number):
            seen[name].append(x)
            return float(number)

        return call

    timings = measure({name: peer(name) for name in seen}, make_inputs, rounds=5, warm_up=2, stopwatch=Script())
    assert len(made) == 7 and all(seen[name] == made for name in seen)
    assert list(timings) == ["a", "b", "c"]
    assert all(timing.runs == (3.0, 4.0, 5.0, 6.0, 7.0) for timing in timings.values())  # the warm-up is not counted


def test_the_peers_take_turns_at_going_first():
    order = []

    def peer(name):
        def call():
            order.append(name)
            return 1.0

        return call

    measure({name: peer(name) for name in "abc"}, tuple, rounds=3, warm_up=0, stopwatch=Script())
    assert order == [*"abc", *"bca", *"cab"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"peers": {}}, "peers is empty"),
        ({"rounds": 0}, "rounds is 0 and warm_up 3; they must be at least 1 and 0"),
        ({"warm_up": -1}, "rounds is 20 and warm_up -1"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        measure(**{"peers": {"a": lambda: 1.0}, "make_inputs": tuple, "stopwatch": Script(), **arguments})


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_stopwatch_needs_a_gpu():
    with pytest.raises(RuntimeError, match="torch sees none"):
        CudaStopwatch()


@pytest.mark.gpu
def test_the_stopwatch_calls_once_and_says_how_long_it_took():
    calls = []
    x = torch.randn(1024, 1024, device="cuda")
    assert 0 < CudaStopwatch().seconds(lambda: calls.append(x @ x)) < 10
    assert len(calls) == 1


def test_limits_count_bytes_both_ways_and_two_operations_per_product(monkeypatch):
    monkeypatch.setattr(limits_module, "COPY_BYTES", 4096)
    monkeypatch.setattr(limits_module, "MATMUL_SIZE", 16)
    watch = SecondPerCall()
    limits = measure_limits(("float32", "bfloat16"), rounds=1, stopwatch=watch, device="cpu")
    assert limits == Limits(copy=8192, matmul={"float32": 2 * 16**3, "bfloat16": 2 * 16**3})
    copied, float32, bfloat16 = watch.results[0], watch.results[4], watch.results[8]
    assert copied.numel() == 1024 and float32.shape == bfloat16.shape == (16, 16)
    assert (float32.dtype, bfloat16.dtype) == (torch.float32, torch.bfloat16)


def test_an_unknown_arithmetic_is_named():
    with pytest.raises(ValueError, match=r"matmul holds \['fp8'\]; it may hold float32, tf32 and bfloat16"):
        measure_limits(("fp8",), stopwatch=Script(), device="cpu")


def test_the_precision_is_put_back():
    before = torch.get_float32_matmul_precision()
    with pytest.raises(KeyError), float32_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
        raise KeyError
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.853e-3, "2.85 ms"), (4.13e-5, "41.3 us"), (4.128e-4, "413 us"), (9.999e-4, "1.00 ms"), (2.7e-3, "2.70 ms")],
)
def test_durations_have_three_digits(seconds, text):
    assert report.duration(seconds) == text


def section(**changed) -> report.Section:
    timings = {"slow": Timing((2.0, 4.0, 3.0)), "fast": Timing((1.0, 1.0, 1.0)), "peer": Timing((0.5, 0.5, 0.5))}
    good = {"title": "sum [x]", "work": 1e12, "unit": "TB/s", "timings": timings, "peer": "peer"}
    return report.Section(**{**good, "limit": report.Limit("copy", 4e12), **changed})


def lines_of(table) -> list[str]:
    console = Console(width=140, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def test_the_table_shows_rates_and_shares():
    lines = lines_of(report.table(section()))
    assert lines[0].strip() == "sum [x]"
    slow = next(line for line in lines if "slow " in line)
    assert [cell.strip() for cell in slow.split("│")[1:-1]] == [
        "slow",
        "3.00 s",
        "2.00 .. 4.00 s",
        "0.33",
        "8%",
        "17%",
    ]
    assert any("of copy (4)" in line for line in lines)


def test_a_ladder_compares_each_step_with_the_one_before():
    lines = lines_of(report.table(section(ladder=True)))
    last_cells = {line.split("│")[1].strip(): line.split("│")[-2].strip() for line in lines if line.startswith("│")}
    assert last_cells == {"slow": "", "fast": "3.00 x", "peer": ""}


def test_a_range_over_two_units_names_both():
    both = section(timings={"peer": Timing((0.5e-3, 2e-3))})
    assert any("500 us .. 2.00 ms" in line for line in lines_of(report.table(both)))


@pytest.mark.parametrize(
    ("changed", "words"), [({"unit": "GB"}, "unit is 'GB'"), ({"peer": "torch"}, "peer is 'torch'")]
)
def test_a_section_refuses_what_it_cannot_show(changed, words):
    with pytest.raises(ValueError, match=words):
        section(**changed)


def test_json_holds_the_same_numbers(tmp_path):
    file = tmp_path / "numbers.json"
    report.write_json(file, "python -m task2.benchmark", [section()], {"gpu": "none"})
    written = json.loads(file.read_text())
    assert written["machine"] == {"gpu": "none"} and written["command"] == "python -m task2.benchmark"
    slow = written["results"][0]
    assert slow["version"] == "slow" and slow["runs"] == 3 and slow["median_seconds"] == 3.0
    assert slow["per_second"] == pytest.approx(1e12 / 3) and slow["work_unit"] == "bytes"
    assert slow["share_of_limit"] == pytest.approx(1 / 12) and slow["times_peer"] == pytest.approx(1 / 6)


# ---- task2.benchmark


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_the_benchmark_says_so(capsys, tmp_path):
    file = tmp_path / "numbers.json"
    assert benchmark.main(["--json", str(file)]) == report.NEEDS_GPU
    assert "A benchmark needs a GPU" in capsys.readouterr().out
    assert not file.exists()


def test_bad_rounds_are_named(capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["--rounds", "0"])
    assert "--rounds is 0; it must be at least 1" in capsys.readouterr().err


PROBLEMS = [
    (benchmark.softmax_problem(7, 33, device="cpu"), 2 * 4 * 7 * 33, lambda x: torch.softmax(x, -1)),
    (benchmark.gemm_problem("gemm_nn", 3, 5, 7, 11, device="cpu"), 2 * 3 * 5 * 7 * 11, torch.matmul),
    (benchmark.gemm_problem("gemm_nt", 3, 5, 7, 11, device="cpu"), 2 * 3 * 5 * 7 * 11, lambda a, b: a @ b.mT),
]


@pytest.mark.parametrize(("problem", "work", "right"), PROBLEMS)
def test_a_problem_states_its_work_and_knows_the_answer(problem, work, right):
    assert problem.work == work
    benchmark.check_output(problem, "right", right)
    with pytest.raises(RuntimeError, match="wrong by a little is wrong on"):
        benchmark.check_output(problem, "wrong by a little", lambda *inputs: right(*inputs) * 1.001)
    with pytest.raises(RuntimeError, match="nan is wrong on"):
        benchmark.check_output(problem, "nan", lambda *inputs: right(*inputs) * float("nan"))


def test_a_wrong_last_row_is_seen():
    problem = benchmark.softmax_problem(5000, 3, device="cpu")

    def wrong(x):
        y = torch.softmax(x, -1)
        y[-1] = 0
        return y

    with pytest.raises(RuntimeError, match="is wrong on softmax 5000 x 3"):
        benchmark.check_output(problem, "no last row", wrong)


def test_a_wrong_version_is_not_timed():
    problem = benchmark.softmax_problem(4, 8, device="cpu")
    watch = SecondPerCall()
    versions = {"ours": lambda x: x, "torch.softmax": lambda x: torch.softmax(x, -1)}
    with pytest.raises(RuntimeError, match="ours is wrong"):
        benchmark.run(problem, versions, Limits(1.0, {}), 2, False, watch)
    assert watch.results == []


def test_a_run_times_all_versions_against_the_right_limit():
    problem = benchmark.gemm_problem("gemm_nt", 1, 4, 5, 6, device="cpu")
    versions = {"ours": lambda a, b: a @ b.mT, "cuBLAS": lambda a, b: torch.matmul(a, b.mT)}
    result = benchmark.run(problem, versions, Limits(1.0, {"float32": 480.0}), 2, False, SecondPerCall())
    assert result.peer == "cuBLAS" and result.limit == report.Limit("matmul", 480.0)
    assert [record["share_of_limit"] for record in result.records()] == [0.5, 0.5]


class Recorder:
    """Operators that say how they were called."""

    def __getattr__(self, name):
        return lambda *arguments: (name, *arguments)


@pytest.mark.parametrize(("operator", "steps", "library"), [("softmax", 3, "torch.softmax"), ("gemm_nt", 4, "cuBLAS")])
def test_the_steps_are_numbered_as_the_kernels_number_them(operator, steps, library):
    versions = benchmark.peers(operator, Recorder(), Recorder(), steps=True)
    names = list(versions)
    assert names[0] == "taught" and names[-1] == library and len(names) == steps + 2
    calls = [call("x") for name, call in versions.items() if name[0].isdigit()]
    assert calls == [(f"{operator}_step", "x", number) for number in range(1, steps + 1)]
    assert list(benchmark.peers(operator, Recorder(), Recorder(), steps=False)) == ["taught", "tuned", library]
    assert next(iter(benchmark.peers(operator, Recorder(), Recorder(), False, yours=Recorder()))) == "yours"
