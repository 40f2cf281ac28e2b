"""python -m task2.benchmark: which problems and which kernels. Nothing is timed."""

from __future__ import annotations

import pytest

from common.cli.benchmark import parser_of
from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.measure.benchmarks import gemm, softmax
from common.measure.benchmarks.gemm import GemmProblem
from common.measure.benchmarks.softmax import SoftmaxProblem
from task2.tools import benchmark

SMALL = [SoftmaxProblem(5, 40), GemmProblem("gemm_nn", 2, 20, 30, 40), GemmProblem("gemm_nt", 2, 20, 30, 40)]


def options_of(*arguments: str):
    return parser_of(benchmark.BENCHMARK).parse_args(arguments)


@pytest.fixture
def here(backend, monkeypatch):
    """The benchmark's kernels, compiled for this backend."""
    for module in (benchmark, gemm, softmax):
        monkeypatch.setattr(
            module, "load", lambda request: load(BuildRequest(request.task, request.variant, backend=backend))
        )
    return "cuda" if backend == "cuda" else "cpu"


def test_the_taught_kernels_are_right(here, monkeypatch):
    monkeypatch.setattr(benchmark, "is_filled", lambda task: False)
    versions = benchmark.versions(options_of())
    for problem in SMALL:
        inputs = problem.make_inputs(here)
        found = versions(problem)
        assert list(found) == ["taught", "tuned", "torch" if isinstance(problem, SoftmaxProblem) else "cublas"]
        assert problem.sample(inputs).compare(found["taught"].prepare(*inputs)()).ok


@pytest.mark.parametrize("filled", [False, True])
def test_yours_takes_part_where_it_is_filled_or_named(here, monkeypatch, filled):
    monkeypatch.setattr(benchmark, "is_filled", lambda task: filled)
    assert ("yours" in benchmark.versions(options_of())(SMALL[0])) is filled
    named = benchmark.versions(options_of("--versions", "yours", "torch"))(SMALL[0])
    assert "yours" in named and "taught" not in named


def test_the_problems():
    assert len(benchmark.problems(options_of())) == 7 + 2 * 4
    assert len(benchmark.problems(options_of("--steps"))) == 2 + 2
    assert {type(one) for one in benchmark.problems(options_of("--part", "gemm"))} == {GemmProblem}
    assert {type(one) for one in benchmark.problems(options_of("--part", "softmax"))} == {SoftmaxProblem}


@pytest.mark.parametrize("problem", SMALL)
def test_a_file_gives_back_both_kinds(problem):
    assert benchmark.problem_of(**vars(problem)) == problem
