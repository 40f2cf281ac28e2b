"""python -m task4.benchmark: which kernels run on which problems, and that they are right. Nothing is timed."""

from __future__ import annotations

import dataclasses

import pytest

from common.cli.benchmark import parser_of
from common.compiling.load import load
from common.measure.benchmark.goals import conclusions
from common.measure.benchmark.runner import Record
from common.measure.benchmarks.flash import Problem
from common.measure.timing import Timing
from task4.tools import benchmark


def versions(backend: str, monkeypatch, *arguments: str, filled: bool = False):
    monkeypatch.setattr(benchmark, "load", lambda request: load(dataclasses.replace(request, backend=backend)))
    monkeypatch.setattr(benchmark, "is_filled", lambda task: filled)
    return benchmark.of_the_course(parser_of(benchmark.BENCHMARK).parse_args(arguments))


def problem(direction: str = "forward", dtype: str = "fp32", causal: bool = False) -> Problem:
    return Problem(direction, dtype, 64, causal, 33, 1, 3)


@pytest.mark.parametrize("causal", [False, True])
def test_every_version_of_the_course_is_right(backend, monkeypatch, causal):
    one = problem(causal=causal)
    inputs = one.make_inputs("cuda" if backend == "cuda" else "cpu")
    sample = one.sample(inputs)
    found = versions(backend, monkeypatch)(one)
    assert list(found) == ["naive", "tiled", "taught"] and all(version.ours for version in found.values())
    for name, version in found.items():
        assert sample.compare(version.prepare(*inputs)()).ok, name
    assert [version.stored_bytes for version in found.values()] == [one.scores_bytes, one.scores_bytes, 0]


def test_who_takes_part(backend, monkeypatch):
    of = versions(backend, monkeypatch, filled=True)
    assert list(of(problem())) == ["naive", "tiled", "yours", "taught"]
    assert list(of(problem(dtype="bf16"))) == ["naive"] and not of(problem("backward"))
    assert list(versions(backend, monkeypatch, "--versions", "yours", "math")(problem())) == ["yours"]


def test_the_goal_over_the_naive_kernel_is_stated_for_its_width():
    def drawn(hidden: int) -> list[bool | None]:
        one = Problem("forward", "fp16", 64, False, 1024, 16, hidden // 64)
        records = [
            Record(one, name, name, timing=Timing((seconds,))) for name, seconds in (("mma", 1.0), ("naive", 60.0))
        ]
        return [line.reached for line in conclusions(records, benchmark.GOALS)]

    assert drawn(1024) == [True, None] and drawn(2048) == [None, None]
