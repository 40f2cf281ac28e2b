"""Cases for each of task 1's kernels alone: scores, softmax, output."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from common.diagnosis.mistakes.attention import output_indices, output_mistakes
from common.diagnosis.mistakes.known import Mistake
from common.diagnosis.mistakes.scores import score_indices, score_mistakes
from common.reference import oracle as reference
from common.reference.bounds import running_sum_floor
from common.testing.case import Case
from common.testing.cases.attention_cases import MaskMaker, as_given, bool_mask, float_mask
from common.testing.cases.softmax import softmax_case, with_masks, with_offsets

SCORES, OUT = ("batch", "head", "query", "key"), ("batch", "head", "row", "col")


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

        def known(query: Tensor, key: Tensor, mask: Tensor | None = None) -> list[Mistake]:
            found = with_mask(score_mistakes)(query, key, mask)
            if causal or mask is not None:
                return found
            return found + score_indices(query, key, with_mask(reference.scores))

        return Case(
            name,
            "scores",
            inputs,
            lambda ops, **given: with_mask(ops.attention_scores)(**given),
            with_mask(reference.scores),
            floor=1e-6 + size * running_sum_floor(head_dim, 10 * head_dim**0.5),  # products are 2.25 on average
            axes=SCORES,
            mistakes=known,
            **options,
        )

    bias = float_mask(2, 1, 9, 23, smallest=False)
    return [
        case("Q K^T, 40 tokens", 2, 3, 40, 40, 16, points=0.05, required=True),
        case("Q K^T, 13 queries, 47 keys", 2, 2, 13, 47, 33, points=0.05, required=True),
        case("Q K^T, causal", 2, 3, 40, 40, 16, causal=True, points=0.05, required=True),
        case("Q K^T, 31 queries, 7 keys, causal", 1, 2, 31, 7, 5, causal=True, points=0.03),
        case("Q K^T, bool mask [heads, 1, S_k]", 2, 3, 9, 23, 8, mask=bool_mask(3, 1, 23), points=0.05),
        case("Q K^T, float mask, scale 0.5", 2, 3, 9, 23, 8, scale=0.5, mask=bias, points=0.05),
        # more than 1024 blocks of 256 threads: a launch with blocks and threads swapped would fail
        case("Q K^T, 521 queries, 519 keys", 1, 1, 521, 519, 16, points=0.02, draws=1),
    ]


def weights_cases() -> list[Case]:
    """P = softmax(S), row by row."""
    case = partial(softmax_case, "softmax", "softmax")
    return [
        case("7 x 31", 7, 31, points=0.05, required=True),
        case("1 x 1", 1, 1, points=0.02),
        case("513 x 9", 513, 9, points=0.03, required=True),
        case("large offsets", 6, 300, with_offsets, size=1000.0, points=0.05, required=True),
        case("masked entries, a masked row", 9, 130, with_masks, points=0.03),
        case("263,000 x 2", 263_000, 2, points=0.02, draws=1),
    ]


def output_case(name: str, batch: int, heads: int, seq_q: int, seq_k: int, head_dim: int, **options) -> Case:
    """A case for attention_output."""

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
        mistakes=lambda weights, value: output_indices(weights, value) + output_mistakes(weights, value),
        **options,
    )


def output_cases() -> list[Case]:
    """O = P V."""
    case = output_case
    return [
        case("P V, 40 tokens", 2, 3, 40, 40, 16, points=0.05, required=True),
        case("P V, 13 queries, 47 keys", 2, 2, 13, 47, 33, points=0.05, required=True),
        case("P V, one element", 1, 1, 1, 1, 1, points=0.05),
        case("P V, 9 queries, 6 keys, head_dim 16", 2, 2, 9, 6, 16),
        case("P V, 113 queries, 203 keys", 1, 1, 113, 203, 7, points=0.03),
        case("P V, 513 queries, 40 keys, head_dim 521", 1, 1, 513, 40, 521, points=0.02, draws=1),
    ]
