"""Test cases for the attention operator of any task.

    attention_case("flash_attention", ...)                 an operator
    bool_mask(...), float_mask(...), padding_mask(...)     its mask argument
    first_keys_masked(...), peaks(), falling_scores, ...   special inputs
    repeated(case, 50)                                     the same call many times: all results must agree

So that nothing passes by luck, weights are peaked (a few keys get nearly all of the weight) and values have means far
from 0 that differ from key to key.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from common.diagnosis.locating import wrong_mask
from common.diagnosis.mistakes.attention import attention_mistakes
from common.diagnosis.mistakes.known import Mistake
from common.diagnosis.mistakes.tile_loop import tile_loop_mistakes
from common.reference import oracle as reference
from common.reference.bounds import running_sum_floor
from common.testing.case import Case
from common.testing.cases.steps import attention_steps

PEAK = 1200.0  # exceeds all other scores by more than 100 if head_dim >= 32; float64 exp() overflows
MaskMaker = Callable[[torch.Generator], Tensor]


def bool_mask(*shape: int, nothing_for: tuple[int, ...] = ()) -> MaskMaker:
    """A mask that keeps about two keys in three, and no key at all for the queries `nothing_for`.

    Like all masks here it is created as uint8, since a case's inputs are placed between guards; operators get the same
    memory as bool.
    """

    def make(generator: torch.Generator) -> Tensor:
        mask = (torch.rand(shape, generator=generator) < 0.65).to(torch.uint8)
        mask[..., list(nothing_for), :] = 0
        return mask

    return make


def padding_mask(keys: int, lengths: tuple[int, ...]) -> MaskMaker:
    """[batch, 1, 1, keys]: sequence b consists of the first lengths[b] keys; the rest is padding."""
    return lambda generator: (torch.arange(keys) < torch.tensor(lengths)[:, None, None, None]).to(torch.uint8)


def float_mask(*shape: int, nothing_for: tuple[int, ...] = (), smallest: bool = True) -> MaskMaker:
    """An additive mask with entries as large as the scores; some are 0, some -inf, some the lowest float, as in many
    models.

    Pass smallest=False for an operator that outputs the masked scores: next to such numbers, no other error is visible.
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
    """The mask as the operator gets it: uint8 reinterpreted as bool, same memory."""
    return mask.view(torch.bool) if mask is not None and mask.dtype == torch.uint8 else mask


def first_keys_masked(count: int) -> Callable[[dict[str, Tensor]], None]:
    """The first `count` keys have score -inf for every query, so that a whole tile may be masked."""

    def change(inputs: dict[str, Tensor]) -> None:
        inputs["query"].abs_()
        inputs["key"][:, :, :count] = -math.inf

    return change


def falling_scores(inputs: dict[str, Tensor]) -> None:
    """The scaled scores fall from about 300 to about -300 along the keys: the row maximum is in the first tile."""
    query, key = inputs["query"], inputs["key"]
    seq_k, head_dim = key.shape[-2:]
    query.copy_(1 + 0.01 * query)
    key.copy_(torch.linspace(300, -300, seq_k)[:, None] * head_dim**-0.5 + 0.1 * key)


def rising_and_falling(inputs: dict[str, Tensor]) -> None:
    """Along the keys, the scores of even rows fall from about 300 to about -300; those of odd rows rise."""
    falling_scores(inputs)
    inputs["query"][:, :, 1::2] *= -1


def far_below_0(inputs: dict[str, Tensor]) -> None:
    """All scores are about -300 in even rows and about 300 in odd rows."""
    query, key = inputs["query"], inputs["key"]
    query.copy_(1 + 0.01 * query)
    query[:, :, 1::2] *= -1
    key.sub_(300 * key.size(-1) ** -0.5)


def peaks(
    position: Callable[[int, int], int] = lambda row, keys: row % keys,
) -> Callable[[dict[str, Tensor]], None]:
    """In each row, one score exceeds all others by more than 100; from row to row, every key has its turn.

    So whichever keys a thread, a warp or a tile handles, its maximum decides at least one row.

    Args:
        position: position(row, number of keys) -> the key; rows are numbered across all heads.
    """

    def change(inputs: dict[str, Tensor]) -> None:
        query, key = inputs["query"], inputs["key"]
        batch, heads, seq_q, head_dim = query.shape
        key.div_(key.norm(dim=-1, keepdim=True))
        at = [position(row, key.size(2)) for row in range(batch * heads * seq_q)]
        index = torch.tensor(at).view(batch, heads, seq_q, 1).expand(query.shape)
        query.copy_(PEAK * head_dim**0.5 * key.gather(2, index))

    return change


def blind_rows(inputs: dict[str, Tensor]) -> None:
    """Every third row has score -inf for every key."""
    inputs["query"][:, :, ::3, 0] = math.inf
    inputs["key"][..., 0] = -1 - inputs["key"][..., 0].abs()


def equal_scores(inputs: dict[str, Tensor]) -> None:
    """All keys are equal: a row's scores are constant, and its output is the mean of the values it attends to."""
    inputs["key"][:] = inputs["key"][:, :, :1].clone()


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
    lower_right: bool = False,
    tiles: tuple[int, int] | None = None,
    **options,
) -> Case:
    """A case for operator(query, key, value, causal, scale) -> out.

    The mask of a case that has one follows as the next argument; lower_right=True is passed if the case sets it.

    Args:
        operator: its name among the task's operators.
        part, name: see common.testing.case.Case, which also takes `options`.
        batch, heads, seq_q, seq_k, head_dim: query [batch, heads, seq_q, head_dim], key and value with seq_k.
        causal: whether query i attends only to keys j <= i (with lower_right: j <= i + seq_k - seq_q).
        sharpness: the scaled scores have a standard deviation of about sharpness^2.
        scale: None for the default, 1 / sqrt(head_dim).
        change: modifies {"query", "key", "value"} in place.
        mask: makes the mask argument; see bool_mask, float_mask and padding_mask.
        dtype: dtype of the operator's query, key, value and out.
        lower_right: see common.reference.oracle.
        tiles: (B_r, B_c) of an operator that loops over tiles of keys, for which more mistakes are known.
    """
    aligned = {"lower_right": True} if lower_right else {}

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
        converted = (x.to(dtype) for x in (query, key, value))  # the same tensors if dtype is float32
        out = getattr(ops, operator)(*converted, causal, scale, *given, **aligned)
        if dtype == torch.float32:
            return out
        if out.dtype != dtype:
            raise ValueError(f"out has dtype {out.dtype}; it must have that of query, {dtype}")
        return out.float()

    def with_mask(function: Callable) -> Callable:
        return lambda query, key, value, mask=None: function(
            query, key, value, causal, scale, as_given(mask), **aligned
        )

    def mistakes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> list[Mistake]:
        known = with_mask(attention_mistakes)(query, key, value, mask)
        if not tiles:
            return known
        # the tile loop's mistakes do not take a mask argument into account
        return known + tile_loop_mistakes(query, key, value, causal, scale, *tiles, **aligned)

    # rounding of the scores, propagated by the softmax, and of a sum of values of size 2 + 2
    floor = 1e-5 * sharpness**2 + running_sum_floor(seq_k, 4)
    if dtype != torch.float32:
        floor += 8 * torch.finfo(dtype).eps / 2  # outputs, at most 8, are rounded to dtype
    return Case(
        name,
        part,
        inputs,
        call,
        with_mask(reference.attention),
        floor=floor,
        axes=("batch", "head", "row", "col"),
        mistakes=mistakes,
        stages=with_mask(reference.stages),
        steps=lambda **given: attention_steps(with_mask(reference.stages)(**given), tiles[1] if tiles else None),
        values="value",
        **options,
    )


def repeated(case: Case, times: int) -> Case:
    """The case with the operator called `times` times; all results must agree up to rounding of sums.

    A missing barrier may not show up in a single run. The order of summation changes only with atomic additions; two
    correct results then differ by at most as much as two sums of the same terms.
    """

    def call(ops, **inputs: Tensor) -> Tensor:
        first = case.call(ops, **inputs)
        for number in range(2, times + 1):
            differs = wrong_mask(case.call(ops, **inputs), first, case.floor)
            if bool(differs[~torch.isnan(first)].any()):
                raise RuntimeError(
                    f"Call {number} of {times} gives a different result from the first, on the same inputs: "
                    f"{int(differs.sum())} of {differs.numel()} elements differ by more than {case.floor:.1g}. Threads "
                    "race: one reads what another writes with no barrier between, or two write the same element; or "
                    "memory was read before it was written."
                )
        return first

    return replace(case, call=call, draws=1)
