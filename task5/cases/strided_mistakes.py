"""Wrong answers that strided attention is known to give: strided_mistakes(query, key, value, stride, offset, ...).

Attention over the wrong keys, and what the loop over tiles of strided keys can get wrong. What a Mistake is, and those
of any attention: common/diagnosis/mistakes; for those the strided keys are keys like all others.
"""

import math
from collections.abc import Callable

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
# What is said of a mask argument, which this operator lacks; of its own mask _causal_mistakes says it
OF_A_MASK_ARGUMENT = ("mask ignored", "mask inverted", "mask broadcast wrong")


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
    k, v = key[..., positions, :], value[..., positions, :]
    found = _wrong_keys(query, key, value, stride, offset, causal, scale)
    loop = _Loop(query, k, v, key.size(-2), stride, offset, causal, scale)
    found += _loop_mistakes(loop) + _position_mistakes(loop)
    if offset:
        k_before, v_before = key[..., positions - offset, :], value[..., positions - offset, :]
        found += _offset_mistakes(_Loop(query, k_before, v_before, key.size(-2), stride, offset, causal, scale), offset)
    if not causal:
        general = attention_mistakes(query, k, v, False, scale)
        return found + general + tile_loop_mistakes(query, k, v, False, scale, B_R, B_C)
    see = strided_mask(query.size(-2), key.size(-2), stride, offset, causal, key.device).expand(query.size(-2), -1)
    general = attention_mistakes(query, k, v, False, scale, mask=see)
    return found + _causal_mistakes(loop) + [one for one in general if one.name not in OF_A_MASK_ARGUMENT]


def _wrong_keys(
    query: Tensor, key: Tensor, value: Tensor, stride: int, offset: int, causal: bool, scale: float | None
) -> list[Mistake]:
    """The stride or the offset left out, altogether or where a tile is loaded."""
    seq_q, seq_k = query.size(-2), key.size(-2)
    positions = strided_positions(seq_k, stride, offset, key.device)
    see = strided_mask(seq_q, seq_k, stride, offset, causal, key.device).expand(seq_q, -1)
    # rows that come into the tiles if each tile begins where it should and goes on with neighbors
    row = torch.arange(len(positions), device=key.device)
    neighbors = positions[row // B_C * B_C] + row % B_C

    def reading(k_rows: Tensor, v_rows: Tensor) -> Callable[[], Tensor]:
        return lambda: right.attention(query, key[..., k_rows, :], value[..., v_rows, :], scale=scale, mask=see)

    found = []
    if stride > 1:
        found += [
            known(
                "stride ignored", lambda: naive_strided_attention(query, key, value, 1, 0, causal, scale), stride=stride
            ),
            known("rows of a tile are neighbors", reading(neighbors, neighbors)),
            known("V not strided", reading(positions, neighbors)),
        ]
    if offset:
        found += [
            known(
                "offset ignored",
                lambda: naive_strided_attention(query, key, value, stride, 0, causal, scale),
                offset=offset,
            ),
            known("V without offset", reading(positions, positions - offset)),
        ]
    return found


class _Loop(Tiles):
    """The kernel's loop over tiles of strided keys, right or with one thing wrong; k and v are the strided ones."""

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
        self.stride, self.offset, self.keys, self.causal = stride, offset, keys, causal
        self.position = offset + self.key * stride
        self.exists = self.position < keys
        self.sees = self.at(self.position)
        end = (self.q_start + B_R).clamp(max=keys) if causal else torch.full_like(self.row, keys)
        self.end = self.before(end)  # how many strided keys a block goes through
        self.rounded_down = (end - offset).clamp(min=0) // stride

    def at(self, position: Tensor) -> Tensor:
        """What the mask shows if `position` [whole tiles] is taken for the position of the strided keys."""
        return (position < self.keys) & ((position <= self.row) if self.causal else (self.row >= 0))

    def before(self, end: Tensor) -> Tensor:
        """How many strided keys are at positions before `end`."""
        return (end - self.offset).clamp(min=0).add(self.stride - 1) // self.stride


def _loop_mistakes(loop: _Loop) -> list[Mistake]:
    """Mistakes with the end of the loop."""
    return [
        known("number of strided keys rounded down", loop.answer(end=loop.rounded_down)),
        known("last tile dropped", loop.answer(end=loop.end // B_C * B_C)),
    ]


def _position_mistakes(loop: _Loop) -> list[Mistake]:
    """The position of the lane's key."""
    lane = loop.key % B_C
    places = {"position": loop.position - lane * loop.stride, "lane": lane, "stride": loop.stride}
    return varied(POSITION, places, lambda after: loop.answer(loop.at(after["key_position"]))())


def _offset_mistakes(loop: _Loop, offset: int) -> list[Mistake]:
    """The loop over the keys 0, stride, 2 * stride, ..., as many as there are from `offset` on."""
    return [
        known("offset ignored", loop.answer(loop.at(loop.key * loop.stride)), offset=offset),
        known("offset ignored (in the loads)", loop.answer(), offset=offset),
    ]


def _causal_mistakes(loop: _Loop) -> list[Mistake]:
    """Mistakes with the causal mask."""
    everything = torch.full_like(loop.end, len(loop.key))  # a loop that goes through all keys

    def each(key: str, *shown: Tensor) -> list[Mistake]:
        return [known(key, loop.answer(sees, end=end)) for sees in shown for end in (loop.end, everything)]

    def taken_for_the_position(position: Tensor) -> tuple[Tensor, Tensor]:
        return loop.at(position), loop.exists & (position <= loop.row)

    blind = ~loop.sees.any(-1, keepdim=True) & (loop.end > 0)
    return [
        *each("causal mask missing", loop.exists.expand_as(loop.sees)),
        *each("mask counts strided keys", *taken_for_the_position(loop.key)),
        *each("offset left out of the mask", *taken_for_the_position(loop.key * loop.stride)),
        *each("mask off by one (own position hidden)", loop.exists & (loop.position < loop.row)),
        *each("mask off by one", loop.exists & (loop.position <= loop.row + 1)),
        *each("mask of the warp's first row", loop.exists & (loop.position <= loop.row // WARP_ROWS * WARP_ROWS)),
        known("masked row is NaN", lambda: torch.where(blind, math.nan, loop.answer()())),
        known("mask counted within the tile", loop.answer(loop.exists & (loop.position <= loop.row % B_R))),
        of_scores("masked scores are 0", loop.answer(hidden=0.0)),
        known("tiles on the diagonal left out", loop.answer(end=loop.before(loop.q_start))),
    ]
