"""float32 row-wise softmax on a GPU compared with torch.softmax. Work: each entry read once and written once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.measure.benchmark.problem import Benchmark, Version
from common.measure.benchmark.sample import Sample
from common.reference import oracle as reference

SIZES = (
    (65536, 4096),
    (4194304, 64),
    (1048576, 128),
    (262144, 1024),
    (8192, 32768),
    (4096, 65536),
    (65537, 4095),
)
STEP_SIZES = ((65536, 4096), (4096, 65536))
STEPS = {"step 1": "1 one pass, warp shuffles", "step 2": "2 float4", "step 3": "3 row in registers"}
ROWS = 512  # compared rows
LABELS = {"tuned": "tuned", "torch": "torch.softmax"}


@dataclass(frozen=True)
class SoftmaxProblem:
    """softmax over the last axis of [rows, cols]."""

    rows: int
    cols: int

    setting = picture = "softmax"
    unit, limit = "TB/s", "copy"
    scores_bytes = tensor_bytes = least_bytes = 0

    @property
    def column(self) -> str:
        return f"{self.rows} x {self.cols}"

    @property
    def x(self) -> float:
        return self.cols

    @property
    def work(self) -> float:
        return 2 * 4 * self.rows * self.cols

    def make_inputs(self, device: torch.device | str) -> tuple[Tensor]:
        """x: normal, wide enough for peaked rows."""
        return (4 * torch.randn(self.rows, self.cols, device=device),)

    def sample(self, inputs: Sequence[Tensor]) -> Sample:
        """A sample of evenly spaced rows, including the first and last; rows are independent."""

        def pick(outputs: Sequence[Tensor]) -> list[Tensor]:
            chosen = torch.linspace(0, self.rows - 1, min(ROWS, self.rows), device=outputs[0].device).long()
            return [outputs[0][chosen]]

        [x] = pick(inputs)
        return Sample.of(pick, [reference.softmax(x.double())], [reference.softmax(x)], lambda ref: 1e-6)


def operator_version(label: str, operator: Callable[..., Tensor], ours: bool = True, *more) -> Version:
    """A function of the inputs as a version; `more`: additional arguments."""
    return Version(label, lambda *inputs: partial(operator, *inputs, *more), ours)


def softmax_versions(options: argparse.Namespace) -> Callable[[SoftmaxProblem], dict[str, Version]]:
    """The tuned kernel, or with options.steps the steps leading to it, and torch's."""
    ops = load(BuildRequest("softmax", backend="cuda"))
    ours = {"tuned": operator_version("tuned", ops.softmax)}
    if options.steps:
        steps = enumerate(STEPS.items(), start=1)
        ours = {name: operator_version(label, ops.softmax_step, True, step) for step, (name, label) in steps}
    made = ours | {"torch": operator_version("torch.softmax", partial(torch.softmax, dim=-1), ours=False)}
    return lambda problem: made


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Adds --steps."""
    parser.add_argument("--steps", action="store_true", help="the steps that lead to the tuned kernel, one change each")


def softmax_benchmark(program: str) -> Benchmark:
    """The tuned kernel, or its steps, compared with torch.softmax."""
    return Benchmark(
        program,
        "How fast softmax over rows is on a GPU, compared with torch.softmax and copying memory.",
        {**STEPS, **LABELS},
        lambda options: [SoftmaxProblem(*size) for size in (STEP_SIZES if options.steps else SIZES)],
        softmax_versions,
        SoftmaxProblem,
        add_steps,
        ladder=lambda options: options.steps,
    )
