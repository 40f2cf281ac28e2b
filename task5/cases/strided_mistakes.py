"""Wrong answers that strided attention is known to give: strided_mistakes(query, key, value, stride, offset, ...).

Attention over the wrong keys, and what the loop over tiles of strided keys can get wrong. What a Mistake is, and those
of any attention: common/diagnosis/mistakes; for those the strided keys are keys like all others.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.attention_output import attention_mistakes
from common.diagnosis.mistakes.known import Mistake
from common.diagnosis.mistakes.tile_loop import tile_loop_mistakes
from common.reference import oracle as right
from task5.given.reference import naive_strided_attention, strided_mask, strided_positions

B_R, B_C = 48, 32  # rows and strided keys per tile, as in strided_attention.cu
# What is said of a mask argument, which this operator lacks; of its own mask _causal_mistakes says it
OF_A_MASK_ARGUMENT = ("mask ignored", "mask inverted", "mask broadcast wrong")

OFFSET_IGNORED = "The keys 0, stride, 2 * stride, ... are attended to; the first one must be offset = {}."


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
    found += _loop_mistakes(loop)
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
            Mistake(
                "stride ignored",
                f"Every key is attended to, as if stride were 1; it is {stride}.",
                lambda: naive_strided_attention(query, key, value, 1, 0, causal, scale),
            ),
            Mistake(
                "rows of a tile are neighbors",
                "The rows of the tiles of K and V are neighbors in global memory: row r must be read r * row_step "
                "rows after the first one, and row_step is the stride.",
                reading(neighbors, neighbors),
            ),
            Mistake(
                "V not strided",
                "K is read with the stride and V without it: the weights of strided keys meet the V of neighbors.",
                reading(positions, neighbors),
            ),
        ]
    if offset:
        found += [
            Mistake(
                "offset ignored",
                OFFSET_IGNORED.format(offset),
                lambda: naive_strided_attention(query, key, value, stride, 0, causal, scale),
            ),
            Mistake(
                "V without offset",
                "V is read from 0, stride, 2 * stride, ... on; its rows are those of K, which begin at offset.",
                reading(positions, positions - offset),
            ),
        ]
    return found


class _Loop:
    """The kernel's loop over tiles of strided keys, right or with one thing wrong.

    k and v are the strided keys and values; they are padded to whole tiles with zeros, as in shared memory. Tensors
    over queries and strided keys are [S_q, whole tiles].
    """

    def __init__(
        self,
        query: Tensor,
        k: Tensor,
        v: Tensor,
        seq_k: int,
        stride: int,
        offset: int,
        causal: bool,
        scale: float | None,
    ) -> None:
        padding = -k.size(-2) % B_C
        self._s = torch.nn.functional.pad(right.scores(query, k, False, scale), (0, padding))
        self._v = torch.nn.functional.pad(v, (0, 0, 0, padding))
        self.stride, self.offset = stride, offset
        self.seq_k, self.causal = seq_k, causal
        self.row = torch.arange(query.size(-2), device=query.device)[:, None]
        self.n = torch.arange(k.size(-2) + padding, device=query.device)
        self.position = offset + self.n * stride
        self.exists = self.position < seq_k
        self.q_start = self.row // B_R * B_R
        self.sees = self.at(self.position)
        end = (self.q_start + B_R).clamp(max=seq_k) if causal else torch.full_like(self.row, seq_k)
        self.count = self.before(end)  # how many strided keys a block goes through
        self.rounded_down = (end - offset).clamp(min=0) // stride

    def at(self, position: Tensor) -> Tensor:
        """What the mask shows if `position` [whole tiles] is taken for the position of the strided keys."""
        return (position < self.seq_k) & ((position <= self.row) if self.causal else (self.row >= 0))

    def before(self, end: Tensor) -> Tensor:
        """How many strided keys are at positions before `end`."""
        return (end - self.offset).clamp(min=0).add(self.stride - 1) // self.stride

    def answer(
        self, sees: Tensor | None = None, count: Tensor | None = None, hidden: float = -math.inf
    ) -> Callable[[], Tensor]:
        """The output if the mask shows `sees`, hidden scores become `hidden`, and the loop ends at `count`."""
        sees, count = self.sees if sees is None else sees, self.count if count is None else count

        def compute() -> Tensor:
            loaded, visited = self.n < count, self.n // B_C * B_C < count
            s = torch.where(loaded, self._s, 0.0).masked_fill(~sees, hidden).masked_fill(~visited, -math.inf)
            return (right.softmax(s) * loaded) @ self._v

        return compute


def _loop_mistakes(loop: _Loop) -> list[Mistake]:
    """Mistakes with the end of the loop."""
    return [
        Mistake(
            "number of strided keys rounded down",
            "The last strided key is left out: (end - offset) / stride must be rounded up (ceil_div), since a key at "
            "offset itself is one already.",
            loop.answer(count=loop.rounded_down),
        ),
        Mistake(
            "last tile dropped",
            f"The strided keys of the last, partial tile are left out: the loop runs while n < their number, in steps "
            f"of B_c = {B_C}.",
            loop.answer(count=loop.count // B_C * B_C),
        ),
    ]


def _offset_mistakes(loop: _Loop, offset: int) -> list[Mistake]:
    """The loop over the keys 0, stride, 2 * stride, ..., as many as there are from `offset` on."""
    return [
        Mistake("offset ignored", OFFSET_IGNORED.format(offset), loop.answer(loop.at(loop.n * loop.stride))),
        Mistake(
            "offset ignored",
            f"K and V are read from 0, stride, 2 * stride, ... on; the first row must be offset = {offset}.",
            loop.answer(),
        ),
    ]


def _causal_mistakes(loop: _Loop) -> list[Mistake]:
    """Mistakes with the causal mask."""
    everything = torch.full_like(loop.count, len(loop.n))  # a loop that goes through all keys

    def each(name: str, says: str, *shown: Tensor) -> list[Mistake]:
        return [Mistake(name, says, loop.answer(sees, count)) for sees in shown for count in (loop.count, everything)]

    def taken_for_the_position(position: Tensor) -> tuple[Tensor, Tensor]:
        return loop.at(position), loop.exists & (position <= loop.row)

    blind = ~loop.sees.any(-1, keepdim=True) & (loop.count > 0)
    return [
        *each(
            "causal mask missing",
            "The causal mask is missing: queries see keys at positions after their own.",
            loop.exists.expand_as(loop.sees),
        ),
        *each(
            "mask counts strided keys",
            "The mask compares the number n of the strided key with the query's position: it must compare the key's "
            "position, offset + n * stride.",
            *taken_for_the_position(loop.n),
        ),
        *each(
            "offset left out of the mask",
            "The mask takes n * stride for the position of strided key n; it is offset + n * stride.",
            *taken_for_the_position(loop.n * loop.stride),
        ),
        *each(
            "mask off by one",
            "The causal mask is off by one: a key at the query's own position must be seen.",
            loop.exists & (loop.position < loop.row),
        ),
        *each(
            "mask off by one",
            "The causal mask is off by one: query i sees position i + 1. Mask every position > i.",
            loop.exists & (loop.position <= loop.row + 1),
        ),
        Mistake(
            "masked row is NaN",
            "A row that sees no key of its tiles has m = -inf, and -inf - (-inf) is NaN. Such a row must subtract 0.",
            lambda: torch.where(blind, math.nan, loop.answer()()),
        ),
        Mistake(
            "mask counted within the tile",
            "The causal mask takes the first row of every block for query 0: the query's position is q_start + its row "
            "in the tile.",
            loop.answer(loop.exists & (loop.position <= loop.row % B_R)),
        ),
        Mistake(
            "masked scores are 0",
            "Masked scores are set to 0 instead of -inf: exp(0) is 1, so they still count.",
            loop.answer(hidden=0.0),
        ),
        Mistake(
            "tiles on the diagonal left out",
            "Under the causal mask the loop ends with the strided keys before q_start, where the first query of the "
            "block stops; its last query sees keys up to q_start + B_r - 1.",
            loop.answer(count=loop.before(loop.q_start)),
        ),
    ]
