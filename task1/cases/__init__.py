"""Task 1's test cases, and the known wrong answers that they recognize.

layer       MultiHeadAttention of attention.py
kernels     each of the three kernels alone
attention   the three kernels together
"""

from common.compiling.variant import Variant
from common.testing.case import Case
from task1.cases.attention_cases import attention_cases
from task1.cases.kernels import output_cases, scores_cases, weights_cases
from task1.cases.layer import layer_cases

PARTS = {
    "layer": "test only MultiHeadAttention of attention.py",
    "scores": "test only the scores kernel",
    "softmax": "test only the softmax kernel",
    "output": "test only the output kernel",
    "attention": "test only the three kernels together",
}


def cases(variant: Variant = Variant.STUDENT) -> list[Case]:
    """All test cases; the layer is worth 1 point, the kernels together another."""
    return layer_cases() + scores_cases() + weights_cases() + output_cases() + attention_cases()
