"""Task 4's hidden cases."""

from collections.abc import Mapping
from random import Random

from common.course.grading.hidden import MANY_KEYS, HiddenCase, attention_floor, attention_inputs, like
from common.testing.case import Case


def hidden(random: Random, cases: Mapping[str, Case]) -> list[HiddenCase]:
    """Both masks at sizes beyond the handout's, a head_dim of its own, and rows that fit nowhere."""
    size = random.randint
    seq_q, seq_k, head_dim = size(120, 180), size(260, 330), size(41, 79)
    tokens = size(210, 290)
    full, causal = attention_inputs(2, 2, seq_q, seq_k, head_dim), attention_inputs(1, 3, tokens, tokens, head_dim)
    many = size(*MANY_KEYS)
    long, floor = attention_inputs(1, 1, size(10, 14), many, size(9, 16), sharpness=1.0), attention_floor(many)
    return [
        like(
            cases,
            "full: 113 queries, 203 keys",
            f"2x2x{seq_q}x{head_dim}, 2x2x{seq_k}x{head_dim}",
            full,
            attention_floor(seq_k),
        ),
        like(cases, "full: 1 query, 257 keys", f"{many} keys", long, floor, bounded=False),
        like(cases, "causal: 203 tokens", f"1x3x{tokens}x{head_dim}", causal, attention_floor(tokens)),
        like(
            cases, "causal: 113 queries, 203 keys, lower right", f"{many} keys, lower right", long, floor, bounded=False
        ),
    ]
