"""Right variants of task 4's FlashAttention, different from the solution's: the test must pass them."""

from typing import ClassVar

from variant_tests import VariantTests
from variants import Kernel, Variants

TASK4 = Variants("task4", ["task4_flash_attention"])


class TestTask4(VariantTests):
    kernels: ClassVar = {
        "task4_flash_attention": Kernel(
            TASK4,
            ("full", "causal"),
            (
                "7 queries, 31 keys, head_dim 5",
                "rows that see nothing",
                "33 tokens, head_dim 96",
                "31 tokens, head_dim 5",
            ),
        ),
    }
