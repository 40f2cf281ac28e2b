"""What split-KV decoding must give, and wrong answers that it is known to give; see common.diagnosis.mistakes.known.

    parts_of(...)                                          the right (outs, lse), in the precision of the arguments
    split_mistakes(...)                                    the merged result
    split_outs_mistakes(...), split_lse_mistakes(...)      the parts

Arguments are the masked scores and values of task6.cases.mistakes.seen, the lengths [batch], and the number of parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Inference, Mistake
from common.diagnosis.mistakes.merge import merge_mistakes
from common.diagnosis.mistakes.online_softmax import shift_of
from common.reference import oracle as reference
from task6.cases.mistakes import block_mistakes, warp_states

ROUNDED_DOWN = "The last keys belong to no part: a part has length / splits keys, rounded up."


def keys_per_part(length: int, splits: int) -> int:
    """ceil(length / splits)."""
    return -(-length // splits)


def part_slices(lengths: Tensor, capacity: int, splits: int, rounded_up: bool = True) -> list[list[slice]]:
    """The keys of each part of each sequence, [splits][batch].

    Args:
        lengths: [batch], counted as 0 .. capacity.
        capacity: max_seq_len.
        splits: how many parts.
        rounded_up: whether a part has ceil(length / splits) keys, as it must, or floor(length / splits).
    """
    clamped = lengths.clamp(0, capacity).tolist()
    sizes = [keys_per_part(length, splits) if rounded_up else length // splits for length in clamped]
    return [
        [slice(min(part * c, length), min((part + 1) * c, length)) for c, length in zip(sizes, clamped, strict=True)]
        for part in range(splits)
    ]


def other_slices(lengths: Tensor, capacity: int, splits: int) -> list[tuple[str, str, list[list[slice]]]]:
    """Wrong keys of the parts: a name, what to tell, and the slices as part_slices gives them."""
    clamped = lengths.clamp(0, capacity).tolist()

    def each(of: Callable[[int, int, int], tuple[int, int]]) -> list[list[slice]]:
        found = []
        for part in range(splits):
            ranges = [of(part, keys_per_part(length, splits), length) for length in clamped]
            found.append([slice(begin, max(begin, end)) for begin, end in ranges])
        return found

    return [
        (
            "parts run to the end",
            "Every part goes on to the last key of the sequence: part p ends at (p + 1) c, or at the length if that is "
            "less. Look at the comparison that limits `end`, and at what is assigned to it.",
            each(lambda part, c, length: (min(part * c, length), length)),
        ),
        (
            "parts begin at their number",
            "Part p begins at key p: it must begin at key p c, c being the keys per part.",
            each(lambda part, c, length: (min(part, length), min(part + c, length))),
        ),
        (
            "parts begin at 0",
            "Every part begins at key 0: part p must begin at key p c, c being the keys per part.",
            each(lambda part, c, length: (0, min(c, length))),
        ),
        ("parts are empty", "No part has a key: its end is where it begins.", each(lambda part, c, length: (0, 0))),
    ]


def outs_of(s: Tensor, value: Tensor, slices: list[list[slice]], attend: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """outs [splits, batch * heads, head_dim]: attend(scores, values) of each part; zeros where there are no keys."""

    def one(b: int, keys: slice) -> Tensor:
        if keys.start == keys.stop:
            return torch.zeros_like(value[b, :, :1])
        return attend(s[b, :, :, keys], value[b, :, keys])

    parts = [torch.cat([one(b, keys) for b, keys in enumerate(part)]).flatten(0, 1) for part in slices]
    return torch.stack(parts)


def lse_of(s: Tensor, slices: list[list[slice]]) -> Tensor:
    """lse [splits, batch * heads]: the logsumexp of each part; -inf where there are no keys."""
    nothing = torch.full_like(s[..., :1], -math.inf)  # [batch, heads, 1, 1]
    parts = [
        torch.cat([torch.logsumexp(torch.cat((s[b, :, :, keys], nothing[b]), -1), -1) for b, keys in enumerate(part)])
        for part in slices
    ]
    return torch.stack(parts).flatten(1)


def attention_of(s: Tensor, value: Tensor) -> Tensor:
    """softmax(s) @ value."""
    return reference.softmax(s) @ value


def parts_of(s: Tensor, value: Tensor, lengths: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """What decode_attention_split must give: (outs, lse); s and value are what `seen` gives."""
    slices = part_slices(lengths, s.size(-1), splits)
    return outs_of(s, value, slices, attention_of), lse_of(s, slices)


def split_mistakes(s: Tensor, value: Tensor, lengths: Tensor, splits: int) -> list[Mistake]:
    """Wrong merged outputs [batch, heads, 1, head_dim]; the arguments are those of parts_of."""
    outs, lse = parts_of(s, value, lengths, splits)
    shape = (*s.shape[:-1], value.size(-1))

    def as_shape(answer: Tensor) -> Tensor:
        return answer.view(shape) if answer.numel() == math.prod(shape) else answer

    def merged(outs: Tensor, weights_of: Tensor = lse) -> Tensor:
        return (reference.softmax(weights_of.T).T[..., None] * outs).sum(0).view(shape)

    def rounded_down() -> Tensor:
        slices = part_slices(lengths, s.size(-1), splits, rounded_up=False)
        return merged(outs_of(s, value, slices, attention_of), lse_of(s, slices))

    return [
        *(
            Mistake(one.name, one.says, lambda one=one: as_shape(one.answer()), one.vague)
            for one in merge_mistakes(outs, lse)
            if not isinstance(one, Inference)
        ),
        Mistake(
            "lse in base 2",
            "The parts are merged as if their logsumexp were in base 2: log2 of the sum must be divided by log2(e).",
            lambda: merged(outs, lse / math.log(2)),
        ),
        Mistake("keys per part rounded down", ROUNDED_DOWN, rounded_down),
        *(
            Mistake(one.name, one.says, lambda one=one: merged(one.answer()))
            for one in _block_mistakes_of_parts(s, value, lengths, splits)
        ),
    ]


def _block_mistakes_of_parts(s: Tensor, value: Tensor, lengths: Tensor, splits: int) -> list[Mistake]:
    """outs with a mistake of block_mistakes in every part."""
    slices = part_slices(lengths, s.size(-1), splits)
    return [
        Mistake(
            one.name,
            one.says,
            lambda number=number: outs_of(s, value, slices, lambda s, v: block_mistakes(s, v)[number].answer()),
        )
        for number, one in enumerate(block_mistakes(s, value))
        if not one.vague
    ]


def split_outs_mistakes(s: Tensor, value: Tensor, lengths: Tensor, splits: int) -> list[Mistake]:
    """Wrong outs [splits, batch * heads, head_dim]."""
    own = part_slices(lengths, s.size(-1), splits)
    own = torch.tensor([[keys.stop > keys.start for keys in part] for part in own]).repeat_interleave(s.size(1), 1)
    rounded_down = part_slices(lengths, s.size(-1), splits, rounded_up=False)
    return [
        Mistake(
            "every part has all keys",
            "Every part attends to all keys of the sequence: part p has only the c keys from p c on.",
            lambda: attention_of(s, value).flatten(0, 2).expand(splits, -1, -1),
        ),
        Mistake("keys per part rounded down", ROUNDED_DOWN, lambda: outs_of(s, value, rounded_down, attention_of)),
        *(
            Mistake(name, says, lambda slices=slices: _where_keys_are(outs_of(s, value, slices, attention_of), own))
            for name, says, slices in other_slices(lengths, s.size(-1), splits)
        ),
        *_block_mistakes_of_parts(s, value, lengths, splits),
    ]


def _where_keys_are(outs: Tensor, own: Tensor) -> Tensor:
    """outs, with zeros for parts that have no keys: what these hold is not looked at. own [splits, rows]."""
    return outs.masked_fill(~own.to(outs.device)[..., None], 0.0)


def _lse_of_warps(
    s: Tensor, value: Tensor, slices: list[list[slice]], of: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """[splits, rows]: of(m, l) of the warps' states of each part, [WARPS, rows, 1] each."""
    found = []
    for part in slices:
        rows = []
        for b, keys in enumerate(part):
            if keys.start == keys.stop:
                rows.append(torch.full_like(s[b, :, 0, 0], -math.inf))
                continue
            m, sums, _ = warp_states(s[b, :, :, keys], value[b, :, keys])
            rows.append(of(m, sums).flatten())
        found.append(torch.cat(rows))
    return torch.stack(found)


def split_lse_mistakes(s: Tensor, value: Tensor, lengths: Tensor, splits: int) -> list[Mistake]:
    """Wrong lse [splits, batch * heads]."""
    _, lse = parts_of(s, value, lengths, splits)
    own = part_slices(lengths, s.size(-1), splits)
    return [
        Mistake(
            "lse in base 2",
            "The logsumexp is in base 2: the scores hold log2(e) already, so the result must be divided by it.",
            lambda: lse / math.log(2),
        ),
        Mistake(
            "every part has all keys",
            "Every part holds the logsumexp over all keys of the sequence: part p has only the c keys from p c on.",
            lambda: torch.logsumexp(s, -1).flatten().expand(splits, -1),
        ),
        *(
            Mistake(name, says, lambda slices=slices: lse_of(s, slices))
            for name, says, slices in other_slices(lengths, s.size(-1), splits)
        ),
        *(Mistake(name, says, lambda of=of: _lse_of_warps(s, value, own, of)) for name, says, of in _OF_WARPS),
        Mistake(
            "quotient turned round",
            "The result is log2(e) divided by the logsumexp in base 2: it is the other way round.",
            lambda: 1 / lse,
        ),
    ]


def _summed(m: Tensor, sums: Tensor, weight: Tensor | None = None, first: float = 0.0) -> Tensor:
    """shift + log(first + sum of weight * l), l being the warps' sums; the weights are exp(m - shift)."""
    shift = shift_of(m.amax(0))
    weight = torch.exp(m - shift) if weight is None else weight
    return shift + torch.log(first + (weight * sums).sum(0))


# How the logsumexp goes wrong that is made of the warps' m and l: a name, what to tell, and what comes of it
_OF_WARPS: list[tuple[str, str, Callable[[Tensor, Tensor], Tensor]]] = [
    (
        "warps merged without weights",
        "The sums l of the warps are added up without weights: each is relative to its own m[w], and must be "
        "multiplied by exp2f(m[w] - largest).",
        lambda m, sums: _summed(m, sums, torch.ones_like(m)),
    ),
    (
        "sign of the warps' weights",
        "The sums l of the warps are weighted with exp2f(largest - m[w]): the exponent is m[w] - largest.",
        lambda m, sums: _summed(m, sums, torch.exp(shift_of(m.amax(0)) - m)),
    ),
    (
        "sign of the warps' weights",
        "The sums l of the warps are weighted with exp2f(m[w] + largest): the exponent is m[w] - largest.",
        lambda m, sums: _summed(m, sums, torch.exp(shift_of(m.amax(0)) + m)),
    ),
    (
        "sum of the warps begins at 1",
        "The sum l of all warps begins at 1: it must begin at 0.",
        lambda m, sums: _summed(m, sums, first=1.0),
    ),
    (
        "last warp left out",
        "The keys of the last warp do not count in the logsumexp: the loop over the warps goes to WARPS.",
        lambda m, sums: shift_of(m.amax(0)) + torch.log((torch.exp(m - shift_of(m.amax(0))) * sums)[:-1].sum(0)),
    ),
    (
        "only the last warp",
        "The logsumexp is that of the last warp's keys: the warps' sums are assigned (=) and not added up (+=).",
        lambda m, sums: shift_of(m.amax(0)) + torch.log((torch.exp(m - shift_of(m.amax(0))) * sums)[-1]),
    ),
    (
        "maximum left out",
        "The result is the logarithm of the sum alone: the largest m must be added to it.",
        lambda m, sums: torch.log((torch.exp(m - shift_of(m.amax(0))) * sums).sum(0)),
    ),
    (
        "sign of the logarithm",
        "The logarithm of l is subtracted from the maximum: it must be added.",
        lambda m, sums: 2 * shift_of(m.amax(0)) - _summed(m, sums),
    ),
]
