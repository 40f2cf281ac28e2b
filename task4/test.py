"""Tests task 4's kernel against a float64 reference.

python -m task4.test [--full] [--causal] [--solution] [--backend cuda|simulator] [--seed N]
"""

from functools import partial

from common.attention_cases import attention_case, falling_scores, first_keys_masked
from common.checking import Case
from common.cli import test_main

PARTS = {
    "full": "test attention without a mask only",
    "causal": "test causal attention only",
}


def cases() -> list[Case]:
    """All test cases; each part is worth 2 points."""
    full = partial(attention_case, "flash_attention", "full", causal=False)
    causal = partial(attention_case, "flash_attention", "causal", causal=True)
    return [
        full("64 tokens", 2, 3, 64, 64, 64, points=0.2, required=True),
        full("113 queries, 203 keys", 1, 2, 113, 203, 64, points=0.3, required=True),
        full("1 query, 1 key, head_dim 1", 1, 1, 1, 1, 1, points=0.1),
        full("7 queries, 31 keys, head_dim 5", 2, 2, 7, 31, 5, points=0.2),
        full("1 query, 257 keys", 1, 3, 1, 257, 40, points=0.2),
        full("257 queries, 1 key", 1, 2, 257, 1, 32, points=0.2),
        full("head_dim 80", 1, 2, 65, 95, 80, points=0.2),
        full("head_dim 128", 1, 2, 33, 129, 128, points=0.2),
        full("scores beyond 88", 1, 2, 100, 100, 64, sharpness=7.0, points=0.1),
        full("scores that fall", 1, 2, 40, 150, 32, change=falling_scores, points=0.1),
        full("the first 70 keys masked", 1, 2, 40, 150, 32, change=first_keys_masked(70), points=0.1),
        full("scale 0.5", 1, 2, 40, 70, 16, scale=0.5, points=0.1),
        full("1023 queries, 1024 keys", 2, 4, 1023, 1024, 128, gpu_only=True),
        full("70,000 heads", 70_000, 1, 2, 3, 4, gpu_only=True, draws=1),
        causal("64 tokens", 2, 3, 64, 64, 64, points=0.3, required=True),
        causal("203 tokens", 1, 2, 203, 203, 64, points=0.3, required=True),
        causal("1 token, head_dim 1", 1, 1, 1, 1, 1, points=0.2),
        causal("31 tokens, head_dim 5", 2, 2, 31, 31, 5, points=0.2),
        causal("33 tokens, head_dim 96", 1, 2, 33, 33, 96, points=0.3),
        causal("129 tokens, head_dim 128", 1, 1, 129, 129, 128, points=0.4),
        causal("scores beyond 88", 1, 2, 100, 100, 32, sharpness=7.0, points=0.3),
        causal("1023 tokens", 2, 4, 1023, 1023, 128, gpu_only=True),
        causal("16,384 tokens", 1, 1, 16_384, 16_384, 64, gpu_only=True, draws=1),
    ]


if __name__ == "__main__":
    raise SystemExit(test_main("task4", PARTS, cases()))
