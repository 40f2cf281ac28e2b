"""The test cases of task 5's second half: window_cases() and block_cases(), worth 0.75 points each."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from common.testing.case import Case
from common.testing.cases.attention_cases import (
    MaskMaker,
    attention_case,
    blind_rows,
    bool_mask,
    peaks,
    repeated,
    rising_and_falling,
)
from task5.cases.block_mistakes import block_mistakes, list_mistakes, lists
from task5.cases.window_mistakes import window_mistakes
from task5.given.reference import (
    block_sparse_mask,
    masked_stages,
    naive_block_sparse_attention,
    naive_compress_block_mask,
    naive_sliding_window_attention,
    sliding_window_mask,
)

WINDOW_HINT = (
    "If rows at one end of a block of 48 are wrong, look at the first and the last key of the range; if all are, at "
    "the mask."
)
WINDOW_NAN_HINT = "Where NaN comes from: a key outside the range was read, or a given function was changed."
BLOCK_HINT = (
    "Try a mask with a single true block first. Which row of the mask does this block of the grid follow, which keys "
    "does a listed number stand for, and is every tile of the block visited once?"
)
NO_BLOCKS = "invalid block numbers"
LIST_HINT = "Print one row of the mask and its list: which lanes hold a true block, and how many lower lanes do?"


def window_cases() -> list[Case]:
    """Sliding windows, causal except for "both sides". In a name, 113 x 203 means S_q x S_k."""
    one, both = partial(window_case, causal=True), partial(window_case, causal=False)
    return [
        one("64 tokens, window 16", 2, 3, 64, 64, 64, 16, points=0.1, required=True),
        one("203 tokens, window 37", 1, 2, 203, 203, 64, 37, points=0.1, required=True),
        one("window 1: only its own key", 1, 2, 70, 70, 32, 1, points=0.05),
        one("1 token, head_dim 1", 1, 1, 1, 1, 1, 1, points=0.05),
        one("window 1000: causal attention", 1, 2, 100, 100, 16, 1000, points=0.05),
        one("113 x 203, window 50", 1, 2, 113, 203, 64, 50, points=0.05),
        one("203 x 60, window 30: blind rows", 1, 2, 203, 60, 40, 30, points=0.05),
        one("300 tokens, window 97", 1, 1, 300, 300, 128, 97, points=0.05),
        both("both sides: window 20", 1, 2, 100, 100, 32, 20, points=0.05),
        both("both sides: 150 x 113", 1, 2, 150, 113, 80, 33, points=0.05),
        one("a peak at each key in turn", 1, 2, 100, 100, 32, 40, change=peaks(in_the_window), required=True),
        one("rows of -inf", 1, 2, 100, 100, 8, 40, change=blind_rows, points=0.05),
        one("infinity where no query looks", 1, 2, 40, 300, 16, 20, change=unread(200), scale=0.5, points=0.05),
        repeated(one("50 identical runs", 1, 2, 100, 100, 32, 30, points=0.05), 50),
        one("4095 tokens, window 256", 2, 4, 4095, 4095, 128, 256, gpu_only=True, draws=1),
        both("both sides: 70,000 heads", 70_000, 1, 2, 5, 4, 2, gpu_only=True, draws=1),
    ]


def in_the_window(row: int, keys: int) -> int:
    """One of the last 40 keys that the query in this row sees, for use with `peaks`."""
    query = row % keys
    return query - (row * 7 + row // 20) % min(40, query + 1)  # row // 20: otherwise every key would be even


def unread(first: int) -> Callable[[dict[str, Tensor]], None]:
    """Makes the keys and values from `first` on infinite: no block of queries may read them."""

    def change(inputs: dict[str, Tensor]) -> None:
        inputs["key"][:, :, first:] = inputs["value"][:, :, first:] = math.inf

    return change


def window_case(
    name: str,
    batch: int,
    heads: int,
    seq_q: int,
    seq_k: int,
    head_dim: int,
    window: int,
    causal: bool,
    scale: float | None = None,
    **options,
) -> Case:
    """A case for sliding_window_attention; sizes and options are those of attention_case."""
    sizes = (batch, heads, seq_q, seq_k, head_dim)
    made = attention_case(
        "sliding_window_attention",
        "window",
        name,
        *sizes,
        causal=causal,
        hint=WINDOW_HINT,
        nan_hint=WINDOW_NAN_HINT,
        **options,
    )
    arguments = {"window": window, "causal": causal, "scale": scale}

    def stages(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
        return masked_stages(query, key, value, sliding_window_mask(seq_q, seq_k, window, causal, query.device), scale)

    return replace(
        made,
        call=lambda ops, query, key, value: ops.sliding_window_attention(query, key, value, **arguments),
        reference=partial(naive_sliding_window_attention, **arguments),
        mistakes=partial(window_mistakes, **arguments),
        stages=stages,
        steps=None,
    )


def block_cases() -> list[Case]:
    """Lists of blocks, and attention to them. In a name, 96 x 128 by 32 means S_q x S_k by block.

    Except in the last case, PyTorch makes the lists for the attention, so that each kernel is tested by itself.
    """
    full, causal = partial(block_case, causal=False), partial(block_case, causal=True)
    some = bool_mask(2, 6, 6, nothing_for=(0, 3))
    return [
        list_case("lists: 3 x 4 x 5", bool_mask(3, 4, 5, nothing_for=(1,)), points=0.05, required=True),
        list_case("lists: 2 x 3 x 100", bool_mask(2, 3, 100), points=0.05),
        list_case("lists: 1 x 7 x 65, all true", lambda generator: torch.ones(1, 7, 65).byte(), points=0.05),
        full("96 x 128 by 32", 2, 3, 96, 128, 64, 32, points=0.05, required=True),
        full("256 x 256 by 64", 1, 2, 256, 256, 32, 64, points=0.05),
        causal("causal, 256 x 256 by 64", 2, 2, 256, 256, 16, 64, points=0.05),
        full("rows without a block", 1, 2, 192, 192, 40, 32, mask=some, points=0.05),
        causal("causal, 384 x 384 by 128", 1, 1, 384, 384, 128, 128, points=0.05),
        causal("causal, 96 x 288 by 96", 1, 3, 96, 288, 5, 96, points=0.05),
        full("a peak at each key in turn", 1, 2, 64, 64, 32, 32, mask=all_blocks, change=peaks(), required=True),
        full("scores that rise and fall", 1, 2, 64, 256, 32, 32, change=rising_and_falling, points=0.05),
        full("infinity in unlisted blocks", 1, 2, 96, 192, 16, 32, mask=column_1_unlisted, scale=0.5, points=0.05),
        full("other blocks after the count", 1, 2, 128, 256, 32, 32, made_by=stale, points=0.05),
        full(NO_BLOCKS, 1, 2, 128, 256, 32, 32, made_by=no_blocks, points=0.05),
        repeated(causal("50 identical runs", 1, 2, 64, 64, 32, 32, points=0.05), 50),
        full("both kernels, 192 x 192 by 96", 1, 2, 192, 192, 64, 96, made_by=None, points=0.05, step=1),
        causal("causal, 4096 x 4096 by 128", 2, 4, 4096, 4096, 128, 128, made_by=None, gpu_only=True, draws=1),
        list_case("lists: 16 x 1024 x 1000", bool_mask(16, 1024, 1000), gpu_only=True, draws=1),
    ]


def list_case(name: str, mask: MaskMaker, **options) -> Case:
    """A case for compress_block_mask: its two outputs as one, see task5.cases.block_mistakes.lists."""

    def call(ops, block_mask: Tensor) -> Tensor:
        counts, columns = ops.compress_block_mask(block_mask.view(torch.bool))
        both = torch.cat([counts[..., None], columns], -1)
        return both.float().masked_fill(both == torch.iinfo(torch.int32).max, math.nan)  # the poison value for integers

    return Case(
        name,
        "blocks",
        lambda generator: {"block_mask": mask(generator)},
        call,
        lists,
        floor=1e-3,  # integers: nothing is rounded
        axes=("head", "row", "entry (0: count)"),
        mistakes=list_mistakes,
        hint=LIST_HINT,
        **options,
    )


def column_1_unlisted(generator: torch.Generator) -> Tensor:
    """[2, 3, 6]; no row lists block 1."""
    mask = bool_mask(2, 3, 6)(generator)
    mask[..., 1] = 0
    return mask


def all_blocks(generator: torch.Generator) -> Tensor:
    """[2, 2, 2], every block listed."""
    return torch.ones(2, 2, 2).byte()


def stale(block_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The lists; after its count, each holds the indices of the other blocks, as if left over from an older list."""
    counts, _ = naive_compress_block_mask(block_mask)
    return counts, torch.sort((~block_mask).int(), dim=-1, stable=True).indices.int()


def no_blocks(block_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The lists with counts that are too large, and with invalid block indices before and after the valid ones."""
    counts, columns = naive_compress_block_mask(block_mask)
    wild = torch.tensor([-1, 2**31 - 1, -(2**31), columns.size(-1)], dtype=columns.dtype, device=columns.device)
    wild = wild.repeat(-(-columns.size(-1) // 4))[: columns.size(-1)]
    listed, has_room = torch.where(columns < 0, wild, columns), columns[..., -1:] < 0
    return counts + 1000, torch.where(has_room, listed.roll(1, -1), listed)


def block_case(
    name: str,
    batch: int,
    heads: int,
    seq_q: int,
    seq_k: int,
    head_dim: int,
    block: int,
    causal: bool,
    scale: float | None = None,
    mask: MaskMaker | None = None,
    made_by: Callable[[Tensor], tuple[Tensor, Tensor]] | None = naive_compress_block_mask,
    **options,
) -> Case:
    """A case for block_sparse_attention.

    Args:
        name, causal, scale: as in the other cases.
        batch, heads, seq_q, seq_k, head_dim, options: see common.testing.cases.attention_cases.attention_case.
        block: rows and columns of a block.
        mask: makes the block mask, uint8 [heads, seq_q / block, seq_k / block]; by default about two blocks in three.
            Keys and values of a block that no row of any head lists become infinite.
        made_by: block mask -> (counts, columns); None: the operator compress_block_mask.
    """
    sizes = (batch, heads, seq_q, seq_k, head_dim)
    made = attention_case("block_sparse_attention", "blocks", name, *sizes, causal=causal, hint=BLOCK_HINT, **options)
    make_mask = mask or bool_mask(heads, seq_q // block, seq_k // block)
    arguments = {"block": block, "causal": causal, "scale": scale}

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        found = made.inputs(generator)
        block_mask = make_mask(generator)
        unlisted = (block_mask.amax((0, 1)) == 0).repeat_interleave(block)  # [S_k]
        for tensor in (found["key"], found["value"]):
            tensor.masked_fill_(unlisted[:, None], math.inf)
        return {**found, "block_mask": block_mask}

    def call(ops, query: Tensor, key: Tensor, value: Tensor, block_mask: Tensor) -> Tensor:
        counts, columns = (made_by or ops.compress_block_mask)(block_mask.view(torch.bool))
        return ops.block_sparse_attention(query, key, value, counts, columns, **arguments)

    def stages(query: Tensor, key: Tensor, value: Tensor, block_mask: Tensor) -> dict[str, Tensor]:
        return masked_stages(query, key, value, block_sparse_mask(block_mask, block, causal), scale)

    return replace(
        made,
        inputs=inputs,
        call=call,
        reference=partial(naive_block_sparse_attention, **arguments),
        mistakes=partial(block_mistakes, **arguments),
        stages=stages,
        steps=None,
    )
