"""Cases for task 2's row sums, and what is known to go wrong in them."""

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Mistake, last_tile_starts
from common.reference.bounds import running_sum_floor
from common.testing.case import Case

THREADS = 256  # of a block, as in attention_kernel.cu
HINT = (
    "If a case with one column passes and the others fail, look at the barriers: between a thread's write to `partial` "
    "and another thread's read of it there must be a __syncthreads(), in every step of the tree."
)


def row_sum_cases() -> list[Case]:
    """Rows shorter and longer than a block, and lengths that are no multiple of anything."""

    def case(name: str, rows: int, cols: int, **options) -> Case:
        def inputs(generator: torch.Generator) -> dict[str, Tensor]:
            x = torch.randn(rows, cols, generator=generator)
            x[:, -1] += 5  # so that whoever forgets the last entry is far off
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
    parts = padded.view(x.size(0), -1, THREADS).sum(1)  # of each thread
    found = [
        Mistake(
            "part of thread 0 only",
            "Only the part of thread 0 comes out (the entries 0, 256, 512, ...): the tree adds nothing to partial[0].",
            lambda: parts[:, 0],
        ),
        Mistake(
            "last step of the tree missing",
            "The parts of the even threads only are added up: in the tree's last step, with one active thread, nothing "
            "is added. Either its loop ends too early, or the bound of the active threads leaves out the last one.",
            lambda: parts[:, ::2].sum(-1),
        ),
        Mistake(
            "first step of the tree missing",
            "The parts of the threads 0 to 127 only are added up: the first step has ROW_THREADS / 2 active threads.",
            lambda: parts[:, : THREADS // 2].sum(-1),
        ),
        Mistake(
            "every row is the first",
            "Every row has the sum of row 0: a block's row begins at blockIdx.x * cols.",
            lambda: x.sum(-1)[:1].expand(x.size(0)),
        ),
    ]
    for n in sorted({n for n in (THREADS, *last_tile_starts(cols)) if 0 < n < cols}):
        found.append(
            Mistake(
                "first columns only",
                f"Only the first {n} of {cols} columns are added up. If {n} is the number of threads, each thread adds "
                "one entry: it must continue through the row in steps of ROW_THREADS.",
                lambda n=n: x[:, :n].sum(-1),
            )
        )
    if cols > THREADS:
        found.append(
            Mistake(
                "last entry of each thread",
                "Each thread keeps only the last entry that it reads (= for +=).",
                lambda: x[:, -THREADS:].sum(-1),  # these are the last ones
            )
        )
    return found
