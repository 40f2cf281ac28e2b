"""Cases for strided attention, unmasked and causal."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from common.testing.case import Case
from common.testing.cases.attention_cases import (
    attention_case,
    blind_rows,
    far_below_0,
    first_keys_masked,
    peaks,
    repeated,
    rising_and_falling,
)
from task5.cases.strided_mistakes import strided_mistakes
from task5.given.reference import naive_strided_attention, strided_stages

NAN_HINT = (
    "Where NaN comes from: a key between the strided ones or past the last one was read (attend_to_tile is given "
    "where the tile begins, how far apart its rows are and how many of them there are), or a given function "
    "was changed."
)


def full_cases() -> list[Case]:
    """Without a mask. In a name, 2 + 3n means attention to the keys 2, 5, 8, ...: offset 2, stride 3."""
    full = partial(strided_case, "full", False)
    return [
        full("64 tokens, stride 2", 2, 3, 64, 64, 64, stride=2, points=0.1, required=True),
        full("113 queries, 403 keys, 2 + 3n", 1, 2, 113, 403, 64, 3, 2, points=0.1, required=True),
        full("stride 1: dense attention", 1, 2, 49, 70, 32, stride=1, points=0.05),
        full("1 query, 1 key, head_dim 1", 1, 1, 1, 1, 1, stride=1, points=0.05),
        full("31 keys, 3 + 4n, head_dim 5", 2, 2, 7, 31, 5, 4, 3, points=0.05),
        full("stride S_k: one key", 1, 2, 20, 33, 16, 33, 32, points=0.05),
        full("333 keys, 1 + 5n, head_dim 80", 1, 2, 50, 333, 80, 5, 1, points=0.05),
        full("520 keys, 7 + 8n, head_dim 128", 1, 2, 33, 520, 128, 8, 7, points=0.1),
        full("a peak at each key in turn", 1, 2, 80, 300, 32, 2, change=peaks(even), required=True),
        full("scores that rise and fall", 1, 2, 40, 300, 32, 2, 1, change=rising_and_falling, points=0.05),
        full("scores far below 0", 1, 2, 40, 300, 32, 2, change=far_below_0, points=0.05),
        full("the first 130 keys masked", 1, 2, 40, 500, 32, 3, change=first_keys_masked(130), points=0.05),
        full("infinity between strided keys", 1, 2, 40, 130, 16, 3, 1, change=unread(3, 1), scale=0.5, points=0.05),
        full("70,000 heads", 70_000, 1, 2, 5, 4, stride=2, gpu_only=True, draws=1),
        repeated(full("50 identical runs, 4096 keys, stride 8", 2, 4, 1023, 4096, 64, 8, gpu_only=True), 50),
    ]


def causal_cases() -> list[Case]:
    """With a causal mask, aligned to the top left where the numbers of queries and keys differ."""
    causal = partial(strided_case, "causal", True)
    return [
        causal("64 tokens, stride 2", 2, 3, 64, 64, 64, stride=2, points=0.1, required=True),
        causal("203 tokens, 2 + 3n", 1, 2, 203, 203, 64, 3, 2, points=0.1, required=True),
        causal("stride 1: dense attention", 1, 2, 100, 100, 32, stride=1, points=0.1),
        causal("1 token, head_dim 1", 1, 1, 1, 1, 1, stride=1, points=0.05),
        causal("60 + 64n: rows that see no key", 1, 2, 130, 130, 40, 64, 60, points=0.1),
        causal("113 queries, 203 keys, 1 + 2n", 1, 2, 113, 203, 64, 2, 1, points=0.1),
        causal("203 queries, 113 keys, 1 + 4n", 1, 2, 203, 113, 64, 4, 1, points=0.05),
        causal("300 tokens, 5 + 8n", 1, 1, 300, 300, 128, 8, 5, points=0.05),
        causal("rows of -inf", 1, 2, 60, 60, 8, 2, change=blind_rows, points=0.05),
        repeated(causal("50 identical runs", 1, 2, 70, 100, 32, stride=2, points=0.05), 50),
        causal("4095 tokens, 3 + 4n", 2, 4, 4095, 4095, 128, 4, 3, gpu_only=True, draws=1),
    ]


def even(row: int, keys: int) -> int:
    """The keys that stride 2 sees, one after another, for use with `peaks`."""
    return 2 * row % keys


def unread(stride: int, offset: int) -> Callable[[dict[str, Tensor]], None]:
    """Makes keys and values that no query attends to infinite: a weight of 0 would not hide them."""

    def change(inputs: dict[str, Tensor]) -> None:
        for position in range(inputs["key"].size(2)):
            if position % stride != offset:
                inputs["key"][:, :, position] = inputs["value"][:, :, position] = math.inf

    return change


def strided_case(
    part: str,
    causal: bool,
    name: str,
    batch: int,
    heads: int,
    seq_q: int,
    seq_k: int,
    head_dim: int,
    stride: int,
    offset: int = 0,
    scale: float | None = None,
    **options,
) -> Case:
    """A case for strided_attention; sizes and further options are those of attention_case."""
    made = attention_case(
        "strided_attention", part, name, batch, heads, seq_q, seq_k, head_dim, causal, nan_hint=NAN_HINT, **options
    )
    arguments = {"stride": stride, "offset": offset, "causal": causal, "scale": scale}
    return replace(
        made,
        call=lambda ops, query, key, value: ops.strided_attention(query, key, value, **arguments),
        reference=partial(naive_strided_attention, **arguments),
        mistakes=partial(strided_mistakes, **arguments),
        stages=partial(_over_all_keys, **arguments),
        steps=None,
    )


def _over_all_keys(query: Tensor, key: Tensor, value: Tensor, stride: int, offset: int, **options) -> dict[str, Tensor]:
    """strided_stages with one column of S and P for every key, not just the strided ones."""
    stages = strided_stages(query, key, value, stride, offset, **options)
    for name, elsewhere in (("S", -math.inf), ("P", 0.0)):
        whole = stages[name].new_full((*stages[name].shape[:-1], key.size(-2)), elsewhere)
        whole[..., offset::stride] = stages[name]
        stages[name] = whole
    return stages
