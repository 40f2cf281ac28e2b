"""What whole slices of a wrong output (its heads, rows, columns) have in common: explain_slices(out, ref, bound, axes).

Where some are 0 and the others right, they were not computed; where each holds what belongs in another, an index
leaves something out.
"""

from __future__ import annotations

from torch import Tensor

from common.diagnosis.locating import SEPARATION, wrong_mask
from common.diagnosis.mistakes.known import Words

known = Words(__file__)
MOST = 64  # slices along an axis that are compared with each other
LEAST = 6  # elements


def explain_slices(
    out: Tensor, ref: Tensor, bound: float, axes: tuple[str, ...], of_keys: bool = False
) -> tuple[str, str] | None:
    """Whether some slices are 0 throughout and all others right: (a name, what the report says), or None.

    Args:
        out, ref, bound, axes, of_keys: see common.diagnosis.diagnose.diagnose; no known mistake explains out.
    """
    out = out.to(ref.dtype)
    wrong = wrong_mask(out, ref, bound)
    if int(wrong.sum()) < LEAST or bool(out[wrong].any()):
        return None
    best: tuple[float, str] | None = None
    for axis, name in enumerate(axes):
        others = [other for other in range(out.dim()) if other != axis]
        touched = wrong.amax(others) if others else wrong
        count, size = int(touched.sum()), touched.numel()
        rest = ref.index_select(axis, (~touched).nonzero().flatten())
        if of_keys and axis < out.dim() - 1:
            continue
        if count == size or bool(out.index_select(axis, touched.nonzero().flatten()).any()) or not bool(rest.any()):
            continue
        if best is None or count / size < best[0]:
            best = count / size, f"{_listed(name, touched)} (of {size})"
    return known.says("slices never computed", where=best[1]) if best else None


def _listed(name: str, touched: Tensor) -> str:
    """ "row 3", "row 32 to 63" or the first four; touched [size] bool."""
    places = touched.nonzero().flatten().tolist()
    first, last, count = places[0], places[-1], len(places)
    if count == 1:
        return f"{name} {first}"
    if count == last - first + 1:
        return f"{name} {first} to {last}"
    return f"{name} {', '.join(map(str, places[:4]))}{', ...' if count > 4 else ''}"


def moved_slices(out: Tensor, ref: Tensor, bound: float, axes: tuple[str, ...]) -> tuple[str, str] | None:
    """Whether a slice (a head, a matrix, a row) holds what belongs in another: (a name, what to tell), or None."""
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
