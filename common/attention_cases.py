"""Test cases for an attention operator, whichever task it belongs to.

    attention_case("flash_attention", ...)                 an operator
    bool_mask(...), float_mask(...), padding_mask(...)     its mask argument
    first_keys_masked(...), falling_scores                 special inputs

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

MaskMaker = Callable[[torch.Generator], Tensor]


def bool_mask(*shape: int, nothing_for: tuple[int, ...] = ()) -> MaskMaker:
    """A mask that shows about two keys in three, and no key at all to the queries `nothing_for`.

    Like all masks here it is made as uint8: a case's inputs lie between guards, and operators get the same memory as
    bool.
    """

    def make(generator: torch.Generator) -> Tensor:
        mask = (torch.rand(shape, generator=generator) < 0.65).to(torch.uint8)
        mask[..., list(nothing_for), :] = 0
        return mask

    return make


def padding_mask(keys: int, lengths: tuple[int, ...]) -> MaskMaker:
    """[batch, 1, 1, keys]: sequence b consists of its first lengths[b] keys; the rest is padding."""
    return lambda generator: (torch.arange(keys) < torch.tensor(lengths)[:, None, None, None]).to(torch.uint8)


def float_mask(*shape: int, nothing_for: tuple[int, ...] = (), smallest: bool = True) -> MaskMaker:
    """Numbers to add to scores of their size; some are 0, some -inf, and some the smallest float, as in many models.

    Without `smallest` for an operator whose output holds the masked scores: beside such numbers no other is visible.
    """

    def make(generator: torch.Generator) -> Tensor:
        mask = 2 * torch.randn(shape, generator=generator)
        kind = torch.rand(shape, generator=generator)
        mask[kind < 0.5] = 0.0
        mask[kind < 0.3] = torch.finfo(torch.float32).min if smallest else -math.inf
        mask[kind < 0.2] = -math.inf
        mask[..., list(nothing_for), :] = -math.inf
        return mask

    return make


def as_given(mask: Tensor | None) -> Tensor | None:
    """A bool mask as the operator gets it: the same memory."""
    return mask.view(torch.bool) if mask is not None and mask.dtype == torch.uint8 else mask


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
    mask: MaskMaker | None = None,
    dtype: torch.dtype = torch.float32,
    **options,
) -> Case:
    """A case for operator(query, key, value, causal, scale) -> out, or (..., scale, mask) where there is a mask.

    Args:
        operator: its name among the task's operators.
        part, name: see common.checking.Case, which also takes `options`.
        batch, heads, seq_q, seq_k, head_dim: query [batch, heads, seq_q, head_dim], key and value with seq_k.
        causal: whether query i sees only the keys j <= i.
        sharpness: the scaled scores have a standard deviation of about sharpness^2.
        scale: None for the default, 1 / sqrt(head_dim).
        change: what else to do to {"query", "key", "value"}, in place.
        mask: makes the mask argument; see bool_mask, float_mask and padding_mask.
        dtype: of query, key, value and out as the operator gets and gives them.
    """

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        def normal(seq: int) -> Tensor:
            return torch.randn(batch, heads, seq, head_dim, generator=generator)

        made = {"query": sharpness * normal(seq_q), "key": sharpness * normal(seq_k), "value": 2 + normal(seq_k)}
        if change:
            change(made)
        made = {name: x.to(dtype).float() for name, x in made.items()}
        return {**made, "mask": mask(generator)} if mask else made

    def call(ops, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        given = () if mask is None else (as_given(mask),)
        converted = (x.to(dtype) for x in (query, key, value))  # the very tensors where dtype is float32
        out = getattr(ops, operator)(*converted, causal, scale, *given)
        if dtype == torch.float32:
            return out
        if out.dtype != dtype:
            raise ValueError(f"out has dtype {out.dtype}; it must have that of query, {dtype}")
        return out.float()

    def with_mask(function: Callable) -> Callable:
        return lambda query, key, value, mask=None: function(query, key, value, causal, scale, as_given(mask))

    # the scores' rounding, which the softmax passes on, and that of a sum of values of size 2 + 2
    floor = 1e-5 * sharpness**2 + running_sum_floor(seq_k, 4)
    if dtype != torch.float32:
        floor += 8 * torch.finfo(dtype).eps / 2  # outputs, 8 at most, are rounded to dtype
    return Case(
        name,
        part,
        inputs,
        call,
        with_mask(reference.attention),
        floor=floor,
        axes=("batch", "head", "row", "col"),
        mistakes=with_mask(attention_mistakes),
        stages=with_mask(reference.stages),
        **options,
    )
