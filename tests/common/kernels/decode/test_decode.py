"""Task 6's tuned kernels against attention in float64: dtypes, head groups, lengths, pages, splits."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from checked_findings import nothing_found
from decode_inputs import (
    LONG,
    PAGE,
    RAGGED,
    as_int,
    assert_right,
    check,
    in_pages,
    packed,
    run,
    tensors,
    updated,
)
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.testing.calling import Guarded

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(scope="session")
def ops(backend: str):
    """Task 6's tuned operators."""
    return load(BuildRequest("task6", "tuned", backend))


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.mark.parametrize("head_dim", [1, 5, 8, 40, 64, 72, 96, 127, 128])
def test_every_head_dim(ops, dtype, head_dim):
    check(ops, tensors(ops, dtype, head_dim=head_dim))


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (6, 2), (8, 2), (8, 1), (9, 1), (16, 1), (40, 2)], ids=str)
def test_groups_of_query_heads(ops, dtype, heads):
    """Groups of 1, 3, 4 and 8; of 9 and 16, which use another kernel; and of 20, which is split in two."""
    check(ops, tensors(ops, dtype, heads=heads[0], kv_heads=heads[1]))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_parts_that_end_anywhere(ops, dtype, head_dim):
    """The work list: sequences shared by several blocks, blocks with several sequences, and empty sequences."""
    check(ops, tensors(ops, dtype, LONG, kv_heads=1, head_dim=head_dim, capacity=4200))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_clusters(ops, dtype, head_dim):
    """The caches are short enough: on a GPU with clusters, 8 blocks share a sequence."""
    check(ops, tensors(ops, dtype, LONG, head_dim=head_dim))


def test_parts_that_end_with_a_segment(ops, dtype):
    """Equal lengths: 69 tiles per head give 7 parts, 6 of 10 tiles and one of 9, where the shortest would have 9."""
    check(ops, tensors(ops, dtype, [1100], heads=32, kv_heads=32, head_dim=8))


def test_segments_that_end_with_a_part(ops, dtype):
    """Equal lengths: 4 segments of 2 tiles in each part, so no merging is needed."""
    check(ops, tensors(ops, dtype, [20] * 270, heads=2, kv_heads=2, head_dim=8))


def test_many_parts(ops, dtype):
    """50 parts of one segment: more than the merging kernel's threads read in one round."""
    check(ops, tensors(ops, dtype, [8000], heads=2, kv_heads=1, head_dim=128))


def test_many_short_sequences(ops, dtype):
    """More than a warp examines at a time."""
    check(ops, tensors(ops, dtype, [i * 7 % 20 for i in range(100)], heads=2, kv_heads=1, head_dim=8))


def test_a_short_sequence_in_a_large_cache(ops, dtype):
    """Some blocks have no work."""
    check(ops, tensors(ops, dtype, [3, 0, 40], capacity=4000, head_dim=8))


def test_lengths_beyond_the_cache(ops, dtype):
    inputs = tensors(ops, dtype, [64, 0, 9, 64], capacity=64)
    expected = ops.decode_attention(**inputs)
    inputs["lengths"] = as_int([65, -1, 9, 2**31 - 1], ops.device)
    assert torch.equal(run(ops.decode_attention, inputs), expected)
    inputs["lengths"] = as_int([64, 0, 9, 64], ops.device)
    paged = in_pages(ops, **inputs)
    paged["lengths"] = as_int([65, -(2**31), 9, 2**31 - 1], ops.device)
    assert torch.equal(run(ops.decode_attention_paged, paged), expected)


@pytest.mark.parametrize("scale", [0.5, 0.0, -1.0])
def test_scale(ops, dtype, scale):
    check(ops, tensors(ops, dtype, sharpness=1.0), scale=scale)


def test_peaked_scores(ops, dtype):
    """Their exp() overflows; some are so far below the largest that their weight is 0."""
    inputs = tensors(ops, dtype, LONG, sharpness=7.0)
    inputs["k_cache"][2, :, 1490] *= 3  # the largest comes last
    check(ops, inputs)


def test_masked_keys(ops, dtype):
    """Keys with the score -inf: whole tiles, whole warps, and a sequence that has no others."""
    inputs = tensors(ops, dtype, (150, 203, 40), heads=8)
    inputs["query"].abs_()
    inputs["k_cache"][0, :, :70] = -math.inf
    inputs["k_cache"][1, :, 70:] = -math.inf
    inputs["k_cache"][2, :, :40] = -math.inf
    out = run(ops.decode_attention, inputs)
    assert_right(out, inputs)
    assert bool((out[2] == 0).all())


def test_nan_is_not_hidden(ops, dtype):
    """A NaN in a sequence's keys shows in its output, also when a whole tile is NaN."""
    inputs = tensors(ops, dtype, (100, 100))
    inputs["k_cache"][0, :, 16:32] = math.nan
    out = ops.decode_attention(**inputs)
    assert bool(out[0].isnan().all()) and bool(out[1].isfinite().all())


def test_pages_that_are_none(ops, dtype):
    """Their tokens are skipped, as if the sequence did not have them."""
    inputs = tensors(ops, dtype, (64, 64, 64))
    paged = in_pages(ops, **inputs)
    pages = paged["k_pages"].size(0)
    for sequence, number in enumerate([-1, pages, 2**31 - 1]):
        paged["block_table"][sequence, 1] = number
    keep = [*range(16), *range(32, 64)]
    left = inputs | {name: inputs[name][:, :, keep] for name in ("k_cache", "v_cache")}
    left["lengths"] = as_int([48] * 3, ops.device)
    assert_right(run(ops.decode_attention_paged, paged), left)


@pytest.mark.parametrize("page_size", [16, 32, 64, 128, 256])
def test_every_page_size(ops, dtype, page_size):
    """By clusters and by the work list, with tiles that start within pages and partial last pages."""
    for sizes in ({}, {"lengths": LONG, "capacity": 4200, "kv_heads": 1, "head_dim": 128}, {"head_dim": 40}):
        inputs = tensors(ops, dtype, **sizes)
        paged = in_pages(ops, **inputs, page_size=page_size)
        assert paged["k_pages"].size(2) == page_size
        assert_right(run(ops.decode_attention_paged, paged), inputs)


STRIDED = [  # both sizes of an element everywhere, each 16-bit type with every group and every head_dim
    pytest.param(dtype, heads, head_dim, marks=[pytest.mark.slow] if heads == (40, 2) else [])
    for i, heads in enumerate([(4, 2), (9, 1), (40, 2)])
    for j, head_dim in enumerate([5, 40, 64, 128])
    for dtype in (torch.float32, DTYPES[1 + (i + j) % 2])
]


@pytest.mark.parametrize(("dtype", "heads", "head_dim"), STRIDED, ids=str)
def test_strided_queries(ops, dtype, heads, head_dim):
    """Slices of one QKV projection, and rows at any alignment: the same bits as a copy."""
    inputs = tensors(ops, dtype, LONG, *heads, head_dim)
    query = inputs["query"]
    batch, group = query.size(0), heads[0] + 2 * heads[1]
    projected = torch.full((batch, group, 1, head_dim), math.nan, dtype=dtype, device=ops.device)
    loose = torch.full((batch, heads[0], 3, head_dim + 3), math.nan, dtype=dtype, device=ops.device)
    turned = torch.empty(heads[0], batch, 1, head_dim, dtype=dtype, device=ops.device).transpose(0, 1)
    for view in (projected[:, 1 : heads[0] + 1], loose[:, :, 1:2, 1:-2], turned):
        strided = inputs | {"query": view.copy_(query)}
        assert not strided["query"].is_contiguous()
        out = ops.decode_attention(**strided)
        assert_right(out, inputs)
        if view.data_ptr() % 16 == 0 and all(x % 8 == 0 for x in view.stride()[:2]):
            assert torch.equal(out, ops.decode_attention(**inputs))
        assert torch.equal(ops.decode_attention_paged(**in_pages(ops, **strided)), out)


def test_unaligned_tensors(ops, dtype):
    """Neither 16-byte loads nor tensor cores apply."""
    inputs = tensors(ops, dtype)
    for name in ("query", "k_cache", "v_cache"):
        moved = torch.empty(inputs[name].numel() + 1, dtype=dtype, device=ops.device)[1:].view(inputs[name].shape)
        inputs[name] = moved.copy_(inputs[name])
        assert inputs[name].data_ptr() % 16 != 0
    assert_right(ops.decode_attention(**inputs), inputs)


# ---- update_cache


@pytest.mark.parametrize("tokens", [1, 37])
@pytest.mark.parametrize("head_dim", [1, 6, 80, 128])
@pytest.mark.parametrize("views", [True, False])
def test_update(ops, dtype, tokens, head_dim, views):
    """Bit for bit, with positions at both ends and out of range; the latter are skipped."""
    positions = (0, 50 - tokens, 51 - tokens, -1, 5, 2**31 - 1, -(2**31))
    key, value = packed(ops, dtype, len(positions), 2, tokens, head_dim)
    if not views:
        key, value = key.contiguous(), value.contiguous()
    shape = (len(positions), 2, 50, head_dim)
    caches = [Guarded(torch.randn(shape, device=ops.device).to(dtype), ops.device) for _ in range(2)]
    expected = [updated(x.tensor, new, positions) for x, new in zip(caches, (key, value), strict=True)]
    ops.update_cache(caches[0].tensor, caches[1].tensor, key, value, as_int(positions, ops.device))
    assert torch.equal(caches[0].tensor, expected[0]) and torch.equal(caches[1].tensor, expected[1])
    assert not caches[0].overrun() and not caches[1].overrun()


@pytest.mark.parametrize("tokens", [1, 20])
def test_update_of_larger_pages(ops, dtype, tokens):
    """Bitwise equal to the same rows of a contiguous cache, across page boundaries."""
    positions = (0, 60, 128 - tokens, 129 - tokens)
    key, value = packed(ops, dtype, len(positions), 2, tokens, 40)
    for page_size in (32, 64, 128):
        pages = torch.zeros(2, len(positions) * 128 // page_size, 2, page_size, 40, dtype=dtype, device=ops.device)
        table = torch.randperm(pages.size(1), generator=torch.Generator().manual_seed(2)).view(len(positions), -1).int()
        ops.update_cache_paged(*pages, key, value, as_int(positions, ops.device), table.to(ops.device))
        for found, new in zip(pages, (key, value), strict=True):
            rows = found[table.long()].transpose(1, 2).flatten(2, 3)
            assert torch.equal(rows, updated(torch.zeros_like(rows), new, positions))


@pytest.mark.parametrize("tokens", [1, 20])
def test_update_of_pages(ops, dtype, tokens):
    """Bit for bit; an invalid page number drops its tokens, and no other page changes."""
    positions = (3, 48 - tokens, 49 - tokens, -1, 15)
    key, value = packed(ops, dtype, len(positions), 2, tokens, 40)
    pages = 20
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(3))[:15].view(5, 3).int()
    table[4] = as_int([7, pages, -1], "cpu")
    before = torch.randn(2, pages, 2, PAGE, 40).to(dtype)
    caches = [Guarded(x, ops.device) for x in before]
    expected = before.clone()
    for sequence, position in enumerate(positions):
        for token in range(tokens if 0 <= position <= 48 - tokens else 0):
            page, slot = int(table[sequence, (position + token) // PAGE]), (position + token) % PAGE
            if 0 <= page < pages:
                expected[0, page, :, slot], expected[1, page, :, slot] = (
                    key[sequence, :, token],
                    value[sequence, :, token],
                )
    ops.update_cache_paged(
        caches[0].tensor, caches[1].tensor, key, value, as_int(positions, ops.device), table.to(ops.device)
    )
    for cache, right in zip(caches, expected, strict=True):
        assert torch.equal(cache.tensor.cpu(), right) and not cache.overrun()


# ---- errors


def of(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def ints(*shape: int) -> Tensor:
    return of(*shape, dtype=torch.int32)


DECODE = {"query": of(2, 4, 1, 8), "k_cache": of(2, 2, 32, 8), "v_cache": of(2, 2, 32, 8), "lengths": ints(2)}
PAGED = {
    "query": of(2, 4, 1, 8),
    "k_pages": of(5, 2, 16, 8),
    "v_pages": of(5, 2, 16, 8),
    "lengths": ints(2),
    "block_table": ints(2, 3),
}
UPDATE = {
    "k_cache": of(2, 2, 32, 8),
    "v_cache": of(2, 2, 32, 8),
    "key": of(2, 2, 1, 8),
    "value": of(2, 2, 1, 8),
    "positions": ints(2),
}
SAME = of(2, 2, 32, 8)


@pytest.mark.parametrize(
    ("operator", "arguments", "words"),
    [
        ("decode_attention", DECODE | {"query": of(2, 4, 1, 8, dtype=torch.float32)}, "query has dtype Float; .* Half"),
        ("decode_attention", DECODE | {"k_cache": of(2, 2, 32, 8, dtype=torch.float64)}, "k_cache has dtype Double"),
        ("decode_attention", DECODE | {"query": of(2, 4, 2, 8)}, r"query .*\[2, 4, 2, 8\]; dimension 2 must be 1"),
        ("decode_attention", DECODE | {"query": of(2, 4, 8, 2).mT[:, :, :1]}, "query .* has stride 2 along its last"),
        ("decode_attention", DECODE | {"query": of(2, 3, 1, 8)}, "heads = 3 .* kv_heads = 2; .* multiple"),
        ("decode_attention", DECODE | {"query": of(3, 4, 1, 8)}, "dimension 0 of query"),
        ("decode_attention", DECODE | {"v_cache": of(2, 2, 33, 8)}, "dimension 2 of v_cache"),
        ("decode_attention", DECODE | {"lengths": of(2, dtype=torch.int64)}, "lengths has dtype Long; it must be Int"),
        ("decode_attention", DECODE | {"lengths": ints(3)}, "lengths has shape .*dimension 0 of k_cache"),
        ("decode_attention", DECODE | {"scale": math.inf}, "scale is inf; it must be finite"),
        (
            "decode_attention",
            {"query": of(1, 1, 1, 129), "k_cache": of(1, 1, 4, 129), "v_cache": of(1, 1, 4, 129), "lengths": ints(1)},
            r"k_cache has head_dim = 129; it must be 1 \.\. 128",
        ),
        ("decode_attention_paged", PAGED | {"k_pages": of(5, 2, 8, 8), "v_pages": of(5, 2, 8, 8)}, "must be 16"),
        ("decode_attention_paged", PAGED | {"k_pages": of(5, 2, 48, 8), "v_pages": of(5, 2, 48, 8)}, "must be 16, 32"),
        ("decode_attention_paged", PAGED | {x: of(5, 2, 512, 8) for x in ("k_pages", "v_pages")}, "must be 16, 32"),
        ("decode_attention_paged", PAGED | {"block_table": ints(3, 3)}, "query .*dimension 0 of block_table"),
        ("decode_attention_paged", PAGED | {"block_table": ints(2)}, r"block_table .*\[batch, max_pages\]"),
        ("decode_attention_paged", PAGED | {"v_pages": of(6, 2, 16, 8)}, "dimension 0 of v_pages"),
        ("update_cache", UPDATE | {"key": of(2, 2, 33, 8), "value": of(2, 2, 33, 8)}, "new_tokens = 33; at most 32"),
        ("update_cache", UPDATE | {"k_cache": SAME, "v_cache": SAME}, "k_cache and v_cache are the same memory"),
        ("update_cache", UPDATE | {"value": of(2, 2, 2, 8)}, "dimension 2 of value"),
        ("update_cache", UPDATE | {"key": of(2, 2, 8, 2).mT[:, :, :1]}, "key .* has stride 2 along its last"),
        ("update_cache", UPDATE | {"key": of(2, 2, 1, 8, dtype=torch.float32)}, "key has dtype Float; it must be Half"),
    ],
)
def test_a_bad_argument_is_named(ops, operator, arguments, words):
    moved = {  # a shared tensor stays shared, and strides are kept
        id(x): torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=ops.device)
        for x in arguments.values()
        if isinstance(x, Tensor)
    }
    given = {name: moved.get(id(x), x) for name, x in arguments.items()}
    with pytest.raises(ValueError, match=words):
        getattr(ops, operator)(**given)


@pytest.mark.slow
def test_no_race_and_no_stray_access():
    """The checked simulator finds nothing: pipelines, merging within and among blocks, ragged tiles, all kernels."""
    checked = load(BuildRequest("task6", "tuned", "simulator", checked=True))
    for dtype, lengths, heads, head_dim in [
        (torch.float32, RAGGED, (4, 2), 64),
        (torch.float32, (0, 5, 700), (9, 1), 72),
        (torch.float16, (0, 5, 300, 700), (2, 2), 128),
        (torch.bfloat16, RAGGED, (9, 1), 40),
        (torch.bfloat16, (0, 5, 40), (9, 1), 5),
        (torch.float16, (700,), (8, 2), 64),
        (torch.float16, (0, 5, 600, 700), (4, 1), 128),
    ]:
        capacity = 1500 if lengths == (0, 5, 600, 700) else None  # too large for clusters
        inputs = tensors(checked, dtype, lengths, *heads, head_dim, capacity)
        paged = in_pages(checked, **inputs)
        new = [*packed(checked, dtype, len(lengths), heads[1], 2, head_dim), as_int([0] * len(lengths), "cpu")]
        calls = [
            partial(checked.decode_attention, **inputs),
            partial(checked.decode_attention_paged, **paged),
            partial(checked.update_cache, inputs["k_cache"], inputs["v_cache"], *new),
            partial(checked.update_cache_paged, paged["k_pages"], paged["v_pages"], *new, paged["block_table"]),
        ]
        for call in calls:
            with nothing_found(checked):
                call()


# ---- only on a GPU


@pytest.mark.gpu
def test_a_captured_graph_follows_lengths_and_pages():
    """One step, captured once: new tokens, positions, lengths and block tables are read at every replay."""
    ops = load(BuildRequest("task6", "tuned"))
    inputs = tensors(ops, torch.bfloat16, (900, 3, 1024), heads=8, kv_heads=2, head_dim=128, capacity=1100)
    key, value = packed(ops, torch.bfloat16, 3, 2, 1, 128)
    positions = inputs["lengths"] - 1
    paged = in_pages(ops, **inputs)

    def step():
        ops.update_cache(inputs["k_cache"], inputs["v_cache"], key, value, positions)
        return ops.decode_attention(**inputs), ops.decode_attention_paged(**paged)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = step()
    table = paged["block_table"].clone()
    for lengths in ((900, 3, 1024), (1, 0, 17), (1100, 1100, 1100), (16, 500, 1)):
        for cache in ("k_cache", "v_cache"):
            inputs[cache].normal_()
        key.normal_()
        value.normal_()
        inputs["lengths"].copy_(as_int(lengths, "cuda"))
        positions.copy_(inputs["lengths"] - 1)
        expected = [
            updated(inputs["k_cache"], key, positions.tolist()),
            updated(inputs["v_cache"], value, positions.tolist()),
        ]
        paged["block_table"].copy_(table[:, torch.randperm(table.size(1), device="cuda")].clamp_min(0))
        paged["k_pages"].normal_()
        paged["v_pages"].normal_()
        graph.replay()
        assert torch.equal(inputs["k_cache"], expected[0]) and torch.equal(inputs["v_cache"], expected[1])
        assert_right(outs[0], inputs)
        whole = [x[paged["block_table"]].transpose(1, 2).flatten(2, 3) for x in (paged["k_pages"], paged["v_pages"])]
        assert_right(outs[1], inputs | {"k_cache": whole[0], "v_cache": whole[1]})


@pytest.mark.gpu
def test_the_same_every_time():
    """No result depends on the order in which blocks run."""
    ops = load(BuildRequest("task6", "tuned"))
    inputs = tensors(ops, torch.float16, (3000, 17, 5000), heads=8, kv_heads=2, head_dim=128)
    first = ops.decode_attention(**inputs)
    assert all(torch.equal(ops.decode_attention(**inputs), first) for _ in range(20))


@pytest.mark.gpu
def test_more_than_2_31_elements():
    """Offsets must not overflow; the last sequence is compared, where overflow would show."""
    if torch.cuda.mem_get_info()[0] < 30 * 2**30:
        pytest.skip("needs 30 GiB of free GPU memory")
    ops = load(BuildRequest("task6", "tuned"))
    caches = [torch.zeros(17, 32, 32768, 128, dtype=torch.float16, device="cuda") for _ in range(2)]
    query = torch.randn(17, 32, 1, 128, dtype=torch.float16, device="cuda")
    lengths = as_int([32768] * 17, "cuda")
    key, value = packed(ops, torch.float16, 17, 32, 40, 128)
    ops.update_cache(*caches, key, value, lengths - 40)
    assert torch.equal(caches[0][-1, -1, -40:], key[-1, -1]) and torch.equal(caches[1][-1, -1, -40:], value[-1, -1])
    last = [x[-1:].clone() for x in caches]
    out = ops.decode_attention(query, *caches, lengths)
    assert_right(out[-1:], {"query": query[-1:], "k_cache": last[0], "v_cache": last[1], "lengths": lengths[-1:]})
    pages = [x.view(-1, 32, PAGE, 128) for x in caches]  # the same strides, but other values in other places
    table = torch.arange(pages[0].size(0), device="cuda").int().view(17, -1)
    out = ops.decode_attention_paged(query, *pages, lengths, table)
    last = [x[table[-1]].transpose(0, 1).flatten(1, 2)[None] for x in pages]
    assert_right(out[-1:], {"query": query[-1:], "k_cache": last[0], "v_cache": last[1], "lengths": lengths[-1:]})
