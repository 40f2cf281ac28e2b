"""The tests of right variants, shared by all tasks: a test file names its kernels.

    class TestTask2(VariantTests):
        kernels = {"task2_softmax": Kernel(TASK2, ...), ...}

They check the result, not the method, and the checked build must find nothing. tests/variants/conftest.py supplies
the values of `variant` for each file, so that `--dist loadfile` distributes the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
from variants import Kernel, failed_cases, findings_in_variant, nvcc_warnings

from common.compiling import toolchain


class VariantTests:
    """Three tests run on all variants.

    Attributes:
        kernels: folder of variants -> which cases they run.
        known_to_fail: (variant, backend) -> (why, whether it always does).
    """

    pytestmark = pytest.mark.slow
    kernels: ClassVar[Mapping[str, Kernel]]
    known_to_fail: ClassVar[Mapping[tuple[str, str], tuple[str, bool]]] = {}

    def test_a_right_variant_passes(self, backend: str, variant: str, request: pytest.FixtureRequest) -> None:
        if known := self.known_to_fail.get((variant, backend)):
            request.applymarker(pytest.mark.xfail(reason=known[0], strict=known[1]))
        failed = failed_cases(self.kernels, variant, backend)
        assert not failed, failed

    def test_the_checked_build_finds_nothing_in_a_right_variant(self, variant: str) -> None:
        assert not findings_in_variant(self.kernels, variant)

    @pytest.mark.skipif(not any(toolchain.all_nvccs()), reason="needs nvcc")
    def test_nvcc_compiles_the_variants_without_a_warning(self) -> None:
        (variants,) = {kernel.variants.task: kernel.variants for kernel in self.kernels.values()}.values()
        assert not nvcc_warnings(variants)
