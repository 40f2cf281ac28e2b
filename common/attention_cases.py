"""Test cases for an attention operator, whichever task it belongs to: attention_case("flash_attention", ...).

The inputs are made so that nothing passes by luck: weights peaked (a few keys get nearly all), values whose mean is far
from 0 and different from key to key.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common import attention_reference as reference
from common.attention_mistakes import attention_mistakes
from common.checking import Case, running_sum_floor


def first_keys_masked(count: int) -> Callable[[dict[str, Tensor]], None]:
    """The first `count` keys get the score -inf from every query: a whole tile may hold nothing to attend to."""

    def change(inputs: dict[str, Tensor]) -> None:
        inputs["query"].abs_()
        inputs["key"][:, :, :count] = -math.inf

    return change


def falling_scores(inputs: dict[str, Tensor]) -> None:
    """The scaled scores fall from about 300 to about -300 along the keys: the first tile holds the row's maximum."""
    query, key = inputs["query"], inputs["key"]
    seq_k, head_dim = key.shape[-2:]
    query.copy_(1 + 0.01 * query)
    key.copy_(torch.linspace(300, -300, seq_k)[:, None] * head_dim**-0.5 + 0.1 * key)


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
    change: Callable[[dict[str, Tensor]], None] | None = None,
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
        change: what else to do to {"query", "key", "value"}, in place.
    """

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        def normal(seq: int) -> Tensor:
            return torch.randn(batch, heads, seq, head_dim, generator=generator)

        made = {"query": sharpness * normal(seq_q), "key": sharpness * normal(seq_k), "value": 2 + normal(seq_k)}
        if change:
            change(made)
        return made

    return Case(
        name,
        part,
        inputs,
        lambda ops, query, key, value: getattr(ops, operator)(query, key, value, causal, scale),
        lambda query, key, value: reference.attention(query, key, value, causal, scale),
        # the scores' rounding, which the softmax passes on, and that of a sum of values of size 2 + 2
        floor=1e-5 * sharpness**2 + running_sum_floor(seq_k, 4),
        axes=("batch", "head", "row", "col"),
        mistakes=lambda query, key, value: attention_mistakes(query, key, value, causal, scale),
        stages=lambda query, key, value: reference.stages(query, key, value, causal, scale),
        **options,
    )
