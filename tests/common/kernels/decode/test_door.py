"""The functions of common/kernels/decode/decode.py: two sequences of different lengths, contiguous and in pages."""

import pytest
import torch

from common.kernels.decode.decode import (
    decode_attention,
    decode_attention_paged,
    update_cache,
    update_cache_paged,
)
from common.reference import oracle as reference

BATCH, HEADS, KV_HEADS, HEAD_DIM, LENGTHS = 2, 4, 2, 8, (21, 3)
CAPACITY = 32  # two pages of 16


@pytest.fixture
def inputs(device):
    """query, key, value: the newest token's query, and all tokens of both sequences."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(BATCH, HEADS, 1, HEAD_DIM), *[(BATCH, KV_HEADS, max(LENGTHS), HEAD_DIM)] * 2]
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


def assert_right(out: torch.Tensor, query, key, value) -> None:
    exact = [x.double().cpu() for x in (query, key, value)]
    for b, length in enumerate(LENGTHS):
        keys, values = (x[b, :, :length].repeat_interleave(HEADS // KV_HEADS, 0) for x in exact[1:])
        expected = reference.attention(exact[0][b], keys, values)
        torch.testing.assert_close(out[b].double().cpu(), expected, rtol=0, atol=1e-5)


def test_contiguous_caches(inputs, device):
    query, key, value = inputs
    k_cache, v_cache = torch.full((2, BATCH, KV_HEADS, CAPACITY, HEAD_DIM), torch.nan, device=device)
    starts = torch.zeros(BATCH, dtype=torch.int32, device=device)
    update_cache(k_cache, v_cache, key[:, :, :3], value[:, :, :3], starts)
    assert torch.equal(k_cache[:, :, :3], key[:, :, :3]) and v_cache[:, :, 3:].isnan().all()
    update_cache(k_cache, v_cache, key[:, :, 3:], value[:, :, 3:], starts + 3)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32, device=device)
    assert_right(decode_attention(query, k_cache, v_cache, lengths), query, key, value)


def test_pages(inputs, device):
    query, key, value = inputs
    k_pages, v_pages = torch.full((2, 5, KV_HEADS, 16, HEAD_DIM), torch.nan, device=device)
    block_table = torch.tensor([[4, 0], [2, 3]], dtype=torch.int32, device=device)
    starts = torch.zeros(BATCH, dtype=torch.int32, device=device)
    update_cache_paged(k_pages, v_pages, key, value, starts, block_table)
    assert torch.equal(k_pages[0, :, :5], key[0, :, 16:]) and k_pages[1].isnan().all()
    lengths = torch.tensor(LENGTHS, dtype=torch.int32, device=device)
    assert_right(decode_attention_paged(query, k_pages, v_pages, lengths, block_table), query, key, value)


def test_a_bad_argument_is_named(inputs, device):
    query, key, value = inputs
    caches = torch.zeros(2, BATCH, KV_HEADS, CAPACITY, HEAD_DIM, device=device)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="lengths has dtype Long; it must be Int"):
        decode_attention(query, *caches, lengths.long())
    with pytest.raises(ValueError, match="key has new_tokens = 42; at most 32 fit into the cache of a sequence"):
        update_cache(*caches, torch.cat((key, key), 2), torch.cat((value, value), 2), lengths)
    table = torch.zeros(BATCH, 2, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="dimension 2, the tokens of a page, must be 16, 32, 64, 128 or 256"):
        decode_attention_paged(query, *caches[:, :, :, :24].contiguous(), lengths, table)
