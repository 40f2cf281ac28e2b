"""Tests task 1's layer and kernels against a float64 reference.

python -m task1.test [--layer] [--scores] [--softmax] [--output] [--attention] [--case NAME] [--solution] [--seed N]
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from common import attention_reference as reference
from common.attention_cases import MaskMaker, as_given, attention_case, bool_mask, float_mask, padding_mask
from common.attention_mistakes import output_mistakes
from common.checking import Case, running_sum_floor
from common.cli import test_main
from common.layer_cases import layer_case
from common.python_side import naming_the_line, python_side
from common.score_mistakes import score_mistakes
from common.softmax_cases import softmax_case, with_masks, with_offsets

PARTS = {
    "layer": "test MultiHeadAttention of attention.py only",
    "scores": "test the kernel of the scores only",
    "softmax": "test the softmax kernel only",
    "output": "test the kernel of the output only",
    "attention": "test the three kernels together only",
}
SCORES, OUT = ("batch", "head", "query", "key"), ("batch", "head", "row", "col")


def cases() -> list[Case]:
    """All test cases; the layer is worth 1 point, the kernels together another."""
    return layer_cases() + scores_cases() + weights_cases() + output_cases() + attention_cases()


def multi_head_attention(ops, module: nn.MultiheadAttention, causal: bool):
    """MultiHeadAttention with the module's weights; an error in it names its line in attention.py."""
    python = python_side(ops)
    layer = python.MultiHeadAttention.from_multihead_attention(module, causal, device=ops.device)

    def call(x: Tensor) -> Tensor:
        with naming_the_line(python):
            return layer(x)

    return call


def layer_cases() -> list[Case]:
    """The layer in PyTorch: beside torch.nn.MultiheadAttention, and beside F.scaled_dot_product_attention."""
    case = partial(layer_case, multi_head_attention, "layer")
    function = partial(case, like="scaled_dot_product_attention")
    return [
        case("as MultiheadAttention", 2, 21, 24, 3, causal=False, points=0.15, required=True),
        case("as MultiheadAttention, causal", 2, 21, 24, 3, causal=True, points=0.15, required=True),
        function("as SDPA", 3, 31, 40, 5, causal=False, points=0.1),
        function("as SDPA, causal", 2, 65, 32, 2, causal=True, points=0.1),
        case("1 token", 2, 1, 16, 4, causal=True, points=0.1),
        case("1 head", 1, 7, 5, 1, causal=True, points=0.1),
        case("head_dim 1", 2, 7, 6, 6, causal=False, points=0.1),
        case("113 tokens, causal", 1, 113, 64, 4, causal=True, points=0.1),
        case("scores beyond 88", 1, 24, 32, 2, causal=True, sharpness=7.0, points=0.1),
        function("1023 tokens", 2, 1023, 768, 12, causal=True, gpu_only=True),
    ]


def scores_cases() -> list[Case]:
    """S = Q K^T * scale, masked."""

    def case(
        name: str,
        batch: int,
        heads: int,
        seq_q: int,
        seq_k: int,
        head_dim: int,
        causal: bool = False,
        scale: float | None = None,
        mask: MaskMaker | None = None,
        **options,
    ) -> Case:
        def inputs(generator: torch.Generator) -> dict[str, Tensor]:
            shape = (batch, heads, seq_q + seq_k, head_dim)
            query, key = (1.5 * torch.randn(shape, generator=generator)).split((seq_q, seq_k), dim=2)
            return {"query": query, "key": key, **({"mask": mask(generator)} if mask else {})}

        def with_mask(function: Callable) -> Callable:
            return lambda query, key, mask=None: function(query, key, causal, scale, as_given(mask))

        size = head_dim**-0.5 if scale is None else scale
        return Case(
            name,
            "scores",
            inputs,
            lambda ops, **given: with_mask(ops.attention_scores)(**given),
            with_mask(reference.scores),
            floor=1e-6 + size * running_sum_floor(head_dim, 10 * head_dim**0.5),  # products are 2.25 on average
            axes=SCORES,
            mistakes=with_mask(score_mistakes),
            **options,
        )

    bias = float_mask(2, 1, 9, 23, smallest=False)
    return [
        case("Q K^T, 40 tokens", 2, 3, 40, 40, 16, points=0.05, required=True),
        case("Q K^T, 13 queries, 47 keys", 2, 2, 13, 47, 33, points=0.05, required=True),
        case("Q K^T, causal", 2, 3, 40, 40, 16, causal=True, points=0.05, required=True),
        case("Q K^T, 31 queries, 7 keys, causal", 1, 2, 31, 7, 5, causal=True, points=0.05),
        case("Q K^T, bool mask [heads, 1, S_k]", 2, 3, 9, 23, 8, mask=bool_mask(3, 1, 23), points=0.05),
        case("Q K^T, float mask, scale 0.5", 2, 3, 9, 23, 8, scale=0.5, mask=bias, points=0.05),
    ]


def weights_cases() -> list[Case]:
    """P = softmax(S), row by row."""
    case = partial(softmax_case, "softmax", "softmax")
    return [
        case("7 x 31", 7, 31, points=0.05, required=True),
        case("1 x 1", 1, 1, points=0.02),
        case("513 x 9", 513, 9, points=0.03, required=True),
        case("large offsets", 6, 300, with_offsets, points=0.05, required=True),
        case("masked entries, a masked row", 9, 130, with_masks, points=0.05),
    ]


def output_cases() -> list[Case]:
    """O = P V."""

    def case(name: str, batch: int, heads: int, seq_q: int, seq_k: int, head_dim: int, **options) -> Case:
        def inputs(generator: torch.Generator) -> dict[str, Tensor]:
            scores = 2 * torch.randn(batch, heads, seq_q, seq_k, generator=generator)
            value = 2 + torch.randn(batch, heads, seq_k, head_dim, generator=generator)
            return {"weights": torch.softmax(scores, -1), "value": value}

        return Case(
            name,
            "output",
            inputs,
            lambda ops, weights, value: ops.attention_output(weights, value),
            lambda weights, value: reference.gemm_nn(weights, value),
            floor=1e-6 + running_sum_floor(seq_k, 4),
            axes=OUT,
            mistakes=output_mistakes,
            **options,
        )

    return [
        case("P V, 40 tokens", 2, 3, 40, 40, 16, points=0.05, required=True),
        case("P V, 13 queries, 47 keys", 2, 2, 13, 47, 33, points=0.05, required=True),
        case("P V, one element", 1, 1, 1, 1, 1, points=0.05),
        case("P V, 113 queries, 203 keys", 1, 1, 113, 203, 7, points=0.05),
    ]


def times_200(inputs: dict[str, Tensor]) -> None:
    """Queries and keys of a few hundred: in float16 a product of two of them overflows."""
    inputs["query"] *= 200
    inputs["key"] *= 200


def attention_cases() -> list[Case]:
    """All three kernels: sizes that are no multiple of anything, 16-bit types, and every form of mask."""
    case = partial(attention_case, "naive_attention", "attention", points=0.02)
    full, causal = partial(case, causal=False), partial(case, causal=True)
    # batch 2, 3 heads, 9 queries, 23 keys: no two sizes are equal, so a wrong stride shows
    masked = partial(case, batch=2, heads=3, seq_q=9, seq_k=23, head_dim=8)
    for_gpu = {"points": 0, "gpu_only": True}
    return [
        full("full", 2, 3, 40, 40, 16, required=True),
        causal("causal", 2, 3, 40, 40, 16, required=True),
        full("13 queries, 47 keys, scale 0.1", 2, 2, 13, 47, 33, scale=0.1, required=True),
        causal("1 query, 1 key, head_dim 1", 1, 1, 1, 1, 1),
        causal("7 queries, 31 keys, causal", 1, 2, 7, 31, 16),
        full("head_dim 200", 1, 2, 5, 9, 200),
        causal("scores beyond 88", 1, 2, 24, 24, 32, sharpness=7.0),
        full(
            "float16, products beyond 65,504",
            *(1, 2, 13, 31, 24),
            scale=24**-0.5 / 200**2,
            change=times_200,
            dtype=torch.float16,
        ),
        causal("bfloat16, causal", 1, 2, 31, 31, 24, dtype=torch.bfloat16),
        masked("bool mask [S_q, S_k]", causal=False, mask=bool_mask(9, 23)),
        masked("bool mask [batch, heads, S_q, S_k]", causal=False, mask=bool_mask(2, 3, 9, 23)),
        masked("padding [batch, 1, 1, S_k]", causal=False, mask=padding_mask(23, lengths=(14, 0))),
        masked("queries that may see nothing", causal=False, mask=bool_mask(2, 1, 9, 23, nothing_for=(0, 4))),
        masked("float mask [1, 1, S_q, S_k]", causal=False, scale=0.5, mask=float_mask(1, 1, 9, 23)),
        masked("float mask [heads, S_q, S_k], causal", causal=True, mask=float_mask(3, 9, 23, nothing_for=(5,))),
        full("1023 queries, 1024 keys", 2, 4, 1023, 1024, 64, **for_gpu),
        causal("1023 tokens, float16", 2, 4, 1023, 1023, 128, dtype=torch.float16, **for_gpu),
        full("70,000 heads", 70_000, 1, 2, 3, 4, draws=1, **for_gpu),
    ]


if __name__ == "__main__":
    raise SystemExit(test_main("task1", PARTS, cases()))
