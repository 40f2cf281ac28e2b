"""Where NaN in an attention output come from: nan_told(caller, case, inputs, out, ref, around).

Outputs that are NaN throughout hold no numbers to compare with wrong answers. The same call with Q = 0, where every
score that counts is 0, tells whether the size of the scores has to do with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from common.console.words import Sentences
from common.diagnosis.locating import nameless_nan
from common.testing.calling import Around, Caller, CallFailed
from common.testing.case import Case

says = Sentences(__file__)
OF_LARGE_SCORES, OF_ANY_SCORES = says("of large scores"), says("of any scores")


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
