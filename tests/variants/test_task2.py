"""Right variants of task 2's softmax and matrix products, which differ from the solution's: the test must pass them.

It looks at the result, not at the way; and the checked build must find nothing.
"""

import pytest
from variants import Kernel, Variants, failed_cases, findings_in_variant, nvcc_warnings, variants_in

from common.compiling import toolchain

TASK2 = Variants("task2", ["task2_softmax", "task2_gemm_nt", "task2_gemm_nn"])
PRODUCTS = ("K = 1", "batch 3, 37 x 50 x 41", "33 x 32 x 31")
KERNELS = {
    "task2_softmax": Kernel(
        TASK2,
        ("softmax", "attention"),
        ("7 x 31", "one warp wide", "large offsets", "masked entries, a masked row"),
    ),
    "task2_gemm_nt": Kernel(TASK2, ("gemm", "attention"), tuple(f"A B^T, {name}" for name in PRODUCTS), "A B^T,"),
    "task2_gemm_nn": Kernel(TASK2, ("gemm", "attention"), tuple(f"A B, {name}" for name in PRODUCTS), "A B,"),
}


@pytest.mark.parametrize("variant", variants_in(KERNELS))
def test_a_right_variant_passes(backend: str, variant: str) -> None:
    assert not failed_cases(KERNELS, variant, backend)


@pytest.mark.parametrize("variant", variants_in(KERNELS))
def test_the_checked_build_finds_nothing_in_a_right_variant(variant: str) -> None:
    assert not findings_in_variant(KERNELS, variant)


@pytest.mark.skipif(not any(toolchain.all_nvccs()), reason="needs nvcc")
def test_nvcc_compiles_the_variants_without_a_warning() -> None:
    assert not nvcc_warnings(TASK2)
