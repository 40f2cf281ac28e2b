"""Parts of a test that are measured in addition to its cases: when they run, what they earn, what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from common.cli import test as command
from common.cli.test import TaskTest, test_main
from common.testing.case import Case
from common.testing.kept import kept
from common.testing.measurement import Earned, Measurement


def case(right: bool) -> Case:
    return Case(
        "right" if right else "wrong",
        "sums",
        lambda generator: {"x": torch.randn(5, generator=generator)},
        lambda ops, x: 2 * x if right else x,
        lambda x: x + x,
        floor=1e-6,
        axes=("row",),
        points=2.0,
    )


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """run(argv, backend, earned, right=True, **measurement) -> (exit status, output, the measured parts)."""

    monkeypatch.setenv("ATTENTION_BUILD_DIR", str(tmp_path))

    def run(argv, backend="cuda", earned=None, right=True, parts=("speed",), **options):
        ops = SimpleNamespace(backend=backend, device=torch.device("cpu"), variant="student")
        monkeypatch.setattr("common.cli.workers.load", lambda request: ops)
        monkeypatch.setattr(command, "say_backend", lambda console, backend: None)
        ran = []

        def measure(test_run):
            ran.extend(test_run.parts)
            if isinstance(earned, Exception):
                raise earned
            return [earned or Earned(part, 2.0) for part in test_run.parts]

        options = {"points": {"speed": 2.0}, "needs_gpu": True} | options
        measurement = Measurement({part: f"measure {part} only" for part in parts}, measure, **options)
        test = TaskTest("task2", {"sums": "sums only"}, lambda variant: [case(right)], [measurement])
        status = test_main(test, [*argv, "--in-process"])
        return status, capsys.readouterr().out, ran

    return run


def test_in_the_simulator_the_part_is_not_run_and_says_so(run):
    status, said, ran = run([], "simulator")
    assert status == 0 and not ran
    assert "speed        0 of 2   not run in the simulator: these points need a GPU" in said
    assert "Points: 2 of 4" in said


def test_a_report_without_a_gpu_says_what_is_missing(run):
    _, said, ran = run(["--report"], "simulator", reports=True)
    assert not ran and "nothing is written to Results.md: speed cannot be measured in the simulator" in said


def test_what_was_tested_and_measured_is_kept(run, tmp_path):
    run([], "simulator")
    parts = kept("task2")
    assert set(parts) == {"sums"} and parts["sums"].backend == "simulator"
    assert parts["sums"].earned == parts["sums"].possible and not parts["sums"].failures
    run([], "cuda", right=False)
    parts = kept("task2")
    assert parts["speed"].earned == 2.0 and parts["sums"].failures[0].case == "wrong"
    run(["--first"], "simulator", right=False)
    assert kept("task2")["sums"].earned == 0 and "speed" in kept("task2")


@pytest.mark.parametrize(
    ("right", "earned", "status", "words"),
    [
        (True, Earned("speed", 2.0), 0, ["speed        2 of 2\n", "Points: 4 of 4"]),
        (True, Earned("speed", 2.0, ["No markers."]), 1, ["No markers.", "speed        2 of 2   see above"]),
        (True, Earned("speed", 1.25), 1, ["speed        1.25 of 2\n", "Points: 3.25 of 4"]),
        (False, Earned("speed", 2.0), 1, ["sums         0 of 2", "Points: 2 of 4"]),
        (True, Earned("speed", 0.0, ["Wrong."]), 1, ["Wrong.", "speed        0 of 2   see above", "Points: 2 of 4"]),
        (True, RuntimeError("no [memory]"), 1, ["not measured: no [memory]", "speed        0 of 2   see above"]),
    ],
)
def test_on_a_gpu_its_points_count(run, right, earned, status, words):
    got, said, _ = run([], earned=earned, right=right)
    assert got == status
    assert all(one in said for one in words), said


def test_nothing_but_the_part_in_the_simulator_is_nothing(run):
    status, said, ran = run(["--speed"], "simulator")
    assert status == 2 and not ran and "Points: 0 of 2" in said and "sums" not in said


def test_its_flag_chooses_it_alone_and_the_others_leave_it_out(run):
    assert run(["--speed"])[2] == ["speed"]
    assert "sums" not in run(["--speed"])[1]
    for argv in (["--sums"], ["--case", "right"], ["--list"]):
        assert run(argv)[2] == []


def test_one_that_is_not_run_by_default(run):
    assert run([], by_default=False)[2] == []
    assert run(["--speed"], by_default=False)[2] == ["speed"]


def test_several_parts_of_one_measurement_run_in_their_order(run):
    parts, points = ("text", "engine"), {"text": 2.0, "engine": 2.0}
    status, said, ran = run(["--engine", "--text"], parts=parts, points=points, needs_gpu=False)
    assert status == 0 and ran == ["text", "engine"] and "Points: 4 of 4" in said
    assert run(["--engine"], parts=parts, points=points, needs_gpu=False)[2] == ["engine"]


def test_without_points_it_has_no_line(run):
    status, said, ran = run([], points={}, earned=Earned("speed"))
    assert status == 0 and ran == ["speed"] and "speed " not in said and "Points: 2 of 2" in said


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--speed", "--case", "right"], "--case is about test cases, and --speed has none"),
        (["--speed", "--check"], "--check is about test cases"),
        (["--sums", "--report"], "--report writes what is measured, and nothing here is: add --speed, or name no part"),
        (["--sums", "--size", "3"], "--size belongs to --speed: add that"),
        (["--solution", "--tuned"], "--solution and --tuned contradict each other"),
        (["--variant", "student", "--sol"], "--variant student and --solution contradict each other"),
    ],
)
def test_what_does_not_go_together_is_refused(run, capsys, argv, words):
    with pytest.raises(SystemExit) as stopped:
        run(argv, reports=True, arguments={"--size": {"type": int}})
    assert stopped.value.code == 2 and words in " ".join(capsys.readouterr().err.split())
