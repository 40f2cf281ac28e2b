"""Test cases for a row-wise softmax operator: softmax_case(operator, part, name, rows, cols).

with_offsets, with_masks, with_peaks, with_high_end       difficult rows, for its argument `change`
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.softmax import row_formulas, softmax_mistakes
from common.reference import oracle as reference
from common.reference.bounds import exponent_floor, running_sum_floor
from common.testing.case import Case
from common.testing.cases.steps import softmax_steps

NAN_HINT = (
    "A NaN in a softmax is inf / inf or 0 / 0: exp(x - maximum) is infinite where the maximum leaves out a much larger "
    "entry. Does it take in the whole row: the first column, the last one, and those beyond the block's threads?"
)


def softmax_case(
    operator: str,
    part: str,
    name: str,
    rows: int,
    cols: int,
    change: Callable[[Tensor], Tensor] = lambda x: x,
    size: float = 0.0,
    lost: float = 0.0,
    **options,
) -> Case:
    """A case for operator(x) -> y, x and y [rows, cols].

    Args:
        operator: its name among the task's operators.
        part, name: see common.testing.case.Case, which also takes `options`.
        change: maps x to the input.
        size: magnitude of the entries, if they are so large that rounding of the exponent matters.
        lost: fraction of a row's sum lost in terms too small to be added, see common.reference.bounds.lost_terms.
    """

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        return {"x": change(4 * torch.randn(rows, cols, generator=generator))}  # peaked weights

    return Case(
        name,
        part,
        inputs,
        lambda ops, x: getattr(ops, operator)(x),
        reference.softmax,
        floor=1e-6 + running_sum_floor(cols, 1) + exponent_floor(size) + lost,
        axes=("row", "col"),
        mistakes=lambda x: softmax_mistakes(x) + row_formulas(x),
        steps=softmax_steps,
        is_softmax=True,
        nan_hint=NAN_HINT,
        **options,
    )


def with_offsets(x: Tensor) -> Tensor:
    """Rows around 0, 1000 and -1000, where exp() without the maximum gives inf and 0; rows must be a multiple of 3.

    The first row ends with an entry 1000 above the others, and the fourth begins with one: a maximum that misses the
    last or the first column yields exp(1000).
    """
    x[0, -1] += 1000
    x[3, 0] += 1000
    return x + torch.tensor([0.0, 1000.0, -1000.0]).repeat(x.size(0) // 3)[:, None]


def with_masks(x: Tensor) -> Tensor:
    """-inf in scattered places, in the first 100 columns of row 1, the last 100 of row 2, and all of row 4."""
    x = x.masked_fill(torch.arange(x.numel()).view(x.shape) % 7 == 3, -math.inf)
    x[1, :100], x[2, -100:], x[4] = -math.inf, -math.inf, -math.inf
    return x


def with_peaks(x: Tensor) -> Tensor:
    """[256, 1024]: in each row, one entry exceeds the others by more than 100. Over the rows, each of 256 threads and
    each warp holds it at least once, whether a thread takes columns 256 apart or four adjacent ones."""
    row = torch.arange(256)
    x[row, 4 * row + row // 64] += 200
    return x


def with_high_end(x: Tensor) -> Tensor:
    """The last three entries of a row weigh as much as its largest one: leaving them out gives a large error.

    From the second row on, the other entries are 1000 below the last one, so the maximum must include it too. (Omitting
    the maximum altogether is harmless there: that is a different mistake.)
    """
    x[:, -3:] = x.amax(1, keepdim=True) - torch.arange(3)
    x[1:, :-1] -= 1000
    return x
