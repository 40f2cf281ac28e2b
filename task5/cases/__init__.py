"""Task 5's test cases: strided attention, sliding windows, blocks from a mask."""

from common.compiling.variant import Variant
from common.testing.case import Case
from task5.cases.half import in_half
from task5.cases.sparse import NO_BLOCKS, block_cases, window_cases
from task5.cases.strided import causal_cases, full_cases

PARTS = {
    "full": "test only strided attention without a causal mask",
    "causal": "test only causal strided attention",
    "window": "test only sliding window attention",
    "blocks": "test only block-sparse attention and the lists of blocks",
}


def cases(variant: Variant = Variant.STUDENT) -> list[Case]:
    """All test cases; the four parts are worth 0.75 points each.

    The tuned operators take float16, and their behavior for invalid block indices is unspecified.
    """
    made = full_cases() + causal_cases() + window_cases() + block_cases()
    return [in_half(case) for case in made if case.name != NO_BLOCKS] if variant == Variant.TUNED else made
