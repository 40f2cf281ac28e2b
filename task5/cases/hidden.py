"""Task 5's hidden cases."""

from collections.abc import Mapping
from random import Random

import torch

from common.course.grading.hidden import MANY_KEYS, HiddenCase, attention_floor, attention_inputs, like
from common.testing.case import Case
from common.testing.cases.attention_cases import bool_mask

BLOCK, SMALL_BLOCK = 96, 32  # of two public cases


def hidden(random: Random, cases: Mapping[str, Case]) -> list[HiddenCase]:
    """Strides, a window, blocks, at sizes beyond the handout's; rows that fit nowhere, or not into local memory."""
    size = random.randint
    seq_q, seq_k, head_dim, tokens = size(120, 170), size(410, 520), size(33, 80), size(210, 290)
    heads, rows, columns = 2, size(3, 4), size(4, 5)

    listed, few, longer = size(*MANY_KEYS) // SMALL_BLOCK, size(9, 16), size(1_010, 1_100)
    many = listed * SMALL_BLOCK

    def listed_blocks(generator: torch.Generator) -> dict[str, torch.Tensor]:
        made = attention_inputs(1, 1, SMALL_BLOCK, many, few, sharpness=1.0)(generator)
        return {**made, "block_mask": torch.ones(1, 1, listed).byte()}

    def blocks(generator: torch.Generator) -> dict[str, torch.Tensor]:
        made = attention_inputs(1, heads, rows * BLOCK, columns * BLOCK, 40)(generator)
        return {**made, "block_mask": bool_mask(heads, rows, columns)(generator)}

    strided, same = attention_inputs(1, 2, seq_q, seq_k, head_dim), attention_inputs(1, 2, tokens, tokens, head_dim)
    sizes, floor = f"1x2x{tokens}x{head_dim}", attention_floor(tokens)
    long, long_floor = attention_inputs(1, 1, size(10, 14), many, few, sharpness=1.0), attention_floor(many)
    rows_of_all, longer_floor = attention_inputs(1, 1, longer, longer, few), attention_floor(longer)
    return [
        like(
            cases,
            "full: 113 queries, 403 keys, 2 + 3n",
            f"1x2x{seq_q}x{head_dim}, 1x2x{seq_k}x{head_dim}",
            strided,
            attention_floor(seq_k),
        ),
        like(cases, "full: stride 1: dense attention", f"{many} keys", long, long_floor, bounded=False),
        like(cases, "causal: 203 tokens, 2 + 3n", sizes, same, floor),
        like(cases, "causal: stride 1: dense attention", f"{longer} tokens", rows_of_all, longer_floor, bounded=False),
        like(cases, "window: 203 tokens, window 37", sizes, same, floor),
        like(
            cases, "window: window 1000: causal attention", f"{longer} tokens", rows_of_all, longer_floor, bounded=False
        ),
        like(
            cases,
            "blocks: both kernels, 192 x 192 by 96",
            f"{rows * BLOCK} x {columns * BLOCK} by {BLOCK}",
            blocks,
            attention_floor(columns * BLOCK),
        ),
        like(
            cases,
            "blocks: 96 x 128 by 32",
            f"{listed} blocks of {SMALL_BLOCK}",
            listed_blocks,
            long_floor,
            bounded=False,
        ),
    ]
