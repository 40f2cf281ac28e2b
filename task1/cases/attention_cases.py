"""Cases for task 1's three kernels together."""

from functools import partial

import torch
from torch import Tensor

from common.testing.case import Case
from common.testing.cases.attention_cases import attention_case, bool_mask, float_mask, padding_mask


def times_200(inputs: dict[str, Tensor]) -> None:
    """Scales queries and keys to a few hundred: in float16, the product of two such numbers overflows."""
    inputs["query"] *= 200
    inputs["key"] *= 200


def attention_cases() -> list[Case]:
    """All three kernels: irregular sizes, 16-bit types, and every form of mask."""
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
