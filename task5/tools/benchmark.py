"""Task 5's kernels against FlexAttention and SDPA: common/measure/benchmarks/sparse.py on the kernels of a variant."""

from __future__ import annotations

import argparse

from common.cli.options import add_variant_arguments
from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest
from common.compiling.variant import Variant
from common.measure.benchmarks.sdpa import DTYPES, HALF
from common.measure.benchmarks.sparse import sparse_benchmark

LABELS = {"tuned": "tuned", "solution": "taught", "student": "yours"}
BLOCK = "task5 benchmark"  # in Results.md


def operators(options: argparse.Namespace) -> Operators:
    """The operators of the requested variant."""
    return load(BuildRequest("task5", options.variant, "cuda"))


def dtype_of(options: argparse.Namespace) -> str:
    """The requested dtype, or the variant's default.

    Raises:
        ValueError: the variant has no such kernels.
    """
    allowed = HALF if options.variant == Variant.TUNED else ("fp32",)
    if options.dtype and options.dtype not in allowed:
        raise ValueError(f"--dtype is {options.dtype}; the {options.variant} kernels take {', '.join(allowed)}")
    return options.dtype or allowed[-1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--variant and --dtype."""
    add_variant_arguments(parser, default=Variant.TUNED)
    parser.add_argument(
        "--dtype", choices=DTYPES, help="default: bf16 for the tuned kernels; the others take fp32 only"
    )


BENCHMARK = sparse_benchmark("task5.benchmark", operators, LABELS, dtype_of, add_arguments, BLOCK)
