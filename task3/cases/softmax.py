"""Cases for the online softmax kernel."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.softmax import online_softmax_mistakes, row_formulas, row_lse_mistakes, softmax_mistakes
from common.reference import oracle as reference
from common.reference.bounds import exponent_floor, running_sum_floor
from common.testing.case import Case
from common.testing.cases.softmax import with_high_end, with_peaks
from common.testing.cases.steps import softmax_steps

THREADS, ITEMS = 256, 4  # of online_softmax_kernel: threads per row, columns that each thread processes at a time


def softmax_cases() -> list[Case]:
    """y and lse of online_softmax for each kind of difficult row."""

    def both(rows: int, cols: int, change: Callable[[Tensor], Tensor]) -> dict:
        return {
            "part": "softmax",
            "inputs": lambda generator: {"x": change(4 * torch.randn(rows, cols, generator=generator))},
        }

    def y(name: str, rows: int, cols: int, change=lambda x: x, size: float = 0.0, **options) -> Case:
        return Case(
            name,
            call=lambda ops, x: ops.online_softmax(x)[0],
            reference=reference.softmax,
            floor=1e-6 + running_sum_floor(cols, 1) + exponent_floor(size),
            axes=("row", "col"),
            mistakes=lambda x: softmax_mistakes(x) + online_softmax_mistakes(x, THREADS, ITEMS) + row_formulas(x),
            steps=softmax_steps,
            is_softmax=True,
            **both(rows, cols, change),
            **options,
        )

    def lse(name: str, rows: int, cols: int, change=lambda x: x, size: float = 16.0, **options) -> Case:
        return Case(
            name,
            call=lambda ops, x: ops.online_softmax(x)[1],
            reference=lambda x: torch.logsumexp(x, -1),
            # `size` is the magnitude of lse: m + log(l) is rounded, and log(l) is off by l's relative error
            floor=1e-6 + 2.0**-23 * size + running_sum_floor(cols, 1),
            axes=("row",),
            mistakes=lambda x: row_lse_mistakes(x, THREADS, ITEMS) + row_formulas(x, "lse"),
            steps=softmax_steps,
            **both(rows, cols, change),
            **options,
        )

    return [
        y("one warp wide", 5, 32, points=0.05, required=True),
        y("113 x 203", 113, 203, points=0.05, required=True),
        y("1023 x 1024", 1023, 1024, points=0.05, required=True),
        y("one element", 1, 1, points=0.05),
        y("7 x 31, all below 0", 7, 31, lambda x: -2 - x.abs(), points=0.05),
        y("1025 columns", 2, 1025, with_high_end, points=0.05),
        y("4099 columns", 3, 4099, with_high_end, points=0.05, required=True),
        y("large offsets", 6, 300, with_offsets, size=1000.0, points=0.05, required=True),
        y("a peak in the columns of each thread", 256, 1024, with_peaks, size=200.0, required=True),
        y("masked entries, a masked row", 9, 1500, with_masks, points=0.05),
        y("masked, others far below 0", 3, 300, far_below, size=200.0, points=0.05),
        y("rows that rise and fall", 6, 5000, with_slopes, points=0.05),
        # without `size`: y = exp(x - lse), whose lse is rounded, must not pass here
        # No points: exp2f(x * log2(e) - m * log2(e)) is also right if the compiler fuses it into one multiply-add, as
        # nvcc does and the simulator's g++ does not.
        y("numbers around 10,000", 7, 300, lambda x: x + 10_000),
        y("70,001 columns", 1, 70_001, with_high_end, points=0.05),
        lse("lse, 113 x 203", 113, 203, points=0.05, required=True),
        lse("lse, large offsets", 6, 300, with_offsets, size=1024.0, points=0.05),
        lse("lse, a masked row", 9, 1500, with_masks, points=0.05),
        y("100,000 rows", 100_000, 3, gpu_only=True),
        lse("lse, 4096 x 4096", 4096, 4096, gpu_only=True),
    ]


def with_offsets(x: Tensor) -> Tensor:
    """Rows around 1000 and -1000, where exp() of the entries themselves gives inf and 0."""
    return x + torch.tensor([0.0, 1000.0, -1000.0]).repeat(x.size(0) // 3)[:, None]


def with_masks(x: Tensor) -> Tensor:
    """-inf in scattered places, in the first 1100 columns of row 1, in the last 100 of row 2, and all over row 4."""
    x = x.masked_fill(torch.arange(x.numel()).view(x.shape) % 7 == 3, -math.inf)
    x[1, :1100], x[2, -100:], x[4] = -math.inf, -math.inf, -math.inf
    return x


def far_below(x: Tensor) -> Tensor:
    """Around -200, and -inf in all columns of some threads: those threads must not contribute a maximum of 0."""
    return (x - 200).masked_fill(torch.arange(x.size(1)) % 7 == 3, -math.inf)


def with_slopes(x: Tensor) -> Tensor:
    """Even rows rise by 200 from the first column to the last, odd rows fall: the maximum is found late or at once."""
    slope = torch.linspace(-100, 100, x.size(1))
    return x + torch.where(torch.arange(x.size(0))[:, None] % 2 == 0, slope, -slope)
