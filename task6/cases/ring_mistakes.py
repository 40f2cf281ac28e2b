"""Known wrong answers of ring.py; see common.diagnosis.mistakes.known.

order_mistakes(ranks, device)               wrong pieces [ranks, 2]
merge_out_mistakes(outs, lse, shape)        wrong out of the merge
merge_lse_mistakes(lse, shape)              wrong lse of the merge

outs [2, rows, head_dim] and lse [2, rows] are a rank's result so far, and the new part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import shift_of, varied
from common.diagnosis.mistakes.known import Mistake, Words
from common.diagnosis.mistakes.merge import merge_mistakes, merged_lse_mistakes, weighted
from common.reference import oracle as right

known = Words(__file__)

# Mistakes of task 3's kernel that do not apply here: tensors know their shape, and the rounding is within the bound.
NONE_HERE = ("lse read as [rows, parts]", "weights from the rounded lse")

MERGE = """\
largest = maximum(lse, part_lse)
shift = shift_of(largest)
old = exp(lse - shift)
new = exp(part_lse - shift)
total = old + new
merged = divided(old, total) * out + divided(new, total) * part
merged_lse = shift + log(total)
"""


def order_mistakes(ranks: int, device: torch.device) -> list[Mistake]:
    """Wrong orders, on that device; each rank's pieces ascending, as in the cases."""

    def order(pieces: Callable[[int], tuple[int, int]]) -> Tensor:
        held = [sorted(pieces(rank)) for rank in range(ranks)]
        return torch.tensor(held, dtype=torch.float64, device=device)

    if ranks == 1:
        return []
    return [
        known("contiguous order", lambda: order(lambda r: (2 * r, 2 * r + 1))),
        known("mirrored piece one too far", lambda: order(lambda r: (r, 2 * ranks - r))),
        known("mirrored among the ranks", lambda: order(lambda r: (r, ranks - 1 - r))),
        known("second piece not mirrored", lambda: order(lambda r: (r, ranks + r))),
        known("ranks in reverse", lambda: order(lambda r: (ranks - 1 - r, ranks + r))),
    ]


def _shaped(mistakes: Sequence[Mistake], shape: Sequence[int]) -> list[Mistake]:
    chosen = [one for one in mistakes if not one.vague and one.name not in NONE_HERE]
    chosen.sort(key=lambda one: one.name != "row without keys is NaN")  # first: others may be NaN there as well
    return [one.then(lambda answer: answer.view(shape)) for one in chosen]


def merge_out_mistakes(outs: Tensor, lse: Tensor, shape: Sequence[int]) -> list[Mistake]:
    """Wrong merged outputs of this shape."""
    old, part = right.softmax(lse.T).T
    one = torch.ones_like(old)
    own = [
        known(key, lambda weights=weights: weighted(torch.stack(weights), outs, lse))
        for key, weights in (
            ("weights exchanged", (part, old)),
            ("only out is weighted", (old, one)),
            ("only the part is weighted", (one, part)),
            ("weights in base 2", tuple(right.softmax(lse.T * math.log(2)).T)),
        )
    ]
    return _shaped([*own, *merge_mistakes(outs, lse)], shape) + _formulas(outs, lse, "merged", shape)


def merge_lse_mistakes(lse: Tensor, shape: Sequence[int]) -> list[Mistake]:
    """Wrong merged lse of this shape."""
    m = lse.amax(0)
    own = [
        known("lse not merged", lambda: lse[0]),
        known("lse of the part", lambda: lse[1]),
        known("lse in base 2", lambda: m + torch.log2(torch.exp(lse - shift_of(m)).sum(0))),
    ]
    return _shaped([*own, *merged_lse_mistakes(lse)], shape) + _formulas(lse[..., None], lse, "merged_lse", shape)


def _formulas(outs: Tensor, lse: Tensor, result: str, shape: Sequence[int]) -> list[Mistake]:
    """The results of MERGE with one line wrong."""
    outs = outs.masked_fill((lse == -math.inf)[..., None], 0.0)
    values = {"out": outs[0], "part": outs[1], "lse": lse[0][..., None], "part_lse": lse[1][..., None]}
    return varied(MERGE, values, lambda after: after[result].reshape(shape))
