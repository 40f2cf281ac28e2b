"""Right variants of task 5's window and block-sparse attention, unlike the solution's: the test must pass them."""

from typing import ClassVar

from variant_tests import VariantTests
from variants import Kernel, Variants

TASK5 = Variants("task5", ["task5_sliding_window", "task5_block_sparse"], file="sparse_attention")


class TestTask5(VariantTests):
    kernels: ClassVar = {
        "task5_sliding_window": Kernel(
            TASK5, ("window",), ("both sides: window 20", "203 x 60, window 30: blind rows", "rows of -inf")
        ),
        "task5_block_sparse": Kernel(
            TASK5, ("blocks",), ("lists: 2 x 3 x 100", "causal, 96 x 288 by 96", "rows without a block")
        ),
    }
