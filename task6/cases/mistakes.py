"""Wrong answers that kernels of a KV cache are known to give; what a Mistake is: common/diagnosis/mistakes.

    update_mistakes(...)             the caches after update_cache
    decode_mistakes(...)             decode_attention: lengths, groups of heads, what happens within a block
    generate_mistakes(...)           the same for token after token

Scores come masked: -inf for keys that a query does not see, and the values of slots that hold nothing are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.attention_output import attention_mistakes
from common.diagnosis.mistakes.formulas import computed, misread, varied_by
from common.diagnosis.mistakes.known import Mistake
from common.diagnosis.mistakes.online_softmax import divided, shift_of
from common.diagnosis.mistakes.softmax_formulas import MOST_SCORES, STEP, state_before
from common.reference import oracle as reference

WARPS, KEYS = 8, 8  # of decode_attention.cu: warps per block, keys that a warp takes at once
GROUPS = "neighbouring query heads share a K/V head, number h / (heads / kv_heads)"


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
            "one slot late",
            "Every token lies one slot too late: the first new token of sequence b belongs in slot positions[b].",
            lambda: written(lambda b, h, t: right_slot(b, h, t) + 1),
        ),
        Mistake(
            "one slot early",
            "Every token lies one slot too early: the first new token of sequence b belongs in slot positions[b].",
            lambda: written(lambda b, h, t: right_slot(b, h, t) - 1),
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
        Mistake(
            "positions ignored",
            "The new tokens are written from slot 0 on, whatever positions[b] is.",
            lambda: written(lambda b, h, t: right_slot(b, h, t) - int(positions[b])),
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


def warp_states(
    s: Tensor, value: Tensor, rescale_l: bool = True, rescale_o: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """m, l [WARPS, ..., rows, 1] and o [WARPS, ..., rows, head_dim]: each warp's online softmax over its own keys.

    Args:
        s: [..., rows, keys], masked scores.
        value: [..., keys, head_dim].
        rescale_l, rescale_o: whether l and o follow a new maximum, as they must.
    """
    states = []
    for warp in range(WARPS):
        m = torch.full_like(s[..., :1], -math.inf)
        l, o = torch.zeros_like(m), torch.zeros_like(m * value[..., :1, :])  # noqa: E741
        for start in range(warp * KEYS, s.size(-1), WARPS * KEYS):
            block = s[..., start : start + KEYS]
            m_new = torch.maximum(m, block.amax(-1, keepdim=True))
            shift = shift_of(m_new)
            p, factor = torch.exp(block - shift), torch.exp(m - shift)
            l = (factor if rescale_l else 1) * l + p.sum(-1, keepdim=True)  # noqa: E741
            o = (factor if rescale_o else 1) * o + p @ value[..., start : start + KEYS, :]
            m = m_new
        states.append((m, l, o))
    m, l, o = (torch.stack(each) for each in zip(*states, strict=True))  # noqa: E741
    return m, l, o


# The warps' states, along the first axis, put together
MERGE = """\
largest = partmax(m)
weight = exp(m - shift_of(largest))
l_all = partsum(weight * l)
o_all = partsum(weight * O)
out = divided(o_all, l_all)
"""


def _warps_with(step: str, s: Tensor, value: Tensor) -> dict[str, Tensor]:
    """m, l, O as warp_states gives them, by these formulas of a step."""
    states = []
    for warp in range(WARPS):
        state = state_before(s, value)
        for start in range(warp * KEYS, s.size(-1), WARPS * KEYS):
            keys = slice(start, start + KEYS)
            state = computed(step, state | {"S": s[..., keys], "V": value[..., keys, :]})
            state = {name: state[name] for name in ("m", "l", "O")}
        states.append(state)
    return {name: torch.stack([one[name] for one in states]) for name in ("m", "l", "O")}


def _block_formulas(s: Tensor, value: Tensor) -> list[Mistake]:
    """What one wrong line gives in the warps' loop, or where they are merged."""
    if s.numel() > MOST_SCORES:
        return []

    def merged(step: str, merge: str) -> Tensor:
        return computed(merge, _warps_with(step, s, value))["out"]

    return [
        *varied_by(STEP, lambda step: merged(step, MERGE)),
        *varied_by(MERGE, lambda merge: merged(STEP, merge)),
    ]


def block_mistakes(s: Tensor, value: Tensor) -> list[Mistake]:
    """Wrong outputs [..., rows, head_dim] of a block whose warps share the keys; s [..., rows, keys] masked scores."""

    def merged(rescale_l: bool = True, rescale_o: bool = True, weigh_l: bool = True, weigh_o: bool = True) -> Tensor:
        m, l, o = warp_states(s, value, rescale_l, rescale_o)  # noqa: E741
        weight = torch.exp(m - shift_of(m.amax(0)))
        return divided(((weight if weigh_o else 1) * o).sum(0), ((weight if weigh_l else 1) * l).sum(0))

    def average() -> Tensor:
        _, l, o = warp_states(s, value)  # noqa: E741
        return divided(divided(o, l).sum(0), (l > 0).to(s.dtype).sum(0))

    def of_warp(warp: int) -> Tensor:
        _, l, o = warp_states(s, value)  # noqa: E741
        return divided(o[warp], l[warp])

    def weighted(weight_of: Callable[[Tensor, Tensor], Tensor], warps: int = WARPS, l0: float = 0, o0: float = 0):
        """The sums over the first warps, that of l from l0 on and that of o from o0 on."""
        m, l, o = (x[:warps] for x in warp_states(s, value))  # noqa: E741
        weight = weight_of(m, shift_of(m.amax(0)))
        return o0 + (weight * o).sum(0), l0 + (weight * l).sum(0)

    def right_weight(m: Tensor, shift: Tensor) -> Tensor:
        return torch.exp(m - shift)

    merge = (
        "must be multiplied by exp2f(m[w] - largest) before they are added up: they are relative to different maxima."
    )
    return [
        Mistake(
            "warps merged without weights",
            f"The warps' states are added up without weights. l[w] and the outputs of warp w {merge}",
            lambda: merged(weigh_l=False, weigh_o=False),
        ),
        Mistake(
            "warps merged without weights",
            f"The outputs of the warps are added up without weights; l is not. The outputs of warp w {merge}",
            lambda: merged(weigh_o=False),
        ),
        Mistake(
            "warps merged without weights",
            f"The sums l of the warps are added up without weights; the outputs are not. l[w] {merge}",
            lambda: merged(weigh_l=False),
        ),
        Mistake(
            "warps averaged",
            "The output is the plain average of what the warps found. A warp counts by the sum of its weights, l[w], "
            "relative to the largest maximum.",
            average,
        ),
        Mistake(
            "first warp only",
            f"Only the keys of warp 0 take part: 0 .. {KEYS - 1}, {WARPS * KEYS} .. {WARPS * KEYS + KEYS - 1}, ...",
            lambda: of_warp(0),
        ),
        Mistake(
            "sum of the warps begins at 1",
            "The sum l of all warps begins at 1: it must begin at 0.",
            lambda: divided(*weighted(right_weight, l0=1)),
        ),
        Mistake(
            "sum of the warps begins at 1",
            "The sum o of all warps begins at 1: it must begin at 0.",
            lambda: divided(*weighted(right_weight, o0=1)),
        ),
        Mistake(
            "last warp left out",
            f"The keys of the last warp do not count: the loop over the warps' states goes to WARPS = {WARPS}.",
            lambda: divided(*weighted(right_weight, warps=WARPS - 1)),
        ),
        Mistake(
            "sign of the warps' weights",
            "The warps are merged with exp2f(m[w] + largest): the exponent is m[w] - largest.",
            lambda: divided(*weighted(lambda m, shift: torch.exp(m + shift))),
        ),
        Mistake(
            "sign of the warps' weights",
            "The warps are merged with exp2f(largest - m[w]): the exponent is m[w] - largest.",
            lambda: divided(*weighted(lambda m, shift: torch.exp(shift - m))),
        ),
        Mistake(
            "quotient turned round",
            "The output is the sum of the weights divided by the sum of weight * V: it is the other way round.",
            lambda: divided(*reversed(weighted(right_weight))).expand(*s.shape[:-1], value.size(-1)),
        ),
        *(
            Mistake(
                "state not rescaled",
                f"When the running maximum of a warp grows, {what} must be multiplied by exp2f(m_old - m_new); here it "
                f"is not (a warp's groups of {KEYS} keys).",
                lambda options=options: merged(**options),
            )
            for what, options in (
                ("l and o", {"rescale_l": False, "rescale_o": False}),
                ("o", {"rescale_o": False}),
                ("l", {"rescale_l": False}),
            )
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
        *_block_formulas(s, value),
    ]


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
    """The right answer of decode_attention, [batch, heads, 1, head_dim], in the precision of query."""
    return decode_stages(query, k_cache, v_cache, lengths, scale)["O"]


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


def exchanged(decode: Callable[[Tensor, Tensor], Tensor], k_cache: Tensor, v_cache: Tensor) -> list[Mistake]:
    """One cache taken for the other; decode(k_cache, v_cache) -> the output."""
    return [
        Mistake(
            "K and V swapped",
            "K and V are swapped, on their way into the cache or out of it: the scores come from V and the sum runs "
            "over K.",
            lambda: decode(v_cache, k_cache),
        ),
        Mistake(
            "K in place of V",
            "K is read where V belongs: the weights are right, and the sum runs over K.",
            lambda: decode(k_cache, k_cache),
        ),
        Mistake(
            "V in place of K",
            "V is read where K belongs: the scores come from V.",
            lambda: decode(v_cache, v_cache),
        ),
    ]


def decode_mistakes(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, scale: float | None
) -> list[Mistake]:
    """Wrong [batch, heads, 1, head_dim]; with one common length and no groups also those of attention."""
    batch, heads, kv_heads, capacity = query.size(0), query.size(1), k_cache.size(1), k_cache.size(2)

    def wrong_lengths(name: str, says: str, change: int) -> Mistake:
        shifted = (lengths.clamp(0, capacity) + change).clamp(0, capacity)
        return Mistake(name, says, lambda: decoded(query, k_cache, v_cache, shifted, scale))

    found = [
        wrong_lengths("newest key left out", "The newest key is left out: a token attends to itself too.", -1),
        wrong_lengths("one key too many", "One key too many is attended to: slot lengths[b] is not written yet.", 1),
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
    found += exchanged(lambda k, v: decoded(query, k, v, lengths, scale), k_cache, v_cache)
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
            "Every new token is written over the one before, into the slot behind the prompt: the length does not grow "
            "with each token.",
            lambda: attended((keys < prompt) | (keys == newest)),
        ),
        Mistake(
            "newest key left out",
            "The newest key is left out: a token attends to itself too.",
            lambda: attended(keys < newest),
        ),
        Mistake(
            "length not advanced",
            "Only the prompt is attended to: the new tokens are not in the cache, or the length does not grow with "
            "each token.",
            lambda: attended((keys < prompt).expand(total - prompt, total)),
        ),
        *block_mistakes(s[:, :, prompt:].masked_fill(keys > newest, -math.inf), value),
    ]
