"""Task 2's test cases: the kernels one by one, and attention assembled from them."""

from common.compiling.variant import Variant
from common.testing.case import Case
from task2.cases.attention_cases import attention_cases
from task2.cases.gemm import gemm_cases
from task2.cases.row_sums import row_sum_cases
from task2.cases.softmax import softmax_cases

PARTS = {
    "row-sums": "test only the row sums: shared memory and barriers",
    "softmax": "test only the softmax kernel",
    "gemm": "test only the GEMMs",
    "attention": "test attention only: the three kernels assembled",
}


def cases(variant: Variant = Variant.STUDENT) -> list[Case]:
    """All test cases; the row sums are worth 0.2 points, softmax 0.8, the two others 1 each."""
    return row_sum_cases() + softmax_cases() + gemm_cases() + attention_cases()
