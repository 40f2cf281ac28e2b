"""Task 6's PagedKVCache: right results, pages that are released and reused, and errors that change nothing."""

from __future__ import annotations

import pytest
import torch

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.kernels.decode.paged_cache import NO_PAGE, PAGE, PAGE_SIZES, PagedKVCache
from common.reference import oracle as reference

BATCH, HEADS, KV_HEADS, HEAD_DIM = 3, 4, 2, 40


@pytest.fixture(scope="module")
def ops(backend: str):
    return load(BuildRequest("task6", "tuned", backend))


@pytest.fixture
def cache(ops) -> PagedKVCache:
    return PagedKVCache(ops, BATCH, KV_HEADS, max_seq_len=80, head_dim=HEAD_DIM, pages=9)


def rows(ops, new_tokens: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (BATCH, KV_HEADS, new_tokens, HEAD_DIM)
    return [torch.randn(shape, generator=generator).to(ops.device) for _ in range(2)]


def attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Each query head over all keys of its group, in float64."""
    key, value = (x.double().repeat_interleave(HEADS // KV_HEADS, 1) for x in (key, value))
    return reference.attention(query.double(), key, value)


def test_tokens_appended_one_by_one_are_attended_to_in_order(ops, cache):
    keys, values = [], []
    for step, new_tokens in enumerate([19, *[1] * 20]):
        key, value = rows(ops, new_tokens, step)
        cache.append(key, value)
        keys.append(key), values.append(value)
        query = torch.randn(BATCH, HEADS, 1, HEAD_DIM, generator=torch.Generator().manual_seed(step)).to(ops.device)
        out = cache.attend(query)
        right = attended(query, torch.cat(keys, 2), torch.cat(values, 2))
        torch.testing.assert_close(out.double(), right, rtol=0, atol=1e-5)
    assert cache.seq_len == 39 and cache.free_pages == 0
    used = cache.block_table[cache.block_table != NO_PAGE].tolist()
    assert sorted(used) == list(range(9)), "every page belongs to one sequence"


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_every_page_size(ops, page_size):
    cache = PagedKVCache(ops, BATCH, KV_HEADS, 300, HEAD_DIM, pages=6, page_size=page_size)
    key, value = rows(ops, 2 * page_size if page_size < 256 else 260, 1)
    cache.append(key, value)
    assert cache.free_pages == 0 and cache.k.size(2) == page_size
    query = torch.randn(BATCH, HEADS, 1, HEAD_DIM, generator=torch.Generator().manual_seed(2)).to(ops.device)
    torch.testing.assert_close(cache.attend(query).double(), attended(query, key, value), rtol=0, atol=1e-5)


def test_pages_of_an_ended_sequence_serve_the_others(ops, cache):
    first = rows(ops, 3 * PAGE, 1)
    cache.append(*first)
    assert cache.free_pages == 0
    with pytest.raises(ValueError, match="1 more tokens of 3 sequences need 3 pages of 16, and 0 of 9 are free"):
        cache.append(*rows(ops, 1, 2))
    cache.reset(1)
    assert cache.free_pages == 3 and cache.lengths.tolist() == [48, 0, 48]
    second = rows(ops, 1, 3)
    cache.append(*second)  # sequences 0 and 2 grow into pages released by 1, and 1 starts over
    query = torch.randn(BATCH, HEADS, 1, HEAD_DIM, generator=torch.Generator().manual_seed(4)).to(ops.device)
    out = cache.attend(query).double()
    both = [torch.cat(pair, 2) for pair in zip(first, second, strict=True)]
    torch.testing.assert_close(out[[0, 2]], attended(query, *both)[[0, 2]], rtol=0, atol=1e-5)
    torch.testing.assert_close(out[1:2], attended(query, *second)[1:2], rtol=0, atol=1e-5)
    assert not cache.attend(query).isnan().any()


def test_what_is_refused_changes_nothing(ops, cache):
    cache.append(*rows(ops, 5, 1))
    before = cache.k[cache.block_table[:, 0].long(), :, :5].clone()
    key, value = rows(ops, 20, 2)
    for wrong, says in (
        ((key[:, :1].contiguous(), value), r"key has shape \[3, 1, 20, 40\]"),
        ((key.double(), value), "key has dtype Double; it must be Float"),
        ((None, value), r"key is None; it must be a tensor \[batch, kv_heads, new_tokens, head_dim\]"),
        ((key, [0]), r"value is \[0\]; it must be a tensor"),
        (tuple(rows(ops, 76, 3)), "sequence 0 holds 5 tokens and 76 more do not fit into max_seq_len = 80"),
    ):
        with pytest.raises(ValueError, match=says):
            cache.append(*wrong)
        assert cache.free_pages == 6 and cache.seq_len == 5 and cache.lengths.tolist() == [5, 5, 5]
    assert torch.equal(before, cache.k[cache.block_table[:, 0].long(), :, :5])
    cache.append(key, value)
    assert cache.free_pages == 3 and cache.lengths.tolist() == [25, 25, 25]


@pytest.mark.parametrize("name", ["batch", "kv_heads", "max_seq_len", "head_dim", "pages"])
def test_sizes_below_one(ops, name):
    sizes = {"batch": 1, "kv_heads": 1, "max_seq_len": 16, "head_dim": 8, "pages": 1} | {name: 0}
    with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
        PagedKVCache(ops, **sizes)


def test_sizes_and_sequences_out_of_range(ops, cache):
    with pytest.raises(ValueError, match="head_dim is 129; the decode kernel supports at most 128"):
        PagedKVCache(ops, 1, 1, 16, 129, 1)
    with pytest.raises(ValueError, match="page_size is 24; it must be one of 16, 32, 64, 128, 256"):
        PagedKVCache(ops, 1, 1, 16, 8, 1, page_size=24)
    with pytest.raises(ValueError, match=r"sequence is 3; it must be 0 \.\. batch - 1 = 2"):
        cache.reset(3)
    with pytest.raises(ValueError, match=r"sequence is 'a'; it must be 0 \.\. batch - 1 = 2"):
        cache.reset("a")
