"""Batches of 70,000, more than a grid's limit along y or z: every sequence is right."""

from __future__ import annotations

import pytest
import torch
from attention_oracle import exact, seen_of
from torch import Tensor
from torch.testing import assert_close

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.kernels.attention import attention, attention_varlen, attention_with_kvcache, block_sparse_attention
from common.kernels.decode.decode import update_cache

BATCH = 70_000
TOLERANCE = {
    torch.float32: 2e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 6e-2,
}  # for numbers of about 4; a wrong row is off by 1
GENERATOR = torch.Generator().manual_seed(5)
gpu = pytest.mark.gpu


def randn(device: str, *shape: int, dtype=torch.float32) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(device, dtype)


def assert_right(found: Tensor, expected: Tensor) -> None:
    assert_close(found.double(), expected.double(), rtol=0, atol=TOLERANCE[found.dtype])


@gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True, "lower_right": True},
        {"window_size": (1, 1)},
        {"key_stride": 2, "key_offset": 1},
        {"softcap": 2.0},
        {"sinks": True},
    ],
    ids=str,
)
def test_attention_and_its_gradients(dtype, options):
    query, key, value = (randn("cuda", BATCH, heads, rows, 16, dtype=dtype) for heads, rows in ((2, 2), (1, 5), (1, 5)))
    positions = {name.removeprefix("key_"): x for name, x in options.items() if name not in ("softcap", "sinks")}
    given = options | ({"sinks": randn("cuda", 2)} if "sinks" in options else {})
    oracle = {"softcap": given.get("softcap", 0.0), "sinks": given.get("sinks")}
    inputs = [x.requires_grad_() for x in (query, key, value)]
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    out = attention(*inputs, enable_gqa=True, **given)
    expected = exact(*doubles, seen_of(2, 5, **positions), **oracle)[0]
    assert_right(out, expected)
    grad_out = randn("cuda", *out.shape, dtype=dtype)
    if "key_stride" not in options:
        for x, y in zip(
            torch.autograd.grad(out, inputs, grad_out),
            torch.autograd.grad(expected, doubles, grad_out.double()),
            strict=True,
        ):
            assert_close(x.double(), y, rtol=0, atol=3 * TOLERANCE[dtype])


@gpu
def test_packed_sequences_and_blocks():
    lengths = torch.arange(BATCH) % 3
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int().cuda()
    query, key, value = (randn("cuda", int(lengths.sum()), 2, 16, dtype=torch.float16) for _ in range(3))
    out = attention_varlen(query, key, value, cu_seqlens)
    owner = torch.repeat_interleave(torch.arange(BATCH), lengths).cuda()
    for sequence in (*range(6), BATCH // 2, BATCH - 2, BATCH - 1):
        rows = owner == sequence
        one = [x[rows].transpose(0, 1).double()[None] for x in (query, key, value)]
        n = int(rows.sum())
        assert_right(out[rows].transpose(0, 1)[None], exact(*one, seen_of(n, n))[0].to(out.dtype))
    dense = [randn("cuda", BATCH, 1, 32, 8, dtype=torch.float16) for _ in range(3)]
    out = block_sparse_attention(*dense, torch.ones(1, 1, 1, dtype=torch.bool, device="cuda"))
    assert_right(out, exact(*dense, seen_of(32, 32))[0])


@gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("tokens", [1, 3])
def test_caches(dtype, paged, tokens):
    """New tokens in contiguous caches, or caches with two pages of 16 each, whose boundary the tokens cross."""
    device, slots, first = "cuda", *((32, 13) if paged else (8, 0))
    key, value = (randn(device, BATCH, 1, tokens, 16, dtype=dtype) for _ in range(2))
    query, k_cache, v_cache = (randn(device, BATCH, 1, n, 16, dtype=dtype) for n in (tokens, slots, slots))
    lengths = (first + torch.arange(BATCH, device=device) % 6).int()
    at = lengths[:, None] + torch.arange(tokens, device=device)
    keys, values = k_cache.clone(), v_cache.clone()
    for whole, new in ((keys, key), (values, value)):
        whole[:, 0].scatter_(1, at.long()[..., None].expand(-1, -1, 16), new[:, 0])
    options = {}
    if paged:
        order = torch.randperm(2 * BATCH, generator=GENERATOR).to(device)
        options["block_table"] = order.view(BATCH, 2).int()
        pages = (2 * BATCH, 1, 16, 16)
        k_cache, v_cache = (
            torch.empty_like(x).view(pages).index_copy_(0, order, x.view(pages)) for x in (k_cache, v_cache)
        )
    out = attention_with_kvcache(query, k_cache, v_cache, key, value, cache_seqlens=lengths, **options)
    assert_right(out, exact(query, keys, values, torch.arange(slots, device=device) <= at[:, None, :, None])[0])
    if paged:
        k_cache, v_cache = (x[order].view_as(keys) for x in (k_cache, v_cache))
    assert torch.equal(k_cache, keys) and torch.equal(v_cache, values)


def test_a_cache_in_the_simulator():
    k_cache, v_cache = (torch.zeros(BATCH, 1, 2, 4) for _ in range(2))
    key, value = (randn("cpu", BATCH, 1, 1, 4) for _ in range(2))
    at = torch.arange(BATCH) % 2
    update_cache(k_cache, v_cache, key, value, at.int())
    for cache, new in ((k_cache, key), (v_cache, value)):
        assert (
            torch.equal(cache[torch.arange(BATCH), 0, at], new[:, 0, 0])
            and not cache[torch.arange(BATCH), 0, 1 - at].any()
        )


@gpu
def test_the_solutions():
    query, key, value = (randn("cuda", BATCH, 1, rows, 8) for rows in (2, 5, 5))
    full, causal = (exact(query, key, value, seen_of(2, 5, is_causal=flag))[0] for flag in (False, True))
    solution = {number: load(BuildRequest(f"task{number}", "solution", "cuda")) for number in (1, 2, 4, 5, 6)}
    for flag, expected in ((False, full), (True, causal)):
        assert_right(solution[1].naive_attention(query, key, value, flag), expected)
        assert_right(solution[2].attention(query, key, value, flag), expected)
        assert_right(solution[4].flash_attention(query, key, value, flag), expected)
        assert_right(solution[5].strided_attention(query, key, value, 1, 0, flag), expected)
    assert_right(
        solution[5].sliding_window_attention(query, key, value, 2, True),
        exact(query, key, value, seen_of(2, 5, True, (1, -1)))[0],
    )
    one, lengths = query[:, :, :1].contiguous(), torch.full((BATCH,), 5, dtype=torch.int32, device="cuda")
    expected = full[:, :, :1]
    assert_right(solution[6].decode_attention(one, key, value, lengths), expected)
    outs, lse = solution[6].decode_attention_split(one, key, value, lengths, 2)
    merged, _ = load(BuildRequest("task3", "solution", "cuda")).merge_states(outs, lse)
    assert_right(merged.view_as(expected), expected)
    solution[6].update_cache(key, value, one, one, lengths - 1)
    assert torch.equal(key[:, :, 4:], one) and torch.equal(value[:, :, 4:], one)
