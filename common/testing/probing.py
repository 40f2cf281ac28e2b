"""What a fused attention kernel keeps to itself, found out by further calls with other inputs.

weights_of(caller, case, inputs, out, around)       the weights P, read off outputs for other V
nan_told(caller, case, inputs, out, ref, around)    where NaN come from
again(caller, case, inputs, out, around)            such a call

The output is linear in V: out[row] = sum over keys of P[row, key] * V[key]. With a V whose rows are 1 in one column
each and 0 elsewhere the columns of the output are the weights of as many keys. Outputs that are NaN throughout hold no
numbers to compare with wrong answers: the same call with Q = 0, where every score that counts is 0, tells whether the
size of the scores has to do with it.
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
MOST_CALLS = 12
MOST_ELEMENTS = 1 << 18  # of the inputs: more is not worth the time
SAME = 1e-3  # of the largest entry: how well the weights must explain the output


def weights_of(caller: Caller, case: Case, inputs: dict[str, Tensor], out: Tensor, around: Around) -> Tensor | None:
    """The weight with which each key's row of V enters each row of the output.

    Args:
        caller: calls the operator.
        case: whose `values` names the input V [..., S_k, head_dim].
        inputs: on any device.
        out: what the operator made of them, [..., S_q, head_dim].
        around: as for `out`.

    Returns:
        [..., S_q, S_k]; NaN in the rows where these weights do not give `out`: the reading says nothing there. None if
        that is every row, or if it took too many calls.
    """
    value = inputs.get(case.values)
    if value is None or sum(x.numel() for x in inputs.values()) > MOST_ELEMENTS:
        return None
    keys, width = value.shape[-2:]
    if -(-keys // width) > MOST_CALLS:
        return None
    read = []
    for first in range(0, keys, width):
        count = min(width, keys - first)
        probe = torch.zeros_like(value)
        probe[..., range(first, first + count), range(count)] = 1
        of_these = again(caller, case, inputs | {case.values: probe}, out, around)
        if of_these is None:
            return None
        read.append(of_these[..., :count])
    weights = torch.cat(read, -1).double()
    by_head = value.double().nan_to_num().repeat_interleave(weights.size(1) // value.size(1), 1)
    explained = weights @ by_head
    error = (explained - out).abs().amax(-1, keepdim=True)
    good = error <= SAME * out.abs().amax(-1, keepdim=True) + case.floor
    return torch.where(good, weights, torch.nan) if bool(good.any()) else None


def again(caller: Caller, case: Case, inputs: dict[str, Tensor], out: Tensor, around: Around) -> Tensor | None:
    """The output of a further call; None if there is none, or one of another form than `out`, the first call's."""
    try:
        found = caller.call(case, inputs, around).out
    except CallFailed:  # the first call gave an output: that is what matters
        return None
    return found if found is not None and (found.shape, found.dtype) == (out.shape, out.dtype) else None


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
    without = again(caller, case, inputs | {"query": torch.zeros_like(query)}, out, around)
    if without is None:
        return None
    left = torch.isnan(without) & nan
    if not bool(torch.isnan(without).any()):
        return OF_LARGE_SCORES
    return OF_ANY_SCORES if bool((left == nan).all()) else None
