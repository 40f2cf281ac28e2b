"""Test cases for an attention operator, whichever task it belongs to.

    attention_case("flash_attention", ...)                 an operator
    bool_mask(...), float_mask(...), padding_mask(...)     its mask argument
    first_keys_masked(...), peaks(), falling_scores, ...   special inputs
    repeated(case, 50)                                     the same call again and again: one result

The inputs are made so that nothing passes by luck: weights peaked (a few keys get nearly all), values whose mean is far
from 0 and different from key to key.
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

PEAK = (
    1200.0  # a score above all others by more than 100, where head_dim is 32 or more; beyond what float64's exp() takes
)
MaskMaker = Callable[[torch.Generator], Tensor]


def bool_mask(*shape: int, nothing_for: tuple[int, ...] = ()) -> MaskMaker:
    """A mask that shows about two keys in three, and no key at all to the queries `nothing_for`.

    Like all masks here it is made as uint8: a case's inputs are between guards, and operators get the same memory as
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

    Without `smallest` for an operator whose output holds the masked scores: next to such numbers no other is visible.
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


def rising_and_falling(inputs: dict[str, Tensor]) -> None:
    """Along the keys the scores of even rows fall from about 300 to about -300, those of odd rows rise."""
    falling_scores(inputs)
    inputs["query"][:, :, 1::2] *= -1


def far_below_0(inputs: dict[str, Tensor]) -> None:
    """All scores of even rows are about -300, those of odd rows about 300."""
    query, key = inputs["query"], inputs["key"]
    query.copy_(1 + 0.01 * query)
    query[:, :, 1::2] *= -1
    key.sub_(300 * key.size(-1) ** -0.5)


def peaks(
    position: Callable[[int, int], int] = lambda row, keys: row % keys,
) -> Callable[[dict[str, Tensor]], None]:
    """In each row one score is above all others by more than 100; over the rows each key has it in turn.

    So whatever part of the keys a thread, a warp or a tile takes, its maximum is once the one that counts.

    Args:
        position: position(row, number of keys) -> the key; rows are counted through all heads.
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
    """Every third row has the score -inf for every key."""
    inputs["query"][:, :, ::3, 0] = math.inf
    inputs["key"][..., 0] = -1 - inputs["key"][..., 0].abs()


def equal_scores(inputs: dict[str, Tensor]) -> None:
    """All keys are the same: the scores of a row are constant, and the output is the mean of the values it sees."""
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

    The call has a further argument where the case has a mask (the fifth), and lower_right=True where it says so.

    Args:
        operator: its name among the task's operators.
        part, name: see common.testing.case.Case, which also takes `options`.
        batch, heads, seq_q, seq_k, head_dim: query [batch, heads, seq_q, head_dim], key and value with seq_k.
        causal: whether query i sees only the keys j <= i (with lower_right j <= i + seq_k - seq_q).
        sharpness: the scaled scores have a standard deviation of about sharpness^2.
        scale: None for the default, 1 / sqrt(head_dim).
        change: what else to do to {"query", "key", "value"}, in place.
        mask: makes the mask argument; see bool_mask, float_mask and padding_mask.
        dtype: of query, key, value and out as the operator gets and gives them.
        lower_right: see common.reference.oracle.
        tiles: (B_r, B_c) of an operator that goes through the keys tile by tile: more mistakes are known of it.
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
        converted = (x.to(dtype) for x in (query, key, value))  # the very tensors where dtype is float32
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
        # a mask argument changes the scores, which the mistakes of the loop do not know of
        return known + tile_loop_mistakes(query, key, value, causal, scale, *tiles, **aligned)

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
        mistakes=mistakes,
        stages=with_mask(reference.stages),
        steps=lambda **given: attention_steps(with_mask(reference.stages)(**given), tiles[1] if tiles else None),
        values="value",
        keys="key",
        **options,
    )


def repeated(case: Case, times: int) -> Case:
    """The case with the operator called `times` times: all results must agree, but for the rounding of sums.

    A missing barrier need not show in one run. Without atomic additions not even the order of a sum changes; with them
    it may, and two right results then differ by no more than two sums of the same terms.
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
