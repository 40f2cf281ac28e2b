"""Cases for flash_attention, unmasked and causal."""

from dataclasses import replace
from functools import partial

from torch import Tensor

from common.diagnosis.mistakes.known import Mistake
from common.testing.case import Case
from common.testing.cases.attention_cases import (
    attention_case,
    blind_rows,
    equal_scores,
    far_below_0,
    first_keys_masked,
    peaks,
    repeated,
    rising_and_falling,
)
from task4.cases.mistakes import kernel_mistakes
from task4.given.tiles import tiles_for

NAN_HINT = (
    "Where NaN comes from: something was read that no thread had written (a tile's padding must be set to 0; a barrier "
    "must stand between writing and reading a tile), or -inf was subtracted from -inf (a row that has seen no key "
    "yet), or the factor is upside down: exp2f(m - m_new) is at most 1, its inverse is infinite in the first tile."
)


def full_cases() -> list[Case]:
    """Without a mask: sizes that fill the tiles and sizes that don't, every head_dim, scores of every kind."""
    full = partial(case, "full", causal=False)
    return [
        full("64 tokens", 2, 3, 64, 64, 64, points=0.1, required=True),
        full("113 queries, 203 keys", 1, 2, 113, 203, 64, points=0.15, required=True),
        full("1 query, 1 key, head_dim 1", 1, 1, 1, 1, 1, points=0.05),
        full("7 queries, 31 keys, head_dim 5", 2, 2, 7, 31, 5, points=0.05),
        full("1 query, 257 keys", 1, 3, 1, 257, 40, points=0.05),
        full("257 queries, 1 key", 1, 2, 257, 1, 32, points=0.05),
        full("head_dim 80", 1, 2, 65, 95, 80, points=0.05),
        full("head_dim 128", 1, 2, 33, 129, 128, points=0.1),
        full("peaked rows, scores beyond 88", 1, 2, 100, 100, 64, sharpness=7.0, points=0.05),
        full("a peak at each key in turn", 1, 2, 80, 150, 32, change=peaks(), required=True),
        full("scores that rise and fall", 1, 2, 40, 150, 32, change=rising_and_falling, points=0.05),
        full("scores far below 0", 1, 2, 40, 150, 32, change=far_below_0, points=0.05),
        full("all scores equal", 1, 2, 40, 150, 32, change=equal_scores, points=0.05),
        full("the first 130 keys masked", 1, 2, 40, 250, 32, change=first_keys_masked(130), points=0.05),
        full("rows that see nothing", 1, 2, 40, 50, 8, change=blind_rows, points=0.05),
        full("scale 0.5", 1, 2, 40, 70, 16, scale=0.5, points=0.05),
        repeated(full("50 identical runs", 1, 2, 70, 100, 64, points=0.05), 50),
        full("1023 queries, 1024 keys", 2, 4, 1023, 1024, 128, gpu_only=True),
        full("70,000 heads", 70_000, 1, 2, 3, 4, gpu_only=True, draws=1),
        repeated(full("50 identical runs, 1023 queries, 1024 keys", 2, 4, 1023, 1024, 64, gpu_only=True), 50),
    ]


def causal_cases() -> list[Case]:
    """With a causal mask, in both alignments where the numbers of queries and keys differ."""
    causal = partial(case, "causal", causal=True)

    def lower_right(name, *sizes, **options) -> Case:
        return causal(f"{name}, lower right", *sizes, lower_right=True, **options)

    return [
        causal("64 tokens", 2, 3, 64, 64, 64, points=0.1, required=True),
        causal("203 tokens", 1, 2, 203, 203, 64, points=0.15, required=True),
        causal("1 token, head_dim 1", 1, 1, 1, 1, 1, points=0.05),
        causal("31 tokens, head_dim 5", 2, 2, 31, 31, 5, points=0.05),
        causal("33 tokens, head_dim 96", 1, 2, 33, 33, 96, points=0.05),
        causal("129 tokens, head_dim 128", 1, 1, 129, 129, 128, points=0.1),
        causal("113 queries, 203 keys", 1, 2, 113, 203, 64, points=0.1),
        causal("203 queries, 113 keys", 1, 2, 203, 113, 64, points=0.05),
        lower_right("113 queries, 203 keys", 1, 2, 113, 203, 64, points=0.1),
        lower_right("203 queries, 113 keys", 1, 2, 203, 113, 64, points=0.1),
        lower_right("1 query, 257 keys", 1, 3, 1, 257, 40, points=0.05),
        causal("peaked rows, scores beyond 88", 1, 2, 100, 100, 32, sharpness=7.0, points=0.05),
        lower_right("rising and falling", 1, 2, 40, 150, 32, change=rising_and_falling, points=0.05),
        causal("1023 tokens", 2, 4, 1023, 1023, 128, gpu_only=True),
        lower_right("1023 queries, 1024 keys", 2, 4, 1023, 1024, 128, gpu_only=True),
        causal("16,384 tokens", 1, 1, 16_384, 16_384, 64, gpu_only=True, draws=1),
    ]


def case(part, name, *sizes, causal, scale=None, lower_right=False, **options) -> Case:
    """A case for flash_attention; sizes and options are those of attention_case."""
    tiles = tiles_for(sizes[-1])
    arguments = {"causal": causal, "scale": scale, "lower_right": lower_right}
    made = attention_case(
        "flash_attention", part, name, *sizes, tiles=(tiles.B_r, tiles.B_c), nan_hint=NAN_HINT, **arguments, **options
    )

    def mistakes(query: Tensor, key: Tensor, value: Tensor) -> list[Mistake]:
        return made.mistakes(query, key, value) + kernel_mistakes(query, key, value, **arguments)

    return replace(made, mistakes=mistakes)
