"""Diagnosis from whole slices of a wrong output: heads, rows, columns.

explain_slices(out, ref, bound, axes)   some are 0 and the others correct: they were not computed
moved_slices(out, ref, bound, axes)     some contain what belongs in others: an index misses a term
row_factors(out, ref)                   rows of a softmax are off by a factor: a wrong sum, or a missing barrier

Every output of a softmax row is exp(x - max) / sum. If the whole row is off by one factor, the exponentials are correct
and the sum is not. If the columns fall into a few groups, each with its own factor, the threads that own them used
different maxima or sums: a thread read shared memory that another had not written yet or had already overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from common.diagnosis.locating import SEPARATION, indices_of, touched, wrong_mask
from common.diagnosis.mistakes.known import Words

known = Words(__file__)
MOST = 64  # slices per axis, for pairwise comparison
LEAST = 6  # elements
WARP = 32
SAME = 1e-3  # relative tolerance for equal factors
ROWS_LOOKED_AT = 256
BARRIER = (  # the checked build can tell whether one is missing
    "If threads share partial results: is there a __syncthreads() between writing and reading them, and "
    "another one between the last read and the next write to the same memory?"
)


def explain_slices(
    out: Tensor, ref: Tensor, bound: float, axes: tuple[str, ...], of_keys: bool = False
) -> tuple[str, str] | None:
    """Checks whether some slices are all 0 and all others correct: (a name, what the report says), or None.

    Args:
        out, ref, bound, axes, of_keys: see common.diagnosis.diagnose.diagnose; no known mistake explains out.
    """
    out = out.to(ref.dtype)
    wrong = wrong_mask(out, ref, bound)
    if int(wrong.sum()) < LEAST or bool(out[wrong].any()):
        return None
    best: tuple[float, str] | None = None
    for axis, name in enumerate(axes):
        here = touched(wrong, axis)
        count, size = int(here.sum()), here.numel()
        rest = ref.index_select(axis, (~here).nonzero().flatten())
        if of_keys and axis < out.dim() - 1:
            continue
        if count == size or bool(out.index_select(axis, here.nonzero().flatten()).any()) or not bool(rest.any()):
            continue
        if best is None or count / size < best[0]:
            best = count / size, f"{_listed(name, here)} (of {size})"
    return known.says("slices never computed", where=best[1]) if best else None


def _listed(name: str, here: Tensor) -> str:
    """ "row 3", "row 32 to 63" or the first four; here [size] bool."""
    places, without_gap = indices_of(here)
    if len(places) == 1:
        return f"{name} {places[0]}"
    return f"{name} {places[0]} to {places[-1]}" if without_gap else f"{name} {_first(places)}"


def _first(places: Sequence[int]) -> str:
    return ", ".join(map(str, places[:4])) + (", ..." if len(places) > 4 else "")


def moved_slices(out: Tensor, ref: Tensor, bound: float, axes: tuple[str, ...]) -> tuple[str, str] | None:
    """Checks whether a slice (head, matrix, row) contains what belongs in another: (a name, the sentence), or None."""
    out = out.to(ref.dtype)
    for axis in range(out.dim() - 1):
        size = out.size(axis)
        if not 1 < size <= MOST:
            continue
        moves: list[tuple[int, int]] = []
        wrong = 0
        for i in range(size):
            if not bool(wrong_mask(out.select(axis, i), ref.select(axis, i), bound).any()):
                continue
            wrong += 1
            for j in range(size):
                there = ref.select(axis, j)
                same = not bool(wrong_mask(out.select(axis, i), there, bound).any())
                apart = (ref.select(axis, i) - there).abs().max() > SEPARATION * bound
                if j != i and same and apart and bool(there.any()):
                    moves.append((i, j))
                    break
        if moves:
            name = axes[axis]
            told = "; ".join(f"{name} {i} holds what belongs in {name} {j}" for i, j in moves[:4])
            told = told[:1].upper() + told[1:] + ("; and so on." if len(moves) > 4 else ".")
            every = wrong == len(moves)
            if every and len(moves) > 1 and {j for _, j in moves} == {0}:
                told += f" Does the number of the {name} have a part in every index?"
            elif every and len(moves) > 1 and len({j - i for i, j in moves}) == 1:
                told += f" Is an index off by {abs(moves[0][1] - moves[0][0])} along this axis?"
            return ("slices moved" if every else ""), told
    return None


# ---- rows of a softmax


def row_factors(out: Tensor, ref: Tensor) -> tuple[str, str] | None:
    """Diagnosis from the first wrong row of out [rows, cols] whose columns fall into a few factors, if there is one."""
    for row in range(min(ref.size(0), ROWS_LOOKED_AT)):
        used = ref[row] > 1e-20  # smaller values may underflow
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
    shown = "; ".join(f"times {value:.4g} in columns {_first(members.tolist())}" for value, members in groups[:3])
    return known.says("threads disagree (other factors)", row=row, count=len(groups), shown=shown)


def _whole_warps(mask: Tensor, used: Tensor) -> bool:
    """Whether, in every aligned group of 32 columns, the used columns are all inside the mask or all outside."""
    for start in range(0, mask.numel(), WARP):
        inside = mask[start : start + WARP][used[start : start + WARP]]
        if inside.numel() and bool(inside.any()) and not bool(inside.all()):
            return False
    return True


def _by_thread(masks: list[Tensor], used: Tensor) -> bool:
    """Whether a column's group depends only on column % T for a common block size T, that is, on its thread."""
    columns = torch.arange(used.numel(), device=used.device)
    for threads in (32, 64, 128, 256, 512, 1024):
        if used.numel() < 2 * threads:
            return False
        owners = [set((columns[mask] % threads).tolist()) for mask in masks]
        if sum(map(len, owners)) == len(set().union(*owners)):
            return True
    return False
