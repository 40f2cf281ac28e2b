"""Task 7's test cases: its own kernels; model.py runs a GPT-2 on them."""

from common.compiling.variant import Variant
from common.testing.case import Case
from task7.cases.kernels import gelu_cases, layernorm_cases

PARTS = {"layernorm": "test layernorm only", "gelu": "test bias_gelu only"}


def cases(variant: Variant = Variant.STUDENT) -> list[Case]:
    """All test cases; each part is worth 0.15 points."""
    return layernorm_cases() + gelu_cases()
