"""Right variants of task 6's decode attention, different from the solution's: the test must pass them."""

from typing import ClassVar

from variant_tests import VariantTests
from variants import Kernel, Variants

TASK6 = Variants("task6", ["task6_decode_attention"])


class TestTask6(VariantTests):
    kernels: ClassVar = {
        "task6_decode_attention": Kernel(
            TASK6,
            ("decode", "generate"),
            ("40 keys", "grouped-query: 6 heads on 2", "an empty sequence, scale 0.5", "a length beyond the cache"),
        ),
    }
