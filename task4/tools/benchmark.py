"""The course's versions of attention compared with PyTorch's: common/measure/benchmarks/flash.py, and four more."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from common.compiling.load import load
from common.compiling.places import is_filled
from common.compiling.request import BuildRequest
from common.measure.benchmark.goals import Goal
from common.measure.benchmark.problem import Version
from common.measure.benchmarks.flash import Problem, flash_benchmark, forward_of

LABELS = {"naive": "naive (task 1)", "tiled": "tiled (task 2)", "yours": "yours", "taught": "taught"}
# task, variant, operator; dtypes; whether the scores are stored
COURSE = {
    "naive": (BuildRequest("task1", "solution", "cuda"), "naive_attention", ("fp32", "fp16", "bf16"), True),
    "tiled": (BuildRequest("task2", "solution", "cuda"), "attention", ("fp32",), True),
    "yours": (BuildRequest("task4", "student", "cuda"), "flash_attention", ("fp32",), False),
    "taught": (BuildRequest("task4", "solution", "cuda"), "flash_attention", ("fp32",), False),
}


def of_the_course(options: argparse.Namespace) -> Callable[[Problem], dict[str, Version]]:
    """The kernels of the tasks, compiled if they take part."""
    wanted = [name for name in options.versions or COURSE if name in COURSE]
    if not options.versions and not is_filled("task4"):
        wanted.remove("yours")
    operators = {name: getattr(load(COURSE[name][0]), COURSE[name][1]) for name in wanted}

    def versions(problem: Problem) -> dict[str, Version]:
        found = {}
        for name in wanted:
            _, _, dtypes, stores = COURSE[name]
            taken = problem.dtype in dtypes and (stores or problem.head_dim <= 128)
            if problem.direction == "forward" and taken:
                stored = problem.scores_bytes if stores else 0.0
                found[name] = Version(LABELS[name], forward_of(operators[name], problem.causal), True, stored)
        return found

    return versions


def _forward(version: str, dtype: str, over: str) -> Goal:
    return Goal(version, (over,), f"forward, {dtype}", lambda one: (one.direction, one.dtype) == ("forward", dtype))


GOALS = (
    Goal(
        *("mma", ("naive",), "forward, fp16, 1024 tokens"),
        lambda one: (one.direction, one.dtype, one.seq_len) == ("forward", "fp16", 1024),
        mean=50.0,
        stated=lambda problems: all(one.heads * one.head_dim == 1024 for one in problems),
    ),
    *(_forward("taught", "fp32", over) for over in ("naive", "tiled", "efficient")),
    *(_forward(version, "fp32", over) for version in ("ffma", "3xfp16") for over in ("naive", "taught")),
    *(_forward(version, dtype, "naive") for version in ("mma", "wgmma") for dtype in ("fp16", "bf16")),
)
BENCHMARK = flash_benchmark("task4.benchmark", LABELS, of_the_course, GOALS)
