"""Test cases for an attention operator, whichever task it belongs to: attention_case("flash_attention", ...).

The inputs are made so that nothing passes by luck: weights peaked (a few keys get nearly all), values whose mean is far
from 0 and different from key to key.
"""

import torch
from torch import Tensor

from common import attention_reference as reference
from common.attention_mistakes import attention_mistakes
from common.checking import Case


def attention_case(
    operator: str,
    part: str,
    name: str,
    batch: int,
    heads: int,
    seq_q: int,
    seq_k: int,
    head_dim: int,
    causal: bool,
    sharpness: float = 1.5,
    scale: float | None = None,
    **options,
) -> Case:
    """A case for operator(query, key, value, causal, scale) -> out.

    Args:
        operator: its name among the task's operators.
        part, name: see common.checking.Case, which also takes `options`.
        batch, heads, seq_q, seq_k, head_dim: query [batch, heads, seq_q, head_dim], key and value with seq_k.
        causal: whether query i sees only the keys j <= i.
        sharpness: the scaled scores have a standard deviation of about sharpness^2.
        scale: None for the default, 1 / sqrt(head_dim).
    """

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        def normal(seq: int) -> Tensor:
            return torch.randn(batch, heads, seq, head_dim, generator=generator)

        return {"query": sharpness * normal(seq_q), "key": sharpness * normal(seq_k), "value": 2 + normal(seq_k)}

    return Case(
        name,
        part,
        inputs,
        lambda ops, query, key, value: getattr(ops, operator)(query, key, value, causal, scale),
        lambda query, key, value: reference.attention(query, key, value, causal, scale),
        floor=1e-5 * sharpness**2,
        axes=("batch", "head", "row", "col"),
        mistakes=lambda query, key, value: attention_mistakes(query, key, value, causal, scale),
        stages=lambda query, key, value: reference.stages(query, key, value, causal, scale),
        **options,
    )
