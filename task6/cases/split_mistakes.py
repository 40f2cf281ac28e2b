"""The correct results of split-KV decoding, and known wrong answers; see common.diagnosis.mistakes.known.

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

from common.diagnosis.mistakes.formulas import computed, varied_by
from common.diagnosis.mistakes.known import Mistake, Words
from common.diagnosis.mistakes.merge import merge_mistakes
from common.reference import oracle as reference
from task6.cases.mistakes import Attend, block_mistakes

known = Words(__file__)
PART = """\
keys = ceil_div(length, splits)
begin = part * keys
end = minimum(begin + keys, length)
"""
ROUNDED_DOWN = PART.replace("ceil_div(length, splits)", "length // splits")


def keys_per_part(length: int, splits: int) -> int:
    """ceil(length / splits)."""
    return -(-length // splits)


def part_slices(lengths: Tensor, capacity: int, splits: int, text: str = PART) -> list[list[slice]]:
    """The keys of each part of each sequence, [splits][batch].

    Args:
        lengths: [batch], clamped to 0 .. capacity.
        capacity: max_seq_len.
        splits: the number of parts.
        text: the formula for the start and end of a part, PART or with a mistake.
    """
    part = torch.arange(splits)[:, None].expand(splits, len(lengths))
    sizes = {"length": lengths.clamp(0, capacity).cpu(), "max_seq_len": torch.tensor(capacity)}
    sizes |= {"splits": torch.tensor(splits), "part": part, "ceil_div": lambda a, b: -(-a // b)}
    after = computed(text, sizes)
    both = (torch.broadcast_to(after[name], part.shape).clamp(0, capacity).tolist() for name in ("begin", "end"))
    return [[slice(*one) for one in zip(*several, strict=True)] for several in zip(*both, strict=True)]


def _of_wrong_parts(
    lengths: Tensor, capacity: int, splits: int, answer: Callable[[list[list[slice]]], Tensor]
) -> list[Mistake]:
    """The results with one line of PART wrong; answer(the keys of each part of each sequence)."""
    clamped, part = lengths.clamp(0, capacity).cpu(), torch.arange(splits)[:, None]
    keys = -(-clamped // splits)
    beyond = ((part + 1) * keys > clamped) & (clamped < capacity)

    def read_beyond() -> Tensor:
        whole = answer(part_slices(lengths, capacity, splits))
        is_read = beyond & (part * keys < clamped) if whole.dim() > 2 else beyond  # outputs of empty parts do not count
        unused = is_read.to(whole.device).repeat_interleave(whole.size(1) // len(lengths), 1)
        return whole.masked_fill(unused.view(*unused.shape, *[1] * (whole.dim() - 2)), math.nan)

    exchanged = (("length", "max_seq_len"), ("keys", "splits"))
    return [
        known("part reads beyond the length", read_beyond, reads_unused=True),
        *varied_by(PART, lambda text: answer(part_slices(lengths, capacity, splits, text)), exchanged),
    ]


def attention_of(s: Tensor, value: Tensor) -> Tensor:
    """softmax(s) @ value."""
    return reference.softmax(s) @ value


def outs_of(s: Tensor, value: Tensor, slices: list[list[slice]], attend: Attend = attention_of) -> Tensor:
    """outs [splits, batch * heads, head_dim]: attend(scores, values) of each part; zeros where there are no keys."""

    def one(b: int, keys: slice) -> Tensor:
        if keys.start >= keys.stop:
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


def parts_of(s: Tensor, value: Tensor, lengths: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """What decode_attention_split must return: (outs, lse); s and value are the results of `seen`."""
    slices = part_slices(lengths, s.size(-1), splits)
    return outs_of(s, value, slices), lse_of(s, slices)


def split_mistakes(s: Tensor, value: Tensor, lengths: Tensor, splits: int) -> list[Mistake]:
    """Wrong merged outputs [batch, heads, 1, head_dim]; the arguments are those of parts_of."""
    outs, lse = parts_of(s, value, lengths, splits)
    shape = (*s.shape[:-1], value.size(-1))

    def as_shape(answer: Tensor) -> Tensor:
        return answer.view(shape) if answer.numel() == math.prod(shape) else answer

    def merged(outs: Tensor, weights_of: Tensor = lse) -> Tensor:
        return (reference.softmax(weights_of.T).T[..., None] * outs).sum(0).view(shape)

    down = part_slices(lengths, s.size(-1), splits, ROUNDED_DOWN)
    return [
        *(one.then(as_shape) for one in merge_mistakes(outs, lse)),
        known("lse in base 2", lambda: merged(outs, lse / math.log(2))),
        known("keys per part rounded down", lambda: merged(outs_of(s, value, down), lse_of(s, down))),
        *(one.then(merged) for one in _block_mistakes_of_parts(s, value, lengths, splits)),
    ]


def _block_mistakes_of_parts(s: Tensor, value: Tensor, lengths: Tensor, splits: int) -> list[Mistake]:
    """outs with a mistake of block_mistakes in every part."""
    slices = part_slices(lengths, s.size(-1), splits)
    return block_mistakes(lambda attend: outs_of(s, value, slices, attend))


def split_outs_mistakes(s: Tensor, value: Tensor, lengths: Tensor, splits: int) -> list[Mistake]:
    """Wrong outs [splits, batch * heads, head_dim]."""
    rounded_down = part_slices(lengths, s.size(-1), splits, ROUNDED_DOWN)
    return [
        known("every part has all keys", lambda: attention_of(s, value).flatten(0, 2).expand(splits, -1, -1)),
        known("keys per part rounded down", lambda: outs_of(s, value, rounded_down)),
        *_of_wrong_parts(lengths, s.size(-1), splits, lambda slices: outs_of(s, value, slices)),
        *_block_mistakes_of_parts(s, value, lengths, splits),
    ]


def split_lse_mistakes(s: Tensor, value: Tensor, lengths: Tensor, splits: int) -> list[Mistake]:
    """Wrong lse [splits, batch * heads]."""
    _, lse = parts_of(s, value, lengths, splits)
    return [
        known("lse in base 2 (of a part)", lambda: lse / math.log(2)),
        known("every part has all keys (in the lse)", lambda: torch.logsumexp(s, -1).flatten().expand(splits, -1)),
        *_of_wrong_parts(lengths, s.size(-1), splits, lambda slices: lse_of(s, slices)),
    ]
