"""Wrong answers of softmax, online softmax and merging, one line of the formulas wrong at a time (formulas.py).

row_formulas(x, result)             softmax of rows: result "y" or "lse"
tile_formulas(s, value, tile)       attention tile by tile
merge_formulas(outs, lse, result)   partial results put together: result "out" or "lse_new"
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import computed, varied, varied_by
from common.diagnosis.mistakes.known import Mistake

ROW = """\
m = rowmax(x)
e = exp(x - shift_of(m))
l = rowsum(e)
y = divided(e, l)
lse = m + log(l)
"""
STEP = """\
m_new = maximum(m, rowmax(S))
P = exp(S - shift_of(m_new))
rescale = exp(m - shift_of(m_new))
l = rescale * l + rowsum(P)
O = rescale * O + P @ V
m = m_new
"""
MERGE = """\
m = partmax(lse)
weight = exp(lse - shift_of(m))
l = partsum(weight)
out = partsum(divided(weight, l) * outs)
lse_new = m + log(l)
"""
MOST_SCORES = 1 << 17  # of attention: more would take too long


def row_formulas(x: Tensor, result: str = "y") -> list[Mistake]:
    """Wrong y [rows, cols], or lse [rows], for x [rows, cols]."""
    return varied(ROW, {"x": x}, lambda values: values[result] if result == "y" else values[result].squeeze(-1))


def state_before(s: Tensor, value: Tensor) -> dict[str, Tensor]:
    """m, l and O before the first key; s [..., rows, keys], value [..., keys, head_dim]."""
    m = torch.full_like(s[..., :1], -math.inf)
    return {"m": m, "l": torch.zeros_like(m), "O": torch.zeros_like(m * value[..., :1, :])}


def tile_formulas(s: Tensor, value: Tensor, tile: int) -> list[Mistake]:
    """Wrong outputs [..., S_q, head_dim] of attention whose loop takes `tile` keys at a time.

    Args:
        s: masked scores [..., S_q, S_k].
        value: [..., S_k, head_dim].
        tile: keys per turn.
    """
    if s.numel() > MOST_SCORES:
        return []

    def after_all(step: str) -> Tensor:
        state = state_before(s, value)
        for start in range(0, s.size(-1), tile):
            keys = slice(start, start + tile)
            state = computed(step, state | {"S": s[..., keys], "V": value[..., keys, :]})
            state = {name: state[name] for name in ("m", "l", "O")}
        return torch.where(state["l"] == 0, 0.0, state["O"] / state["l"])

    return varied_by(STEP, after_all)


def merge_formulas(outs: Tensor, lse: Tensor, result: str = "out") -> list[Mistake]:
    """Wrong out [rows, head_dim] or lse_new [rows] for outs [parts, rows, head_dim], lse [parts, rows]."""
    outs = outs.masked_fill((lse == -math.inf)[..., None], 0.0)
    values = {"outs": outs, "lse": lse[..., None]}

    def of(after: dict) -> Tensor:
        return after[result].squeeze(-1) if result == "lse_new" else torch.broadcast_to(after["out"], outs.shape[1:])

    return varied(MERGE, values, of)
