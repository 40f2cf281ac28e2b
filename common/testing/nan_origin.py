"""Where NaN in an attention output come from: nan_told(caller, case, inputs, out, ref, around).

Outputs that are NaN throughout hold no numbers to compare with wrong answers. The same call with Q = 0, where every
score that counts is 0, tells whether the size of the scores has to do with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from common.diagnosis.locating import nameless_nan
from common.testing.calling import Around, Caller, CallFailed
from common.testing.case import Case

OF_LARGE_SCORES = (
    "With Q = 0, which makes every visible score 0, the same call gives no NaN: large scores cause them. What "
    "overflows? A product, or an exponential that is not relative to the largest maximum so far: exp(m - m_new) is at "
    "most 1, its inverse overflows."
)
OF_ANY_SCORES = (
    "With Q = 0, which makes every visible score 0, the same call gives these NaN as well: no score is too large. "
    "What is left: -inf - (-inf) or 0 * exp(inf), made with -infinity, the maximum before the first key; 0 / 0 in a "
    "row that sees no key; an infinite factor."
)


def nan_told(
    caller: Caller, case: Case, inputs: dict[str, Tensor], out: Tensor, ref: Tensor, around: Around
) -> str | None:
    """A sentence for the student, or None if this tells nothing. It names no cause: the case's hints are next to it.

    Args:
        caller: calls the operator.
        case: whose.
        inputs: with "query", and all finite.
        out, ref: what came, and what should.
        around: as for `out`.
    """
    query = inputs.get("query")
    nan = torch.isnan(out) & torch.isfinite(ref)
    if bool((nan & ~nameless_nan(out, ref)).any()):  # their bits tell
        return None
    finite = all(bool(torch.isfinite(x).all()) for x in inputs.values())
    if query is None or not finite or not bool(nan.any()):
        return None
    try:
        again = caller.call(case, inputs | {"query": torch.zeros_like(query)}, around).out
    except CallFailed:
        return None
    if again is None or again.shape != out.shape:
        return None
    left = torch.isnan(again) & nan
    if not bool(torch.isnan(again).any()):
        return OF_LARGE_SCORES
    return OF_ANY_SCORES if bool((left == nan).all()) else None
