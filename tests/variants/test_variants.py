"""Right solutions that differ from the course's must pass: tests look at the result, not at the way.

Every variant (a .cu in a folder beside this file) runs the cases of its operators, and a few small ones in the checked
build, which must find nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from checked_findings import findings_of
from variants import Variants, variants_of

from common.testing.case import Case
from common.testing.judging import judge


@dataclass(frozen=True)
class Kernel:
    """What the variants in one folder stand for.

    Attributes:
        variants: all variants of the task, a library.
        parts: of the task's cases, those that the variants take part in.
        product: the beginning of the names of those cases in the part "gemm" that do.
        checked: the cases for the checked build, small ones.
    """

    variants: Variants
    parts: tuple[str, ...]
    checked: tuple[str, ...]
    product: str = ""

    def cases(self) -> Iterator[Case]:
        for case in importlib.import_module(f"{self.variants.task}.cases").cases():
            if case.part in self.parts and (case.part != "gemm" or case.name.startswith(self.product)):
                yield case


TASK1 = Variants("task1", ["task1_naive_attention"])
TASK2 = Variants("task2", ["task2_softmax", "task2_gemm_nt", "task2_gemm_nn"])
TASK3 = Variants("task3", ["task3_online_softmax"])
TASK4 = Variants("task4", ["task4_flash_attention"])
TASK5 = Variants("task5", ["task5_sliding_window", "task5_block_sparse"], file="sparse_attention")
TASK6 = Variants("task6", ["task6_decode_attention"])

MASKED = "queries that may see nothing"
SOFTMAX = ("7 x 31", "one warp wide", "large offsets", "masked entries, a masked row")
PRODUCTS = ("K = 1", "batch 3, 37 x 50 x 41", "33 x 32 x 31")

KERNELS = {
    "task1_naive_attention": Kernel(
        TASK1, ("scores", "softmax", "output", "attention"), ("7 queries, 31 keys, causal", MASKED, "bfloat16, causal")
    ),
    "task2_softmax": Kernel(TASK2, ("softmax", "attention"), SOFTMAX),
    "task2_gemm_nt": Kernel(TASK2, ("gemm", "attention"), tuple(f"A B^T, {name}" for name in PRODUCTS), "A B^T,"),
    "task2_gemm_nn": Kernel(TASK2, ("gemm", "attention"), tuple(f"A B, {name}" for name in PRODUCTS), "A B,"),
    "task3_online_softmax": Kernel(
        TASK3, ("softmax",), ("one warp wide", "7 x 31, all below 0", "large offsets", "lse, a masked row")
    ),
    "task4_flash_attention": Kernel(
        TASK4,
        ("full", "causal"),
        ("7 queries, 31 keys, head_dim 5", "rows that see nothing", "33 tokens, head_dim 96", "31 tokens, head_dim 5"),
    ),
    "task5_sliding_window": Kernel(TASK5, ("window",), ("both sides: window 20", "203 x 60, window 30: blind rows")),
    "task5_block_sparse": Kernel(
        TASK5, ("blocks",), ("lists: 2 x 3 x 100", "causal, 96 x 288 by 96", "rows without a block")
    ),
    "task6_decode_attention": Kernel(
        TASK6,
        ("decode", "generate"),
        ("40 keys", "grouped-query: 6 heads on 2", "an empty sequence, scale 0.5", "a length beyond the cache"),
    ),
}
VARIANTS = [name for folder in KERNELS for name in variants_of(folder)]


def kernel_of(variant: str) -> Kernel:
    return KERNELS[variant.split("/")[0]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_right_variant_passes(backend: str, variant: str) -> None:
    kernel = kernel_of(variant)
    ops = kernel.variants.operators(variant, backend)
    verdicts = [judge(case, ops) for case in kernel.cases() if backend == "cuda" or not case.gpu_only]
    failed = {verdict.case.name: verdict.diagnosis for verdict in verdicts if not verdict.ok}
    assert verdicts and not failed, failed


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_checked_build_finds_nothing_in_a_right_variant(variant: str) -> None:
    kernel = kernel_of(variant)
    ops = kernel.variants.operators(variant, "simulator", checked=True)
    cases = [case for case in kernel.cases() if case.name in kernel.checked]
    assert {case.name for case in cases} == set(kernel.checked)
    found = {case.name: findings for case in cases if (findings := findings_of(ops, case))}
    assert not found, found
