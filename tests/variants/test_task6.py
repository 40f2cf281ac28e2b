"""Right variants of task 6's decode attention, which differ from the solution's: the test must pass them.

It looks at the result, not at the way; and the checked build must find nothing.
"""

import pytest
from variants import Kernel, Variants, failed_cases, findings_in_variant, nvcc_warnings, variants_in

from common.compiling import toolchain

TASK6 = Variants("task6", ["task6_decode_attention"])
KERNELS = {
    "task6_decode_attention": Kernel(
        TASK6,
        ("decode", "generate"),
        ("40 keys", "grouped-query: 6 heads on 2", "an empty sequence, scale 0.5", "a length beyond the cache"),
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
    assert not nvcc_warnings(TASK6)
