"""Right variants of task 5's window and block-sparse attention, unlike the solution's: the test must pass them.

It looks at the result, not at the way; and the checked build must find nothing.
"""

import pytest
from variants import Kernel, Variants, failed_cases, findings_in_variant, nvcc_warnings, variants_in

from common.compiling import toolchain

TASK5 = Variants("task5", ["task5_sliding_window", "task5_block_sparse"], file="sparse_attention")
KERNELS = {
    "task5_sliding_window": Kernel(
        TASK5, ("window",), ("both sides: window 20", "203 x 60, window 30: blind rows", "rows of -inf")
    ),
    "task5_block_sparse": Kernel(
        TASK5, ("blocks",), ("lists: 2 x 3 x 100", "causal, 96 x 288 by 96", "rows without a block")
    ),
}


@pytest.mark.parametrize("variant", variants_in(KERNELS))
def test_a_right_variant_passes(backend: str, variant: str) -> None:
    assert not failed_cases(KERNELS, variant, backend)


@pytest.mark.parametrize("variant", variants_in(KERNELS))
def test_the_checked_build_finds_nothing_in_a_right_variant(variant: str) -> None:
    assert not findings_in_variant(KERNELS, variant)


@pytest.mark.skipif(not any(toolchain.all_nvccs()), reason="needs nvcc")
def test_nvcc_compiles_the_variants_without_a_warning() -> None:
    assert not nvcc_warnings(TASK5)
