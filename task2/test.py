"""Tests task 2's kernels against a float64 reference.

python -m task2.test [--softmax] [--gemm] [--attention] [--solution] [--backend cuda|simulator] [--seed N]
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

from common import attention_reference as reference
from common.attention_cases import attention_case
from common.attention_mistakes import attention_mistakes
from common.checking import Case, running_sum_floor
from common.cli import test_main
from common.known_mistakes import Mistake, gemm_mistakes, softmax_mistakes
from task2.attention import CustomAttention

PARTS = {
    "softmax": "test the softmax kernel only",
    "gemm": "test the matrix products only",
    "attention": "test attention only: the three kernels assembled",
}
MATRIX = ("row", "col")
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

    def case(name: str, rows: int, cols: int, change=lambda x: x, **options) -> Case:
        def inputs(generator: torch.Generator) -> dict[str, Tensor]:
            return {"x": change(4 * torch.randn(rows, cols, generator=generator))}  # peaked: a few entries get it all

        return Case(
            name,
            "softmax",
            inputs,
            lambda ops, x: ops.softmax(x),
            reference.softmax,
            floor=1e-6,
            axes=MATRIX,
            mistakes=softmax_mistakes,
            is_softmax=True,
            **options,
        )

    return [
        case("one warp wide", 5, 32, points=0.1, required=True),
        case("1023 x 1024", 1023, 1024, points=0.1, required=True),
        case("one element", 1, 1, points=0.1),
        case("7 x 31", 7, 31, points=0.1),
        case("113 x 203", 113, 203, points=0.1),
        case("1023 columns", 2, 1023, points=0.1),
        case("1025 columns", 2, 1025, points=0.1),
        case("large offsets", 6, 300, _with_offsets, points=0.1, required=True),
        case("masked entries, a masked row", 9, 130, _with_masks, points=0.1),
        case("65,536 columns", 1, 65536, points=0.1),
        case("100,000 rows", 100_000, 3, gpu_only=True),
        case("512 rows of 65,536", 512, 65536, gpu_only=True, draws=1),
    ]


def _with_offsets(x: Tensor) -> Tensor:
    """Rows around 1000 and -1000, where exp() of the entries themselves gives inf and 0."""
    return x + torch.tensor([0.0, 1000.0, -1000.0]).repeat(x.size(0) // 3)[:, None]


def _with_masks(x: Tensor) -> Tensor:
    """-inf in scattered places, in the first 100 columns of row 1, in the last 100 of row 2, and all over row 4."""
    x = x.masked_fill(torch.arange(x.numel()).view(x.shape) % 7 == 3, -math.inf)
    x[1, :100], x[2, -100:], x[4] = -math.inf, -math.inf, -math.inf
    return x


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
    """The whole operator; and the module built on it."""
    case = partial(attention_case, "attention", "attention")
    return [
        case("full", 2, 3, 40, 40, 16, causal=False, points=0.1, required=True),
        case("causal", 2, 3, 40, 40, 16, causal=True, points=0.1, required=True),
        case("1 query, 1 key, head_dim 1", 1, 1, 1, 1, 1, causal=True, points=0.05),
        case("7 tokens, head_dim 5", 1, 2, 7, 7, 5, causal=True, points=0.1),
        case("31 tokens, head_dim 64", 1, 2, 31, 31, 64, causal=True, points=0.1),
        case("65 tokens, head_dim 80", 1, 1, 65, 65, 80, causal=True, points=0.1),
        case("13 queries, 47 keys, scale 0.1", 2, 2, 13, 47, 33, causal=False, scale=0.1, points=0.1),
        case("33 queries, 1 key", 1, 2, 33, 1, 8, causal=False, points=0.05),
        case("head_dim 1", 1, 3, 20, 20, 1, causal=False, points=0.1),
        case("scores beyond 88", 1, 2, 24, 24, 32, causal=True, sharpness=7.0, points=0.1),
        module_case("CustomAttention module", batch=2, seq_len=21, hidden_dim=24, heads=3, causal=True, points=0.1),
        case("66,000 heads", 33_000, 2, 2, 3, 4, causal=False, gpu_only=True, draws=1),
        case("1000 tokens", 2, 4, 1000, 1000, 64, causal=True, gpu_only=True),
    ]


def module_case(name: str, batch: int, seq_len: int, hidden_dim: int, heads: int, causal: bool, points: float) -> Case:
    """CustomAttention of attention.py against torch.nn.MultiheadAttention with the same weights."""

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        return {
            "x": normal(batch, seq_len, hidden_dim),
            "in_weight": 1.5 * hidden_dim**-0.5 * normal(3 * hidden_dim, hidden_dim),
            "in_bias": normal(3 * hidden_dim) + 1,
            "out_weight": hidden_dim**-0.5 * normal(hidden_dim, hidden_dim),
            "out_bias": normal(hidden_dim),
        }

    def torch_module(x: Tensor, in_weight: Tensor, in_bias: Tensor, out_weight: Tensor, out_bias: Tensor):
        module = nn.MultiheadAttention(hidden_dim, heads, batch_first=True, device=x.device, dtype=x.dtype)
        module.load_state_dict(
            {
                "in_proj_weight": in_weight,
                "in_proj_bias": in_bias,
                "out_proj.weight": out_weight,
                "out_proj.bias": out_bias,
            }
        )
        return module.eval()

    def right(x: Tensor, **weights: Tensor) -> Tensor:
        mask = ~reference.causal_mask(seq_len, seq_len, x.device) if causal else None
        return torch_module(x, **weights)(x, x, x, attn_mask=mask, need_weights=False)[0]

    def mistakes(x: Tensor, in_weight: Tensor, in_bias: Tensor, out_weight: Tensor, out_bias: Tensor) -> list[Mistake]:
        """Those of the operator, seen through the module's output projection."""
        projected = (x @ in_weight.T + in_bias).view(batch, seq_len, 3, heads, hidden_dim // heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4)

        def merged(out: Tensor) -> Tensor:
            return out.transpose(1, 2).reshape(x.shape) @ out_weight.T + out_bias

        return [
            Mistake(one.name, one.says, lambda one=one: merged(one.answer()))
            for one in attention_mistakes(query, key, value, causal)
        ]

    return Case(
        name,
        "attention",
        inputs,
        lambda ops, x, **weights: CustomAttention.from_multihead_attention(torch_module(x, **weights), causal, ops)(x),
        right,
        floor=3e-5,
        axes=("batch", "position", "channel"),
        mistakes=mistakes,
        points=points,
    )


if __name__ == "__main__":
    raise SystemExit(test_main("task2", PARTS, cases()))
