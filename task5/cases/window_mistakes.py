"""Wrong answers that sliding window attention is known to give: window_mistakes(query, key, value, window, ...).

The window's two edges, the causal mask, and the range of keys that a block goes through. What a Mistake is, and those
of any attention: common/diagnosis/mistakes.
"""

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.attention import attention_mistakes
from common.diagnosis.mistakes.formulas import varied
from common.diagnosis.mistakes.known import Mistake, Words
from common.diagnosis.mistakes.scores import known as of_scores
from common.diagnosis.mistakes.tile_loop import Tiles
from task5.cases.strided_mistakes import B_C, B_R, OF_A_MASK_ARGUMENT, WARP_ROWS
from task5.given.reference import sliding_window_mask

known = Words(__file__, B_C=B_C)
HIDDEN = """\
ahead = key_position - query_position
hidden = (ahead - r >= right) | (ahead - r <= -window)
"""


def window_mistakes(
    query: Tensor, key: Tensor, value: Tensor, window: int, causal: bool = True, scale: float | None = None
) -> list[Mistake]:
    """Wrong outputs [..., S_q, head_dim]; arguments as in task5.given.reference.naive_sliding_window_attention."""
    see = sliding_window_mask(query.size(-2), key.size(-2), window, causal, key.device)
    band = _Band(query, key, value, window, causal, scale)
    found = _edge_mistakes(band) + _range_mistakes(band) + _mask_mistakes(band)
    places = {"key_position": band.key, "query_position": band.row - band.row % WARP_ROWS, "r": band.row % WARP_ROWS}
    places |= {"window": window, "right": 1 if causal else window}
    found += varied(HIDDEN, places, lambda after: band.answer(~after["hidden"] & band.exists)())
    general = attention_mistakes(query, key, value, False, scale, mask=see)
    return found + [one for one in general if one.name not in OF_A_MASK_ARGUMENT]


class _Band(Tiles):
    """The kernel's loop over the tiles of keys of a window, right or with one thing wrong."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, window: int, causal: bool, scale: float | None
    ) -> None:
        super().__init__(query, key, value, scale, B_R, B_C)
        self.window, self.causal = window, causal
        self.ahead = self.key - self.row
        self.sees = self.within(window)
        self.first = (self.q_start - window + 1).clamp(min=0)  # that the block's first row sees
        self.begin = self.first // B_C * B_C
        self.end = self.ends(0 if causal else window - 1)

    def within(self, window: int, causal: bool | None = None) -> Tensor:
        """What a mask for this window shows."""
        edge = 1 if (self.causal if causal is None else causal) else window
        return (self.ahead > -window) & (self.ahead < edge) & self.exists

    def ends(self, keys_ahead: int) -> Tensor:
        """Where a loop ends whose last row looks that many keys ahead."""
        return (self.q_start + B_R + keys_ahead).clamp(max=self.seq_k)

    def each(self, key: str, sees: Tensor, begin: Tensor | None = None, end: Tensor | None = None) -> list[Mistake]:
        """The mistake with the right range of keys, with the range that goes with it, and with all keys."""
        zero, whole = torch.zeros_like(self.row), torch.full_like(self.row, self.seq_k)
        return [known(key, self.answer(sees, *keys), window=self.window) for keys in ((), (begin, end), (zero, whole))]


def _edge_mistakes(band: _Band) -> list[Mistake]:
    """The window left out, too large, too small, on the wrong side, or without an edge."""
    window, q_start = band.window, band.q_start

    def begin(size: int) -> Tensor:
        return (q_start - size + 1).clamp(min=0) // B_C * B_C

    from_first = band.key - band.row // WARP_ROWS * WARP_ROWS
    behind, wrong_side = band.ahead > -window, (band.ahead >= 0) & (band.ahead < window) & band.exists
    whole = torch.full_like(band.row, band.seq_k)
    hidden = [("window ignored (causal)", band.exists & (band.ahead <= 0))] if band.causal else []
    found = [
        known(key, band.answer(seen, 0 * whole, whole)) for key, seen in (*hidden, ("window ignored", band.exists))
    ]
    found += [
        *band.each(
            "window off by one (too large)",
            band.within(window + 1),
            begin(window + 1),
            band.end if band.causal else band.ends(window),
        ),
        *band.each(
            "window off by one (too small)",
            band.within(window - 1),
            begin(window - 1),
            band.end if band.causal else band.ends(window - 2),
        ),
        *band.each("left edge not masked", band.exists & (band.ahead < (1 if band.causal else window))),
        *band.each(
            "mask of the warp's first row",
            (from_first > -window) & (from_first < (1 if band.causal else window)) & band.exists,
        ),
    ]
    if band.causal:
        return found + band.each("window on the wrong side", wrong_side, q_start // B_C * B_C, band.ends(window - 1))
    found += band.each("right edge not masked", behind & band.exists)
    found += band.each("window of a causal mask", band.within(window, causal=True), band.begin, band.ends(0))
    return found


def _range_mistakes(band: _Band) -> list[Mistake]:
    """The loop begins too late or ends too early."""
    last_rows = band.q_start + B_R - band.window
    found = [
        known("first tile left out", band.answer(begin=(band.first + B_C - 1) // B_C * B_C)),
        known("first tile left out (from the last row)", band.answer(begin=last_rows.clamp(min=0) // B_C * B_C)),
        known("first tile left out (from q_start)", band.answer(begin=band.q_start // B_C * B_C)),
    ]
    if band.causal:
        found += [
            known("tiles on the diagonal left out", band.answer(end=end.clamp(max=band.seq_k)), where=where)
            for where, end in (("q_start", band.q_start), ("q_start + 1", band.q_start + 1))
        ]
    else:
        found.append(known("loop ends too early", band.answer(end=(band.q_start + B_R).clamp(max=band.seq_k))))
    return found


def _mask_mistakes(band: _Band) -> list[Mistake]:
    """The causal mask, the keys that do not exist, and rows that see nothing."""
    first_seen = torch.where(band.sees, band.key, len(band.key)).amin(-1, keepdim=True)
    blind = (first_seen >= band.begin + B_C) & (band.begin < band.end)  # in the first tile that they come to
    found = [
        known("masked row is NaN", lambda: torch.where(blind, math.nan, band.answer()())),
        known(
            "mask counted within the tile",
            band.answer(
                (band.key % B_C - band.row % B_R > -band.window)
                & (band.key % B_C - band.row % B_R < (1 if band.causal else band.window))
                & band.exists
            ),
        ),
        of_scores("masked scores are 0", band.answer(hidden=0.0)),
        known(
            "padding counts",
            band.answer((band.ahead > -band.window) & (band.ahead < (1 if band.causal else band.window))),
            seq_k=band.seq_k,
        ),
    ]
    if band.causal:
        found += band.each(
            "causal mask missing", band.within(band.window, causal=False), band.begin, band.ends(band.window - 1)
        )
        for step, key in ((1, "mask off by one"), (-1, "mask off by one (own key hidden)")):
            found += band.each(key, (band.ahead > -band.window) & (band.ahead < 1 + step) & band.exists)
    return found
