"""The softmax and GEMM benchmarks: work, what counts as right, the steps. Nothing is timed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.measure.benchmarks import gemm, softmax
from common.measure.benchmarks.gemm import GemmProblem, gemm_versions
from common.measure.benchmarks.softmax import SoftmaxProblem, softmax_versions

PROBLEMS = [
    (SoftmaxProblem(7, 33), 2 * 4 * 7 * 33, lambda x: torch.softmax(x, -1)),
    (GemmProblem("gemm_nn", 3, 5, 7, 11), 2 * 3 * 5 * 7 * 11, torch.matmul),
    (GemmProblem("gemm_nt", 3, 5, 7, 11), 2 * 3 * 5 * 7 * 11, lambda a, b: a @ b.mT),
]


@pytest.mark.parametrize(("problem", "work", "right"), PROBLEMS)
def test_a_problem_states_its_work_and_knows_the_answer(problem, work, right):
    assert problem.work == work
    inputs = problem.make_inputs("cpu")
    sample, out = problem.sample(inputs), right(*inputs)
    assert sample.compare(out).ok
    assert not sample.compare(out * 1.001).ok and not sample.compare(out * float("nan")).ok


LARGE = [(SoftmaxProblem(5000, 3), lambda x: torch.softmax(x, -1)), (GemmProblem("gemm_nn", 50, 2, 3, 4), torch.matmul)]


@pytest.mark.parametrize(("problem", "right"), LARGE)
def test_a_wrong_last_row_or_matrix_is_seen(problem, right):
    inputs = problem.make_inputs("cpu")
    out = right(*inputs)
    out[-1] = 0
    assert not problem.sample(inputs).compare(out).ok


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize(
    ("module", "versions", "problem", "number", "last"),
    [
        (softmax, softmax_versions, SoftmaxProblem(5, 40), 3, "torch"),
        (gemm, gemm_versions, GemmProblem("gemm_nn", 2, 20, 30, 40), 4, "cublas"),
        (gemm, gemm_versions, GemmProblem("gemm_nt", 2, 20, 30, 40), 4, "cublas"),
    ],
)
def test_every_version_and_every_step_is_right(monkeypatch, backend, module, versions, problem, number, last, steps):
    monkeypatch.setattr(module, "load", lambda request: load(BuildRequest(request.task, backend=backend)))
    found = versions(SimpleNamespace(steps=steps))(problem)
    ours = [f"step {step}" for step in range(1, number + 1)] if steps else ["tuned"]
    assert list(found) == [*ours, last] and [one.ours for one in found.values()] == [True] * len(ours) + [False]
    inputs = problem.make_inputs("cuda" if backend == "cuda" else "cpu")
    sample = problem.sample(inputs)
    for name, version in found.items():
        assert sample.compare(version.prepare(*inputs)()).ok, name


class Recorder:
    """Operators that record how they were called."""

    def __getattr__(self, name):
        return lambda *arguments: (name, *arguments)


@pytest.mark.parametrize(
    ("module", "versions", "problem", "operator", "steps"),
    [
        (softmax, softmax_versions, SoftmaxProblem(1, 1), "softmax", 3),
        (gemm, gemm_versions, GemmProblem("gemm_nt", 1, 1, 1, 1), "gemm_nt", 4),
    ],
)
def test_the_steps_are_numbered_as_the_kernels_number_them(monkeypatch, module, versions, problem, operator, steps):
    monkeypatch.setattr(module, "load", lambda request: Recorder())
    found = versions(SimpleNamespace(steps=True))(problem)
    calls = [version.prepare("x")() for name, version in found.items() if name.startswith("step")]
    assert calls == [(f"{operator}_step", "x", number) for number in range(1, steps + 1)]
    labels = [version.label for name, version in found.items() if name.startswith("step")]
    assert [label.split()[0] for label in labels] == [str(number) for number in range(1, steps + 1)]
