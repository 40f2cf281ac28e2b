"""Wrong answers of the online softmax (Milakov and Gimelshein 2018), where a row is taken in piece by piece.

    tile_loop_mistakes(query, key, value, causal, scale, B_r, B_c)   FlashAttention's loop over tiles of keys
    online_softmax_mistakes(x, threads, items)                       y of online_softmax(x) -> (y, lse)
    row_lse_mistakes(x, threads, items)                              its lse

See common.known_mistakes for what a Mistake is. Where overflow or underflow is the mistake, it is computed in float32.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common import attention_reference as right
from common.known_mistakes import TILES, Mistake

WARP = 32
STARTS_AT_0 = (
    "The running maximum starts at 0; it must start at -inf. Where all scores are far below 0 every exp(score - m) "
    "underflows to 0."
)


def shift_of(m: Tensor) -> Tensor:
    """What exp() subtracts: the maximum, or 0 where nothing but -inf was seen."""
    return torch.where(m == -math.inf, 0.0, m)


def divided(o: Tensor, l: Tensor) -> Tensor:  # noqa: E741
    """o / l; 0 where l is 0."""
    return torch.where(l == 0, 0.0, o / l)


def tile_loop(
    s: Tensor,
    value: Tensor,
    tile: int,
    of_o: Callable[[Tensor], Tensor] = lambda factor: factor,
    of_l: Callable[[Tensor], Tensor] = lambda factor: factor,
    first_max: float = -math.inf,
    running: bool = True,
    guarded: bool = True,
    normalised_in_loop: bool = False,
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
        normalised_in_loop: whether O is divided by l after every tile as well.

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
        if normalised_in_loop:
            o = divided(o, l)
        m = m_new
    return divided(o, l)


def _left_alone(factor: Tensor) -> Tensor:
    return torch.ones_like(factor)


def _inverse(factor: Tensor) -> Tensor:
    """1 / factor; in the first tile, where the factor is 0, nothing is divided."""
    return torch.where(factor == 0, 1.0, 1 / factor)


def tile_loop_mistakes(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None, B_r: int, B_c: int
) -> list[Mistake]:
    """Wrong answers of attention tile by tile; query [..., S_q, head_dim], key and value [..., S_k, head_dim].

    They come on top of common.attention_mistakes.
    """
    s = right.scores(query, key, causal, scale)
    single, single_value = s.float(), value.float()
    found = [
        Mistake(
            "divides instead of rescaling",
            "O is divided by exp(m_old - m_new); it must be multiplied by it. Line 10 of Algorithm 1 is misprinted in "
            "the paper (the exponent -1 does not belong there), see the handout.",
            lambda: tile_loop(s, value, B_c, of_o=_inverse),
        ),
        Mistake(
            "divides instead of rescaling",
            "O and l are divided by exp(m_old - m_new); they must be multiplied by it: old terms were computed with a "
            "smaller maximum, so they are too large.",
            lambda: tile_loop(s, value, B_c, of_o=_inverse, of_l=_inverse),
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
            "normalised in every tile",
            "O is divided by l after every tile and once more at the end. In the loop O stays the sum of "
            "exp(score - m) V; the one division comes after the last tile.",
            lambda: tile_loop(s, value, B_c, normalised_in_loop=True),
        ),
        Mistake(
            "masked row is NaN",
            "A row that has seen no key yet has m = -inf, and -inf - (-inf) is NaN; it stays NaN through all later "
            "tiles. Such a row must subtract 0.",
            lambda: tile_loop(s, value, B_c, guarded=False),
        ),
    ]
    found += [
        Mistake(
            "no rescale in the online softmax",
            f"When the running maximum grows, {name} must be multiplied by exp(m_old - m_new); here it is not (tiles "
            f"of {B_c} keys).",
            lambda of_o=of_o, of_l=of_l: tile_loop(s, value, B_c, of_o, of_l),
        )
        for name, of_o, of_l in (
            ("O and l", _left_alone, _left_alone),
            ("O", _left_alone, lambda factor: factor),
            ("l", lambda factor: factor, _left_alone),
        )
    ]
    whole = (key.size(-2) - 1) // B_c * B_c
    if whole and (B_c not in TILES or key.size(-2) % B_c == 0):
        found.append(
            Mistake(
                "last tile dropped",
                f"The keys from {whole} on are left out: the loop ends before the last tile of B_c = {B_c} keys.",
                lambda: right.softmax(s[..., :whole]) @ value[..., :whole, :],
            )
        )
    return found + (_diagonal_mistakes(query, key, value, scale, B_r, B_c) if causal else [])


def _diagonal_mistakes(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, B_r: int, B_c: int
) -> list[Mistake]:
    """Mistakes with the tiles that the causal diagonal crosses."""
    s = right.scores(query, key, False, scale)
    i = torch.arange(s.size(-2), device=s.device)[:, None]
    j = torch.arange(s.size(-1), device=s.device)
    q_start = i // B_r * B_r
    visited = j // B_c * B_c < (q_start + B_r).clamp(max=s.size(-2))  # by a loop that ends at the diagonal

    def seeing(see: Tensor) -> Callable[[], Tensor]:
        return lambda: right.softmax(s.masked_fill(~see, -math.inf)) @ value

    return [
        Mistake(
            "tiles on the diagonal left out",
            "Under the causal mask the loop over keys ends at the first query of the tile (q_start); its last query, "
            "q_start + rows - 1, sees keys up to its own position.",
            seeing((j <= i) & (j < q_start)),
        ),
        Mistake(
            "tiles on the diagonal left out",
            "Under the causal mask the loop over keys ends with the tile that holds key q_start; the last query of the "
            "tile sees more.",
            seeing((j <= i) & (j // B_c <= q_start // B_c)),
        ),
        Mistake(
            "mask counted within the tile",
            "The causal mask compares positions within the tile: row 0 of every tile is taken for query 0, and column "
            "0 for key 0. Add q_start and k_start.",
            seeing((j % B_c <= i % B_r) & visited),
        ),
        Mistake(
            "mask off by one",
            "The causal mask is off by one: query i sees key i + 1, one step into the future. Mask every j > i.",
            seeing((j <= i + 1) & visited),
        ),
        Mistake(
            "causal mask missing",
            "The loop over keys ends at the diagonal, but the tiles that the diagonal crosses are not masked: queries "
            "see keys of the future (j > i).",
            seeing(visited),
        ),
    ]


# A wrong state of every row: a name, what to tell, and (m, l), both [rows, 1]
_StateMistake = tuple[str, str, Callable[[], tuple[Tensor, Tensor]]]


def thread_states(
    x: Tensor, threads: int, items: int, moved: bool = True, guarded: bool = True
) -> tuple[Tensor, Tensor]:
    """(m, l) [rows, threads] of the columns that each thread of a block takes in, `items` at a time, `threads` apart.

    Args:
        x: [rows, cols].
        moved: whether l is multiplied by exp(m_old - m_new) when m grows.
        guarded: whether a thread that has seen nothing but -inf subtracts 0 and not -inf.
    """
    missing = -x.size(-1) % (threads * items)
    steps = torch.nn.functional.pad(x, (0, missing), value=-math.inf).view(x.size(0), -1, items, threads)
    m = torch.full((x.size(0), threads), -math.inf, dtype=x.dtype, device=x.device)
    l = torch.zeros_like(m)  # noqa: E741
    for number, step in enumerate(steps.unbind(1)):
        m_new = torch.maximum(m, step.amax(1))
        shift = shift_of(m_new) if guarded else m_new
        factor = torch.exp(m - shift) if moved else 1.0
        goes_on = number * threads * items + torch.arange(threads, device=x.device) < x.size(-1)
        l = torch.where(goes_on, factor * l + torch.exp(step - shift[:, None]).sum(1), l)  # noqa: E741
        m = m_new
    return m, l


def merged(
    m: Tensor,
    l: Tensor,  # noqa: E741
    moved: bool = True,
    guarded: bool = True,
) -> tuple[Tensor, Tensor]:
    """The states along the last axis merged to one.

    moved: whether each l is multiplied by exp(m_own - m_merged); guarded: see thread_states.
    """
    largest = m.amax(-1, keepdim=True)
    shift = shift_of(largest) if guarded else largest
    return largest, (l * torch.exp(m - shift) if moved else l).sum(-1, keepdim=True)


def _state_mistakes(x: Tensor, threads: int, items: int) -> list[_StateMistake]:
    """Wrong (m, l) of the rows of x [rows, cols]."""
    rows, cols = x.shape
    m = x.amax(-1, keepdim=True)
    merging = (
        "States are merged without rescaling: each l must be multiplied by exp(m_own - m_merged) before they are added"
    )

    def by_warps(
        moved_in_warp: bool = True, moved_in_block: bool = True, guarded: bool = True
    ) -> tuple[Tensor, Tensor]:
        of_threads = (state.view(rows, -1, WARP) for state in thread_states(x, threads, items, guarded=guarded))
        of_warps = (state.squeeze(-1) for state in merged(*of_threads, moved_in_warp, guarded))
        return merged(*of_warps, moved_in_block, guarded)

    def at_least_0() -> tuple[Tensor, Tensor]:
        single = x.float()
        largest = single.amax(-1, keepdim=True).clamp(min=0)
        return largest.to(x.dtype), torch.exp(single - largest).sum(-1, keepdim=True).to(x.dtype)

    def padded_with_0() -> tuple[Tensor, Tensor]:
        covered = threads * items  # columns per step of the block; a thread goes on while its first one exists
        steps = (cols + covered - 1 - torch.arange(threads)).div(covered, rounding_mode="floor")
        padding = int(steps.sum()) * items - cols
        largest = m.clamp(min=0) if padding else m
        return largest, torch.exp(x - largest).sum(-1, keepdim=True) + padding * torch.exp(-largest)

    return [
        (
            "no rescale in the online softmax",
            "When the running maximum of a thread grows, l must be multiplied by exp(m_old - m_new); here it is not.",
            lambda: merged(*thread_states(x, threads, items, moved=False)),
        ),
        ("merged without rescaling", f"{merging} (the lanes of a warp).", lambda: by_warps(False, True)),
        ("merged without rescaling", f"{merging} (the warps of the block).", lambda: by_warps(True, False)),
        ("merged without rescaling", f"{merging}.", lambda: by_warps(False, False)),
        ("maximum starts at 0", STARTS_AT_0, at_least_0),
        (
            "masked row is NaN",
            "Where a thread or a warp has seen nothing but -inf, m is -inf, and -inf - (-inf) is NaN; it spreads to "
            "the whole row. Subtract shift_of(m), which is 0 there.",
            lambda: by_warps(guarded=False),
        ),
        (
            "padding counts",
            "Columns past the end of the row are taken as 0; exp(0 - m) is not nothing. They must be -inf.",
            padded_with_0,
        ),
    ]


def online_softmax_mistakes(x: Tensor, threads: int, items: int) -> list[Mistake]:
    """Wrong y of online_softmax(x), x [rows, cols]; a block of `threads` takes `items` columns per thread at a time.

    They come on top of common.known_mistakes.softmax_mistakes.
    """

    def softmax_with(state: tuple[Tensor, Tensor]) -> Tensor:
        m, l = state  # noqa: E741
        return divided(torch.exp(x - shift_of(m)), l)

    return [
        Mistake(name, says, lambda state=state: softmax_with(state()))
        for name, says, state in _state_mistakes(x, threads, items)
    ]


def row_lse_mistakes(x: Tensor, threads: int, items: int) -> list[Mistake]:
    """Wrong lse of online_softmax(x), [rows] for x [rows, cols]; see online_softmax_mistakes."""
    m, l = (state.squeeze(-1) for state in merged(*thread_states(x, threads, items)))  # noqa: E741
    found = [
        Mistake("maximum left out", "lse is log(l) alone; it is m + log(l).", lambda: torch.log(l)),
        Mistake("logarithm left out", "lse is m + l; it is m + log(l).", lambda: m + l),
        Mistake("only the maximum", "lse is the maximum alone; it is m + log(l).", lambda: m),
        Mistake("only the sum", "lse is l alone; it is m + log(l).", lambda: l),
        Mistake("logarithm to base 2", "lse is m + log2(l); the logarithm is the natural one.", lambda: m + l.log2()),
        Mistake(
            "no max subtraction",
            "lse is log(sum of exp(x)): exp(x) overflows float32 from x = 88.7 on. It is m + log(l).",
            lambda: torch.log(torch.exp(x.float()).sum(-1)).to(x.dtype),
        ),
        Mistake(
            "masked row is NaN",
            "A row that is -inf throughout gives NaN; its logsumexp is -inf.",
            lambda: torch.where(l == 0, math.nan, m + torch.log(l)),
        ),
        Mistake(
            "masked row is 0",
            "A row that is -inf throughout gives 0; its logsumexp is -inf, the logarithm of 0.",
            lambda: torch.where(l == 0, 0.0, m + torch.log(l)),
        ),
    ]

    def lse_with(state: tuple[Tensor, Tensor]) -> Tensor:
        return (shift_of(state[0]) + torch.log(state[1])).squeeze(-1)

    return found + [
        Mistake(name, says, lambda state=state: lse_with(state()))
        for name, says, state in _state_mistakes(x, threads, items)
    ]
