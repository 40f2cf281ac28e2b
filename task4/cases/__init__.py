"""Task 4's test cases."""

from common.compiling.variant import Variant
from common.testing.case import Case
from task4.cases.attention_cases import causal_cases, full_cases
from task4.cases.stages import stage_cases

PARTS = {
    "load": "test load_tile alone (gap 1)",
    "scores": "test compute_scores alone (gap 2)",
    "mask": "test mask_scores alone (gap 3)",
    "softmax": "test online_softmax alone (gap 4)",
    "output": "test accumulate_output alone (gap 5)",
    "store": "test store_output alone (gap 6)",
    "full": "test only attention without a mask",
    "causal": "test only causal attention",
}


def cases(variant: Variant = Variant.STUDENT) -> list[Case]:
    """All test cases; "full" and "causal" are worth 1 point each, the stages nothing."""
    return stage_cases() + full_cases() + causal_cases()
