"""Error bounds relative to float64.

running_sum_floor(terms, size)     the floor of the bound for an output that is a long float32 sum
lost_terms(terms)                  the additional floor for terms too small to be added to a running sum
exponent_floor(size)               the additional floor for a softmax of numbers around `size`
max_error_of(out, ref)             max|out - ref|
"""

import math

import torch
from torch import Tensor


def running_sum_floor(terms: int, size: float) -> float:
    """A floor for an output that is a float32 sum of `terms` numbers, added sequentially.

    Every addition rounds by up to 2^-24 of the partial sum, so the result is off by about 2^-24 sqrt(terms) size
    (N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, chapter 4), and by a few times that
    if small terms are added to a large sum. Libraries with blocked summation do better; a kernel need not.

    Args:
        terms: number of terms.
        size: magnitude of the sum.
    """
    return 4 * 2.0**-24 * math.sqrt(terms) * size


def lost_terms(terms: Tensor) -> float:
    """The fraction of a sum contained in terms too small to be added to it; the maximum over rows.

    A term below 2^-24 of a float32 sum vanishes when added to it. These rounding errors all have the same sign, so they
    grow with their number, not its square root: a running sum with its large terms first lacks up to that fraction.

    Args:
        terms: [rows, cols], positive, float64.
    """
    whole = terms.sum(-1, keepdim=True)
    return float((torch.where(terms < 2.0**-24 * whole, terms, 0.0).sum(-1, keepdim=True) / whole).max())


def exponent_floor(size: float) -> float:
    """A floor for a softmax whose exponents have one more rounding than those of exp(x - max).

    For example exp2(x log2(e) - max log2(e)): on a GPU, nvcc contracts the exponent to one multiply-add; in the
    simulator it is two operations with two roundings. The product is off by up to 2^-24 of itself, so a weight has a
    relative error of up to 2^-24 `size`.

    Args:
        size: magnitude of the numbers.
    """
    return 2.0**-24 * size


def max_error_of(out: Tensor, ref: Tensor) -> float:
    """max|out - ref|; NaN if out is not finite where ref is, or differs from ref where ref is infinite."""
    out, finite = out.to(ref.dtype), torch.isfinite(ref)
    if not bool(torch.isfinite(out[finite]).all()) or not bool((out[~finite] == ref[~finite]).all()):
        return math.nan
    return float((out - ref)[finite].abs().max()) if bool(finite.any()) else 0.0
