"""The times of task 5's test: the chosen kernels in float32, beside PyTorch's; see task5/tools/benchmark."""

from __future__ import annotations

from common.testing import results
from common.testing.measurement import Earned, Measurement, TestRun
from task5.tools.benchmark import tables
from task5.tools.benchmark.command import BLOCK, measure_all
from task5.tools.benchmark.problems import PATTERNS, grid

SEQ_LEN = 4096  # at which a round takes milliseconds
ROUNDS = 20


def run(test_run: TestRun) -> list[Earned]:
    """Times every pattern, prints the tables, and writes them into Results.md with --report."""
    from common.measure import report

    dtype = "fp16" if test_run.ops.variant == "tuned" else "fp32"
    problems = grid(dtype, PATTERNS, (SEQ_LEN,))
    measured = measure_all(test_run.console, problems, test_run.ops, flex=False, rounds=ROUNDS)
    if not test_run.options.report:
        return [Earned("benchmark")]
    block = tables.block(report.machine(), test_run.command, measured, f"{test_run.ops.variant} kernels")
    return [Earned("benchmark", problems=results.try_report(test_run.console, BLOCK, block))]


BENCHMARK = Measurement(
    {"benchmark": "measure the times only (on a GPU)"},
    run,
    needs_gpu=True,
    without_gpu="benchmark: nothing was timed. Times are measured on a GPU.",
    reports=True,
)
