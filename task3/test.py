"""Tests task 3's algorithm and kernels against a float64 reference.

python -m task3.test [--algorithm] [--softmax] [--merge] [--solution] [--backend cuda|simulator] [--seed N]
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from common import attention_reference as reference
from common import merge_mistakes
from common.allocations import AllocationRecorder
from common.attention_cases import attention_case, blind_rows, far_below_0, first_keys_masked, rising_and_falling
from common.checking import Case, running_sum_floor
from common.cli import test_main
from common.known_mistakes import softmax_mistakes
from common.online_softmax_mistakes import online_softmax_mistakes, row_lse_mistakes
from common.python_side import naming_the_line, python_side
from task3 import memory

PARTS = {
    "algorithm": "test flash_attention of attention.py only",
    "softmax": "test the online softmax kernel only",
    "merge": "test the merge kernel only",
}
ALL_NAN_HINT = (
    "If every element is NaN: in the first tile m_old is -inf, so exp(m_old - m_new) is 0. What is multiplied by it is "
    "0; what is divided by it is NaN (0 / 0), and stays NaN. Line 10 of Algorithm 1 is misprinted, see the handout."
)
THREADS, ITEMS = 256, 4  # of online_softmax_kernel: threads per row, columns that each takes in at a time


def cases() -> list[Case]:
    """All test cases; the algorithm is worth 1.5 points, the kernels 0.75 each."""
    return algorithm_cases() + softmax_cases() + merge_cases()


# ------------------------------------------------------------------------------------------------------ algorithm


def flash_attention(ops, *args, **options):
    """flash_attention of attention.py; an error in it names its line."""
    python = python_side(ops)
    with naming_the_line(python):
        return python.flash_attention(*args, **options)


def algorithm_cases() -> list[Case]:
    """Tiles that fit, tiles that do not, rows that see nothing; the memory that it takes."""

    def case(name, batch, heads, seq_q, seq_k, head_dim, B_r, B_c, causal=False, scale=None, **options) -> Case:
        made = attention_case(
            "",
            "algorithm",
            name,
            batch,
            heads,
            seq_q,
            seq_k,
            head_dim,
            causal,
            scale=scale,
            tiles=(B_r, B_c),
            hint=ALL_NAN_HINT,
            **options,
        )
        return replace(
            made, call=lambda ops, query, key, value: flash_attention(ops, query, key, value, causal, scale, B_r, B_c)
        )

    causal = partial(case, causal=True)
    return [
        case("one tile", 2, 2, 16, 16, 8, 16, 16, points=0.1, required=True),
        case("113 queries, 203 keys", 1, 2, 113, 203, 16, 32, 64, points=0.2, required=True),
        causal("causal, 96 tokens", 2, 2, 96, 96, 16, 32, 16, points=0.2, required=True),
        measured(causal("memory", 1, 2, 512, 640, 8, 32, 64, points=0.2, required=True), B_r=32, B_c=64),
        case("1 query, 1 key, head_dim 1", 1, 1, 1, 1, 1, 4, 4, points=0.05),
        case("tiles of 3 x 5", 2, 1, 7, 33, 5, 3, 5, points=0.05),
        case("tiles larger than the input", 1, 2, 40, 50, 8, 128, 128, points=0.05),
        causal("causal, 70 queries, 50 keys", 1, 2, 70, 50, 8, 32, 16, points=0.1),
        causal("causal, 50 queries, 70 keys", 1, 2, 50, 70, 8, 16, 32, points=0.1),
        case("scores that rise and fall", 1, 2, 40, 150, 32, 16, 32, change=rising_and_falling, points=0.1),
        case("scores far below 0", 1, 2, 40, 150, 32, 16, 32, change=far_below_0, points=0.1),
        case("scores beyond 88", 1, 2, 60, 60, 16, 16, 16, sharpness=7.0, points=0.05),
        case("the first 70 keys masked", 1, 2, 40, 150, 32, 16, 32, change=first_keys_masked(70), points=0.05),
        case("rows that see nothing", 1, 2, 40, 50, 8, 16, 16, change=blind_rows, points=0.1),
        case("scale 0.5", 1, 2, 40, 70, 16, 16, 32, scale=0.5, points=0.05),
        lse_of(causal("with the logsumexp", 1, 2, 40, 50, 8, 16, 32, change=blind_rows), True, B_r=16, B_c=32),
        causal("causal, 1023 tokens", 2, 4, 1023, 1023, 64, 128, 64, gpu_only=True),
    ]


def measured(case: Case, B_r: int, B_c: int) -> Case:
    """The case of flash_attention(..., B_r, B_c); it also fails if the call takes too much memory."""

    def call(ops, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        case.call(ops, query, key, value)  # a GPU's libraries take memory of their own on the first call
        with AllocationRecorder(query.device) as made:
            out = case.call(ops, query, key, value)
        if too_much := memory.complaint(made, query, key, B_r, B_c):
            raise RuntimeError(too_much)
        return out

    return replace(case, call=call, draws=1)


def lse_of(case: Case, causal: bool, B_r: int, B_c: int) -> Case:
    """The case with the logsumexp that flash_attention returns when asked to, in place of the output."""
    return replace(
        case,
        call=lambda ops, query, key, value: flash_attention(
            ops, query, key, value, causal, None, B_r, B_c, return_lse=True
        )[1],
        reference=lambda query, key, value: torch.logsumexp(reference.scores(query, key, causal), -1),
        axes=("batch", "head", "row"),
        mistakes=None,
        stages=None,
    )


# -------------------------------------------------------------------------------------------------------- softmax


def softmax_cases() -> list[Case]:
    """y and lse of online_softmax for every way in which a row can be awkward."""

    def both(rows: int, cols: int, change: Callable[[Tensor], Tensor]) -> dict:
        return {
            "part": "softmax",
            "inputs": lambda generator: {"x": change(4 * torch.randn(rows, cols, generator=generator))},
        }

    def y(name: str, rows: int, cols: int, change=lambda x: x, **options) -> Case:
        return Case(
            name,
            call=lambda ops, x: ops.online_softmax(x)[0],
            reference=reference.softmax,
            floor=1e-6,
            axes=("row", "col"),
            mistakes=lambda x: softmax_mistakes(x) + online_softmax_mistakes(x, THREADS, ITEMS),
            is_softmax=True,
            **both(rows, cols, change),
            **options,
        )

    def lse(name: str, rows: int, cols: int, change=lambda x: x, size: float = 16.0, **options) -> Case:
        return Case(
            name,
            call=lambda ops, x: ops.online_softmax(x)[1],
            reference=lambda x: torch.logsumexp(x, -1),
            floor=1e-6 + 2.0**-23 * size,  # `size` is how large lse becomes: m + log(l) is rounded
            axes=("row",),
            mistakes=lambda x: row_lse_mistakes(x, THREADS, ITEMS),
            **both(rows, cols, change),
            **options,
        )

    return [
        y("one warp wide", 5, 32, points=0.05, required=True),
        y("113 x 203", 113, 203, points=0.05, required=True),
        y("1023 x 1024", 1023, 1024, points=0.05, required=True),
        y("one element", 1, 1, points=0.05),
        y("7 x 31, all below 0", 7, 31, lambda x: -2 - x.abs(), points=0.05),
        y("1025 columns", 2, 1025, points=0.05),
        y("4099 columns", 3, 4099, points=0.05, required=True),
        y("large offsets", 6, 300, with_offsets, points=0.05, required=True),
        y("masked entries, a masked row", 9, 1500, with_masks, points=0.05),
        y("rows that rise and fall", 6, 5000, with_slopes, points=0.05),
        y("numbers around 10,000", 7, 300, lambda x: x + 10_000, points=0.05),
        y("70,001 columns", 1, 70_001, points=0.05),
        lse("lse, 113 x 203", 113, 203, points=0.05, required=True),
        lse("lse, large offsets", 6, 300, with_offsets, size=1024.0, points=0.05),
        lse("lse, a masked row", 9, 1500, with_masks, points=0.05),
        y("100,000 rows", 100_000, 3, gpu_only=True),
        lse("lse, 4096 x 4096", 4096, 4096, gpu_only=True),
    ]


def with_offsets(x: Tensor) -> Tensor:
    """Rows around 1000 and -1000, where exp() of the entries themselves gives inf and 0."""
    return x + torch.tensor([0.0, 1000.0, -1000.0]).repeat(x.size(0) // 3)[:, None]


def with_masks(x: Tensor) -> Tensor:
    """-inf in scattered places, in the first 1100 columns of row 1, in the last 100 of row 2, and all over row 4."""
    x = x.masked_fill(torch.arange(x.numel()).view(x.shape) % 7 == 3, -math.inf)
    x[1, :1100], x[2, -100:], x[4] = -math.inf, -math.inf, -math.inf
    return x


def with_slopes(x: Tensor) -> Tensor:
    """Even rows rise by 200 from the first column to the last, odd rows fall: the maximum is found late or at once."""
    slope = torch.linspace(-100, 100, x.size(1))
    return x + torch.where(torch.arange(x.size(0))[:, None] % 2 == 0, slope, -slope)


# ---------------------------------------------------------------------------------------------------------- merge


def merge_cases() -> list[Case]:
    """Any number of parts, parts that saw nothing, and the parts of an attention that was split along the keys."""

    def inputs(parts: int, rows: int, head_dim: int, offset: float, empty: bool):
        def make(generator: torch.Generator) -> dict[str, Tensor]:
            outs = 2 + torch.randn(parts, rows, head_dim, generator=generator)
            lse = 2 * torch.randn(parts, rows, generator=generator)
            lse[:, ::2] += offset
            if empty:  # a third; all of row 0, all but one of row 1, none of row 2; what they hold must not matter
                unseen = torch.rand(parts, rows, generator=generator) < 1 / 3
                unseen[:, 0], unseen[:, 1], unseen[:, 2] = True, torch.arange(parts) != parts // 2, False
                lse[unseen] = -math.inf
                unseen[:, ::2] = False
                outs[unseen] = -math.nan
            return {"outs": outs, "lse": lse}

        return make

    def out(name: str, parts: int, rows: int, head_dim: int, offset=0.0, empty=False, **options) -> Case:
        return Case(
            name,
            "merge",
            inputs(parts, rows, head_dim, offset, empty),
            lambda ops, outs, lse: ops.merge_states(outs, lse)[0],
            lambda outs, lse: merge_mistakes.merge_states(outs, lse)[0],
            floor=1e-6 + running_sum_floor(parts, 4),
            axes=("row", "col"),
            mistakes=merge_mistakes.merge_mistakes,
            **options,
        )

    def lse(name: str, parts: int, rows: int, offset=0.0, empty=False, **options) -> Case:
        return Case(
            name,
            "merge",
            inputs(parts, rows, 3, offset, empty),
            lambda ops, outs, lse: ops.merge_states(outs, lse)[1],
            lambda outs, lse: merge_mistakes.merge_states(outs, lse)[1],
            floor=1e-6 + 2.0**-23 * (abs(offset) + 16),
            axes=("row",),
            mistakes=lambda outs, lse: merge_mistakes.merged_lse_mistakes(lse),
            **options,
        )

    return [
        out("2 parts", 2, 5, 16, points=0.1, required=True),
        out("8 parts, head_dim 64", 8, 13, 64, points=0.05, required=True),
        out("1 part", 1, 4, 8, points=0.05),
        out("33 parts", 33, 3, 20, points=0.05),
        out("100 parts, 1 row", 100, 1, 7, points=0.05),
        out("head_dim 1", 5, 37, 1, points=0.05),
        out("head_dim 200", 3, 6, 200, points=0.05),
        out("empty parts", 7, 30, 24, empty=True, points=0.1),
        out("lse beyond 88", 6, 20, 16, offset=200.0, points=0.05, required=True),
        out("lse of 10,000", 6, 20, 16, offset=1e4, points=0.05),
        lse("merged lse", 8, 13, points=0.05, required=True),
        lse("merged lse, empty parts", 7, 30, offset=100.0, empty=True, points=0.05),
        split_attention_case("attention split over the keys", 2, 2, 21, 90, 16, False, (1, 40, 17, 32), points=0.02),
        split_attention_case("causal attention, split", 2, 2, 40, 40, 16, True, (16, 16, 8), points=0.03),
        out("64 parts, 70,000 rows", 64, 70_000, 128, empty=True, gpu_only=True, draws=1),
    ]


def split_attention_case(name, batch, heads, seq_q, seq_k, head_dim, causal: bool, sizes: tuple[int, ...], **options):
    """Attention over each of several sets of keys, merged, against attention over all of them."""

    def call(ops, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = reference.scores(query, key, causal).split(sizes, -1)
        outs = [reference.softmax(s) @ v for s, v in zip(scores, value.split(sizes, -2), strict=True)]
        lse = [torch.logsumexp(s, -1) for s in scores]
        rows = batch * heads * seq_q
        out, _ = ops.merge_states(
            torch.stack(outs).view(len(sizes), rows, head_dim), torch.stack(lse).view(len(sizes), rows)
        )
        return out.view(query.shape)

    made = attention_case("", "merge", name, batch, heads, seq_q, seq_k, head_dim, causal, **options)
    return replace(made, call=call, mistakes=None, stages=None)


if __name__ == "__main__":
    raise SystemExit(test_main("task3", PARTS, cases()))
