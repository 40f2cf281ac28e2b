"""Recovers internal values of a fused attention kernel by additional calls with other inputs.

weights_of(caller, case, inputs, out, around)       the weights P, read off outputs for other V
nan_told(caller, case, inputs, out, ref, around)    the origin of NaN
again(caller, case, inputs, out, around)            one such call

The output is linear in V: out[row] = sum over keys of P[row, key] * V[key]. If each row of V is one-hot, with the 1 in
a different column, the columns of the output are the weights of those keys. An output that is all NaN cannot be
compared with wrong answers; the same call with Q = 0, where every unmasked score is 0, shows whether the magnitude of
the scores matters.
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
MOST_ELEMENTS = 1 << 18  # input elements; more is not worth the time
SAME = 1e-3  # tolerance for reproducing the output from the weights, relative to the row's largest entry


def weights_of(caller: Caller, case: Case, inputs: dict[str, Tensor], out: Tensor, around: Around) -> Tensor | None:
    """The weight with which each key's row of V enters each row of the output.

    Args:
        caller: calls the operator.
        case: its `values` names the input V [..., S_k, head_dim].
        inputs: on any device.
        out: the operator's output for them, [..., S_q, head_dim].
        around: as in the call that returned `out`.

    Returns:
        [..., S_q, S_k]; NaN in rows where these weights do not reproduce `out`, so the reading is meaningless. None if
        no row is reproduced, or if it would take too many calls.
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
    """The output of another call; None if there is none or its shape or type differs from `out`, the first call's."""
    try:
        found = caller.call(case, inputs, around).out
    except CallFailed:  # what matters is that the first call produced an output
        return None
    return found if found is not None and (found.shape, found.dtype) == (out.shape, out.dtype) else None


def nan_told(
    caller: Caller, case: Case, inputs: dict[str, Tensor], out: Tensor, ref: Tensor, around: Around
) -> str | None:
    """A sentence for the student, or None if inconclusive. It names no cause: the case's hints are printed next to it.

    Args:
        caller: calls the operator.
        case: the case.
        inputs: all finite, including "query".
        out, ref: the actual and the expected output.
        around: as in the call that returned `out`.
    """
    query = inputs.get("query")
    nan = torch.isnan(out) & torch.isfinite(ref)
    if bool((nan & ~nameless_nan(out, ref)).any()):  # their bits identify the origin
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
