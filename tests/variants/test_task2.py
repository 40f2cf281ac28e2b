"""Right variants of task 2's softmax and GEMMs, different from the solution's: the test must pass them."""

from typing import ClassVar

from variant_tests import VariantTests
from variants import Kernel, Variants

TASK2 = Variants("task2", ["task2_softmax", "task2_gemm_nt", "task2_gemm_nn"])
PRODUCTS = ("K = 1", "batch 3, 37 x 50 x 41", "33 x 32 x 31")


class TestTask2(VariantTests):
    kernels: ClassVar = {
        "task2_softmax": Kernel(
            TASK2,
            ("softmax", "attention"),
            ("7 x 31", "one warp wide", "large offsets", "masked entries, a masked row"),
        ),
        "task2_gemm_nt": Kernel(TASK2, ("gemm", "attention"), tuple(f"A B^T, {name}" for name in PRODUCTS), "A B^T,"),
        "task2_gemm_nn": Kernel(TASK2, ("gemm", "attention"), tuple(f"A B, {name}" for name in PRODUCTS), "A B,"),
    }
