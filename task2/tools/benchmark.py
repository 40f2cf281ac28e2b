"""Task 2's kernels against the tuned ones and PyTorch's: common/measure/benchmarks/softmax.py and gemm.py together."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from common.compiling.load import load
from common.compiling.places import is_filled
from common.compiling.request import BuildRequest
from common.measure.benchmark.problem import Benchmark, Version
from common.measure.benchmarks import gemm, softmax
from common.measure.benchmarks.gemm import GemmProblem
from common.measure.benchmarks.softmax import SoftmaxProblem, operator_version

PARTS = ("softmax", "gemm")


def problem_of(**fields) -> SoftmaxProblem | GemmProblem:
    """Builds a problem of one of the two kinds from a JSON file's fields."""
    return GemmProblem(**fields) if "operator" in fields else SoftmaxProblem(**fields)


def problems(options: argparse.Namespace) -> list[SoftmaxProblem | GemmProblem]:
    """Both kinds, or the part that was requested; for --steps, two softmax sizes and one GEMM size."""
    found: list = []
    if options.part != "gemm":
        found += [SoftmaxProblem(*size) for size in (softmax.STEP_SIZES if options.steps else softmax.SIZES)]
    if options.part != "softmax":
        sizes = gemm.SIZES[:1] if options.steps else gemm.SIZES
        found += [GemmProblem(operator, *size) for operator in gemm.PRODUCTS for size in sizes]
    return found


def versions(options: argparse.Namespace) -> Callable[[SoftmaxProblem | GemmProblem], dict[str, Version]]:
    """The student's kernels if their gaps are filled, the taught ones, and those of common/kernels."""
    wanted = [name for name in ("yours", "taught") if name in (options.versions or LABELS)]
    if not options.versions and not is_filled("task2"):
        wanted.remove("yours")
    whose = {"yours": "student", "taught": "solution"}
    operators = {name: load(BuildRequest("task2", whose[name], "cuda")) for name in wanted}
    of_softmax, of_gemm = softmax.softmax_versions(options), gemm.gemm_versions(options)

    def of(problem: SoftmaxProblem | GemmProblem) -> dict[str, Version]:
        is_gemm = isinstance(problem, GemmProblem)
        name = problem.operator if is_gemm else "softmax"
        course = {one: operator_version(one, getattr(ops, name)) for one, ops in operators.items()}
        return course | (of_gemm(problem) if is_gemm else of_softmax(problem))

    return of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--steps, --part."""
    softmax.add_steps(parser)
    parser.add_argument("--part", choices=PARTS, help="only these kernels (default: both)")


LABELS = {"yours": "yours", "taught": "taught", **softmax.STEPS, **gemm.STEPS, **softmax.LABELS, **gemm.LABELS}
BENCHMARK = Benchmark(
    "task2.benchmark",
    "How fast task 2's kernels are on a GPU, compared with PyTorch's.",
    LABELS,
    problems,
    versions,
    problem_of,
    add_arguments,
    ladder=lambda options: options.steps,
)
