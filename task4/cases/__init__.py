"""Task 4's test cases."""

from common.compiling.variant import Variant
from common.testing.case import Case
from task4.cases.attention_cases import causal_cases, full_cases

PARTS = {
    "full": "test attention without a mask only",
    "causal": "test causal attention only",
}


def cases(variant: Variant = Variant.STUDENT) -> list[Case]:
    """All test cases; the two parts are worth 1 point each."""
    return full_cases() + causal_cases()
