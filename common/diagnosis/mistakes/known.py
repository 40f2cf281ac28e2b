"""Wrong answers that students' kernels are known to give, computed in PyTorch so that an output can be compared.

    softmax_mistakes(x)                         every mistake for y = softmax(x)
    any_mistakes(inputs, ref)                   for any operator: zeros, transposed, a copy of an input

Those of matrix products are in gemm.py, those of attention in attention_output.py. Each function returns a list of
Mistake. The inputs come in float64; where overflow is the mistake it is computed in float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from common.reference import oracle as right

TILES = (8, 16, 32, 64, 128, 256)
THREADS = (32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Mistake:
    """A wrong answer: a short name, what to tell the student, and the function that computes the output it gives.

    A vague one says what the output looks like and not what was done wrong: of two that fit it is told second. What is
    NaN in one that reads_unused was read where nothing may be read, see common.diagnosis.locating.UNUSED_BITS.
    """

    name: str
    says: str
    answer: Callable[[], Tensor]
    vague: bool = False
    reads_unused: bool = False

    def remembered(self) -> Mistake:
        """The same; its answer is computed once."""
        return replace(self, answer=functools.cache(self.answer))


class Inference(Mistake):
    """What can be concluded from an output that equals no known wrong answer, where the operator is linear in an input.

    Attributes:
        infer: infer(out, bound) -> (a name, what to tell the student), or None; out in the oracle's precision.
    """

    def __init__(self, infer: Callable[[Tensor, float], tuple[str, str] | None]) -> None:
        super().__init__("", "", lambda: torch.empty(0))
        object.__setattr__(self, "infer", infer)

    def remembered(self) -> Inference:
        """Itself: it has no answer."""
        return self


def last_tile_starts(size: int) -> list[int]:
    """Where the last, partial tile of an axis begins, for every usual tile width, the largest first."""
    return sorted({size // tile * tile for tile in TILES if size % tile}, reverse=True)


def any_mistakes(inputs: dict[str, Tensor], ref: Tensor) -> list[Mistake]:
    """Mistakes that need no mathematics: zeros, the output transposed, an input copied."""
    found = [
        Mistake(
            "all zeros",
            "Every output is 0.",
            lambda: torch.zeros_like(ref),
        )
    ]
    if ref.dim() >= 2 and min(ref.shape[-2:]) > 1:
        found.append(
            Mistake(
                "output transposed",
                "Each output matrix comes out transposed: element [row, col] lies where [col, row] belongs. Either the "
                "index of the store is not row * columns + col, or the operands of a product A B^T are exchanged.",
                lambda: ref.transpose(-2, -1).contiguous().reshape(ref.shape),
            )
        )
    for name, x in inputs.items():
        if x.is_floating_point() and x.shape == ref.shape:
            found.append(Mistake(f"copy of {name}", f"The output is a copy of the input {name}.", lambda x=x: x, True))
    for axis in range(ref.dim() - 2):
        if ref.size(axis) > 1:
            found.append(
                Mistake(
                    "only the first matrix",
                    f"Every matrix along axis {axis} holds the result of the first one: the offset of the matrix "
                    "(its number times its size) is missing from the pointers.",
                    lambda axis=axis: ref.narrow(axis, 0, 1).expand_as(ref),
                )
            )
    return found


def softmax_mistakes(x: Tensor) -> list[Mistake]:
    """Wrong answers for y = softmax(x) over the last axis, x [rows, cols]."""
    cols = x.size(-1)
    largest = x.amax(-1, keepdim=True)
    e = torch.exp(x - torch.where(largest == -math.inf, 0.0, largest))
    masked = largest == -math.inf
    no_max = (
        "The maximum of the row is not subtracted before exp: exp(x) overflows float32 from x = 88.7 on (inf / "
        "inf is NaN) and is 0 for every x below -104."
    )
    found = [
        Mistake(
            "not normalised",
            "The outputs are exp(x - max) and are not divided by the sum of their row.",
            lambda: e,
        ),
        Mistake(
            "masked row is NaN",
            "Rows in which every entry is -inf give NaN: -inf - (-inf) is NaN, and so is 0 / 0. In this course "
            "such a row is all zeros.",
            lambda: torch.where(masked, math.nan, right.softmax(x)),
        ),
        Mistake(
            "masked row is uniform",
            "Rows in which every entry is -inf give 1 / cols everywhere. In this course such a row is all zeros.",
            lambda: torch.where(masked, 1.0 / cols, right.softmax(x)),
        ),
        Mistake("no max subtraction", no_max, lambda: softmax_without_max(x, guarded=True)),
        Mistake("no max subtraction", no_max, lambda: softmax_without_max(x, guarded=False)),
        Mistake(
            "exp2 instead of exp",
            "The outputs are powers of 2, not of e: exp2f(x) is exp(x * ln 2).",
            lambda: right.softmax(x * math.log(2)),
        ),
        Mistake(
            "exponential left out",
            "Every entry of a row is 1 / sum: exp(x - max) is left out where the outputs are written.",
            lambda: torch.where(masked, 0.0, 1 / e.sum(-1, keepdim=True)).expand_as(x),
        ),
        Mistake(
            "divided by the maximum",
            "Each exp(x - max) is divided by the row's maximum instead of its sum.",
            lambda: e / largest,
        ),
        Mistake("logarithm", "The outputs are the logarithm of the softmax.", lambda: torch.log_softmax(x, -1)),
    ]
    if x.size(0) > 1:
        found += [
            Mistake(
                "softmax over the wrong axis",
                "The softmax runs over the wrong axis: the columns sum to 1 where the rows should.",
                lambda: right.softmax(x.transpose(-2, -1)).transpose(-2, -1),
            ),
            Mistake(
                "softmax over the whole matrix",
                "All elements together sum to 1: the maximum and the sum were taken over the whole matrix and "
                "not row by row.",
                lambda: right.softmax(x.reshape(1, -1)).reshape(x.shape),
            ),
        ]
    for n in sorted({n for n in THREADS if n < cols} | {cols}) if cols > 1 else ():
        found.append(
            Mistake(
                "each thread's own sum",
                "Each entry is divided by the sum of its own thread's columns alone"
                + (f", those that are {n} apart" if n < cols else ": every entry that is not 0 is 1")
                + ". The threads' sums were not put together, or the whole sum was not read back by every thread.",
                lambda n=n: e / _own_sums(e, n),
            )
        )
    for n in sorted({n for n in THREADS if n < cols} | set(last_tile_starts(cols)) - {0}):
        found.append(
            Mistake(
                "sum over the first columns only",
                f"The sum that divides each row holds only its first {n} of {cols} columns. If {n} is the number "
                "of threads, each thread adds one element: it must walk on through the row in steps of "
                "blockDim.x.",
                lambda n=n: e / e[:, :n].sum(-1, keepdim=True),
            )
        )
    return found


def _own_sums(e: Tensor, threads: int) -> Tensor:
    """Of each column the sum over the columns that its thread has; e [rows, cols]."""
    rows, cols = e.shape
    columns = torch.nn.functional.pad(e, (0, -cols % threads)).view(rows, -1, threads)
    return columns.sum(1, keepdim=True).expand_as(columns).reshape(rows, -1)[:, :cols].clamp(min=1e-300)


def softmax_without_max(x: Tensor, guarded: bool) -> Tensor:
    """softmax in float32 without subtracting the maximum; guarded: a sum of 0 gives zeros, not NaN."""
    e = torch.exp(x.float())
    total = e.sum(-1, keepdim=True)
    return (torch.where(total == 0, 0.0, e / total) if guarded else e / total).to(x.dtype)
