"""Task 2's test cases: the kernels one by one, and attention assembled from them."""

from common.compiling.variant import Variant
from common.testing.case import Case
from task2.cases.attention_cases import attention_cases
from task2.cases.gemm import gemm_cases
from task2.cases.softmax import softmax_cases

PARTS = {
    "softmax": "test the softmax kernel only",
    "gemm": "test the matrix products only",
    "attention": "test attention only: the three kernels assembled",
}


def cases(variant: Variant = Variant.STUDENT) -> list[Case]:
    """All test cases; each part is worth 1 point."""
    return softmax_cases() + gemm_cases() + attention_cases()
