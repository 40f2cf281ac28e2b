"""Right variants of task 1's kernels, different from the solution's: the test must pass them."""

from typing import ClassVar

from variant_tests import VariantTests
from variants import Kernel, Variants

TASK1 = Variants("task1", ["task1_naive_attention"])


class TestTask1(VariantTests):
    kernels: ClassVar = {
        "task1_naive_attention": Kernel(
            TASK1,
            ("scores", "softmax", "output", "attention"),
            ("7 queries, 31 keys, causal", "queries that may see nothing", "bfloat16, causal"),
        ),
    }
