"""The caches' append_rotary against transformers' Llama: left-padded prompts of different lengths, then tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.kernels.decode.cache import KVCache
from common.kernels.decode.paged_cache import PagedKVCache
from common.kernels.loaded import loaded
from common.reference import oracle as reference

BATCH, HEADS, KV_HEADS, HEAD_DIM, LONGEST = 3, 4, 2, 32, 64
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def llama_tables(device) -> tuple[Tensor, Tensor]:
    """cos and sin [LONGEST, head_dim] from the model's own module."""
    config = LlamaConfig(hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, max_position_embeddings=LONGEST)
    rotary = LlamaRotaryEmbedding(config).to(device)
    cos, sin = rotary(torch.zeros(1, device=device), torch.arange(LONGEST, device=device)[None])
    return cos[0], sin[0]


def half_of(tables: tuple[Tensor, Tensor]) -> list[Tensor]:
    return [x[:, : HEAD_DIM // 2].contiguous() for x in tables]


def tokens(device, dtype, count: int, seed: int = 0) -> list[Tensor]:
    """query, key and value of `count` tokens, slices of one projection."""
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randn(BATCH, count, HEADS + 2 * KV_HEADS, HEAD_DIM, generator=generator).to(device, dtype)
    return list(packed.transpose(1, 2).split([HEADS, KV_HEADS, KV_HEADS], 1))


def make(kind: str, device, dtype=torch.float32, max_seq_len: int = 40):
    ops = loaded("decode", device)
    if kind == "KVCache":
        return KVCache(ops, BATCH, KV_HEADS, max_seq_len, HEAD_DIM, dtype)
    return PagedKVCache(ops, BATCH, KV_HEADS, max_seq_len, HEAD_DIM, pages=9, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["KVCache", "PagedKVCache"])
def test_as_llama(device, kind, dtype):
    """The prompt's queries, and every token's attention, equal those of each sequence alone without padding."""
    tables, pads = llama_tables(device), [0, 7, 11]
    cache = make(kind, device, dtype)
    parts = [tokens(device, dtype, 12), *(tokens(device, dtype, 1, seed) for seed in (1, 2, 3))]
    for b, pad in enumerate(pads):
        for x in parts[0]:
            x[b, :, :pad] = torch.nan
    bound = {"rtol": 0, "atol": 4 * torch.finfo(dtype).eps * 4 + 1e-5}

    def rotated(x: Tensor, start: int) -> Tensor:
        """[1, heads, new_tokens, head_dim] at positions from start on, in float64."""
        at = slice(start, start + x.size(2))
        return apply_rotary_pos_emb(x.double(), x.double(), *(table[at][None].double() for table in tables))[0]

    for number, (query, key, value) in enumerate(parts):
        padding = pads if number == 0 else None
        out = cache.append_rotary(query, key, value, *half_of(tables), left_padding=padding)
        attended = cache.attend(out[:, :, -1:].contiguous())
        for b, pad in enumerate(pads):
            first, length = (pad, 12 - pad) if number == 0 else (0, 1)
            start = 0 if number == 0 else 12 - pad + number - 1
            expected = rotated(query[b : b + 1, :, first:], start)
            torch.testing.assert_close(out[b : b + 1, :, first:].double(), expected, **bound)
            assert not bool(out[b, :, :first].any()) and length == expected.size(2)
            seen = [
                torch.cat([parts[0][i][b : b + 1, :, pad:], *(x[i][b : b + 1] for x in parts[1 : number + 1])], 2)
                for i in (1, 2)
            ]
            keys, values = rotated(seen[0], 0), seen[1].double()
            repeated = [x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (keys, values)]
            right = reference.attention(expected[:, :, -1:], *repeated)
            torch.testing.assert_close(
                attended[b : b + 1].double(), right, rtol=0, atol=8 * torch.finfo(dtype).eps + 1e-5
            )
        assert cache.lengths.tolist() == [12 - pad + number for pad in pads] and cache.seq_len == 12 + number


def test_interleaved_pairs_and_two_prompts(device):
    """GPT-J's layout; a second prompt with its own padding follows the first, at the next positions."""
    generator = torch.Generator().manual_seed(5)
    cos, sin = (torch.randn(LONGEST, 8, generator=generator).to(device) for _ in range(2))
    cache, alone = make("KVCache", device), make("KVCache", device)
    one, other = tokens(device, torch.float32, 6), tokens(device, torch.float32, 5, 1)
    cache.append_rotary(*one, cos, sin, interleaved=True, left_padding=(2, 0, 6))
    out = cache.append_rotary(*other, cos, sin, True, [0, 5, 3])
    assert cache.lengths.tolist() == [9, 6, 2] and cache.seq_len == 9
    for tensors, pads in ((one, (2, 0, 6)), (other, (0, 5, 3))):  # token by token, each sequence when it has one
        for t in range(tensors[0].size(2)):
            new = [x[:, :, t : t + 1] for x in tensors]
            padding = [int(t < pad) for pad in pads]
            found = alone.append_rotary(*new, cos, sin, True, padding)
            if tensors is other:
                assert torch.equal(found, out[:, :, t : t + 1])
    assert alone.lengths.tolist() == [9, 6, 2]
    for b, length in enumerate((9, 6, 2)):
        assert torch.equal(cache.k[b, :, :length], alone.k[b, :, :length])
        assert torch.equal(cache.v[b, :, :length], alone.v[b, :, :length])


def test_pages_are_taken_for_tokens_and_not_for_padding(device):
    cache = make("PagedKVCache", device)
    cos, sin = half_of(llama_tables(device))
    cache.append_rotary(*tokens(device, torch.float32, 20), cos, sin, left_padding=[20, 4, 3])
    assert cache.free_pages == 9 - 0 - 1 - 2
    cache.reset(2)
    assert cache.free_pages == 8


BAD = [
    ({"left_padding": [1, 2]}, r"left_padding is \[1, 2\]; it must be batch = 3 integers of 0 \.\. new_tokens = 5"),
    ({"left_padding": [0, 0, 6]}, r"left_padding is \[0, 0, 6\]; it must be"),
    ({"left_padding": [0, 0, -1]}, r"left_padding is \[0, 0, -1\]"),
    ({"left_padding": 2}, "left_padding is 2; it must be"),
    ({"left_padding": torch.tensor([0, 0, 0])}, "left_padding is tensor"),
    (
        {"cos": torch.ones(6, 16), "sin": torch.ones(6, 16)},
        "cos has 6 rows; sequence 0 holds 2 tokens and 5 more need 7",
    ),
    ({"sin": torch.ones(LONGEST, 15)}, "dimension 1 of cos"),
    ({"cos": torch.ones(LONGEST)}, "cos has 1 dimension"),
    ({"key": None}, "key is None; it must be a tensor"),
    ({"query": torch.ones(BATCH, HEADS, 4, HEAD_DIM)}, "dimension 2 of key"),
]


@pytest.mark.parametrize("kind", ["KVCache", "PagedKVCache"])
@pytest.mark.parametrize(("changed", "words"), BAD, ids=[words for _, words in BAD])
def test_a_bad_argument_is_named_and_changes_nothing(device, kind, changed, words):
    cache = make(kind, device)
    cos, sin = half_of(llama_tables(device))
    cache.append_rotary(*tokens(device, torch.float32, 2), cos, sin)
    query, key, value = tokens(device, torch.float32, 5)
    given = {"query": query, "key": key, "value": value, "cos": cos, "sin": sin} | changed
    given = {name: x.to(device) if isinstance(x, Tensor) and name != "left_padding" else x for name, x in given.items()}
    with pytest.raises(ValueError, match=words):
        cache.append_rotary(**given)
    assert cache.lengths.tolist() == [2, 2, 2] and cache.seq_len == 2
    cache.append_rotary(query, key, value, cos, sin)
    assert cache.seq_len == 7


def test_a_full_cache(device):
    cache = make("KVCache", device, max_seq_len=8)
    cos, sin = half_of(llama_tables(device))
    new = tokens(device, torch.float32, 9)
    with pytest.raises(ValueError, match="sequence 1 holds 0 tokens and 9 more do not fit into max_seq_len = 8"):
        cache.append_rotary(*new, cos, sin, left_padding=[3, 0, 1])
    cache.append_rotary(*new, cos, sin, left_padding=[3, 1, 1])
    assert cache.lengths.tolist() == [6, 8, 8]


def test_the_taught_operators_have_none():
    cache = KVCache(load(BuildRequest("task6", "solution", backend="simulator")), BATCH, KV_HEADS, 8, HEAD_DIM)
    with pytest.raises(ValueError, match="the cache's ops have no update_cache_rotary, only the fast kernels do"):
        cache.append_rotary(*tokens("cpu", torch.float32, 2), *half_of(llama_tables("cpu")))
