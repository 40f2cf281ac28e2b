"""Wrong answers that kernels of a KV cache are known to give; what a Mistake is: common/diagnosis/mistakes.

    update_mistakes(...)             the caches after update_cache
    decode_mistakes(...)             decode_attention: lengths, groups of heads, what happens within a block
    generate_mistakes(...)           the same for token after token

Scores come masked: -inf for keys that a query does not see, and the values of slots that hold nothing are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from common.diagnosis.mistakes.attention_output import TAKEN, attention_mistakes
from common.diagnosis.mistakes.formulas import computed, misread, varied_by
from common.diagnosis.mistakes.known import Mistake
from common.diagnosis.mistakes.softmax_formulas import MOST_SCORES, STEP, state_before
from common.reference import oracle as reference

WARPS, KEYS = 8, 8  # of decode_attention.cu: warps per block, keys that a warp takes at once
GROUPS = "neighboring query heads share a K/V head, number h / (heads / kv_heads)"


# --------------------------------------------------------------------------------------------------------- the update


def update_mistakes(k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> list[Mistake]:
    """Wrong [2, batch, kv_heads, max_seq_len, head_dim]; the arguments are those of update_cache."""
    batch, kv_heads, max_seq_len, _ = k_cache.shape
    new_tokens = key.size(2)
    fits = [0 <= position <= max_seq_len - new_tokens for position in positions.tolist()]

    def written(slot: Callable[[int, int, int], int], new: tuple[Tensor, Tensor] = (key, value)) -> Tensor:
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

    found = [
        Mistake(
            "nothing written",
            "The caches are as they were: nothing was written.",
            lambda: torch.stack((k_cache, v_cache)),
        ),
        Mistake(
            "one slot early",
            "Every token is one slot too early: the first new token of sequence b belongs in slot positions[b].",
            lambda: written(lambda b, h, t: right_slot(b, h, t) - 1),
        ),
        Mistake(
            "one slot late",
            "Every token is one slot too late: the first new token of sequence b belongs in slot positions[b].",
            lambda: written(lambda b, h, t: right_slot(b, h, t) + 1),
        ),
        Mistake(
            "key and value exchanged",
            "The keys are in the cache of the values, and the values in that of the keys.",
            lambda: written(right_slot, (value, key)),
        ),
        Mistake(
            "row number taken for the slot",
            "The number of the new row is used as its place in the cache. There a head has max_seq_len rows, not "
            "new_tokens, and its new tokens begin at positions[b].",
            lambda: written(lambda b, h, t: (b * kv_heads + h) * new_tokens + t),
        ),
    ]
    if len({position for position, fit in zip(positions.tolist(), fits, strict=True) if fit}) > 1:
        found.append(
            Mistake(
                "position of the first sequence",
                "Every sequence is written at positions[0]; each has its own position.",
                lambda: written(lambda b, h, t: right_slot(b, h, t) - int(positions[b]) + int(positions[0])),
            )
        )
    return found


# ------------------------------------------------------------------------------------------------------ within a block


# The warps' states, along the first axis, put together
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
    states = []
    for warp in range(WARPS):
        state = state_before(s, value)
        for start in range(warp * KEYS, s.size(-1), WARPS * KEYS):
            keys = slice(start, start + KEYS)
            state = computed(step, state | {"S": s[..., keys], "V": value[..., keys, :]})
            state = {name: state[name] for name in ("m", "l", "O")}
        states.append(state)
    return {name: torch.stack([one[name] for one in states]) for name in ("m", "l", "O")}


def block_mistakes(s: Tensor, value: Tensor) -> list[Mistake]:
    """Wrong outputs [..., rows, head_dim] of a block whose warps share the keys; s [..., rows, keys] masked scores."""

    def merged(step: str = STEP, merge: str = MERGE) -> Tensor:
        return computed(merge, warp_states(s, value, step))["out"]

    weights = (
        "must be multiplied by exp2f(m[w] - largest) before they are added up: they are relative to different maxima."
    )
    unweighted = (
        (f"The warps' states are added up without weights. l[w] and the outputs of warp w {weights}", ("l", "O")),
        (f"The outputs of the warps are added up without weights; l is not. The outputs of warp w {weights}", ("O",)),
        (f"The sums l of the warps are added up without weights; the outputs are not. l[w] {weights}", ("l",)),
    )
    formulas = s.numel() <= MOST_SCORES
    return [
        *(
            Mistake(
                "warps merged without weights",
                says,
                lambda names=names: merged(merge=_without(MERGE, "weight * ", names)),
            )
            for says, names in unweighted
        ),
        *(
            Mistake(
                "state not rescaled",
                f"When the running maximum of a warp grows, {' and '.join(names).lower()} must be multiplied by "
                f"exp2f(m_old - m_new); here it is not (a warp's groups of {KEYS} keys).",
                lambda names=names: merged(_without(STEP, "rescale * ", names)),
            )
            for names in (("l", "O"), ("O",), ("l",))
        ),
        Mistake(
            "first group only",
            f"Only the first {WARPS * KEYS} keys take part: a warp takes {KEYS} keys and stops. It must go on in steps "
            f"of {WARPS * KEYS}.",
            lambda: reference.softmax(s[..., : WARPS * KEYS]) @ value[..., : WARPS * KEYS, :],
        ),
        Mistake(
            "expf instead of exp2f",
            "The weights are too peaked: the scores are multiplied by log2(e) already, so their exponential is exp2f, "
            "not expf.",
            lambda: reference.softmax(s / math.log(2)) @ value,
        ),
        Mistake(
            "nothing seen is NaN",
            "A query that sees no key gives NaN: -infinity - (-infinity) is NaN, and so is 0 / 0. Its output is zeros.",
            lambda: torch.where((s == -math.inf).all(-1, keepdim=True), math.nan, reference.softmax(s) @ value),
        ),
        *(varied_by(STEP, lambda step: merged(step)) if formulas else ()),
        *(varied_by(MERGE, lambda merge: merged(merge=merge)) if formulas else ()),
    ]


def _without(formulas: str, factor: str, names: Sequence[str]) -> str:
    """The formulas, the factor in front of these names left out."""
    for name in names:
        formulas = formulas.replace(f"{factor}{name}", name)
    return formulas


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
    """The right answer of decode_attention, [batch, heads, 1, head_dim], in the precision of query.

    One sequence after another: the keys and values of all, repeated for every head in float64, need 13 GB in a case.
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
    """The rows of a head read at a wrong index; decode(k_cache, v_cache) -> the output."""
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
        return torch.empty(0) if is_one_row else decode(read, v_cache)  # equal weights, which other mistakes give too

    return [
        *misread("k_rows", index, k_cache, places, with_keys, head),
        *misread("v_rows", index, v_cache, places, lambda read: decode(k_cache, read), head),
    ]


def decode_mistakes(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, scale: float | None
) -> list[Mistake]:
    """Wrong [batch, heads, 1, head_dim]; with one common length and no groups also those of attention."""
    batch, heads, kv_heads, capacity = query.size(0), query.size(1), k_cache.size(1), k_cache.size(2)

    one_less = (lengths.clamp(0, capacity) - 1).clamp(min=0)
    found = [
        Mistake(
            "newest key left out",
            "The newest key is left out: a token attends to itself too.",
            lambda: decoded(query, k_cache, v_cache, one_less, scale),
        )
    ]
    if 1 < kv_heads < heads:
        scattered = [head % kv_heads for head in range(heads)]
        found.append(
            Mistake(
                "K/V heads interleaved",
                f"Query head h reads K/V head h % kv_heads; {GROUPS}.",
                lambda: decoded(query, k_cache[:, scattered], v_cache[:, scattered], lengths, scale),
            )
        )
    if batch > 1 and bool((lengths != lengths[0]).any()):
        found.append(
            Mistake(
                "length of the first sequence",
                "Every sequence has lengths[0] keys; each has its own length.",
                lambda: decoded(query, k_cache, v_cache, lengths[:1].expand(batch), scale),
            )
        )
    ends_within_a_group = (lengths.clamp(0, capacity) % KEYS > 0)[:, None, None, None]
    found.append(
        Mistake(
            "unused slots read",
            "Slots from lengths[b] on are read. They hold NaN here, and 0 * NaN is NaN: the weight 0 is not enough.",
            lambda: torch.where(ends_within_a_group, math.nan, decoded(query, k_cache, v_cache, lengths, scale)),
            reads_unused=True,
        )
    )
    found += block_mistakes(*seen(query, k_cache, v_cache, lengths, scale))
    caches = {"K": k_cache, "V": v_cache}
    for letters in ("QVK", "QKK", "QVV"):
        key, value = (caches[letter] for letter in letters[1:])
        found.append(Mistake(*TAKEN[letters], lambda key=key, value=value: decoded(query, key, value, lengths, scale)))
    found += _misread(k_cache, v_cache, lambda k, v: decoded(query, k, v, lengths, scale))
    length = int(lengths[0].clamp(0, capacity))
    if kv_heads == heads and bool((lengths == lengths[0]).all()) and length:
        found += attention_mistakes(query, k_cache[:, :, :length], v_cache[:, :, :length], scale=scale)
    return found


def generate_mistakes(query: Tensor, key: Tensor, value: Tensor, prompt: int) -> list[Mistake]:
    """Wrong [batch, heads, new tokens, head_dim] of token after token after a prompt of that many tokens."""
    total = query.size(2)
    s = reference.scores(query, key)
    newest = torch.arange(prompt, total, device=query.device)[:, None]  # the position of each row
    keys = torch.arange(total, device=query.device)

    def attended(see: Tensor) -> Tensor:
        """see: bool [new tokens, total]."""
        return reference.softmax(s[:, :, prompt:].masked_fill(~see, -math.inf)) @ value

    return [
        Mistake(
            "length not advanced",
            "Only the prompt is attended to: the new tokens are not in the cache, or the length does not grow with "
            "each token.",
            lambda: attended((keys < prompt).expand(total - prompt, total)),
        ),
        Mistake(
            "newest key left out",
            "The newest key is left out: a token attends to itself too.",
            lambda: attended(keys < newest),
        ),
        *block_mistakes(s[:, :, prompt:].masked_fill(keys > newest, -math.inf), value),
    ]
