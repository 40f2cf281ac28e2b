"""Task 3's test cases: the algorithm in PyTorch, the online softmax, the merge of partial results."""

from common.compiling.variant import Variant
from common.testing.case import Case
from task3.cases.algorithm import algorithm_cases
from task3.cases.merge import merge_cases
from task3.cases.softmax import softmax_cases

PARTS = {
    "algorithm": "test only flash_attention of attention.py",
    "softmax": "test only the online softmax kernel",
    "merge": "test only the merge kernel",
}


def cases(variant: Variant = Variant.STUDENT) -> list[Case]:
    """All test cases; the algorithm is worth 1.5 points, the kernels 0.75 each."""
    return algorithm_cases() + softmax_cases() + merge_cases()
