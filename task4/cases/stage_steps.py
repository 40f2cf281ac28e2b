"""The tile sizes used to test the stages of task 4, and reference stages in PyTorch."""

import math

import torch
from torch import Tensor

# the same as in task4/given/stages.h
B_R, B_C, D, WARPS = 12, 64, 64, 4
LANES = 32
ROWS, KEYS = B_R // WARPS, B_C // LANES  # rows per warp, keys per lane
K_STRIDE = D + 4


def masked(s: Tensor, keys_left: int, diagonal: int, hidden: float = -math.inf) -> Tensor:
    """s [B_r, B_c] with `hidden` where key >= keys_left or key > row + diagonal."""
    row, key = torch.arange(s.size(0), device=s.device)[:, None], torch.arange(s.size(1), device=s.device)
    return s.masked_fill((key >= keys_left) | (key > row + diagonal), hidden)


def softmax_step(s: Tensor, m: Tensor, l: Tensor, o: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # noqa: E741
    """One step of the online softmax in base 2: (P, m, l, O).

    Args:
        s: the tile's scores [B_r, B_c].
        m, l: maximum and sum of the earlier tiles [B_r].
        o: their output [B_r, D].
    """
    m_new = torch.maximum(m, s.amax(-1))
    shift = torch.where(m_new == -math.inf, 0.0, m_new)  # a row that has seen no key subtracts 0
    p, rescale = torch.exp2(s - shift[:, None]), torch.exp2(m - shift)
    return p, m_new, l * rescale + p.sum(-1), o * rescale[:, None]
