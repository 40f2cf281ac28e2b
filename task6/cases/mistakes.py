"""Known wrong answers of KV cache kernels; for Mistake see common/diagnosis/mistakes.

    update_mistakes(...)             the caches after update_cache
    decode_mistakes(...)             decode_attention: lengths, groups of heads, what happens within a block
    generate_mistakes(...)           the same for token-by-token generation

Scores are already masked (-inf for keys that a query does not see), and the values of empty slots are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from common.diagnosis.mistakes.attention import attention_mistakes
from common.diagnosis.mistakes.attention import known as of_attention
from common.diagnosis.mistakes.formulas import computed, misread, varied_by, without
from common.diagnosis.mistakes.known import Mistake, Words
from common.diagnosis.mistakes.softmax import MOST_SCORES, STEP, state_after
from common.reference import oracle as reference

WARPS, KEYS = 8, 8  # of decode_attention.cu: warps per block, keys that a warp processes at once
GROUPS = "neighboring query heads share a K/V head, number h / (heads / kv_heads)"
known = Words(__file__, KEYS=KEYS, GROUPS=GROUPS)


# --------------------------------------------------------------------------------------------------------- the update


def update_mistakes(k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> list[Mistake]:
    """Wrong [2, batch, kv_heads, max_seq_len, head_dim]; the arguments are those of update_cache."""
    batch, kv_heads, max_seq_len, _ = k_cache.shape
    new_tokens = key.size(2)
    fits = [0 <= position <= max_seq_len - new_tokens for position in positions.tolist()]

    def written(slot: Callable[[int, int, int], int], new: tuple[Tensor, Tensor] = (key, value), fits=fits) -> Tensor:
        """Token t of sequence b and head h goes to row slot(b, h, t), counted over the whole cache."""
        caches = torch.stack((k_cache, v_cache))
        flat = caches.flatten(1, 3)
        for b in range(batch):
            for h in range(kv_heads if fits[b] else 0):
                for t in range(new_tokens):
                    if 0 <= (row := slot(b, h, t)) < flat.size(1):
                        flat[0, row], flat[1, row] = new[0][b, h, t], new[1][b, h, t]
        return caches

    def right_slot(b: int, h: int, t: int) -> int:
        return (b * kv_heads + h) * max_seq_len + int(positions[b]) + t

    ends = [(fit, at == max_seq_len - new_tokens) for fit, at in zip(fits, positions.tolist(), strict=True)]
    found = [
        known("nothing written", lambda: torch.stack((k_cache, v_cache))),
        known("last slot refused", lambda: written(right_slot, fits=[fit and not last for fit, last in ends])),
        known("one slot late", lambda: written(lambda b, h, t: right_slot(b, h, t) + 1)),
        known("key and value exchanged", lambda: written(right_slot, (value, key))),
        known("row number taken for the slot", lambda: written(lambda b, h, t: (b * kv_heads + h) * new_tokens + t)),
    ]
    if len({position for position, fit in zip(positions.tolist(), fits, strict=True) if fit}) > 1:
        first = lambda b, h, t: right_slot(b, h, t) - int(positions[b] - positions[0])  # noqa: E731
        found.append(known("position of the first sequence", lambda: written(first)))
    return found


# ------------------------------------------------------------------------------------------------------ within a block


# Merges the warps' states along the first axis
MERGE = """\
largest = partmax(m)
weight = exp(m - shift_of(largest))
l_all = partsum(weight * l)
o_all = partsum(weight * O)
out = divided(o_all, l_all)
"""


def warp_states(s: Tensor, value: Tensor, step: str = STEP) -> dict[str, Tensor]:
    """m, l [WARPS, ..., rows, 1] and O [WARPS, ..., rows, head_dim]: each warp's online softmax over its own keys.

    Args:
        s: [..., rows, keys], masked scores.
        value: [..., keys, head_dim].
        step: the formulas for a group of KEYS keys.
    """
    every = [state_after(s, value, KEYS, step, warp * KEYS, WARPS * KEYS) for warp in range(WARPS)]
    return {name: torch.stack([one[name] for one in every]) for name in every[0]}


Attend = Callable[[Tensor, Tensor], Tensor]  # scores [..., rows, keys], values -> outputs [..., rows, head_dim]


def block_mistakes(use: Callable[[Attend], Tensor], scores: Tensor | None = None) -> list[Mistake]:
    """Mistakes of a block whose warps share the keys.

    Args:
        use: use(attend) -> the output, if a block computes attend(masked scores, values).
        scores: of the case; if given, mistakes in single lines of the formulas are included.
    """

    def merged(step: str = STEP, merge: str = MERGE) -> Tensor:
        return use(lambda s, value: computed(merge, warp_states(s, value, step))["out"])

    def of_weights(weights_of: Callable[[Tensor], Tensor], keys: int | None = None) -> Callable[[], Tensor]:
        return lambda: use(lambda s, value: weights_of(s[..., :keys]) @ value[..., :keys, :])

    def first_of_lanes(s: Tensor, value: Tensor) -> Tensor:
        return (reference.softmax(s) @ value)[..., torch.arange(value.size(-1), device=value.device) % 32]

    def nothing_seen_is_nan(s: Tensor) -> Tensor:
        return torch.where((s == -math.inf).all(-1, keepdim=True), math.nan, reference.softmax(s))

    both, together = ("l", "O"), WARPS * KEYS
    found = [
        known(key, lambda names=names: merged(merge=without(MERGE, "weight", names)))
        for key, names in (
            ("warps merged without weights", both),
            ("warps merged without weights (only O)", ("O",)),
            ("warps merged without weights (only l)", ("l",)),
        )
    ]
    for names in (both, ("O",), ("l",)):
        answer = partial(merged, without(STEP, "rescale", names))
        found.append(known("state not rescaled", answer, state=" and ".join(names).lower()))
    found += [
        known("first group only", of_weights(reference.softmax, together), together=together),
        known("expf instead of exp2f", of_weights(lambda s: reference.softmax(s / math.log(2)))),
        known("first column of each lane", lambda: use(first_of_lanes)),
        known("nothing seen is NaN", of_weights(nothing_seen_is_nan)),
    ]
    if scores is not None and scores.numel() <= MOST_SCORES:
        found += varied_by(STEP, lambda step: merged(step)) + varied_by(MERGE, lambda merge: merged(merge=merge))
    return found


# --------------------------------------------------------------------------------------------------- decode, generate


def seen(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, scale: float | None
) -> tuple[Tensor, Tensor]:
    """A decode step's masked scores [batch, heads, 1, max_seq_len] and values [batch, heads, max_seq_len, head_dim]."""
    group = query.size(1) // k_cache.size(1)
    beyond = torch.arange(k_cache.size(2), device=query.device) >= lengths[:, None, None, None]  # [batch, 1, 1, slots]
    key, value = (cache.repeat_interleave(group, 1).to(query.dtype) for cache in (k_cache, v_cache))
    s = reference.scores(query, key, scale=scale).masked_fill(beyond, -math.inf)
    return s, value.masked_fill(beyond.transpose(-2, -1), 0.0)


def decoded(query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, scale: float | None = None) -> Tensor:
    """The correct result of decode_attention, [batch, heads, 1, head_dim], in the precision of query.

    Computed one sequence at a time: all keys and values, repeated for every head in float64, would need 13 GB in one
    case.
    """
    each = zip(*(x.split(1) for x in (query, k_cache, v_cache, lengths)), strict=True)
    return torch.cat([decode_stages(*one, scale)["O"] for one in each])


def decode_stages(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, scale: float | None = None
) -> dict[str, Tensor]:
    """{"S", "P", "O"} of a decode step; S and P are [batch, heads, 1, max_seq_len]."""
    s, value = seen(query, k_cache, v_cache, lengths, scale)
    p = reference.softmax(s)
    return {"S": s, "P": p, "O": p @ value}


def _misread(k_cache: Tensor, v_cache: Tensor, decode: Callable[[Tensor, Tensor], Tensor]) -> list[Mistake]:
    """Reading a head's rows at a wrong index; decode(k_cache, v_cache) -> the output."""
    batch, kv_heads, capacity, head_dim = k_cache.shape
    if k_cache.numel() > MOST_SCORES:
        return []
    head = torch.arange(batch * kv_heads, device=k_cache.device).view(batch, kv_heads, 1, 1) * capacity * head_dim
    key, col = (torch.arange(size, device=k_cache.device) for size in (capacity, head_dim))
    places = {"first_key": (key - key % KEYS)[:, None], "i": (key % KEYS)[:, None], "head_dim": head_dim}
    places |= {"lane": col % 32, "c": col // 32}
    index = "(first_key + i) * head_dim + lane + 32 * c"

    def with_keys(read: Tensor) -> Tensor:
        is_one_row = read.size(2) > 1 and torch.equal(*(x.nan_to_num() for x in (read, read[:, :, :1].expand_as(read))))
        return torch.empty(0) if is_one_row else decode(read, v_cache)  # equal weights, as with other mistakes

    return [
        *misread("k_rows", index, k_cache, places, with_keys, head),
        *misread("v_rows", index, v_cache, places, lambda read: decode(k_cache, read), head),
    ]


def decode_mistakes(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, scale: float | None
) -> list[Mistake]:
    """Wrong [batch, heads, 1, head_dim]; if all lengths are equal and there are no groups, also those of attention."""
    batch, heads, kv_heads, capacity = query.size(0), query.size(1), k_cache.size(1), k_cache.size(2)
    clamped = lengths.clamp(0, capacity)

    def decode(k_cache: Tensor = k_cache, v_cache: Tensor = v_cache, lengths: Tensor = lengths) -> Tensor:
        return decoded(query, k_cache, v_cache, lengths, scale)

    found = [known("newest key left out", lambda: decode(lengths=(clamped - 1).clamp(min=0)))]
    if 1 < kv_heads < heads:
        scattered = [head % kv_heads for head in range(heads)]
        found.append(known("K/V heads interleaved", lambda: decode(k_cache[:, scattered], v_cache[:, scattered])))
    if batch > 1 and bool((lengths != lengths[0]).any()):
        found.append(known("length of the first sequence", lambda: decode(lengths=lengths[:1].expand(batch))))
    within_a_group = (clamped % KEYS > 0)[:, None, None, None]
    found.append(known("unused slots read", lambda: torch.where(within_a_group, math.nan, decode()), reads_unused=True))
    s, values = seen(query, k_cache, v_cache, lengths, scale)
    found += block_mistakes(lambda attend: attend(s, values), s)
    found.append(of_attention("K and V swapped", lambda: decode(v_cache, k_cache)))
    found += _misread(k_cache, v_cache, decode)
    length = int(clamped[0])
    if kv_heads == heads and bool((lengths == lengths[0]).all()) and length:
        found += attention_mistakes(query, k_cache[:, :, :length], v_cache[:, :, :length], scale=scale)
    return found


def generate_mistakes(query: Tensor, key: Tensor, value: Tensor, prompt: int) -> list[Mistake]:
    """Wrong [batch, heads, new tokens, head_dim] of generating token by token after a prompt of `prompt` tokens."""
    total = query.size(2)
    s = reference.scores(query, key)
    newest = torch.arange(prompt, total, device=query.device)[:, None]  # the position of each row
    keys = torch.arange(total, device=query.device)

    masked = s[:, :, prompt:].masked_fill(keys > newest, -math.inf)

    def attended(see: Tensor) -> Tensor:
        """see: bool [new tokens, total]."""
        return reference.softmax(s[:, :, prompt:].masked_fill(~see, -math.inf)) @ value

    return [
        known("length not advanced", lambda: attended((keys < prompt).expand(total - prompt, total))),
        known("newest key left out", lambda: attended(keys < newest)),
        *block_mistakes(lambda attend: attend(masked, value), masked),
    ]
