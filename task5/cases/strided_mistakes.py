"""Known wrong answers of strided attention: strided_mistakes(query, key, value, stride, offset, ...).

Attention over the wrong keys, and mistakes in the loop over tiles of strided keys. For Mistake, and the mistakes of any
attention, see common/diagnosis/mistakes; the latter treat the strided keys as ordinary keys.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from common.diagnosis.mistakes.attention import attention_mistakes
from common.diagnosis.mistakes.formulas import varied
from common.diagnosis.mistakes.known import Mistake, Words
from common.diagnosis.mistakes.scores import known as of_scores
from common.diagnosis.mistakes.tile_loop import Tiles, tile_loop_mistakes
from common.reference import oracle as right
from task5.given.reference import naive_strided_attention, strided_mask, strided_positions

B_R, B_C = 48, 32  # rows and strided keys per tile, as in strided_attention.cu
WARP_ROWS = B_R // 4
POSITION = "key_position = position + lane * stride"
known = Words(__file__, B_C=B_C)
# Mistakes with a mask argument, which these operators don't have; mistakes with their own masks are listed separately
OF_A_MASK_ARGUMENT = ("mask ignored", "mask inverted", "mask broadcast wrong")


def of_a_mask(query: Tensor, key: Tensor, value: Tensor, scale: float | None, see: Tensor) -> list[Mistake]:
    """The mistakes of any attention, under an operator's own mask."""
    every = attention_mistakes(query, key, value, False, scale, mask=see)
    return [one for one in every if one.name not in OF_A_MASK_ARGUMENT]


def strided_mistakes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    stride: int,
    offset: int = 0,
    causal: bool = False,
    scale: float | None = None,
) -> list[Mistake]:
    """Wrong outputs [..., S_q, head_dim]; the arguments are those of task5.given.reference.naive_strided_attention."""
    positions = strided_positions(key.size(-2), stride, offset, key.device)
    see = strided_mask(query.size(-2), key.size(-2), stride, offset, causal, key.device).expand(query.size(-2), -1)
    of_loop = {"keys": key.size(-2), "stride": stride, "offset": offset, "causal": causal, "scale": scale}
    # the rows loaded if each tile starts at the right key and continues with its neighbors
    row = torch.arange(len(positions), device=key.device)
    neighbors = positions[row // B_C * B_C] + row % B_C

    def reading(k_rows: Tensor, v_rows: Tensor) -> Callable[[], Tensor]:
        return lambda: right.attention(query, key[..., k_rows, :], value[..., v_rows, :], scale=scale, mask=see)

    def loop_over(rows: Tensor) -> _Loop:
        return _Loop(query, key[..., rows, :], value[..., rows, :], **of_loop)

    naive = partial(naive_strided_attention, query, key, value, causal=causal, scale=scale)
    found = []
    if stride > 1:
        found += [
            known("stride ignored", lambda: naive(stride=1, offset=0), stride=stride),
            known("rows of a tile are neighbors", reading(neighbors, neighbors)),
            known("V not strided", reading(positions, neighbors)),
        ]
    if offset:
        found.append(known("offset ignored", lambda: naive(stride=stride, offset=0), offset=offset))
        found.append(known("V without offset", reading(positions, positions - offset)))
    loop = loop_over(positions)
    found += loop.mistakes()
    if offset:  # the loop over the keys 0, stride, 2 * stride, ..., with the count of those from `offset` on
        before = loop_over(positions - offset)
        found.append(known("offset ignored", before.answer(before.at(before.key * stride)), offset=offset))
        found.append(known("offset ignored (in the loads)", before.answer(), offset=offset))
    if causal:
        return found + loop.causal_mistakes() + of_a_mask(query, loop.k, loop.v, scale, see)
    found += attention_mistakes(query, loop.k, loop.v, False, scale)
    return found + tile_loop_mistakes(query, loop.k, loop.v, False, scale, B_R, B_C)


class _Loop(Tiles):
    """The kernel's loop over tiles of strided keys, right or with one mistake; k and v are the strided ones."""

    def __init__(
        self,
        query: Tensor,
        k: Tensor,
        v: Tensor,
        keys: int,
        stride: int,
        offset: int,
        causal: bool,
        scale: float | None,
    ) -> None:
        super().__init__(query, k, v, scale, B_R, B_C)
        self.k, self.v, self.stride, self.offset, self.keys, self.causal = k, v, stride, offset, keys, causal
        self.position = offset + self.key * stride
        self.exists = self.position < keys
        self.sees = self.at(self.position)
        end = (self.q_start + B_R).clamp(max=keys) if causal else torch.full_like(self.row, keys)
        self.end = self.before(end)  # the number of strided keys that a block loops over
        self.rounded_down = (end - offset).clamp(min=0) // stride

    def at(self, position: Tensor) -> Tensor:
        """The keys that the mask lets through if `position` [whole tiles] is used as the strided keys' position."""
        return (position < self.keys) & ((position <= self.row) if self.causal else (self.row >= 0))

    def before(self, end: Tensor) -> Tensor:
        """How many strided keys are at positions before `end`."""
        return (end - self.offset).clamp(min=0).add(self.stride - 1) // self.stride

    def mistakes(self) -> list[Mistake]:
        """The end of the loop, and the position of the lane's key."""
        lane = self.key % B_C
        places = {"position": self.position - lane * self.stride, "lane": lane, "stride": self.stride}
        return [
            known("number of strided keys rounded down", self.answer(end=self.rounded_down)),
            known("last tile dropped", self.answer(end=self.end // B_C * B_C)),
            *varied(POSITION, places, lambda after: self.answer(self.at(after["key_position"]))()),
        ]

    def causal_mistakes(self) -> list[Mistake]:
        """Mistakes with the causal mask."""
        row, position, exists = self.row, self.position, self.exists
        everything = torch.full_like(self.end, len(self.key))  # a loop over all keys
        taken = {"mask counts strided keys": self.key, "offset left out of the mask": self.key * self.stride}
        shown = [("causal mask missing", exists.expand_as(self.sees))]
        for key, one in taken.items():  # in place of the position
            shown += [(key, self.at(one)), (key, exists & (one <= row))]
        shown += [
            ("mask off by one (own position hidden)", exists & (position < row)),
            ("mask off by one", exists & (position <= row + 1)),
            ("mask of the warp's first row", exists & (position <= row // WARP_ROWS * WARP_ROWS)),
        ]
        blind = ~self.sees.any(-1, keepdim=True) & (self.end > 0)
        return [
            *(known(key, self.answer(sees, end=end)) for key, sees in shown for end in (self.end, everything)),
            known("masked row is NaN", lambda: torch.where(blind, math.nan, self.answer()())),
            known("mask counted within the tile", self.answer(exists & (position <= row % B_R))),
            of_scores("masked scores are 0", self.answer(hidden=0.0)),
            known("tiles on the diagonal left out", self.answer(end=self.before(self.q_start))),
        ]
