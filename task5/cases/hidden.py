"""Task 5's hidden cases."""

from collections.abc import Mapping
from random import Random

import torch

from common.course.grading.hidden import HiddenCase, attention_floor, attention_inputs, like
from common.testing.case import Case
from common.testing.cases.attention_cases import bool_mask

BLOCK = 96


def hidden(random: Random, cases: Mapping[str, Case]) -> list[HiddenCase]:
    """Strides, a window, blocks, at sizes beyond the handout's."""
    size = random.randint
    seq_q, seq_k, head_dim, tokens = size(120, 170), size(410, 520), size(33, 80), size(210, 290)
    heads, rows, columns = 2, size(3, 4), size(4, 5)

    def blocks(generator: torch.Generator) -> dict[str, torch.Tensor]:
        made = attention_inputs(1, heads, rows * BLOCK, columns * BLOCK, 40)(generator)
        return {**made, "block_mask": bool_mask(heads, rows, columns)(generator)}

    strided, same = attention_inputs(1, 2, seq_q, seq_k, head_dim), attention_inputs(1, 2, tokens, tokens, head_dim)
    sizes, floor = f"1x2x{tokens}x{head_dim}", attention_floor(tokens)
    return [
        like(
            cases,
            "full: 113 queries, 403 keys, 2 + 3n",
            f"1x2x{seq_q}x{head_dim}, 1x2x{seq_k}x{head_dim}",
            strided,
            attention_floor(seq_k),
        ),
        like(cases, "causal: 203 tokens, 2 + 3n", sizes, same, floor),
        like(cases, "window: 203 tokens, window 37", sizes, same, floor),
        like(
            cases,
            "blocks: both kernels, 192 x 192 by 96",
            f"{rows * BLOCK} x {columns * BLOCK} by {BLOCK}",
            blocks,
            attention_floor(columns * BLOCK),
        ),
    ]
