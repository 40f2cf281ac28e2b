"""Inputs for the tests of task 6's tuned kernels, and the expected results."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from common.reference import oracle as reference
from common.reference.bounds import max_error_of, running_sum_floor
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
    """PyTorch in the kernels' precision, then in float64: scores and softmax in at least float32, the weights and
    the output in dtype. [batch, heads, 1, head_dim]; zeros for an empty sequence."""
    group = query.size(1) // k_cache.size(1)
    rows = []
    for sequence, length in enumerate(lengths.clamp(0, k_cache.size(2)).tolist()):
        key, value = (x[sequence, :, :length].repeat_interleave(group, 0) for x in (k_cache, v_cache))
        exact = [x.to(torch.promote_types(dtype, torch.float32)) for x in (query[sequence], key)]
        if length:
            rows.append(reference.softmax(reference.scores(*exact, scale=scale)).to(dtype) @ value.to(dtype))
        else:
            rows.append(torch.zeros_like(query[sequence], dtype=dtype))
    return torch.stack(rows).double()


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
    """As close to float64 as common/testing/judging.py requires; the floor also covers rounding of out to its dtype."""
    dtype = inputs["query"].dtype
    assert out.shape == inputs["query"].shape and out.dtype == dtype and out.is_contiguous()
    ref64 = attention(torch.float64, **inputs, **options)
    noise = max_error_of(attention(dtype, **inputs, **options), ref64)
    floor = 1e-5 * 1.5**2 + running_sum_floor(inputs["k_cache"].size(2), 4)
    if dtype != torch.float32:
        floor += torch.finfo(dtype).eps / 2 * float(ref64.abs().max())
    error = max_error_of(out, ref64)
    assert error <= 2 * noise + floor, (error, noise, floor)


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
