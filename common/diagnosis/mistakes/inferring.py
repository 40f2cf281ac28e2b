"""Inferences from a wrong output that matches no known wrong answer: inferred_from(out, ref, bound, axes, mistakes).

Partial matches. If every wrong element matches the same known wrong answer, the mistake is that one, in some rows or
columns only.

Operands. If the correct answer is a matmul A B, an output with at least as many columns as B has rows determines the A
that was used, A' = out B^-1; one with enough rows determines B. Input elements are distinct random numbers, so every
element of A' can be looked up: "where A[8, 0] belongs, A[1, 0] was taken".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common.diagnosis.locating import SEPARATION, indices_of, place, touched, wrong_mask
from common.diagnosis.mistakes.known import Inference, Mistake, Words

known = Words(__file__)

LEAST = 6  # wrong elements, and elements where an answer differs from the correct one
MOST_ELEMENTS = 1 << 16  # in an output, to compare it with every known answer again
ROUNDED = 2e-7  # precision of a quotient, relative to the largest element, per unit of condition number
MOST_ILL = 1e4  # largest condition number of a divisor


def inferred_from(
    out: Tensor, ref: Tensor, bound: float, axes: tuple[str, ...], mistakes: Sequence[Mistake]
) -> tuple[str, str] | None:
    """(a name, what the report says), or None.

    Args:
        out, ref, bound, axes, mistakes: see common.diagnosis.diagnose.diagnose; no mistake's answer equals out.
    """
    out = out.to(ref.dtype)
    if found := _partly(out, ref, bound, axes, mistakes):
        return found
    if not bool(torch.isfinite(out).all()):
        return None
    for one in mistakes:
        if isinstance(one, Inference) and (found := one.infer(out, bound)):
            return found
    return None


def _partly(
    out: Tensor, ref: Tensor, bound: float, axes: tuple[str, ...], mistakes: Sequence[Mistake]
) -> tuple[str, str] | None:
    """A known wrong answer that all wrong rows match, while the other rows are correct."""
    if out.dim() < 2 or out.numel() > MOST_ELEMENTS:
        return None
    rows = wrong_mask(out, ref, bound).any(-1)
    got, right = out[rows], ref[rows]
    if not LEAST <= got.numel() < out.numel() or not bool(torch.isfinite(got).all()) or not bool(got.any()):
        return None
    for one in sorted(mistakes, key=lambda one: one.vague):
        if isinstance(one, Inference):
            continue
        answer = one.answer()
        if answer.shape != out.shape:
            continue
        there = answer[rows]
        if not bool(torch.isfinite(there).all()):
            continue
        tolerance = 4 * bound + 1e-5 * float(there.abs().max())
        if (
            float((there - got).abs().max()) <= tolerance
            and int(((there - right).abs() > SEPARATION * tolerance).sum()) >= LEAST
        ):
            return one.name, f"In {_where(rows, axes[:-1])}: {one.says}"
    return None


def _where(wrong: Tensor, axes: tuple[str, ...]) -> str:
    """ "row 3 to 7", for the axis along which the fewest indices are wrong."""
    best, share = "", 1.0
    for axis, name in enumerate(axes):
        here = touched(wrong, axis)
        indices, without_gap = indices_of(here)
        first, last, size = indices[0], indices[-1], here.numel()
        if len(indices) / size < share:
            share = len(indices) / size
            best = f"{len(indices)} of {size} values of {name}, from {first} on"
            if without_gap:
                best = f"{name} {first} only" if first == last else f"{name} {first} to {last} (of {size}) only"
    return best or f"part of the output, first at {place(tuple(wrong.nonzero()[0].tolist()), axes)}"


# ---- which operands a matmul used


def product_inferences(
    a: Tensor, b: Tensor, names: tuple[str, str] = ("A", "B"), transposed: bool = False
) -> list[Mistake]:
    """For out = a b with a [..., M, K] and b [..., K, N], float64.

    Args:
        a, b: the operands.
        names: their names.
        transposed: b is stored as [..., N, K], and its elements are named that way.
    """
    if not bool(torch.isfinite(a).all()) or not bool(torch.isfinite(b).all()):
        return []  # cannot divide by them
    return [
        Inference(lambda out, bound: _counts(out, a, b, bound)),
        Inference(lambda out, bound: _operand(out, a, b, names, transposed)),
        Inference(lambda out, bound: _operand(out.mT, b.mT, a.mT, names[::-1], transposed, of_b=True)),
    ]


def _divided(out: Tensor, b: Tensor) -> Tensor | None:
    """Solves a b = out for a; None if undetermined or inaccurate. out [..., M, N], b [..., K, N]."""
    if b.size(-2) > b.size(-1) or out.shape[:-2] != b.shape[:-2] or out.size(-1) != b.size(-1):
        return None
    if not bool((torch.linalg.cond(b) < MOST_ILL).all()):
        return None
    a = out @ torch.linalg.pinv(b)
    exact = (a @ b - out).abs().max() <= 1e-4 * (1 + out.abs().max())
    return a if bool(exact) else None


def _operand(
    out: Tensor, a: Tensor, b: Tensor, names: tuple[str, str], transposed: bool, of_b: bool = False
) -> tuple[str, str] | None:
    """Which elements were used in place of a's, if each is an element of a, or 0.

    of_b: a and b are the operands swapped and transposed.
    """
    if out.dim() < 2 or a.shape[:-2] != out.shape[:-2]:
        return None
    used = _divided(out, b)
    if used is None or used.shape != a.shape:
        return None
    size = float(a.abs().mean())
    tolerance = min(2e-3 * size, ROUNDED * float(torch.linalg.cond(b).max()) * float(a.abs().max()))
    moved = (used - a).abs() > max(tolerance, 1e-3 * size)
    if not bool(moved.any()):
        return None
    where = moved.nonzero()[:400]
    flat, order = a.flatten().sort()
    by_chance = a.numel() * tolerance / size  # probability that an unrelated number is close to an element of a
    if min(by_chance, 1.0) ** len(where) > 1e-3:
        return None
    values, last = used[tuple(where.T)], flat.numel() - 1
    at = torch.searchsorted(flat, values).clamp(1, last)
    nearest = torch.where((flat[at] - values).abs() < (flat[at - 1] - values).abs(), at, at - 1)
    found = flat[nearest]
    is_zero = values.abs() <= tolerance
    # equal elements cannot be told apart
    alike = ((nearest > 0) & (flat[(nearest - 1).clamp(min=0)] == found)) | (
        (nearest < last) & (flat[(nearest + 1).clamp(max=last)] == found)
    )
    if bool((~is_zero & (alike | ((found - values).abs() > tolerance))).any()):
        return None

    def named(index: Sequence[int]) -> str:
        *batch, row, col = (int(one) for one in index)
        if of_b and not transposed:  # as stored in memory
            row, col = col, row
        return f"{names[0]}[{', '.join(map(str, [*batch, row, col]))}]"

    if bool(is_zero.all()):
        first, last = (named(where[at].tolist()) for at in (0, -1))
        return known.says(
            "elements of {operand} left out", operand=names[0], count=int(moved.sum()), first=first, last=last
        )
    sources = torch.stack(torch.unravel_index(order[nearest], a.shape), 1)
    taken = zip(where[~is_zero][:3].tolist(), sources[~is_zero][:3].tolist(), strict=True)
    examples = "; ".join(f"{named(source)} where {named(place_of)} belongs" for place_of, source in taken)
    return known.says("other elements of {operand}", operand=names[0], examples=examples)


def _counts(out: Tensor, a: Tensor, b: Tensor, bound: float) -> tuple[str, str] | None:
    """How often each product along K is added, if that is the same for all elements of the output."""
    inner = a.size(-1)
    if inner < 2 or inner > 512 or a.shape[:-2] != b.shape[:-2]:
        return None
    one_a, one_b, one_out = (x.reshape(-1, *x.shape[-2:])[0] for x in (a, b, out))
    if one_out.numel() < inner + 8 or one_out.shape != (one_a.size(0), one_b.size(1)):
        return None
    products = torch.einsum("mk,kn->mnk", one_a, one_b).reshape(-1, inner)
    counts = torch.linalg.lstsq(products, one_out.reshape(-1, 1)).solution.flatten()
    whole = counts.round()
    fits = (torch.einsum("...mk,k,...kn->...mn", a, whole, b) - out).abs().max()
    if float((counts - whole).abs().max()) > 0.02 or float(fits) > 10 * bound + 1e-4 * float(out.abs().max()):
        return None
    wrong = (whole != 1).nonzero().flatten().tolist()
    if not wrong:
        return None
    if len(wrong) == inner and len(set(whole.tolist())) == 1:
        factor = int(whole[0])
        return known.says("times one factor", factor=factor)
    told = ", ".join(f"k = {k}: {int(whole[k])} times" for k in wrong[:4])
    return known.says(
        "products counted wrongly", told=told, more=", ..." if len(wrong) > 4 else "", count=len(wrong), inner=inner
    )
