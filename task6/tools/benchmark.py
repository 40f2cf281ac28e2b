"""Task 6's decode kernel against the fast ones and PyTorch's: common/measure/benchmarks/decode.py, and two more."""

from __future__ import annotations

import argparse

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.places import is_filled
from common.compiling.request import BuildRequest
from common.measure.benchmarks.decode import decode_benchmark

LABELS = {"yours": "yours", "taught": "taught"}


def of_the_course(options: argparse.Namespace) -> dict[str, Operators]:
    """The taught kernel, and the student's if its gaps are filled or it was requested; both are float32."""
    wanted = [name for name in LABELS if name in (options.versions or LABELS)]
    if not options.versions and not is_filled("task6"):
        wanted.remove("yours")
    whose = {"yours": "student", "taught": "solution"}
    return {name: load(BuildRequest("task6", whose[name], "cuda")) for name in wanted}


BENCHMARK = decode_benchmark("task6.benchmark", LABELS, of_the_course)
