"""Right variants of task 1's kernels, which differ from the solution's: the test must pass them.

It looks at the result, not at the way; and the checked build must find nothing.
"""

import pytest
from variants import Kernel, Variants, failed_cases, findings_in_variant, nvcc_warnings, variants_in

from common.compiling import toolchain

TASK1 = Variants("task1", ["task1_naive_attention"])
KERNELS = {
    "task1_naive_attention": Kernel(
        TASK1,
        ("scores", "softmax", "output", "attention"),
        ("7 queries, 31 keys, causal", "queries that may see nothing", "bfloat16, causal"),
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
    assert not nvcc_warnings(TASK1)
