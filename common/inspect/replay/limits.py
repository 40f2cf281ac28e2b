"""How large a launch may be that is played back.

too_large(case, why, cases, seed)     the sentence for one that is larger, with a smaller case of the same part
"""

from __future__ import annotations

from collections.abc import Sequence

from common.testing import judging
from common.testing.case import Case
from common.testing.case_choice import full_name
from common.testing.first_operator import first_operator

MOST_EVENTS = (
    1_500_000  # accesses to memory, of all launches of a case together: a page of them opens in about a second
)
MOST_BYTES = 5_000_000  # of a page
ENOUGH, SMALL = 4, 8192  # elements of inputs: in smaller cases nothing flows; a case of so many is small


def too_large(case: Case, why: str, cases: Sequence[Case], seed: int) -> str:
    """ "softmax: 1023 x 1024 is too large to play back: ... A smaller case: --replay 'softmax: 7 x 31'".

    Args:
        case: the one that is too large.
        why: how large, and what is allowed.
        cases: all of the task.
        seed: of the inputs.
    """
    smaller = smaller_than(case, cases, seed)
    instead = f" A smaller case: --replay {full_name(smaller)!r}" if smaller else ""
    return f"{full_name(case)} is too large to play back: {why}.{instead}"


def smaller_than(case: Case, cases: Sequence[Case], seed: int) -> Case | None:
    """A case of the same part and operator with fewer elements in its inputs: the largest small one."""
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
    """How many elements the case's inputs have."""
    return judging.size_of(judging.make_inputs(case, seed))[0]
