"""Cases for task 2's row sums, and known mistakes in them."""

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Mistake, Words, last_tile_starts
from common.reference.bounds import running_sum_floor
from common.testing.case import Case

known = Words(__file__)

THREADS = 256  # of a block, as in attention_kernel.cu
HINT = (
    "If a case with one column passes and the others fail, look at the barriers: between a thread's write to `partial` "
    "and another thread's read of it there must be a __syncthreads(), in every step of the tree."
)


def row_sum_case(name: str, rows: int, cols: int, **options) -> Case:
    """A case for the sums of the rows of a [rows, cols] matrix."""

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        x = torch.randn(rows, cols, generator=generator)
        x[:, -1] += 5  # so that a sum without the last entry is far off
        return {"x": x}

    return Case(
        name,
        "row-sums",
        inputs,
        lambda ops, x: ops.row_sum(x),
        lambda x: x.sum(-1),
        floor=running_sum_floor(cols, 3 * math.sqrt(cols) + 5),
        axes=("row",),
        mistakes=row_sum_mistakes,
        hint=HINT,
        **options,
    )


def row_sum_cases() -> list[Case]:
    """Rows shorter and longer than a block, and irregular lengths."""
    case = row_sum_case
    return [
        case("sums of 5 x 256", 5, 256, points=0.05, required=True),
        case("sums of 3 x 1", 3, 1, points=0.05),
        case("sums of 7 x 31", 7, 31, points=0.05),
        case("sums of 113 x 1023", 113, 1023, points=0.05, required=True),
        case("sums of 2 x 65,536", 2, 65_536),
        case("sums of 100,000 x 300", 100_000, 300, gpu_only=True, draws=1),
    ]


def row_sum_mistakes(x: Tensor) -> list[Mistake]:
    """Wrong sums [rows] of x [rows, cols]."""
    cols = x.size(-1)
    padded = torch.nn.functional.pad(x, (0, -cols % THREADS))
    parts = padded.view(x.size(0), -1, THREADS).sum(1)  # per thread
    found = [
        known("part of thread 0 only", lambda: parts[:, 0]),
        known("last step of the tree missing", lambda: parts[:, ::2].sum(-1)),
        known("first step of the tree missing", lambda: parts[:, : THREADS // 2].sum(-1)),
        known("every row is the first", lambda: x.sum(-1)[:1].expand(x.size(0))),
    ]
    for n in sorted({n for n in (THREADS, *last_tile_starts(cols)) if 0 < n < cols}):
        name = "first columns only" if n == THREADS else "first columns only (rounded down)"
        found.append(known(name, lambda n=n: x[:, :n].sum(-1), n=n, cols=cols))
    if cols > THREADS:
        found.append(known("last entry of each thread", lambda: x[:, -THREADS:].sum(-1)))
    return found
