"""update_cache_rotary against transformers' rotary embedding and GPT-J's, in float64: padding, pages, out of range."""

from __future__ import annotations

import pytest
import torch
from checked_findings import nothing_found
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.kernels.attention import attention_with_kvcache
from common.kernels.decode.decode import update_cache_rotary
from common.reference import oracle as reference
from common.testing.calling import Guarded, poisoned_memory

BATCH, HEADS, KV_HEADS, CAPACITY = 3, 4, 2, 64
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def ints(*values: int, device: str = "cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def made(device, dtype=torch.float32, tokens=9, head_dim=64, rotary_dim=None, longest=CAPACITY) -> dict[str, Tensor]:
    """query, key and value, slices of one projection, and the tables."""
    generator = torch.Generator().manual_seed(head_dim)
    packed = torch.randn(BATCH, tokens, HEADS + 2 * KV_HEADS, head_dim, generator=generator).to(device, dtype)
    query, key, value = packed.transpose(1, 2).split([HEADS, KV_HEADS, KV_HEADS], 1)
    half = (rotary_dim or head_dim) // 2
    angles = torch.arange(longest)[:, None] * 10000.0 ** (-torch.arange(half) / half)
    return {"query": query, "key": key, "value": value, "cos": angles.cos().to(device), "sin": angles.sin().to(device)}


def rotated(x: Tensor, cos: Tensor, sin: Tensor, start: int, interleaved: bool) -> Tensor:
    """x [heads, tokens, head_dim] at positions from `start` on, in float64."""
    x = x.double().cpu()
    cos, sin = (table[start : start + x.size(1)].double().cpu() for table in (cos, sin))
    turned, rest = x[..., : 2 * cos.size(1)], x[..., 2 * cos.size(1) :]
    if interleaved:
        turned = torch.view_as_real(
            torch.view_as_complex(turned.unflatten(-1, (-1, 2)).contiguous()) * (cos + 1j * sin)
        )
        turned = turned.flatten(-2)
    else:
        tables = (torch.cat((table, table), -1)[None] for table in (cos, sin))
        turned = apply_rotary_pos_emb(turned[None], turned[None], *tables)[0][0]
    return torch.cat((turned, rest), -1)


def check(device, inputs, positions, padding=None, interleaved=False, page_size=None) -> None:
    """The call on guarded, poisoned memory against the oracle; slots that are not written keep their bits."""
    query, key, value, cos, sin = (inputs[name] for name in ("query", "key", "value", "cos", "sin"))
    tokens, dtype = key.size(2), key.dtype
    shape, table = (BATCH, KV_HEADS, CAPACITY, key.size(3)), None
    if page_size:
        shape = (BATCH * CAPACITY // page_size + 1, KV_HEADS, page_size, key.size(3))
        order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(1))[:-1]
        table = order.view(BATCH, -1).int()
    before = torch.randn(2, *shape).to(dtype)
    caches = [Guarded(x, device) for x in before]
    given = [Guarded(x, device) for x in (query, key, value, cos, sin)]
    pads = [0] * BATCH if padding is None else [min(max(pad, 0), tokens) for pad in padding]
    with poisoned_memory():
        out = update_cache_rotary(
            given[0].tensor,
            *(x.tensor for x in caches),
            *(x.tensor for x in given[1:3]),
            ints(*positions, device=device),
            *(x.tensor for x in given[3:]),
            interleaved,
            None if padding is None else ints(*padding, device=device),
            None if table is None else table.to(device),
        )
    assert out.is_contiguous() and out.dtype == dtype and out.shape == query.shape
    assert not any(x.changed() or x.overrun() for x in given) and not any(x.overrun() for x in caches)

    def rows(x: Tensor) -> Tensor:  # [batch, kv_heads, CAPACITY, head_dim]
        return x if table is None else x[table.long()].transpose(1, 2).flatten(2, 3)

    k_found, v_found = (rows(x.tensor.cpu()).clone() for x in caches)
    k_expected, v_expected = rows(before[0]).double(), rows(before[1]).clone()
    queries = torch.zeros(query.shape, dtype=torch.float64)
    for b, (position, pad) in enumerate(zip(positions, pads, strict=True)):
        count = tokens - pad
        if count and 0 <= position <= min(CAPACITY, len(cos)) - count:
            slots = slice(position, position + count)
            k_expected[b, :, slots] = rotated(key[b, :, pad:], cos, sin, position, interleaved)
            v_expected[b, :, slots] = value[b, :, pad:].cpu()
            queries[b, :, pad:] = rotated(query[b, :, pad:], cos, sin, position, interleaved)
    tolerance = {"rtol": max(torch.finfo(dtype).eps, 1e-6), "atol": 4e-6}
    assert torch.equal(v_found, v_expected)
    torch.testing.assert_close(k_found.double(), k_expected, **tolerance)
    torch.testing.assert_close(out.double().cpu(), queries, **tolerance)
    untouched = k_expected == rows(before[0]).double()
    assert torch.equal(k_found[untouched], rows(before[0])[untouched])
    if table is not None:
        spare = sorted({*range(shape[0])} - {*table.flatten().tolist()})
        assert all(torch.equal(x.tensor.cpu()[spare], old[spare]) for x, old in zip(caches, before, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim"), [(2, 2), (5, 4), (7, 2), (64, 64), (80, 32), (96, 24), (128, 2), (128, 128)]
)
@pytest.mark.parametrize("page_size", [None, 16, 32])
def test_every_form(device, dtype, interleaved, head_dim, rotary_dim, page_size):
    """One token and many, with and without padding, at both ends of the cache."""
    for tokens in (1, 40):
        inputs = made(device, dtype, tokens, head_dim, rotary_dim)
        check(device, inputs, (0, CAPACITY - tokens, 3), None, interleaved, page_size)
        check(device, inputs, (1, CAPACITY - 1, 5), (0, tokens - 1, tokens), interleaved, page_size)


def test_positions_that_do_not_fit(device):
    """Beyond the cache, beyond the tables, below 0; out-of-range padding is clamped."""
    check(device, made(device), (CAPACITY - 8, -1, 2**31 - 1))
    check(device, made(device, longest=20), (12, 11, -(2**31)))
    check(device, made(device, longest=100), (CAPACITY - 8, 60, CAPACITY - 9), (0, 5, 0))
    check(device, made(device), (CAPACITY - 8, 7, 0), (-3, 2**31 - 1, -(2**31)))


def test_more_tokens_than_slots_if_enough_are_padding(device):
    check(device, made(device, tokens=70), (0, 4, 0), (6, 10, 5))


@pytest.mark.parametrize("interleaved", [False, True])
def test_left_padding_is_as_if_it_were_not_there(device, interleaved):
    """Bit for bit; NaN in it reaches no other sequence. Pages give the same bits, and attention on them is right."""
    inputs = made(device, tokens=20)
    pads, tables = [4, 0, 13], (inputs["cos"], inputs["sin"], interleaved)
    for b, pad in enumerate(pads):
        for name in ("query", "key", "value"):
            inputs[name][b, :, :pad] = torch.nan
    new = [inputs[name] for name in ("query", "key", "value")]
    caches, alone = torch.full((2, 2, BATCH, KV_HEADS, CAPACITY, 64), torch.nan, device=device)
    pages = torch.full((2, BATCH * 4, KV_HEADS, 16, 64), torch.nan, device=device)
    table = torch.arange(BATCH * 4, device=device).flip(0).view(BATCH, 4).int()
    starts, padding = ints(0, 0, 0, device=device), ints(*pads, device=device)
    out = update_cache_rotary(new[0], *caches, *new[1:], starts, *tables, padding)
    paged = update_cache_rotary(new[0], *pages, *new[1:], starts, *tables, padding, table)
    for b, pad in enumerate(pads):
        query, key, value = (x[b : b + 1, :, pad:] for x in new)
        expected = update_cache_rotary(query, *alone[:, b : b + 1], key, value, starts[:1], *tables)
        assert torch.equal(out[b, :, pad:], expected[0]) and not out[b, :, :pad].any()
    assert torch.equal(out, paged) and torch.equal(caches.nan_to_num(7), alone.nan_to_num(7))
    assert torch.equal(pages[:, table.long()].transpose(2, 3).flatten(3, 4).nan_to_num(7), caches.nan_to_num(7))

    last, lengths = out[:, :, -1:], 20 - padding
    found = (
        attention_with_kvcache(last, *caches, cache_seqlens=lengths),
        attention_with_kvcache(last, *pages, cache_seqlens=lengths, block_table=table),
    )
    for b, pad in enumerate(pads):
        query, key = (rotated(x[b, :, pad:], *tables[:2], 0, interleaved) for x in new[:2])
        key, value = (x.repeat_interleave(2, 0) for x in (key, new[2][b, :, pad:].double().cpu()))
        right = reference.attention(query[:, -1:], key, value)
        for x in found:
            torch.testing.assert_close(x[b].double().cpu(), right, rtol=0, atol=1e-5)


def test_a_page_that_is_none(device):
    """Its tokens are not written; the queries are still rotated."""
    inputs = made(device, tokens=40)
    new = [inputs[name] for name in ("query", "key", "value")]
    pages = torch.full((2, 9, KV_HEADS, 16, 64), torch.nan, device=device)
    table = torch.tensor([[0, -1, 1], [2, 9, 3], [4, 2**31 - 1, 5]], dtype=torch.int32, device=device)
    starts = ints(0, 0, 0, device=device)
    out = update_cache_rotary(new[0], *pages, *new[1:], starts, inputs["cos"], inputs["sin"], block_table=table)
    assert pages[:, 6:].isnan().all() and out.isfinite().all() and out.any(-1).all()
    assert pages[:, [0, 2, 4]].isfinite().all() and pages[:, [1, 3, 5], :, :8].isfinite().all()
    assert pages[:, [1, 3, 5], :, 8:].isnan().all()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"query": (3, 4, 8, 64)}, "dimension 2 of key"),
        ({"cos": (64, 33), "sin": (64, 33)}, "cos has rotary_dim / 2 = 33; it must be at most head_dim / 2"),
        ({"sin": (63, 32)}, "dimension 0 of cos"),
        ({"key": (3, 2, 65, 64), "value": (3, 2, 65, 64)}, "new_tokens = 65; at most 64"),
        ({"left_padding": (2,)}, "left_padding has shape .*dimension 0 of k_cache"),
        ({"block_table": (2, 3)}, "key .*dimension 0 of block_table"),
    ],
)
def test_a_bad_argument_is_named(device, changed, words):
    inputs = made(device) | {
        x: torch.zeros(BATCH, KV_HEADS, CAPACITY, 64, device=device) for x in ("k_cache", "v_cache")
    }
    inputs["positions"] = ints(0, 0, 0, device=device)
    for name, shape in changed.items():
        inputs[name] = torch.zeros(shape, device=device, dtype=torch.int32 if len(shape) == 1 else torch.float32)
        if name == "block_table":
            inputs[name] = inputs[name].int()
    with pytest.raises(ValueError, match=words):
        update_cache_rotary(**inputs)
    with pytest.raises(ValueError, match="cos has dtype Double; it must be Float"):
        update_cache_rotary(
            **(made(device) | {k: inputs[k] for k in ("k_cache", "v_cache", "positions")})
            | {"cos": inputs["cos"].double()}
        )


@pytest.mark.slow
def test_no_race_and_no_stray_access():
    """The checked simulator finds nothing, also with out-of-range values on the device."""
    checked = load(BuildRequest("decode", backend="simulator", checked=True))
    for dtype, head_dim in ((torch.float32, 64), (torch.float16, 5), (torch.bfloat16, 128)):
        inputs = made("cpu", dtype, 40, head_dim, head_dim // 2 * 2, longest=50)
        new = [inputs[name] for name in ("query", "key", "value")]
        caches = torch.zeros(2, BATCH, KV_HEADS, CAPACITY, head_dim, dtype=dtype)
        pages, table = torch.zeros(2, 9, KV_HEADS, 16, head_dim, dtype=dtype), torch.arange(12).view(3, 4).int()
        for stores, numbers in ((caches, None), (pages, table)):
            tables = (inputs["cos"], inputs["sin"], True, ints(0, 50, 3), numbers)
            with nothing_found(checked):
                checked.update_cache_rotary(new[0], *stores, *new[1:], ints(10, 64, 14), *tables)
