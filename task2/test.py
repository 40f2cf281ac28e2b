"""Tests task 2's kernels against a float64 reference.

python -m task2.test [--softmax] [--gemm] [--attention] [--solution] [--backend cuda|simulator] [--seed N]
"""

from functools import partial

import torch
from torch import Tensor, nn

from common import attention_reference as reference
from common.attention_cases import attention_case, bool_mask, float_mask, padding_mask
from common.checking import Case, running_sum_floor
from common.cli import test_main
from common.known_mistakes import gemm_mistakes
from common.layer_cases import layer_case
from common.softmax_cases import softmax_case, with_masks, with_offsets
from task2.attention import CustomAttention

PARTS = {
    "softmax": "test the softmax kernel only",
    "gemm": "test the matrix products only",
    "attention": "test attention only: the three kernels assembled",
}
BATCH = ("batch", "row", "col")
GEMM_HINT = (
    "If cases with a small K pass and those with a larger K fail, look at the loop over tiles: it needs one "
    "__syncthreads() between loading the tiles and using them, and one between using them and loading the next."
)


def cases() -> list[Case]:
    """All test cases; each part is worth 1 point."""
    return softmax_cases() + gemm_cases() + attention_cases()


def softmax_cases() -> list[Case]:
    """One for every way in which a row can be awkward."""

    case = partial(softmax_case, "softmax", "softmax")
    return [
        case("one warp wide", 5, 32, points=0.1, required=True),
        case("1023 x 1024", 1023, 1024, points=0.1, required=True),
        case("one element", 1, 1, points=0.1),
        case("7 x 31", 7, 31, points=0.1),
        case("113 x 203", 113, 203, points=0.1),
        case("1023 columns", 2, 1023, points=0.1),
        case("1025 columns", 2, 1025, points=0.1),
        case("large offsets", 6, 300, with_offsets, points=0.1, required=True),
        case("masked entries, a masked row", 9, 130, with_masks, points=0.1),
        case("65,536 columns", 1, 65536, points=0.1),
        case("100,000 rows", 100_000, 3, gpu_only=True),
        case("512 rows of 65,536", 512, 65536, gpu_only=True, draws=1),
    ]


def gemm_cases() -> list[Case]:
    """A @ B^T and A @ B at sizes around those of tiles; square ones too, where a transposed operand still fits."""

    def pair(name: str, batch: int, m: int, n: int, k: int, points: float = 0.0, **options) -> list[Case]:
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

    return [
        *pair("64 x 64 x 64", 1, 64, 64, 64, points=0.05, required=True),
        *pair("batch 3, 37 x 50 x 41", 3, 37, 50, 41, points=0.05, required=True),
        *pair("one element", 1, 1, 1, 1, points=0.05),
        *pair("K = 1", 2, 31, 33, 1, points=0.05),
        *pair("one row and column", 3, 1, 1, 113, points=0.05),
        *pair("32 x 31 x 33", 1, 32, 31, 33, points=0.05),
        *pair("33 x 32 x 31", 1, 33, 32, 31, points=0.05),
        *pair("63 x 65 x 64", 1, 63, 65, 64, points=0.05),
        *pair("113 x 7 x 203", 2, 113, 7, 203, points=0.05),
        *pair("batch 70,000", 70_000, 2, 3, 1, points=0.05, draws=1),
        *pair("1023 x 1025 x 1024", 1, 1023, 1025, 1024, gpu_only=True),
    ]


def attention_cases() -> list[Case]:
    """The whole operator; and the layer built on it."""
    case = partial(attention_case, "attention", "attention")
    return [
        case("full", 2, 3, 40, 40, 16, causal=False, points=0.1, required=True),
        case("causal", 2, 3, 40, 40, 16, causal=True, points=0.1, required=True),
        case("1 query, 1 key, head_dim 1", 1, 1, 1, 1, 1, causal=True, points=0.05),
        case("7 tokens, head_dim 5", 1, 2, 7, 7, 5, causal=True, points=0.05),
        case("31 tokens, head_dim 64", 1, 2, 31, 31, 64, causal=True, points=0.05),
        case("65 tokens, head_dim 80", 1, 1, 65, 65, 80, causal=True, points=0.05),
        case("13 queries, 47 keys, scale 0.1", 2, 2, 13, 47, 33, causal=False, scale=0.1, points=0.05),
        case("33 queries, 1 key", 1, 2, 33, 1, 8, causal=False, points=0.05),
        case("40 queries, 23 keys, causal", 1, 2, 40, 23, 16, causal=True, points=0.05),
        case("head_dim 1", 1, 3, 20, 20, 1, causal=False, points=0.05),
        case("scores beyond 88", 1, 2, 24, 24, 32, causal=True, sharpness=7.0, points=0.1),
        *mask_cases(),
        layer_case(custom_attention, "attention", "CustomAttention module", 2, 21, 24, 3, causal=True, points=0.1),
        case("66,000 heads", 33_000, 2, 2, 3, 4, causal=False, gpu_only=True, draws=1),
        case("1000 tokens", 2, 4, 1000, 1000, 64, causal=True, gpu_only=True),
    ]


def mask_cases() -> list[Case]:
    """One for each kind of mask, broadcast in different ways; no two sizes are equal, so that a wrong stride shows."""
    case = partial(
        attention_case, "attention", "attention", batch=2, heads=3, seq_q=9, seq_k=35, head_dim=8, points=0.05
    )
    return [
        case("bool mask [S_q, S_k], causal", causal=True, mask=bool_mask(9, 35)),
        case("padding [batch, 1, 1, S_k]", causal=False, mask=padding_mask(35, lengths=(21, 0))),
        case("float mask [batch, heads, S_q, S_k]", causal=False, mask=float_mask(2, 3, 9, 35, nothing_for=(0, 4))),
        case("float mask [1, heads, 1, S_k]", causal=False, scale=0.5, mask=float_mask(1, 3, 1, 35)),
    ]


def custom_attention(ops, module: nn.MultiheadAttention, causal: bool) -> CustomAttention:
    """CustomAttention of attention.py with the module's weights."""
    return CustomAttention.from_multihead_attention(module, causal, ops=ops)


if __name__ == "__main__":
    raise SystemExit(test_main("task2", PARTS, cases()))
