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
from common.diagnosis.mistakes.online_softmax import divided

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


def state_after(
    s: Tensor, value: Tensor, tile: int, step: str = STEP, begin: int = 0, stride: int = 0, first_max: float = -math.inf
) -> dict[str, Tensor]:
    """m, l and O of the rows after a loop that takes `tile` keys at a time.

    Args:
        s: masked scores [..., rows, keys].
        value: [..., keys, head_dim].
        tile: keys per turn.
        step: the formulas of a turn.
        begin, stride: the first key of the first turn, and from turn to turn; 0: `tile`.
        first_max: the maximum before the first key.
    """
    m = torch.full_like(s[..., :1], first_max)
    state = {"m": m, "l": torch.zeros_like(m), "O": torch.zeros_like(m * value[..., :1, :])}
    for start in range(begin, s.size(-1), stride or tile):
        keys = slice(start, start + tile)
        after = computed(step, state | {"S": s[..., keys], "V": value[..., keys, :]})
        state = {name: after[name] for name in state}
    return state


def tile_loop(s: Tensor, value: Tensor, tile: int, step: str = STEP, first_max: float = -math.inf) -> Tensor:
    """The output [..., rows, head_dim] of such a loop."""
    state = state_after(s, value, tile, step, first_max=first_max)
    return divided(state["O"], state["l"])


def tile_formulas(s: Tensor, value: Tensor, tile: int) -> list[Mistake]:
    """Wrong outputs of such a loop, one line of its formulas wrong."""
    return varied_by(STEP, lambda step: tile_loop(s, value, tile, step)) if s.numel() <= MOST_SCORES else []


def merge_formulas(outs: Tensor, lse: Tensor, result: str = "out") -> list[Mistake]:
    """Wrong out [rows, head_dim] or lse_new [rows] for outs [parts, rows, head_dim], lse [parts, rows]."""
    outs = outs.masked_fill((lse == -math.inf)[..., None], 0.0)
    values = {"outs": outs, "lse": lse[..., None]}

    def of(after: dict) -> Tensor:
        return after[result].squeeze(-1) if result == "lse_new" else torch.broadcast_to(after["out"], outs.shape[1:])

    return varied(MERGE, values, of)
