"""Describes where an output is wrong: how much of it, the first element, what the wrong elements have in common.

    locate(out, ref, tolerance, axes)       sentences on any wrong output
    wrong_mask(out, ref, tolerance)         bool, the shape of out

`out` is the operator's float32 output, `ref` is float64. A NaN that was copied or, on a CPU, computed with, identifies
its origin: fresh memory, the guards around inputs and the unused parts of inputs contain NaN with different bits.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

POISON_BITS = 0x7FC00000  # contents of torch.empty under torch.utils.deterministic.fill_uninitialized_memory
GUARD_BITS = 0x7FC0BEEF  # before and after every input
UNUSED_BITS = 0x7FC0FADE  # in an input, where nothing may be read: past a length, in an unused slot
GPU_BITS = 0x7FFFFFFF  # the canonical NaN of GPU arithmetic
SEPARATION = 10  # a wrong answer must be this many tolerances away from the correct one to be named
EDGES = (256, 128, 64, 32)
OR_UNWRITTEN = "Or memory was read before it was written."  # the checked build can tell

FOREIGN = {
    GUARD_BITS: "come from outside an input, whose two ends are surrounded by a NaN of its own kind: an index or a "
    "bound is wrong",
    UNUSED_BITS: "come from a part of an input that must not be read: past a length, or a slot that holds no token",
}


def wrong_mask(out: Tensor, ref: Tensor, tolerance: float) -> Tensor:
    """True where out differs from ref by more than tolerance, is NaN, or is infinite where ref is not."""
    out = out.to(ref.dtype)
    return ~((out == ref) | ((out - ref).abs() <= tolerance))


def unwritten_mask(out: Tensor) -> Tensor:
    """True where a float32 output has exactly the poison bits."""
    return torch.isnan(out) if out.dtype != torch.float32 else holds(out, POISON_BITS)


def holds(out: Tensor, bits: int) -> Tensor:
    """True where a float32 tensor has exactly these bits."""
    return out.contiguous().view(torch.int32) == bits


def nan_of(bits: int) -> Tensor:
    """A float32 scalar NaN with these bits."""
    return torch.tensor(bits, dtype=torch.int32).view(torch.float32)


def place(index, axes) -> str:
    """(0, 2, 5) -> "batch 0, row 2, col 5"."""
    return ", ".join(f"{axis} {i}" for axis, i in zip(axes, index, strict=True))


def touched(wrong: Tensor, axis: int) -> Tensor:
    """bool [size of the axis]: the indices along it where anything is wrong."""
    others = [other for other in range(wrong.dim()) if other != axis]
    return wrong.amax(others) if others else wrong


def indices_of(here: Tensor) -> tuple[list[int], bool]:
    """The indices where a mask [size] is true, and whether they are contiguous."""
    places = here.nonzero().flatten().tolist()
    return places, len(places) == places[-1] - places[0] + 1


def nameless_nan(out: Tensor, ref: Tensor) -> Tensor:
    """True where out is NaN, ref is not, and the NaN's bits do not identify its origin: GPU arithmetic drops them."""
    known = unwritten_mask(out)
    for bits in FOREIGN if out.dtype == torch.float32 else ():
        known = known | holds(out, bits)
    return torch.isnan(out) & ~torch.isnan(ref) & ~known


def locate(
    out: Tensor,
    ref: Tensor,
    tolerance: float,
    axes: tuple[str, ...],
    nan_from: Mapping[int, Tensor] | None = None,
) -> list[str]:
    """Reports how many elements are wrong, which is the first, and to which rows, columns, heads... they are confined.

    nan_from: bits of a NaN -> mask of the elements that come from it, whatever their own bits, see testing/judging.py;
    None if that was not determined.
    """
    wrong = wrong_mask(out, ref, tolerance)
    count = int(wrong.sum())
    if count == 0:
        return []
    first = tuple(wrong.nonzero()[0].tolist())
    got, expected = float(out[first]), float(ref[first])
    says = [
        f"{count} of {wrong.numel()} elements are wrong ({_percent(count, wrong.numel())}); the first is at "
        f"{place(first, axes)}: got {got:.6g}, expected {expected:.6g}."
    ]
    says += _not_finite(out, ref, axes, nan_from)
    for axis, name in enumerate(axes):
        if sentence := _along(name, touched(wrong, axis)):
            says.append(sentence)
    if not torch.isfinite(out[wrong]).all():
        return says
    return says + _one_factor(out, ref, wrong)


def _percent(count: int, total: int) -> str:
    share = 100 * count / total
    return "all" if count == total else f"{share:.1f}%" if share >= 0.1 else "under 0.1%"


def _not_finite(out: Tensor, ref: Tensor, axes: tuple[str, ...], nan_from: Mapping[int, Tensor] | None) -> list[str]:
    """Describes unwritten elements, then NaN and Inf computed by the kernel."""
    says = []
    bad = ~torch.isfinite(out) & torch.isfinite(ref)
    unwritten = unwritten_mask(out) & bad
    if count := int(unwritten.sum()):
        where = place(tuple(unwritten.nonzero()[0].tolist()), axes)
        whole = "All" if count == out.numel() else f"{count} of {out.numel()}"
        says.append(
            f"{whole} elements still hold the NaN that filled the memory before the call, the first at {where}: "
            "they were never written, or were computed from an intermediate result that was never written."
        )
    told = unwritten
    for bits, sentence in FOREIGN.items():
        here = holds(out, bits) & bad if out.dtype == torch.float32 else torch.zeros_like(bad)
        here = here | (nan_from or {}).get(bits, torch.zeros_like(bad))
        if count := int(here.sum()):
            where = place(tuple(here.nonzero()[0].tolist()), axes)
            says.append(f"{count} of {out.numel()} elements {sentence}, the first at {where}.")
        told = told | here
    nan, inf = int((torch.isnan(out) & bad & ~told).sum()), int((torch.isposinf(out) & bad).sum())
    if nan:
        outside = "" if nan_from is not None else ", or a read outside an input (the inputs are between guards of NaN)"
        says.append(f"{nan} elements are NaN: inf - inf, inf / inf, 0 * inf, 0 / 0{outside}.")
    if inf:
        says.append(f"{inf} elements are infinite: exp or a sum overflowed, or something was divided by 0.")
    if hidden := int((torch.isneginf(out) & bad).sum()):
        says.append(f"{hidden} elements are -infinity: the logarithm of 0, what a mask hides, or a division by 0.")
    return says


def _along(name: str, wrong: Tensor) -> str:
    """What the indices of wrong elements along one axis have in common; "" if nothing useful."""
    size = wrong.numel()
    indices, without_gap = indices_of(wrong)
    first, last, count = indices[0], indices[-1], len(indices)
    if count == size:
        return ""
    if count == 1:
        return f"Only {name} {first} (of {size}) is wrong."
    if without_gap:
        if last == size - 1:
            return f"Only {name} >= {first} is wrong (of {size})."
        if first == 0:
            return f"Only {name} < {last + 1} is wrong (of {size})."
        return f"Only {name} {first} to {last} is wrong (of {size})."
    for step in (256, 128, 64, 32, 16, 8, 4, 2):
        residue = first % step
        if count > 2 and all(one % step == residue for one in indices):
            kind = ("even", "odd")[residue] if step == 2 else f"% {step} == {residue}"
            all_of_them = " and every one of these" if count == len(range(residue, size, step)) else ""
            return f"Only {name} {kind} is wrong{all_of_them}."
    return f"{count} of {size} values of {name} are touched, from {first} to {last}."


def edge_of_a_tile(wrong: Tensor, axes: tuple[str, ...]) -> list[str]:
    """What to look at if exactly the elements past the first tile, or past the last full one, are wrong."""
    for axis, name in enumerate(axes):
        size = wrong.size(axis)
        lines = wrong.movedim(axis, 0).reshape(size, -1)
        first = int(lines.any(1).nonzero()[0])
        last_full = {edge: size // edge * edge for edge in EDGES if size % edge}
        for edge in [edge for edge in EDGES if first in (edge, last_full.get(edge))] if first else ():
            if bool(lines[first:].any(1).all()):
                where = f"last full {edge}" if first == last_full.get(edge) else f"first {edge}"
                return [f"{name} {first} follows the {where}: is what is past a full tile, warp or block computed?"]
    return []


def _one_factor(out: Tensor, ref: Tensor, wrong: Tensor) -> list[str]:
    """A constant factor between out and ref."""
    here = wrong & (ref.abs() > 1e-3 * ref.abs().max())
    if int(here.sum()) < 3:
        return []
    factor = out.to(ref.dtype)[here] / ref[here]
    middle = float(factor.median())
    if middle and abs(middle - 1) > 1e-3 and float((factor - middle).abs().max()) < 1e-3 * abs(middle):
        return [f"Every wrong element is the right one times {middle:.5g}."]
    return []
