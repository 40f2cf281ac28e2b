"""Size limits for a replayed launch.

too_large(case, why, cases, seed)     the message for a larger one, with a smaller case of the same part
"""

from __future__ import annotations

from collections.abc import Sequence

from common.testing import judging
from common.testing.case import Case
from common.testing.case_choice import full_name
from common.testing.first_operator import first_operator

MOST_EVENTS = 1_500_000  # memory accesses over all launches of a case: such a page opens in about a second
MOST_BYTES = 5_000_000  # per page
ENOUGH, SMALL = 4, 8192  # input elements: fewer show too little; up to SMALL, a case is small


def too_large(case: Case, why: str, cases: Sequence[Case], seed: int) -> str:
    """ "softmax: 1023 x 1024 is too large to play back: ... A smaller case: --replay 'softmax: 7 x 31'".

    Args:
        case: the case that is too large.
        why: its size and the limit.
        cases: all cases of the task.
        seed: seed of the inputs.
    """
    smaller = smaller_than(case, cases, seed)
    instead = f" A smaller case: --replay {full_name(smaller)!r}" if smaller else ""
    return f"{full_name(case)} is too large to play back: {why}.{instead}"


def smaller_than(case: Case, cases: Sequence[Case], seed: int) -> Case | None:
    """The largest small case of the same part and operator with fewer input elements."""
    operator = first_operator(case, seed)
    alike = [
        (size, one)
        for one in cases
        if one.part == case.part and not one.gpu_only and first_operator(one, seed) == operator
        for size in [elements(one, seed)]
        if size >= ENOUGH
    ]
    small = [each for each in alike if each[0] <= min(SMALL, elements(case, seed) // 2)]
    return max(small, key=lambda each: each[0], default=(0, None))[1]


def elements(case: Case, seed: int) -> int:
    """The number of input elements of a case."""
    return judging.size_of(judging.make_inputs(case, seed))[0]
