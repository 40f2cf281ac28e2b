"""float32 matmul on a GPU compared with cuBLAS (torch's matmul, no TF32). Work: 2 M N K operations per matrix."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.measure.benchmark.problem import Benchmark, Version
from common.measure.benchmark.sample import Sample
from common.measure.benchmarks.softmax import add_steps, operator_version
from common.reference import oracle as reference
from common.reference.bounds import running_sum_floor

SIZES = ((1, 4096, 4096, 4096), (1, 1024, 1024, 1024), (1, 4095, 4097, 4093), (96, 1024, 1024, 64))  # batch, M, N, K
PRODUCTS = {"gemm_nn": "A B", "gemm_nt": "A B^T"}
STEPS = {
    "step 1": "1 register tiles",
    "step 2": "2 float4",
    "step 3": "3 no bank conflicts",
    "step 4": "4 pipelined",
}
LABELS = {"tuned": "tuned", "cublas": "cuBLAS"}
MATRICES = 8  # matrices of a batch that are compared


@dataclass(frozen=True)
class GemmProblem:
    """gemm_nn: a [batch, M, K] times b [batch, K, N]; gemm_nt: b [batch, N, K]."""

    operator: str
    batch: int
    m: int
    n: int
    k: int

    unit, limit = "TFLOP/s", "float32"
    scores_bytes = tensor_bytes = least_bytes = 0

    @property
    def setting(self) -> str:
        return f"{PRODUCTS[self.operator]}, float32"

    picture = "matrix products, float32"

    @property
    def column(self) -> str:
        return f"{f'{self.batch} x ' if self.batch > 1 else ''}{self.m} {self.n} {self.k}"

    @property
    def x(self) -> float:
        return self.work

    @property
    def work(self) -> float:
        return 2 * self.batch * self.m * self.n * self.k

    def make_inputs(self, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """a and b: standard normal."""
        b = (self.batch, self.k, self.n) if self.operator == "gemm_nn" else (self.batch, self.n, self.k)
        return torch.randn(self.batch, self.m, self.k, device=device), torch.randn(b, device=device)

    def sample(self, inputs: Sequence[Tensor]) -> Sample:
        """A sample of whole matrices, including the first and the last."""

        def pick(outputs: Sequence[Tensor]) -> list[Tensor]:
            chosen = torch.linspace(0, self.batch - 1, min(MATRICES, self.batch), device=outputs[0].device).long()
            return [x[chosen] for x in outputs]

        given, right = pick(inputs), getattr(reference, self.operator)
        exact, same = right(*(x.double() for x in given)), right(*given)
        # a sum of k products of two normal variables rarely exceeds 4 sqrt(k)
        return Sample.of(pick, [exact], [same], lambda ref: running_sum_floor(self.k, 4 * self.k**0.5))


def gemm_versions(options: argparse.Namespace) -> Callable[[GemmProblem], dict[str, Version]]:
    """The tuned kernel, or with options.steps the steps leading to it, and cuBLAS."""
    ops = load(BuildRequest("gemm", backend="cuda"))

    def versions(problem: GemmProblem) -> dict[str, Version]:
        ours = {"tuned": operator_version("tuned", getattr(ops, problem.operator))}
        if options.steps:
            call, steps = getattr(ops, f"{problem.operator}_step"), enumerate(STEPS.items(), start=1)
            ours = {name: operator_version(label, call, True, step) for step, (name, label) in steps}
        product = torch.matmul if problem.operator == "gemm_nn" else lambda a, b: torch.matmul(a, b.mT)
        return ours | {"cublas": operator_version("cuBLAS", product, ours=False)}

    return versions


def gemm_benchmark(program: str) -> Benchmark:
    """The tuned kernel, or its steps, compared with cuBLAS."""
    return Benchmark(
        program,
        "How fast matrix products in float32 are on a GPU, compared with cuBLAS.",
        {**STEPS, **LABELS},
        lambda options: [GemmProblem(one, *size) for one in PRODUCTS for size in SIZES[: 1 if options.steps else None]],
        gemm_versions,
        GemmProblem,
        add_steps,
        ladder=lambda options: options.steps,
    )
