"""Softmax rows that are wrong by a factor: the trace of a wrong sum or of a missing barrier.

    row_factors(out, ref) -> (name, sentence) or None          out, ref [rows, cols]

Every output of a softmax row is exp(x - max) / sum. If the whole row is off by one factor, the exponentials are right
and the sum is not. If the columns fall into a few groups, each with a factor of its own, the threads that own them used
different maxima or sums: what one thread read from shared memory, another had not written yet or had overwritten.
"""

from itertools import pairwise

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Words

known = Words(__file__)
WARP = 32
SAME = 1e-3  # factors closer than this (relative) are one factor
ROWS_LOOKED_AT = 256
BARRIER = (  # the checked build knows whether one is missing
    "If threads share partial results: is there a __syncthreads() between writing and reading them, and "
    "another one between the last read and the next write to the same memory?"
)


def row_factors(out: Tensor, ref: Tensor) -> tuple[str, str] | None:
    """What the first wrong row tells whose columns fall into few factors; None if no row does."""
    for row in range(min(ref.size(0), ROWS_LOOKED_AT)):
        used = ref[row] > 1e-20  # smaller ones may underflow
        factor = torch.where(used, out[row].to(ref.dtype) / ref[row], 1.0)
        finite = torch.isfinite(factor)
        if not bool(((factor - 1).abs() > SAME).any() or (~finite).any()):
            continue
        if not bool(finite[used].all()):
            if bool(finite[used].any()) and _whole_warps(finite, used):
                return known.says("threads disagree (whole warps NaN)", row=row, WARP=WARP)
            continue
        if found := _finite_row(row, factor, used):
            return found
    return None


def _finite_row(row: int, factors: Tensor, used: Tensor) -> tuple[str, str] | None:
    columns = used.nonzero().flatten()
    values, order = factors[columns].sort()
    if values.numel() < 3 or float(values[0]) <= 0:
        return None
    starts = [0, *(((values[1:] - values[:-1]) > SAME * values[:-1]).nonzero().flatten() + 1).tolist(), values.numel()]
    groups = [(float(values[a]), columns[order[a:b]].sort()[0]) for a, b in pairwise(starts)]
    if len(groups) == 1:
        factor = groups[0][0]
        return known.says(
            "wrong row sum (too small)" if factor > 1 else "wrong row sum (too large)",
            row=row,
            factor=factor,
            sum=1 / factor,
        )
    if len(groups) > max(2, values.numel() // 8):
        return None
    some_right = any(abs(value - 1) <= SAME for value, _ in groups)
    masks = [torch.zeros_like(used).index_fill(0, members, True) for _, members in groups]
    if some_right and not (all(_whole_warps(mask, used) for mask in masks) or _by_thread(masks, used)):
        return None
    shown = "; ".join(f"times {value:.4g} in columns {_listed(members)}" for value, members in groups[:3])
    return known.says("threads disagree (other factors)", row=row, count=len(groups), shown=shown)


def _whole_warps(mask: Tensor, used: Tensor) -> bool:
    """Whether, in every aligned run of 32 columns, the used columns are all inside the mask or all outside."""
    for start in range(0, mask.numel(), WARP):
        inside = mask[start : start + WARP][used[start : start + WARP]]
        if inside.numel() and bool(inside.any()) and not bool(inside.all()):
            return False
    return True


def _by_thread(masks: list[Tensor], used: Tensor) -> bool:
    """Whether the group of a column depends only on column % T, so on the thread of T that owns it, for a usual T."""
    columns = torch.arange(used.numel(), device=used.device)
    for threads in (32, 64, 128, 256, 512, 1024):
        if used.numel() < 2 * threads:
            return False
        owners = [set((columns[mask] % threads).tolist()) for mask in masks]
        if sum(map(len, owners)) == len(set().union(*owners)):
            return True
    return False


def _listed(columns: Tensor) -> str:
    shown = ", ".join(map(str, columns[:4].tolist()))
    return shown + (", ..." if columns.numel() > 4 else "")
