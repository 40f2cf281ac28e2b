"""Wrong answers of attention whose loop goes through the keys tile by tile (FlashAttention), with the online softmax.

    tile_loop(s, value, tile, ...)                                         the loop, right or with one thing wrong
    rescale_mistakes(s, value, tile)                                       a new maximum changes nothing
    tile_loop_mistakes(query, key, value, causal, scale, B_r, B_c, ...)    every mistake of such a loop

They come on top of those in attention.py; see known.py for what a Mistake is. Where overflow or
underflow is the mistake, it is computed in float32.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import varied
from common.diagnosis.mistakes.known import TILES, Mistake
from common.diagnosis.mistakes.online_softmax import STARTS_AT_0, divided, shift_of
from common.diagnosis.mistakes.softmax_formulas import tile_formulas
from common.reference import oracle as right


def tile_loop(
    s: Tensor,
    value: Tensor,
    tile: int,
    of_o: Callable[[Tensor], Tensor] = lambda factor: factor,
    of_l: Callable[[Tensor], Tensor] = lambda factor: factor,
    first_max: float = -math.inf,
    running: bool = True,
    guarded: bool = True,
    normalized_in_loop: bool = False,
) -> Tensor:
    """FlashAttention's loop over tiles of keys, as it should be or with one thing wrong.

    Args:
        s: [..., S_q, S_k], masked scores.
        value: [..., S_k, head_dim].
        tile: keys per tile.
        of_o, of_l: exp(m_old - m_new) -> what O and l are multiplied by.
        first_max: what the maximum starts from.
        running: whether the maximum of earlier tiles counts.
        guarded: whether a row that has seen no key subtracts 0 and not -inf.
        normalized_in_loop: whether O is divided by l after every tile as well.

    Returns:
        The output [..., S_q, head_dim].
    """
    m = torch.full_like(s[..., :1], first_max)
    l, o = torch.zeros_like(m), torch.zeros_like(m * value[..., :1, :])  # noqa: E741
    for start in range(0, s.size(-1), tile):
        block = s[..., start : start + tile]
        largest = block.amax(-1, keepdim=True)
        m_new = torch.maximum(m, largest) if running else largest
        shift = shift_of(m_new) if guarded else m_new
        p, factor = torch.exp(block - shift), torch.exp(m - shift)
        l = of_l(factor) * l + p.sum(-1, keepdim=True)  # noqa: E741
        o = of_o(factor) * o + p @ value[..., start : start + tile, :]
        if normalized_in_loop:
            o = divided(o, l)
        m = m_new
    return divided(o, l)


def _left_alone(factor: Tensor) -> Tensor:
    return torch.ones_like(factor)


def _inverse(factor: Tensor) -> Tensor:
    """1 / factor; in the first tile, where the factor is 0, nothing is divided."""
    return torch.where(factor == 0, 1.0, 1 / factor)


def rescale_mistakes(s: Tensor, value: Tensor, tile: int) -> list[Mistake]:
    """What comes out if a new maximum changes nothing; s [..., S_q, S_k] masked scores, `tile` keys at a time."""
    return [
        Mistake(
            "no rescale in the online softmax",
            f"When the running maximum grows, {name} must be multiplied by exp(m_old - m_new); here it is not (tiles "
            f"of {tile} keys).",
            lambda of_o=of_o, of_l=of_l: tile_loop(s, value, tile, of_o, of_l),
        )
        for name, of_o, of_l in (
            ("O and l", _left_alone, _left_alone),
            ("O", _left_alone, lambda factor: factor),
            ("l", lambda factor: factor, _left_alone),
        )
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
    single, single_value = s.float(), value.float()
    found = [
        Mistake(
            "divides instead of rescaling",
            "O is divided by exp(m_old - m_new); it must be multiplied by it. Line 10 of Algorithm 1 is misprinted in "
            "the paper (the exponent -1 does not belong there), see the handout.",
            lambda: tile_loop(s, value, B_c, of_o=_inverse),
        ),
        Mistake(
            "maximum of the tile",
            "Each tile subtracts its own maximum, and what earlier tiles added is not rescaled: the terms of different "
            "tiles do not fit together. m is the maximum over all tiles so far.",
            lambda: tile_loop(s, value, B_c, _left_alone, _left_alone, running=False),
        ),
        Mistake(
            "maximum of the tile",
            "m becomes the maximum of the newest tile and not the largest so far: where the maximum falls, "
            "exp(m_old - m_new) overflows.",
            lambda: tile_loop(single, single_value, B_c, running=False).to(s.dtype),
        ),
        Mistake(
            "maximum starts at 0",
            STARTS_AT_0,
            lambda: tile_loop(single, single_value, B_c, first_max=0.0).to(s.dtype),
        ),
        Mistake(
            "normalized in every tile",
            "O is divided by l after every tile and again at the end. In the loop O stays the sum of "
            "exp(score - m) V; the one division comes after the last tile.",
            lambda: tile_loop(s, value, B_c, normalized_in_loop=True),
        ),
        Mistake(
            "masked row is NaN",
            "A row that has seen no key yet has m = -inf, and -inf - (-inf) is NaN; it stays NaN through all later "
            "tiles. Such a row must subtract 0.",
            lambda: tile_loop(s, value, B_c, guarded=False),
        ),
    ]
    found += rescale_mistakes(s, value, B_c) + tile_formulas(s, value, B_c)
    whole = (key.size(-2) - 1) // B_c * B_c
    if whole and (B_c not in TILES or key.size(-2) % B_c == 0):
        found.append(
            Mistake(
                "last tile dropped",
                f"The keys from {whole} on are left out: the loop ends before the last tile of B_c = {B_c} keys.",
                lambda: right.softmax(s[..., :whole]) @ value[..., :whole, :],
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
        Mistake(
            "only the last tile",
            "The output is that of the last tile of keys alone: l and O of the earlier ones were multiplied by 0 or "
            "set anew. Is the new maximum kept as m for the next tile?",
            seeing(on.sees & (on.tile == on.tiles - 1)),
        ),
    ]
    if on.padding:
        found.append(
            Mistake(
                "padding counts",
                f"The last tile has only {B_c - on.padding} of {B_c} keys, and the others are taken for keys with the "
                "score 0. They must be -inf: exp(0) is not nothing.",
                seeing(on.visits if diagonal is None else on.visits & (on.key <= on.row + diagonal)),
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
        Mistake(
            "tiles on the diagonal left out",
            f"Under the causal mask the loop over keys ends at {where}, where the first query of the tile stops; its "
            f"last query sees keys up to {where} + rows - 1.",
            seeing(on.sees & (on.tile < on.before(first_last))),
        ),
        Mistake(
            "tiles on the diagonal left out",
            f"Under the causal mask the loop over keys ends with the tile that holds key {where}; the last query of "
            "the tile sees more.",
            seeing(on.sees & (on.tile <= first_last // B_c)),
        ),
        Mistake(
            "tiles on the diagonal left out",
            f"Under the causal mask the loop over keys ends one tile of B_c = {B_c} keys too early.",
            seeing(on.sees & (on.tile < on.tiles - 1)),
        ),
        Mistake(
            "mask counted within the tile",
            "The causal mask compares positions within the tile: row 0 of every tile is taken for query 0, and column "
            "0 for key 0. Add q_start and k_start.",
            seeing((on.key % B_c <= on.row % B_r) & on.visits & on.exists),
        ),
        Mistake(
            "masked scores are 0",
            "Masked scores are set to 0 instead of -inf: exp(0) is 1, so they still count.",
            lambda: right.softmax(s.masked_fill(~on.sees, 0.0).masked_fill(~on.visits, -math.inf)) @ value,
        ),
    ]
    line = "hidden = key > query" + (" + diagonal" if diagonal else "")
    places = {"key": on.key, "query": on.row, "diagonal": diagonal}
    found += varied(line, places, lambda after: seeing(~after["hidden"] & on.visits & on.exists)())
    ends_with_the_queries = on.before((on.q_start + B_r).clamp(max=s.size(-2)) + diagonal)
    for visits in (on.visits, on.tile < ends_with_the_queries):
        found += [
            Mistake(
                "mask off by one",
                f"The causal mask is off by one: query i sees key i{shift} + 1, one step into the future. Mask every "
                f"j > i{shift}.",
                seeing((on.key <= on.row + diagonal + 1) & visits & on.exists),
            ),
            Mistake(
                "causal mask missing",
                "The loop over keys ends at the diagonal, but the tiles that the diagonal crosses are not masked: "
                f"queries see keys of the future (j > i{shift}).",
                seeing(visits & on.exists),
            ),
        ]
    if diagonal > 0:
        found.append(
            Mistake(
                "alignment left out of the loop",
                "The mask itself is aligned to the bottom right, but the loop over keys ends where it would for the "
                f"top left, at q_start + B_r: it must go S_k - S_q = {diagonal} keys further.",
                seeing(on.sees & (on.tile < on.before(on.q_start + B_r))),
            )
        )
    if bool((blind := (on.last < 0) & (on.tiles > 0)).any()):
        found.append(
            Mistake(
                "masked row is NaN",
                "A row that sees no key of a tile, and saw none before, has m = -inf, and -inf - (-inf) is NaN. Such a "
                "row must subtract 0.",
                lambda: torch.where(blind, math.nan, seeing(on.sees)()),
            )
        )
    return found
