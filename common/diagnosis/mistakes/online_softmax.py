"""Wrong answers of the online softmax (Milakov and Gimelshein 2018), where a row is taken in piece by piece.

    online_softmax_mistakes(x, threads, items)     y of online_softmax(x) -> (y, lse)
    row_lse_mistakes(x, threads, items)            its lse

Those of attention, tile by tile, are in tile_loop.py. See known.py for what a Mistake is.
Where overflow or underflow is the mistake, it is computed in float32.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Mistake, Words

known = Words(__file__)

WARP = 32


def shift_of(m: Tensor) -> Tensor:
    """What exp() subtracts: the maximum, or 0 where nothing but -inf was seen."""
    return torch.where(m == -math.inf, 0.0, m)


def divided(o: Tensor, l: Tensor) -> Tensor:  # noqa: E741
    """o / l; 0 where l is 0."""
    return torch.where(l == 0, 0.0, o / l)


# A wrong state of every row: the key of a known mistake, and (m, l), both [rows, 1]
_StateMistake = tuple[str, Callable[[], tuple[Tensor, Tensor]]]


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
        ("no rescale in the online softmax", lambda: merged(*thread_states(x, threads, items, moved=False))),
        ("merged without rescaling (lanes)", lambda: by_warps(False, True)),
        ("merged without rescaling (warps)", lambda: by_warps(True, False)),
        ("merged without rescaling", lambda: by_warps(False, False)),
        ("maximum starts at 0", at_least_0),
        ("masked row is NaN (a thread saw only -inf)", lambda: by_warps(guarded=False)),
        ("padding counts", padded_with_0),
    ]


def online_softmax_mistakes(x: Tensor, threads: int, items: int) -> list[Mistake]:
    """Wrong y of online_softmax(x), x [rows, cols]; a block of `threads` takes `items` columns per thread at a time.

    They come on top of common.diagnosis.mistakes.known.softmax_mistakes.
    """

    def softmax_with(state: tuple[Tensor, Tensor]) -> Tensor:
        m, l = state  # noqa: E741
        return divided(torch.exp(x - shift_of(m)), l)

    return [known(key, lambda state=state: softmax_with(state())) for key, state in _state_mistakes(x, threads, items)]


def row_lse_mistakes(x: Tensor, threads: int, items: int) -> list[Mistake]:
    """Wrong lse of online_softmax(x), [rows] for x [rows, cols]; see online_softmax_mistakes."""
    m, l = (state.squeeze(-1) for state in merged(*thread_states(x, threads, items)))  # noqa: E741
    found = [
        known("maximum left out", lambda: torch.log(l)),
        known("only the maximum", lambda: m),
        known("no max subtraction", lambda: torch.log(torch.exp(x.float()).sum(-1)).to(x.dtype)),
        known("masked row is NaN", lambda: torch.where(l == 0, math.nan, m + torch.log(l))),
    ]

    def lse_with(state: tuple[Tensor, Tensor]) -> Tensor:
        return (shift_of(state[0]) + torch.log(state[1])).squeeze(-1)

    return found + [
        known(key, lambda state=state: lse_with(state())) for key, state in _state_mistakes(x, threads, items)
    ]
