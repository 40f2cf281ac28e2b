"""Cases for task 2's GEMMs."""

import torch
from torch import Tensor

from common.diagnosis.mistakes.gemm import gemm_mistakes
from common.reference import oracle as reference
from common.reference.bounds import running_sum_floor
from common.testing.case import Case

BATCH = ("batch", "row", "col")
GEMM_HINT = (
    "If cases with a small K pass and those with a larger K fail, look at the loop over tiles: where each tile begins, "
    "and what is kept from one tile to the next."
)


def pair(name: str, batch: int, m: int, n: int, k: int, points: float = 0.0, **options) -> list[Case]:
    """A case for A @ B^T and one for A @ B, [batch, m, n] with sums of k products."""
    size = 0.5 * k + 5  # a product is 0.5 on average

    def one(product: str, operator: str, b_shape: tuple[int, ...]) -> Case:
        def inputs(generator: torch.Generator) -> dict[str, Tensor]:
            a = torch.randn(batch, m, k, generator=generator) + 1
            return {"a": a, "b": torch.randn(b_shape, generator=generator) + 0.5}

        return Case(
            f"{product}, {name}",
            "gemm",
            inputs,
            lambda ops, a, b: getattr(ops, operator)(a, b),
            getattr(reference, operator),
            floor=running_sum_floor(k, size),
            axes=BATCH,
            points=points,
            mistakes=lambda a, b: gemm_mistakes(a, b, b_is_transposed=operator == "gemm_nt"),
            hint=GEMM_HINT,
            **options,
        )

    return [one("A B^T", "gemm_nt", (batch, n, k)), one("A B", "gemm_nn", (batch, k, n))]


def gemm_cases() -> list[Case]:
    """A @ B^T and A @ B at sizes around the tile size; also square ones, where a wrongly transposed operand fits."""
    return [
        *pair("64 x 64 x 64", 1, 64, 64, 64, points=0.05, required=True),
        *pair("batch 3, 37 x 50 x 41", 3, 37, 50, 41, points=0.05, required=True),
        *pair("one element", 1, 1, 1, 1, points=0.05),
        *pair("K = 1", 2, 31, 33, 1, points=0.05),
        *pair("one row and column", 3, 1, 1, 113, points=0.05),
        *pair("32 x 31 x 33", 1, 32, 31, 33, points=0.05),
        *pair("33 x 32 x 31", 1, 33, 32, 31, points=0.05),
        *pair("63 x 65 x 64", 1, 63, 65, 64, points=0.05),
        *pair("113 x 7 x 203", 2, 113, 7, 203, points=0.1),
        *pair("batch 70,000", 70_000, 2, 3, 1, gpu_only=True, draws=1),
        *pair("1023 x 1025 x 1024", 1, 1023, 1025, 1024, gpu_only=True),
    ]
