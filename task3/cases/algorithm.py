"""Cases for flash_attention of attention.py: its results and its memory use."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from common.measure.allocations import AllocationRecorder
from common.reference import oracle as reference
from common.testing.case import Case
from common.testing.cases.attention_cases import (
    attention_case,
    blind_rows,
    far_below_0,
    first_keys_masked,
    peaks,
    rising_and_falling,
)
from common.testing.python_side import naming_the_line, python_side
from task3.cases.functions import FUNCTIONS
from task3.cases.memory import causal_complaint, complaint

ALL_NAN_HINT = (
    "In the first tile m_old is -inf, so exp(m_old - m_new) is 0. What is multiplied by it is "
    "0; what is divided by it is NaN (0 / 0), and stays NaN. Line 10 of Algorithm 1 is misprinted, see the handout."
)


def flash_attention(ops, *args, **options):
    """flash_attention of attention.py; an error in it names its line."""
    python = python_side(ops)
    with naming_the_line(python):
        return python.flash_attention(*args, **options)


def algorithm_cases() -> list[Case]:
    """Tile sizes that divide the lengths and ones that don't, rows that see no key, and memory use."""

    def case(name, batch, heads, seq_q, seq_k, head_dim, B_r, B_c, causal=False, scale=None, **options) -> Case:
        made = attention_case(
            *("", "algorithm", name, batch, heads, seq_q, seq_k, head_dim, causal),
            scale=scale,
            tiles=(B_r, B_c),
            nan_hint=ALL_NAN_HINT,
            **options,
        )
        return replace(
            made,
            call=lambda ops, query, key, value: flash_attention(ops, query, key, value, causal, scale, B_r, B_c),
            python=FUNCTIONS,
        )

    causal = partial(case, causal=True)
    return [
        case("one tile", 2, 2, 16, 16, 8, 16, 16, points=0.1, required=True),
        case("113 queries, 203 keys", 1, 2, 113, 203, 16, 32, 64, points=0.2, required=True),
        causal("causal, 96 tokens", 2, 2, 96, 96, 16, 32, 16, points=0.2, required=True),
        measured(causal("memory", 1, 2, 512, 640, 8, 32, 64, points=0.2, required=True), 32, 64),
        measured(case("memory, many keys", 1, 1, 4, 6_400, 64, 4, 64, required=True), 4, 64),
        case("1 query, 1 key, head_dim 1", 1, 1, 1, 1, 1, 4, 4, points=0.05),
        case("tiles of 3 x 5", 2, 1, 7, 33, 5, 3, 5, points=0.05),
        case("tiles larger than the input", 1, 2, 40, 50, 8, 128, 128, points=0.05),
        causal("causal, 70 queries, 50 keys", 1, 2, 70, 50, 8, 32, 16, points=0.05),
        measured(
            causal("no tiles above the diagonal", 1, 1, 256, 256, 8, 32, 32, points=0.05), 32, 32, causal_complaint
        ),
        causal("causal, 50 queries, 70 keys", 1, 2, 50, 70, 8, 16, 32, points=0.1),
        case("scores that rise and fall", 1, 2, 40, 150, 32, 16, 32, change=rising_and_falling, points=0.1),
        case("scores far below 0", 1, 2, 40, 150, 32, 16, 32, change=far_below_0, points=0.1),
        case("a peak at each key in turn", 1, 2, 80, 150, 32, 16, 32, change=peaks(), required=True),
        case("scores beyond 88", 1, 2, 60, 60, 16, 16, 16, sharpness=7.0, points=0.05),
        case("the first 70 keys masked", 1, 2, 40, 150, 32, 16, 32, change=first_keys_masked(70), points=0.05),
        case("rows that see nothing", 1, 2, 40, 50, 8, 16, 16, change=blind_rows, points=0.1),
        case("scale 0.5", 1, 2, 40, 70, 16, 16, 32, scale=0.5, points=0.05),
        lse_of(causal("with the logsumexp", 1, 2, 40, 50, 8, 16, 32, change=blind_rows), True, B_r=16, B_c=32),
        causal("causal, 1023 tokens", 2, 4, 1023, 1023, 64, 128, 64, gpu_only=True),
    ]


def measured(case: Case, B_r: int, B_c: int, complaint: Callable[..., str] = complaint) -> Case:
    """The case of flash_attention(..., B_r, B_c); it also fails if `complaint` reports the call's memory use."""

    def call(ops, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if query.is_cuda:
            case.call(ops, query, key, value)  # on the first call, libraries allocate memory of their own
        line = getattr(python_side(ops), "calling_line", None)  # of code that runs in another process
        with AllocationRecorder(query.device, line, (query, key, value), query, key) as made:
            out = case.call(ops, query, key, value)
        if too_much := complaint(made, query, key, B_r, B_c):
            raise RuntimeError(too_much)
        return out

    return replace(case, call=call, draws=1)


def lse_of(case: Case, causal: bool, B_r: int, B_c: int) -> Case:
    """The case, testing the logsumexp (return_lse=True) in place of the output."""
    return replace(
        case,
        call=lambda ops, query, key, value: flash_attention(
            ops, query, key, value, causal, None, B_r, B_c, return_lse=True
        )[1],
        reference=lambda query, key, value: torch.logsumexp(reference.scores(query, key, causal), -1),
        axes=("batch", "head", "row"),
        mistakes=None,
        stages=None,
        steps=None,
        values="",
    )
