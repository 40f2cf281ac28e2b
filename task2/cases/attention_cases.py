"""Cases for task 2's attention: the three kernels assembled, and the layer built on it."""

from functools import partial

from torch import nn

from common.testing.case import Case
from common.testing.cases.attention_cases import attention_case, bool_mask, float_mask, padding_mask
from common.testing.cases.layer import layer_case
from task2.given.layer import CustomAttention


def attention_cases() -> list[Case]:
    """The whole operator, and the layer built on it."""
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
