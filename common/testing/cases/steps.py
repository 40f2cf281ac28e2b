"""The intermediate steps that `--show` prints between inputs and output, named as in the handouts.

softmax_steps(x)                   the row maximum, the exponentials, their sum
attention_steps(stages, tile)      S, P, and for a tile loop m and l after each tile
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import shift_of


def softmax_steps(x: Tensor) -> dict[str, Tensor]:
    """Steps of the softmax of x [rows, cols]."""
    m = x.amax(-1, keepdim=True)
    e = torch.exp(x - shift_of(m))
    return {"the row's maximum": m, "exp(x - maximum)": e, "their sum": e.sum(-1, keepdim=True)}


def attention_steps(stages: Mapping[str, Tensor], tile: int | None = None) -> dict[str, Tensor]:
    """Steps from the stages S and P [..., row, key]; tile: keys per iteration of a tile loop, None if there is none."""
    steps = {"S, the scaled and masked scores": stages["S"]}
    if tile:
        s = stages["S"]
        ends = [min(first + tile, s.size(-1)) for first in range(0, s.size(-1), tile)]
        m = [s[..., :end].amax(-1) for end in ends]
        l = [torch.exp(s[..., :end] - shift_of(one)[..., None]).sum(-1) for end, one in zip(ends, m, strict=True)]  # noqa: E741
        steps |= {
            f"m after each tile of {tile} keys": torch.stack(m, -1),
            f"l after each tile of {tile} keys": torch.stack(l, -1),
        }
    return steps | {"P = softmax(S)": stages["P"]}
