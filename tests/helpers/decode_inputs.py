"""Inputs for the tests of task 6's tuned kernels, and the expected results."""

from __future__ import annotations

import math

import flash_inputs
import torch
from torch import Tensor

from common.reference.bounds import running_sum_floor
from common.testing.calling import Guarded, poisoned_memory

PAGE = 16
RAGGED = (0, 1, 31, 203)  # lengths in caches of 203 slots: empty, one token, a partial tile, full
LONG = (0, 5, 1500, 700)  # enough for several splits, which end in the middle of sequences


def as_int(values, device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def tensors(
    ops, dtype, lengths=RAGGED, heads=4, kv_heads=2, head_dim=64, capacity=None, sharpness=1.5
) -> dict[str, Tensor]:
    """The arguments of decode_attention. Slots past a sequence's end hold NaN."""
    capacity = capacity or max(*lengths, 1)
    generator = torch.Generator().manual_seed(head_dim + 1000 * heads)

    def normal(heads: int, tokens: int) -> Tensor:
        return torch.randn(len(lengths), heads, tokens, head_dim, generator=generator)

    query, k_cache = sharpness * normal(heads, 1), sharpness * normal(kv_heads, capacity)
    v_cache = 2 + normal(kv_heads, capacity)
    for sequence, length in enumerate(lengths):
        k_cache[sequence, :, max(length, 0) :] = math.nan
        v_cache[sequence, :, max(length, 0) :] = math.nan
    made = {"query": query, "k_cache": k_cache, "v_cache": v_cache}
    return {name: x.to(ops.device, dtype) for name, x in made.items()} | {"lengths": as_int(lengths, ops.device)}


def attention(dtype, query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, scale=None) -> Tensor:
    """flash_inputs.attention for each sequence. [batch, heads, 1, head_dim]; zeros for an empty sequence."""
    out = torch.zeros_like(query, dtype=torch.float64)
    for sequence, length in enumerate(lengths.clamp(0, k_cache.size(2)).tolist()):
        if length:
            one = slice(sequence, sequence + 1)
            inputs = query[one], k_cache[one, :, :length], v_cache[one, :, :length]
            out[one] = flash_inputs.attention(dtype, *inputs, scale=scale)
    return out


def in_pages(
    ops, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, query: Tensor, page_size: int = PAGE
) -> dict[str, Tensor]:
    """The same caches in pages in random order, some of them unused; NaN wherever there is no token.

    Table entries after a sequence's last page are invalid page numbers.
    """
    batch, kv_heads, capacity, head_dim = k_cache.shape
    used = [math.ceil(max(length, 0) / page_size) for length in lengths.tolist()]
    pages = sum(used) + 3
    order = iter(torch.randperm(pages, generator=torch.Generator().manual_seed(1)).tolist())
    table = torch.full((batch, math.ceil(capacity / page_size)), -1, dtype=torch.int32)
    paged = [k_cache.new_full((pages, kv_heads, page_size, head_dim), math.nan) for _ in range(2)]
    for sequence, count in enumerate(used):
        for i in range(count):
            table[sequence, i] = page = next(order)
            for x, cache in zip(paged, (k_cache, v_cache), strict=True):
                rows = cache[sequence, :, i * page_size : (i + 1) * page_size]
                x[page, :, : rows.size(1)] = rows
    return {
        "query": query,
        "k_pages": paged[0],
        "v_pages": paged[1],
        "lengths": lengths,
        "block_table": table.to(ops.device),
    }


def run(operator, inputs: dict[str, Tensor], **options) -> Tensor:
    """Calls it with guarded inputs and poisoned outputs; only the output may change."""
    guarded = {name: Guarded(x, x.device) for name, x in inputs.items()}
    with poisoned_memory():
        out = operator(**{name: x.tensor for name, x in guarded.items()}, **options)
    assert [name for name, x in guarded.items() if x.changed() or x.overrun()] == []
    return out


def assert_right(out: Tensor, inputs: dict[str, Tensor], **options) -> None:
    """Checks out's form, and that it is as close to float64 as flash_inputs.assert_as_exact requires."""
    dtype = inputs["query"].dtype
    assert out.shape == inputs["query"].shape and out.dtype == dtype and out.is_contiguous()
    exact, same = (attention(precision, **inputs, **options) for precision in (torch.float64, dtype))
    floor = 1e-5 * 1.5**2 + running_sum_floor(inputs["k_cache"].size(2), 4)
    flash_inputs.assert_as_exact(out, exact, same, dtype, floor)


def check(ops, inputs: dict[str, Tensor], **options) -> None:
    """Checks the contiguous and the paged operator."""
    assert_right(run(ops.decode_attention, inputs, **options), inputs, **options)
    assert_right(run(ops.decode_attention_paged, in_pages(ops, **inputs), **options), inputs, **options)


def updated(cache: Tensor, new: Tensor, positions) -> Tensor:
    cache = cache.clone()
    for sequence, position in enumerate(positions):
        if 0 <= position <= cache.size(2) - new.size(2):
            cache[sequence, :, position : position + new.size(2)] = new[sequence]
    return cache


def packed(ops, dtype, batch, kv_heads, tokens, head_dim) -> tuple[Tensor, Tensor]:
    """Key and value as views of one projection [batch, tokens, 3, kv_heads, head_dim]."""
    qkv = torch.randn(batch, tokens, 3, kv_heads, head_dim, generator=torch.Generator().manual_seed(7))
    qkv = qkv.to(ops.device, dtype)
    return qkv[:, :, 1].transpose(1, 2), qkv[:, :, 2].transpose(1, 2)
