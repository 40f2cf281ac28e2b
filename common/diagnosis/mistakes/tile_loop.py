"""Wrong answers of attention with a loop over tiles of keys (FlashAttention) and online softmax.

    rescale_mistakes(s, value, tile)                                       missing rescale for a new maximum
    tile_loop_mistakes(query, key, value, causal, scale, B_r, B_c, ...)    all mistakes of such a loop
    Tiles(query, key, value, scale, B_r, B_c)                              the output of a loop with one mistake

In addition to those in attention.py.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import varied, without
from common.diagnosis.mistakes.known import TILES, Mistake, Words
from common.diagnosis.mistakes.scores import known as of_scores
from common.diagnosis.mistakes.softmax import STEP, tile_formulas, tile_loop
from common.diagnosis.mistakes.softmax import known as of_states
from common.reference import oracle as right

known = Words(__file__)
OF_TILE = STEP.replace("maximum(m, rowmax(S))", "rowmax(S)")
HIDDEN = "hidden = key > row + (q_start - k_start)"  # mask of a tile
INVERSE = "O / (rescale + (rescale == 0))"  # in the first tile the factor is 0, and O is not divided


def rescale_mistakes(s: Tensor, value: Tensor, tile: int) -> list[Mistake]:
    """Outputs without rescaling for a new maximum; s [..., S_q, S_k] masked scores, `tile` keys at a time."""
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

    In addition to common.diagnosis.mistakes.attention.
    """
    s = right.scores(query, key, causal, scale, lower_right=lower_right)

    def loop(step: str) -> Tensor:
        return tile_loop(s, value, B_c, step)

    def in_float32(step: str, first_max: float = -math.inf) -> Tensor:
        return tile_loop(s.float(), value.float(), B_c, step, first_max).to(s.dtype)

    found = [
        known("divides instead of rescaling", lambda: loop(STEP.replace("rescale * O", INVERSE))),
        known("maximum of the tile", lambda: loop(without(OF_TILE, "rescale", ("l", "O")))),
        known("maximum of the tile (kept as m)", lambda: in_float32(OF_TILE)),
        of_states("maximum starts at 0 (the running one)", lambda: in_float32(STEP, 0.0)),
        known("normalized in every tile", lambda: loop(f"{STEP}O = divided(O, l)\n")),
        known("masked row is NaN", lambda: loop(STEP.replace("shift_of(m_new)", "m_new"))),
    ]
    found += rescale_mistakes(s, value, B_c) + tile_formulas(s, value, B_c)
    whole = (key.size(-2) - 1) // B_c * B_c
    if whole and (B_c not in TILES or key.size(-2) % B_c == 0):
        first = lambda: right.softmax(s[..., :whole]) @ value[..., :whole, :]  # noqa: E731
        found.append(known("last tile dropped", first, whole=whole, B_c=B_c))
    diagonal = key.size(-2) - query.size(-2) if lower_right else 0
    return found + _visited_tile_mistakes(Tiles(query, key, value, scale, B_r, B_c), diagonal if causal else None)


class Tiles:
    """Attention in which each block takes B_r rows and loops over tiles of B_c keys, correct or with one mistake.

    Keys and values are zero-padded to whole tiles, as in shared memory. Tensors over queries and keys have shape
    [S_q, keys padded to whole tiles], those over queries [S_q, 1].

    Attributes:
        row, key: positions; exists: which keys are not padding; q_start: first row of each row's block.
        sees: the mask, true for visible keys.
        begin, end: the range of keys that the loop covers.
    """

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, B_r: int, B_c: int) -> None:
        self.seq_k, self.padding = key.size(-2), -key.size(-2) % B_c
        self.B_r, self.B_c = B_r, B_c
        self.scores = torch.nn.functional.pad(right.scores(query, key, False, scale), (0, self.padding))
        self.values = torch.nn.functional.pad(value, (0, 0, 0, self.padding))
        self.row = torch.arange(query.size(-2), device=query.device)[:, None]
        self.key = torch.arange(self.seq_k + self.padding, device=query.device)
        self.exists = self.key < self.seq_k
        self.q_start = self.row // B_r * B_r
        self.sees = self.exists.expand(query.size(-2), -1)
        self.begin, self.end = torch.zeros_like(self.row), torch.full_like(self.row, len(self.key))

    def answer(
        self,
        sees: Tensor | None = None,
        begin: Tensor | None = None,
        end: Tensor | None = None,
        hidden: float = -math.inf,
    ) -> Callable[[], Tensor]:
        """The output for the mask `sees` with masked scores set to `hidden` and the loop running from begin to end."""
        sees = self.sees if sees is None else sees
        begin, end = self.begin if begin is None else begin, self.end if end is None else end

        def compute() -> Tensor:
            turn = (self.key - begin).div(self.B_c, rounding_mode="floor")  # the iteration with the key's tile
            visited, loaded = (turn >= 0) & (begin + turn * self.B_c < end), self.key < end
            s = torch.where(loaded, self.scores, 0.0).masked_fill(~sees, hidden).masked_fill(~visited, -math.inf)
            return (right.softmax(s) * loaded) @ self.values

        return compute


def _visited_tile_mistakes(on: Tiles, diagonal: int | None) -> list[Mistake]:
    """Mistakes in which tiles a row's loop visits.

    diagonal: query i attends to keys j <= i + diagonal; None: all.
    """
    B_c, tile = on.B_c, on.key // on.B_c
    causal = diagonal is not None
    last = (on.row + diagonal).clamp(max=on.seq_k - 1) if causal else torch.full_like(on.row, on.seq_k - 1)

    def before(key: Tensor) -> Tensor:
        """The number of tiles visited by a loop that ends before this key."""
        return (key.clamp(0, on.seq_k) + B_c - 1) // B_c

    tiles = before(on.q_start + on.B_r + diagonal) if causal else before(last + 1)
    sees, visits, below = on.key <= last, (tile < tiles) & on.exists, on.key <= on.row + (diagonal or 0)
    found = [known("only the last tile", on.answer(sees & (tile == tiles - 1)))]
    if on.padding:
        counted = (tile < tiles) & (below if causal else True)
        found.append(known("padding counts", on.answer(counted), full=B_c - on.padding, B_c=B_c))
    if not causal:
        return found
    shift = f" + {diagonal}" if diagonal > 0 else f" - {-diagonal}" if diagonal else ""
    first_last = on.q_start + diagonal  # the last key visible to the first row of the tile
    told = {"where": f"q_start{shift}", "B_c": B_c}
    found += [
        known(key, on.answer(sees & visited), **told)
        for key, visited in (
            ("tiles on the diagonal left out", tile < before(first_last)),
            ("tiles on the diagonal left out (after the first)", tile <= first_last // B_c),
            ("tiles on the diagonal left out (the last)", tile < tiles - 1),
        )
    ]
    found += [
        known("mask counted within the tile", on.answer((on.key % B_c <= on.row - on.q_start) & visits)),
        of_scores("masked scores are 0", on.answer(sees, end=tiles * B_c, hidden=0.0)),
    ]
    places = {"q_start": on.q_start, "row": on.row - on.q_start, "k_start": tile * B_c, "key": on.key % B_c}
    line = HIDDEN.replace("q_start", "q_start + diagonal") if diagonal else HIDDEN
    found += varied(line, places | {"diagonal": diagonal}, lambda after: on.answer(~after["hidden"] & visits)())
    ends_with_the_queries = before((on.q_start + on.B_r).clamp(max=len(on.row)) + diagonal)
    for seen in (visits, (tile < ends_with_the_queries) & on.exists):
        one_late = (on.key <= on.row + diagonal + 1) & seen
        found.append(known("mask off by one", on.answer(one_late), shift=shift))
        found.append(known("causal mask missing", on.answer(seen), shift=shift))
    if diagonal > 0:
        cut = sees & (tile < before(on.q_start + on.B_r))
        found.append(known("alignment left out of the loop", on.answer(cut), diagonal=diagonal))
    if bool((blind := (last < 0) & (tiles > 0)).any()):
        of_nan = lambda: torch.where(blind, math.nan, on.answer(sees)())  # noqa: E731
        found.append(known("masked row is NaN (no key in a tile)", of_nan))
    return found
