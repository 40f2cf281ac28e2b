"""Wrong answers of attention whose loop goes through the keys tile by tile (FlashAttention), with the online softmax.

    rescale_mistakes(s, value, tile)                                       a new maximum changes nothing
    tile_loop_mistakes(query, key, value, causal, scale, B_r, B_c, ...)    every mistake of such a loop

They come on top of those in attention.py; see known.py for what a Mistake is. Where overflow or
underflow is the mistake, it is computed in float32.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import varied, without
from common.diagnosis.mistakes.known import TILES, Mistake, Words
from common.diagnosis.mistakes.softmax_formulas import STEP, tile_formulas, tile_loop
from common.reference import oracle as right

known = Words(__file__)
OF_TILE = STEP.replace("maximum(m, rowmax(S))", "rowmax(S)")
INVERSE = "O / (rescale + (rescale == 0))"  # in the first tile the factor is 0, and nothing is divided


def rescale_mistakes(s: Tensor, value: Tensor, tile: int) -> list[Mistake]:
    """What comes out if a new maximum changes nothing; s [..., S_q, S_k] masked scores, `tile` keys at a time."""
    return [
        known(
            "no rescale in the online softmax",
            lambda names=names: tile_loop(s, value, tile, without(STEP, "rescale", names)),
            name=" and ".join(names),
            tile=tile,
        )
        for names in (("O", "l"), ("O",), ("l",))
    ]


def tile_loop_mistakes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool,
    scale: float | None,
    B_r: int,
    B_c: int,
    lower_right: bool = False,
) -> list[Mistake]:
    """Wrong answers of attention tile by tile; query [..., S_q, head_dim], key and value [..., S_k, head_dim].

    They come on top of common.diagnosis.mistakes.attention_output.
    """
    s = right.scores(query, key, causal, scale, lower_right=lower_right)

    def loop(step: str) -> Tensor:
        return tile_loop(s, value, B_c, step)

    def in_float32(step: str, first_max: float = -math.inf) -> Tensor:
        return tile_loop(s.float(), value.float(), B_c, step, first_max).to(s.dtype)

    found = [
        known("divides instead of rescaling", lambda: loop(STEP.replace("rescale * O", INVERSE))),
        known("maximum of the tile", lambda: loop(without(OF_TILE, "rescale", ("l", "O")))),
        known("maximum of the tile #2", lambda: in_float32(OF_TILE)),
        known("maximum starts at 0", lambda: in_float32(STEP, 0.0)),
        known("normalized in every tile", lambda: loop(f"{STEP}O = divided(O, l)\n")),
        known("masked row is NaN", lambda: loop(STEP.replace("shift_of(m_new)", "m_new"))),
    ]
    found += rescale_mistakes(s, value, B_c) + tile_formulas(s, value, B_c)
    whole = (key.size(-2) - 1) // B_c * B_c
    if whole and (B_c not in TILES or key.size(-2) % B_c == 0):
        found.append(
            known(
                "last tile dropped", lambda: right.softmax(s[..., :whole]) @ value[..., :whole, :], whole=whole, B_c=B_c
            )
        )
    diagonal = key.size(-2) - query.size(-2) if lower_right else 0
    return found + _visited_tile_mistakes(query, key, value, scale, B_r, B_c, diagonal if causal else None)


class _Visits:
    """Which tiles of keys the loop of a row visits, for S [S_q, S_k] padded to whole tiles of B_c keys.

    diagonal: query i sees the keys j <= i + diagonal; None: all.
    """

    def __init__(self, seq_q: int, seq_k: int, B_r: int, B_c: int, diagonal: int | None, device) -> None:
        self.padding = -seq_k % B_c
        self.row = torch.arange(seq_q, device=device)[:, None]
        self.key = torch.arange(seq_k + self.padding, device=device)
        self.tile = self.key // B_c
        self._seq_k, self._B_c = seq_k, B_c
        self.q_start = self.row // B_r * B_r
        if diagonal is None:
            self.last = torch.full_like(self.row, seq_k - 1)  # the last key that a row sees
            self.tiles = self.before(torch.full_like(self.row, seq_k))
        else:
            self.last = (self.row + diagonal).clamp(max=seq_k - 1)
            self.tiles = self.before(self.q_start + B_r + diagonal)  # how many it visits
        self.sees = self.key <= self.last
        self.visits = self.tile < self.tiles
        self.exists = self.key < seq_k

    def before(self, key: Tensor) -> Tensor:
        """How many tiles a loop visits that ends before this key."""
        return (key.clamp(0, self._seq_k) + self._B_c - 1) // self._B_c


def _visited_tile_mistakes(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, B_r: int, B_c: int, diagonal: int | None
) -> list[Mistake]:
    """Mistakes that depend on which tiles a row's loop visits; diagonal as in _Visits."""
    on = _Visits(query.size(-2), key.size(-2), B_r, B_c, diagonal, query.device)
    # keys that do not exist: zeros in shared memory
    s = torch.nn.functional.pad(right.scores(query, key, False, scale), (0, on.padding))
    value = torch.nn.functional.pad(value, (0, 0, 0, on.padding))

    def seeing(see: Tensor) -> Callable[[], Tensor]:
        return lambda: right.softmax(s.masked_fill(~see, -math.inf)) @ value

    found = [
        known("only the last tile", seeing(on.sees & (on.tile == on.tiles - 1))),
    ]
    if on.padding:
        found.append(
            known(
                "padding counts",
                seeing(on.visits if diagonal is None else on.visits & (on.key <= on.row + diagonal)),
                full=B_c - on.padding,
                B_c=B_c,
            )
        )
    return found if diagonal is None else found + _diagonal_mistakes(on, s, seeing, B_r, B_c, diagonal, value)


def _diagonal_mistakes(
    on: _Visits,
    s: Tensor,
    seeing: Callable[[Tensor], Callable[[], Tensor]],
    B_r: int,
    B_c: int,
    diagonal: int,
    value: Tensor,
) -> list[Mistake]:
    """Mistakes with the tiles that the causal diagonal crosses; s and value are padded."""
    shift = f" + {diagonal}" if diagonal > 0 else f" - {-diagonal}" if diagonal else ""
    where = f"q_start{shift}"
    first_last = on.q_start + diagonal  # the last key that the first row of the tile sees
    found = [
        known("tiles on the diagonal left out", seeing(on.sees & (on.tile < on.before(first_last))), where=where),
        known("tiles on the diagonal left out #2", seeing(on.sees & (on.tile <= first_last // B_c)), where=where),
        known("tiles on the diagonal left out #3", seeing(on.sees & (on.tile < on.tiles - 1)), B_c=B_c),
        known("mask counted within the tile", seeing((on.key % B_c <= on.row % B_r) & on.visits & on.exists)),
        known(
            "masked scores are 0",
            lambda: right.softmax(s.masked_fill(~on.sees, 0.0).masked_fill(~on.visits, -math.inf)) @ value,
        ),
    ]
    line = "hidden = key > query" + (" + diagonal" if diagonal else "")
    places = {"key": on.key, "query": on.row, "diagonal": diagonal}
    found += varied(line, places, lambda after: seeing(~after["hidden"] & on.visits & on.exists)())
    ends_with_the_queries = on.before((on.q_start + B_r).clamp(max=s.size(-2)) + diagonal)
    for visits in (on.visits, on.tile < ends_with_the_queries):
        found += [
            known("mask off by one", seeing((on.key <= on.row + diagonal + 1) & visits & on.exists), shift=shift),
            known("causal mask missing", seeing(visits & on.exists), shift=shift),
        ]
    if diagonal > 0:
        found.append(
            known(
                "alignment left out of the loop",
                seeing(on.sees & (on.tile < on.before(on.q_start + B_r))),
                diagonal=diagonal,
            )
        )
    if bool((blind := (on.last < 0) & (on.tiles > 0)).any()):
        found.append(known("masked row is NaN #2", lambda: torch.where(blind, math.nan, seeing(on.sees)())))
    return found
