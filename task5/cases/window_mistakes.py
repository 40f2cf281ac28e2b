"""Known wrong answers of sliding window attention: window_mistakes(query, key, value, window, ...).

The window's two edges, the causal mask, and the range of keys that a block loops over. For Mistake, and the mistakes of
any attention, see common/diagnosis/mistakes.
"""

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import varied
from common.diagnosis.mistakes.known import Mistake, Words
from common.diagnosis.mistakes.scores import known as of_scores
from common.diagnosis.mistakes.tile_loop import Tiles
from task5.cases.strided_mistakes import B_C, B_R, WARP_ROWS, of_a_mask
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
    return found + of_a_mask(query, key, value, scale, see)


class _Band(Tiles):
    """The kernel's loop over the tiles of keys of a window, right or with one mistake."""

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, window: int, causal: bool, scale: float | None
    ) -> None:
        super().__init__(query, key, value, scale, B_R, B_C)
        self.window, self.causal = window, causal
        self.ahead = self.key - self.row
        self.sees = self.within(window)
        self.first = (self.q_start - window + 1).clamp(min=0)  # the first key that the block's first row sees
        self.begin = self.begins(window)
        self.end = self.ends(0 if causal else window - 1)
        self.whole = torch.full_like(self.row, self.seq_k)

    def shown(self, ahead: Tensor, left: int | None = None, right: int | None = None) -> Tensor:
        """The keys with -left < ahead < right, by default the window's, including positions past the last key."""
        right = (1 if self.causal else self.window) if right is None else right
        return (ahead > -(self.window if left is None else left)) & (ahead < right)

    def within(self, window: int) -> Tensor:
        """The keys that a mask for this window lets through."""
        return self.shown(self.ahead, window, 1 if self.causal else window) & self.exists

    def begins(self, window: int) -> Tensor:
        """The start of a loop for this window."""
        return (self.q_start - window + 1).clamp(min=0) // B_C * B_C

    def ends(self, keys_ahead: int) -> Tensor:
        """The end of a loop whose last row sees that many keys ahead."""
        return (self.q_start + B_R + keys_ahead).clamp(max=self.seq_k)

    def told(self, key: str, *loop: Tensor | None, **more: object) -> Mistake:
        """A mistake; loop: the keys that the mask lets through, and the start and end of the loop."""
        return known(key, self.answer(*loop), **{"window": self.window, "seq_k": self.seq_k} | more)

    def each(self, key: str, sees: Tensor, begin: Tensor | None = None, end: Tensor | None = None) -> list[Mistake]:
        """The mistake with the right range of keys, with its own matching range, and with all keys."""
        return [self.told(key, sees, *keys) for keys in ((), (begin, end), (0 * self.whole, self.whole))]


def _edge_mistakes(band: _Band) -> list[Mistake]:
    """The window left out, too large, too small, on the wrong side, or without an edge."""
    window, exists, whole = band.window, band.exists, band.whole
    found = [band.told("window ignored (causal)", exists & (band.ahead <= 0), 0 * whole, whole)] if band.causal else []
    found.append(band.told("window ignored", exists, 0 * whole, whole))
    for size, key in ((window + 1, "window off by one (too large)"), (window - 1, "window off by one (too small)")):
        end = band.end if band.causal else band.ends(size - 1)
        found += band.each(key, band.within(size), band.begins(size), end)
    found += band.each("left edge not masked", exists & (band.ahead < (1 if band.causal else window)))
    from_first = band.key - band.row // WARP_ROWS * WARP_ROWS
    found += band.each("mask of the warp's first row", band.shown(from_first) & exists)
    if band.causal:
        wrong_side = (band.ahead >= 0) & (band.ahead < window) & exists
        ends = band.ends(window - 1)
        return found + band.each("window on the wrong side", wrong_side, band.q_start // B_C * B_C, ends)
    found += band.each("right edge not masked", (band.ahead > -window) & exists)
    of_causal = band.shown(band.ahead, right=1) & exists
    return found + band.each("window of a causal mask", of_causal, band.begin, band.ends(0))


def _range_mistakes(band: _Band) -> list[Mistake]:
    """The loop begins too late or ends too early."""
    late = (
        ("first tile left out", (band.first + B_C - 1) // B_C * B_C),
        ("first tile left out (from the last row)", band.begins(band.window - B_R + 1)),
        ("first tile left out (from q_start)", band.q_start // B_C * B_C),
    )
    found = [band.told(key, None, begin) for key, begin in late]
    if not band.causal:
        return [*found, band.told("loop ends too early", None, None, band.ends(0))]
    early = (("q_start", band.q_start), ("q_start + 1", band.q_start + 1))
    where = ((name, end.clamp(max=band.seq_k)) for name, end in early)
    return found + [band.told("tiles on the diagonal left out", None, None, end, where=name) for name, end in where]


def _mask_mistakes(band: _Band) -> list[Mistake]:
    """The causal mask, the keys that do not exist, and rows that see nothing."""
    first_seen = torch.where(band.sees, band.key, len(band.key)).amin(-1, keepdim=True)
    blind = (first_seen >= band.begin + B_C) & (band.begin < band.end)  # in their first tile
    within_the_tile = band.shown(band.key % B_C - band.row % B_R) & band.exists
    found = [
        known("masked row is NaN", lambda: torch.where(blind, math.nan, band.answer()())),
        band.told("mask counted within the tile", within_the_tile),
        of_scores("masked scores are 0", band.answer(hidden=0.0)),
        band.told("padding counts", band.shown(band.ahead)),
    ]
    if band.causal:
        both_sides = band.shown(band.ahead, right=band.window) & band.exists
        found += band.each("causal mask missing", both_sides, band.begin, band.ends(band.window - 1))
        for right, key in ((2, "mask off by one"), (0, "mask off by one (own key hidden)")):
            found += band.each(key, band.shown(band.ahead, right=right) & band.exists)
    return found
