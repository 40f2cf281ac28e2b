"""How far from float64 an output may be.

running_sum_floor(terms, size)     the floor of a bound for an output that is a long float32 sum
lost_terms(terms)                  the floor that terms add which are too small for a running sum
exponent_floor(size)               the same for a softmax of numbers around `size`
max_error_of(out, ref)             max|out - ref|
"""

import math

import torch
from torch import Tensor


def running_sum_floor(terms: int, size: float) -> float:
    """A floor for an output that is a float32 sum of `terms` numbers, added one after another.

    Every addition rounds by up to 2^-24 of the sum so far, so the result is off by about 2^-24 sqrt(terms) size
    (N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, chapter 4), and by a few times that
    where small terms meet a large sum. Libraries that add in pieces do better; a kernel need not.

    Args:
        terms: how many numbers are added.
        size: how large the sum becomes.
    """
    return 4 * 2.0**-24 * math.sqrt(terms) * size


def lost_terms(terms: Tensor) -> float:
    """The share of a sum that is in terms which are too small for it, the largest of all rows.

    A term below 2^-24 of a float32 sum vanishes when it is added to it. These roundings all go one way, so they add up
    as their number and not as its root: a running sum that meets its large terms early lacks up to that share.

    Args:
        terms: [rows, cols], positive, float64.
    """
    whole = terms.sum(-1, keepdim=True)
    return float((torch.where(terms < 2.0**-24 * whole, terms, 0.0).sum(-1, keepdim=True) / whole).max())


def exponent_floor(size: float) -> float:
    """A floor for a softmax whose exponents are rounded one time more than those of exp(x - max).

    exp2(x log2(e) - max log2(e)) is such: one operation on a GPU, where nvcc contracts it to a multiply-add, but two
    with two roundings in the simulator. The product is off by up to 2^-24 of itself, and so is a weight, of `size`.

    Args:
        size: how large the numbers are.
    """
    return 2.0**-24 * size


def max_error_of(out: Tensor, ref: Tensor) -> float:
    """max|out - ref|; NaN if out is not finite where ref is, or differs from ref where ref is infinite."""
    out, finite = out.to(ref.dtype), torch.isfinite(ref)
    if not bool(torch.isfinite(out[finite]).all()) or not bool((out[~finite] == ref[~finite]).all()):
        return math.nan
    return float((out - ref)[finite].abs().max()) if bool(finite.any()) else 0.0
