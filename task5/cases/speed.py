"""The timings of task 5's test: its kernels and PyTorch's at one length, as in `python -m task5.benchmark`."""

from __future__ import annotations

import argparse

from common.cli.benchmark import block, measure
from common.measure import report
from common.measure.benchmarks.sparse import PATTERNS, PEERS, grid, kernel_version, torch_versions
from common.testing import results
from common.testing.measurement import Earned, Measurement, TestRun
from task5.tools.benchmark import BLOCK, LABELS

SEQ_LEN = 4096  # a round takes milliseconds
OPTIONS = argparse.Namespace(seconds=120.0, rounds=20)


def run(test_run: TestRun) -> list[Earned]:
    """Times every pattern, prints the tables, and writes them into Results.md with --report."""
    ops, variant = test_run.ops, str(test_run.ops.variant)
    problems = grid("bf16" if variant == "tuned" else "fp32", PATTERNS, (SEQ_LEN,))
    peers = [name for name in PEERS if name != "flex"]  # flex takes minutes to compile

    def versions(problem) -> dict:
        return {variant: kernel_version(problem, ops, LABELS[variant]), **torch_versions(problem, peers)}

    records, _, lost = measure(test_run.console, problems, versions, OPTIONS)
    problems = ["the GPU was lost"] if lost else []
    problems += [f"{one.problem.setting}, {one.problem.column}: {one.left_out}" for one in records if one.failed]
    if test_run.options.report and not problems:
        made = block(test_run.command, report.machine(), records)
        problems = results.try_report(test_run.console, BLOCK, made)
    return [Earned("benchmark", problems=problems)]


BENCHMARK = Measurement(
    {"benchmark": "only measure the times (on a GPU)"},
    run,
    needs_gpu=True,
    without_gpu="benchmark: nothing was timed. Times are measured on a GPU.",
    reports=True,
)
