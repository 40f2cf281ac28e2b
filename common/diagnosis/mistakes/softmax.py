"""Wrong answers of softmax, and of online softmax (Milakov and Gimelshein 2018), which processes a row in pieces.

    softmax_mistakes(x)                            y = softmax(x)
    online_softmax_mistakes(x, threads, items)     y of online_softmax(x) -> (y, lse)
    row_lse_mistakes(x, threads, items)            its lse
    row_formulas(x, result)                        either of them, with one wrong line of the formulas
    tile_loop(s, value, tile, step)                attention tile by tile, with the formulas STEP or others

Mistakes in attention's tile loop are in tile_loop.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import computed, divided, shift_of, varied, varied_by
from common.diagnosis.mistakes.known import Mistake, Words
from common.reference import oracle as right

known = Words(__file__)

WARP = 32
ROW = """\
m = rowmax(x)
e = exp(x - shift_of(m))
l = rowsum(e)
y = divided(e, l)
lse = m + log(l)
"""
STEP = """\
m_new = maximum(m, rowmax(S))
P = exp(S - shift_of(m_new))
rescale = exp(m - shift_of(m_new))
l = rescale * l + rowsum(P)
O = rescale * O + P @ V
m = m_new
"""
MOST_SCORES = 1 << 17  # attention scores: more would take too long
State = tuple[Tensor, Tensor]  # (m, l)


def row_formulas(x: Tensor, result: str = "y") -> list[Mistake]:
    """Wrong y [rows, cols] or lse [rows] for x [rows, cols]."""
    return varied(ROW, {"x": x}, lambda values: values[result] if result == "y" else values[result].squeeze(-1))


def softmax_mistakes(x: Tensor) -> list[Mistake]:
    """Wrong answers for y = softmax(x) over the last axis, x [rows, cols]."""
    largest = x.amax(-1, keepdim=True)
    found = [
        known("not normalized", lambda: torch.exp(x - shift_of(largest))),
        known("masked row is NaN", lambda: torch.where(largest == -math.inf, math.nan, right.softmax(x))),
        known("no max subtraction", lambda: _without_max(x, True)),
        known("no max subtraction", lambda: _without_max(x, False)),
    ]
    if bool((largest < 0).any()):
        found.append(known("maximum starts at 0", lambda: _without_max(x, True, largest.clamp(min=0.0))))
    if x.size(0) > 1:
        found.append(known("softmax over the wrong axis", lambda: right.softmax(x.mT).mT))
    return found


def _without_max(x: Tensor, guarded: bool, shift: Tensor | float = 0.0) -> Tensor:
    """float32 softmax that subtracts `shift` instead of the maximum; guarded: a sum of 0 gives zeros, not NaN."""
    e = torch.exp((x - shift).float())
    total = e.sum(-1, keepdim=True)
    return (divided(e, total) if guarded else e / total).to(x.dtype)


# ---- a row distributed over the threads of a block


def thread_states(x: Tensor, threads: int, items: int, moved: bool = True, guarded: bool = True) -> State:
    """(m, l) [rows, threads] of the columns that each thread of a block processes, `items` at a time, `threads` apart.

    Args:
        x: [rows, cols].
        moved: whether l is multiplied by exp(m_old - m_new) when m grows.
        guarded: whether a thread that has seen only -inf subtracts 0 instead of -inf.
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


def _merged(state: State, moved: bool = True, guarded: bool = True) -> State:
    """Merges the states along the last axis; moved: each l is multiplied by exp(m_own - m_merged)."""
    m, l = state  # noqa: E741
    largest = m.amax(-1, keepdim=True)
    shift = shift_of(largest) if guarded else largest
    return largest, (l * torch.exp(m - shift) if moved else l).sum(-1, keepdim=True)


def _state_mistakes(x: Tensor, threads: int, items: int, use: Callable[[State], Tensor]) -> list[Mistake]:
    """`use` applied to wrong states of the rows of x [rows, cols], m and l [rows, 1]."""
    rows, cols = x.shape

    def by_warps(in_warp: bool = True, in_block: bool = True, guarded: bool = True) -> State:
        of_threads = (state.view(rows, -1, WARP) for state in thread_states(x, threads, items, guarded=guarded))
        of_warps = (state.squeeze(-1) for state in _merged(tuple(of_threads), in_warp, guarded))
        return _merged(tuple(of_warps), in_block, guarded)

    def at_least_0() -> State:
        single = x.float()
        largest = single.amax(-1, keepdim=True).clamp(min=0)
        return largest.to(x.dtype), torch.exp(single - largest).sum(-1, keepdim=True).to(x.dtype)

    def padded_with_0() -> State:
        covered = threads * items  # columns per step of the block; a thread continues while its first one exists
        steps = (cols + covered - 1 - torch.arange(threads)).div(covered, rounding_mode="floor")
        padding = int(steps.sum()) * items - cols
        m = x.amax(-1, keepdim=True)
        largest = m.clamp(min=0) if padding else m
        return largest, torch.exp(x - largest).sum(-1, keepdim=True) + padding * torch.exp(-largest)

    return [
        known(key, lambda state=state: use(state()))
        for key, state in (
            ("no rescale in the online softmax", lambda: _merged(thread_states(x, threads, items, moved=False))),
            ("merged without rescaling (lanes)", lambda: by_warps(in_warp=False)),
            ("merged without rescaling (warps)", lambda: by_warps(in_block=False)),
            ("merged without rescaling", lambda: by_warps(in_warp=False, in_block=False)),
            ("maximum starts at 0 (the running one)", at_least_0),
            ("masked row is NaN (a thread saw only -inf)", lambda: by_warps(guarded=False)),
            ("padding counts", padded_with_0),
        )
    ]


def online_softmax_mistakes(x: Tensor, threads: int, items: int) -> list[Mistake]:
    """Wrong y of online_softmax(x), x [rows, cols]; a block of `threads` takes `items` columns per thread at a time.

    In addition to softmax_mistakes.
    """
    return _state_mistakes(x, threads, items, lambda state: divided(torch.exp(x - shift_of(state[0])), state[1]))


def row_lse_mistakes(x: Tensor, threads: int, items: int) -> list[Mistake]:
    """Wrong lse of online_softmax(x), [rows] for x [rows, cols]; see online_softmax_mistakes."""
    m, l = (state.squeeze(-1) for state in _merged(thread_states(x, threads, items)))  # noqa: E741
    return [
        known("maximum left out", lambda: torch.log(l)),
        known("only the maximum", lambda: m),
        known("no max subtraction (the lse)", lambda: torch.log(torch.exp(x.float()).sum(-1)).to(x.dtype)),
        known("masked row is NaN (the lse)", lambda: torch.where(l == 0, math.nan, m + torch.log(l))),
        *_state_mistakes(x, threads, items, lambda state: (shift_of(state[0]) + torch.log(state[1])).squeeze(-1)),
    ]


# ---- a row of scores processed tile by tile, with the values


def state_after(
    s: Tensor, value: Tensor, tile: int, step: str = STEP, begin: int = 0, stride: int = 0, first_max: float = -math.inf
) -> dict[str, Tensor]:
    """m, l and O of the rows after a loop over tiles of `tile` keys.

    Args:
        s: masked scores [..., rows, keys].
        value: [..., keys, head_dim].
        tile: keys per iteration.
        step: the formulas of an iteration.
        begin, stride: first key of the first iteration, and the step to the next; 0: `tile`.
        first_max: initial value of the maximum.
    """
    m = torch.full_like(s[..., :1], first_max)
    state = {"m": m, "l": torch.zeros_like(m), "O": torch.zeros_like(m * value[..., :1, :])}
    for start in range(begin, s.size(-1), stride or tile):
        keys = slice(start, start + tile)
        after = computed(step, state | {"S": s[..., keys], "V": value[..., keys, :]})
        state = {name: after[name] for name in state}
    return state


def tile_loop(s: Tensor, value: Tensor, tile: int, step: str = STEP, first_max: float = -math.inf) -> Tensor:
    """The output [..., rows, head_dim] of such a loop."""
    state = state_after(s, value, tile, step, first_max=first_max)
    return divided(state["O"], state["l"])


def tile_formulas(s: Tensor, value: Tensor, tile: int) -> list[Mistake]:
    """Wrong outputs of such a loop, with one wrong line of its formulas."""
    return varied_by(STEP, lambda step: tile_loop(s, value, tile, step)) if s.numel() <= MOST_SCORES else []
