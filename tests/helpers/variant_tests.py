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
from checked_findings import findings_of
from variants import Kernel

from common.compiling import report, toolchain
from common.compiling.nvcc import compile_only
from common.console.paths import build_root
from common.testing.judging import judge


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
        kernel = self.kernels[variant.split("/")[0]]
        ops = kernel.variants.operators(variant, backend)
        cases = [case for case in kernel.cases() if backend == "cuda" or not case.gpu_only]
        assert {case.part for case in cases} == set(kernel.parts)
        verdicts = [judge(case, ops) for case in cases]
        failed = {verdict.case.name: verdict.diagnosis for verdict in verdicts if not verdict.ok}
        assert not failed, failed

    def test_the_checked_build_finds_nothing_in_a_right_variant(self, variant: str) -> None:
        kernel = self.kernels[variant.split("/")[0]]
        ops = kernel.variants.operators(variant, "simulator", checked=True)
        cases = [case for case in kernel.cases() if case.name in kernel.checked]
        assert {case.name for case in cases} == set(kernel.checked)
        found = {case.name: findings for case in cases if (findings := findings_of(ops, case))}
        assert not found, found

    @pytest.mark.skipif(not any(toolchain.all_nvccs()), reason="needs nvcc")
    def test_nvcc_compiles_the_variants_without_a_warning(self) -> None:
        (variants,) = {kernel.variants.task: kernel.variants for kernel in self.kernels.values()}.values()
        folder = build_root() / "variants" / f"{variants.task}_nvcc"
        sources = [source for source in variants.write(folder) if variants.file in source.name]
        compile_only(sources, "sm_80", folder, ["-Ofc=max"])  # the warnings come from the compiler's front end
        found = report.diagnostics((folder / "compile.log").read_text())
        assert not ["\n".join(one.lines) for one in found if one.kind == "warning"]
