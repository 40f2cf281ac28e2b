"""What a fused attention kernel keeps to itself, read off its output: weights_of(caller, case, inputs, out, around).

The output is linear in V: out[row] = sum over keys of P[row, key] * V[key]. With a V whose rows are 1 in one column
each and 0 elsewhere the columns of the output are the weights of as many keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from common.testing.calling import Around, Caller, CallFailed
from common.testing.case import Case

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
        try:
            of_these = caller.call(case, inputs | {case.values: probe}, around).out
        except CallFailed:
            return None
        if of_these is None or of_these.shape != out.shape:
            return None
        read.append(of_these[..., :count])
    weights = torch.cat(read, -1).double()
    by_head = value.double().nan_to_num().repeat_interleave(weights.size(1) // value.size(1), 1)
    explained = weights @ by_head
    error = (explained - out).abs().amax(-1, keepdim=True)
    good = error <= SAME * out.abs().amax(-1, keepdim=True) + case.floor
    return torch.where(good, weights, torch.nan) if bool(good.any()) else None
