"""Wrong answers that sliding window attention is known to give: window_mistakes(query, key, value, window, ...).

The window's two edges, the causal mask, and the range of keys that a block goes through. What a Mistake is, and those
of any attention: common/diagnosis/mistakes.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.attention_output import attention_mistakes
from common.diagnosis.mistakes.known import Mistake
from common.reference import oracle as right
from task5.cases.strided_mistakes import B_C, B_R, OF_A_MASK_ARGUMENT
from task5.given.reference import sliding_window_mask

WARP_ROWS = B_R // 4


def window_mistakes(
    query: Tensor, key: Tensor, value: Tensor, window: int, causal: bool = True, scale: float | None = None
) -> list[Mistake]:
    """Wrong outputs [..., S_q, head_dim]; arguments as in task5.given.reference.naive_sliding_window_attention."""
    see = sliding_window_mask(query.size(-2), key.size(-2), window, causal, key.device)
    band = _Band(query, key, value, window, causal, scale)
    found = _edge_mistakes(band) + _range_mistakes(band) + _mask_mistakes(band)
    general = attention_mistakes(query, key, value, False, scale, mask=see)
    return found + [one for one in general if one.name not in OF_A_MASK_ARGUMENT]


class _Band:
    """The kernel's loop over the tiles of keys of a window, right or with one thing wrong.

    Keys and values are padded to whole tiles with zeros, as in shared memory; tensors over queries and keys are
    [S_q, whole tiles], those over queries alone [S_q, 1].
    """

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, window: int, causal: bool, scale: float | None
    ) -> None:
        self.seq_k, self.window, self.causal = key.size(-2), window, causal
        padding = -self.seq_k % B_C
        self._s = torch.nn.functional.pad(right.scores(query, key, False, scale), (0, padding))
        self._v = torch.nn.functional.pad(value, (0, 0, 0, padding))
        self.row = torch.arange(query.size(-2), device=query.device)[:, None]
        self.key = torch.arange(self.seq_k + padding, device=query.device)
        self.exists = self.key < self.seq_k
        self.ahead = self.key - self.row
        self.sees = self.within(window)
        self.q_start = self.row // B_R * B_R
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

    def answer(
        self,
        sees: Tensor | None = None,
        begin: Tensor | None = None,
        end: Tensor | None = None,
        hidden: float = -math.inf,
    ) -> Callable[[], Tensor]:
        """The output if the mask shows `sees`, hidden scores become `hidden`, and the loop goes from begin to end."""
        sees = self.sees if sees is None else sees
        begin, end = self.begin if begin is None else begin, self.end if end is None else end

        def compute() -> Tensor:
            turn = (self.key - begin).div(B_C, rounding_mode="floor")  # of the loop, in which the key's tile comes
            visited, loaded = (turn >= 0) & (begin + turn * B_C < end), self.key < end
            s = torch.where(loaded, self._s, 0.0).masked_fill(~sees, hidden).masked_fill(~visited, -math.inf)
            return (right.softmax(s) * loaded) @ self._v

        return compute

    def each(self, name: str, says: str, sees: Tensor, begin: Tensor | None = None, end: Tensor | None = None):
        """The mistake with the right range of keys, with the range that goes with it, and with all keys."""
        zero, whole = torch.zeros_like(self.row), torch.full_like(self.row, self.seq_k)
        return [Mistake(name, says, self.answer(sees, *keys)) for keys in ((), (begin, end), (zero, whole))]


def _edge_mistakes(band: _Band) -> list[Mistake]:
    """The window left out, too large, too small, on the wrong side, or without an edge."""
    window, q_start = band.window, band.q_start

    def begin(size: int) -> Tensor:
        return (q_start - size + 1).clamp(min=0) // B_C * B_C

    from_first = band.key - band.row // WARP_ROWS * WARP_ROWS
    behind, wrong_side = band.ahead > -window, (band.ahead >= 0) & (band.ahead < window) & band.exists
    whole = torch.full_like(band.row, band.seq_k)
    found = [
        Mistake(
            "window ignored",
            "Every key is attended to, as if there were no window" + (" (with the causal mask)." if causal else "."),
            band.answer(band.exists & (band.ahead <= 0) if causal else band.exists, 0 * whole, whole),
        )
        for causal in ([True, False] if band.causal else [False])
    ]
    found += [
        *band.each(
            "window off by one",
            f"The window is one key too large: key i - window is seen. Query i sees the keys j with i - j < window = "
            f"{window}, its own among them.",
            band.within(window + 1),
            begin(window + 1),
            band.end if band.causal else band.ends(window),
        ),
        *band.each(
            "window off by one",
            f"The window is one key too small: key i - window + 1 must be seen, which makes window = {window} keys "
            "with the query's own.",
            band.within(window - 1),
            begin(window - 1),
            band.end if band.causal else band.ends(window - 2),
        ),
        *band.each(
            "left edge not masked",
            "The window has no left edge: keys with i - j >= window are seen where the tiles hold them.",
            band.exists & (band.ahead < (1 if band.causal else window)),
        ),
        *band.each(
            "mask of the warp's first row",
            "The window is that of the warp's first row for all its rows: the query of row r has the position "
            "query_position + r.",
            (from_first > -window) & (from_first < (1 if band.causal else window)) & band.exists,
        ),
    ]
    if band.causal:
        found += band.each(
            "window on the wrong side",
            "The window is ahead of the query: keys i <= j < i + window are seen. It must be i - window < j <= i.",
            wrong_side,
            q_start // B_C * B_C,
            band.ends(window - 1),
        )
    else:
        found += band.each(
            "right edge not masked",
            "The window has no right edge: keys with j - i >= window are seen where the tiles hold them.",
            behind & band.exists,
        )
        found += band.each(
            "window of a causal mask",
            "Without causal the window has a right half too: the keys i < j < i + window are missing.",
            band.within(window, causal=True),
            band.begin,
            band.ends(0),
        )
    return found


def _range_mistakes(band: _Band) -> list[Mistake]:
    """The loop begins too late or ends too early."""
    late = (
        "The loop begins with too late a tile, and the first rows of a block lack keys: the first key is the one that "
        "the block's first row sees, q_start - window + 1, "
    )
    last_rows = band.q_start + B_R - band.window
    found = [
        Mistake(
            "first tile left out",
            late + "and its tile is found by rounding down, not up.",
            band.answer(begin=(band.first + B_C - 1) // B_C * B_C),
        ),
        Mistake(
            "first tile left out",
            late + "not the one that the last row sees.",
            band.answer(begin=last_rows.clamp(min=0) // B_C * B_C),
        ),
        Mistake("first tile left out", late + "not q_start.", band.answer(begin=band.q_start // B_C * B_C)),
        Mistake(
            "last tile dropped",
            f"The keys of the last, partial tile are left out: the loop runs while k_start < end, in steps of B_c = "
            f"{B_C}.",
            band.answer(end=band.begin + (band.end - band.begin).clamp(min=0) // B_C * B_C),
        ),
    ]
    if band.causal:
        found += [
            Mistake(
                "tiles on the diagonal left out",
                f"The loop ends at {where}, where the first query of the block stops; its last query sees keys up to "
                "q_start + B_r - 1.",
                band.answer(end=end.clamp(max=band.seq_k)),
            )
            for where, end in (("q_start", band.q_start), ("q_start + 1", band.q_start + 1))
        ]
    else:
        found.append(
            Mistake(
                "loop ends too early",
                "The loop ends at the diagonal, as with causal, and the last rows of a block lack keys: the last row "
                "sees those before q_start + B_r - 1 + window.",
                band.answer(end=(band.q_start + B_R).clamp(max=band.seq_k)),
            )
        )
    return found


def _mask_mistakes(band: _Band) -> list[Mistake]:
    """The causal mask, the keys that do not exist, and rows that see nothing."""
    first_seen = torch.where(band.sees, band.key, len(band.key)).amin(-1, keepdim=True)
    blind = (first_seen >= band.begin + B_C) & (band.begin < band.end)  # in the first tile that they come to
    found = [
        Mistake(
            "masked row is NaN",
            "A row that sees no key of the first tile has m = -inf, and -inf - (-inf) is NaN; it stays NaN through all "
            "later tiles. Such a row must subtract 0.",
            lambda: torch.where(blind, math.nan, band.answer()()),
        ),
        Mistake(
            "mask counted within the tile",
            "The mask takes the first row of every block for query 0, or the first key of every tile for key 0: add "
            "q_start and k_start.",
            band.answer(
                (band.key % B_C - band.row % B_R > -band.window)
                & (band.key % B_C - band.row % B_R < (1 if band.causal else band.window))
                & band.exists
            ),
        ),
        Mistake(
            "masked scores are 0",
            "Masked scores are set to 0 instead of -inf: exp(0) is 1, so they still count.",
            band.answer(hidden=0.0),
        ),
        Mistake(
            "padding counts",
            f"The last tile of keys is not full, and what is missing is taken for keys with the score 0: hide keys "
            f"from S_k = {band.seq_k} on.",
            band.answer((band.ahead > -band.window) & (band.ahead < (1 if band.causal else band.window))),
        ),
    ]
    if band.causal:
        found += band.each(
            "causal mask missing",
            "The causal mask is missing: queries see the keys i < j < i + window as well.",
            band.within(band.window, causal=False),
            band.begin,
            band.ends(band.window - 1),
        )
        for step, says in ((1, "query i sees key i + 1. Mask every j > i."), (-1, "a query's own key must be seen.")):
            found += band.each(
                "mask off by one",
                f"The causal mask is off by one: {says}",
                (band.ahead > -band.window) & (band.ahead < 1 + step) & band.exists,
            )
    return found
