"""Task 5's mma kernels against dense attention in float64 under a bool mask: every pattern, dtype, size and layout.

On a Hopper GPU the operators prefer the Hopper kernels; these tests are built without them.
"""

from __future__ import annotations

import math
from functools import partial

import flash_inputs
import pytest
import torch
from checked_findings import nothing_found
from flash_inputs import LAYOUTS, assert_near, lists_of, operators_of
from torch import Tensor

from common.compiling import load as compiled
from common.compiling.request import BuildRequest
from common.console.paths import ROOT, build_root
from common.reference.bounds import max_error_of

NO_OTHER_KERNELS = """
#include "common/kernels/sparse/sparse.h"
bool hopper_forward(const SparseArguments&, bool) { return false; }
"""
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
BLOCKS = [32, 64, 96, 128]


@pytest.fixture(scope="session")
def load():
    """load("cuda") -> the operators with only the mma kernels; the simulator has no others."""
    stub = build_root() / "no_other_kernels.cu"  # the next session finds it here, with the objects built from it
    if not stub.is_file() or stub.read_text() != NO_OTHER_KERNELS:
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(NO_OTHER_KERNELS)
    folder = ROOT / "common" / "kernels" / "sparse"
    sources = [folder / "sparse_attention_mma.cu", folder / "compress_block_mask.cu", stub]

    def load(backend: str, **options):
        if backend == "cuda":
            options.update(sources=sources, label="mma")
        return compiled.load(BuildRequest("sparse", backend=backend, **options))

    return load


@pytest.fixture(scope="session")
def ops(backend: str, load):
    return load(backend)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return DTYPES[request.param]


def tensors(ops, dtype: torch.dtype, **sizes) -> list[Tensor]:
    """query, key and value."""
    return flash_inputs.tensors(ops, dtype, **sizes)[:3]


def positions(seq_q: int, seq_k: int, device) -> tuple[Tensor, Tensor]:
    """The positions of the queries [seq_q, 1] and of the keys [1, seq_k]."""
    return torch.arange(seq_q, device=device)[:, None], torch.arange(seq_k, device=device)[None]


def strided_mask(query: Tensor, key: Tensor, stride: int, offset: int = 0, causal: bool = False) -> Tensor:
    i, j = positions(query.size(2), key.size(2), query.device)
    return (j % stride == offset) & ((j <= i) | (not causal)).expand(i.size(0), -1)


def window_mask(query: Tensor, key: Tensor, window: int, causal: bool = True) -> Tensor:
    i, j = positions(query.size(2), key.size(2), query.device)
    return (i - window < j) & (j <= i) if causal else (i - j).abs() < window


def make_block_mask(heads: int, q_blocks: int, k_blocks: int, device, share: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(q_blocks + 10 * k_blocks)
    return (torch.rand(heads, q_blocks, k_blocks, generator=generator) < share).to(device)


def assert_right(ops, name: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *given, **options) -> Tensor:
    """Runs an operator; out and lse must be close to float64.

    `mask` broadcasts to [batch, heads, S_q, S_k]; `given` and `options` are the operator's further arguments. Scores
    have a standard deviation of 1.5^2 with the default scale.
    """
    out, lse = getattr(operators_of(ops), f"{name}_forward")(query, key, value, *given, **options)
    assert torch.equal(getattr(ops, name)(query, key, value, *given, **options), out)
    scale = options.get("scale")
    spread = 1.5**2 * (1 if scale is None else abs(scale) * query.size(-1) ** 0.5)
    assert_near(out, lse, query, key, value, spread, mask=mask, scale=scale)
    return out


def test_what_hidden_keys_hold_reaches_nobody(ops, dtype):
    """NaN and infinity in one value: rows that do not see it are unchanged, the others show it."""
    query, key, value = tensors(ops, dtype, seq_q=192, seq_k=192, head_dim=20, heads=2, kv_heads=1)
    i = torch.arange(192, device=ops.device)
    counts, columns = lists_of(torch.ones(2, 3, 3, dtype=torch.bool, device=ops.device))
    at = 100
    calls = {
        "window": (lambda v: ops.sliding_window_attention(query, key, v, 30), (i >= at) & (i < at + 30)),
        "two sides": (lambda v: ops.sliding_window_attention(query, key, v, 30, False), (i - at).abs() < 30),
        "strided": (lambda v: ops.strided_attention(query, key, v, 4, 0, True), i >= at),
        "blocks": (lambda v: ops.block_sparse_attention(query, key, v, counts, columns, 64, True), i >= at),
    }
    for name, (call, seeing) in calls.items():
        clean = call(value)
        for bad in (math.nan, math.inf):
            spoiled = value.clone()
            spoiled[0, 0, at, 3] = bad
            out = call(spoiled)
            assert torch.equal(out[1], clean[1]), name
            assert not bool(out[0][:, seeing, 3].isfinite().any()), name
            error = max_error_of(out[0][:, ~seeing], clean[0][:, ~seeing].double())
            assert error <= 4 * torch.finfo(dtype).eps * float(clean.abs().max()), name


def assert_strided(ops, query: Tensor, key: Tensor, value: Tensor, *given, scale: float | None = None) -> Tensor:
    mask = strided_mask(query, key, *given)
    return assert_right(ops, "strided_attention", query, key, value, mask, *given, scale=scale)


def assert_window(ops, query: Tensor, key: Tensor, value: Tensor, *given, scale: float | None = None) -> Tensor:
    mask = window_mask(query, key, *given)
    return assert_right(ops, "sliding_window_attention", query, key, value, mask, *given, scale=scale)


def assert_blocks(
    ops,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_mask: Tensor,
    block: int,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    mask = block_mask.repeat_interleave(block, 1).repeat_interleave(block, 2)
    if causal:
        mask = mask & window_mask(query, key, query.size(2) + key.size(2))
    lists = lists_of(block_mask)
    return assert_right(
        ops, "block_sparse_attention", query, key, value, mask, *lists, block, causal=causal, scale=scale
    )


@pytest.mark.parametrize("head_dim", [1, 5, 40, 64, 72, 128])
def test_every_head_dim(ops, dtype, head_dim):
    assert_strided(ops, *tensors(ops, dtype, head_dim=head_dim), 3, 1, True)
    assert_window(ops, *tensors(ops, dtype, head_dim=head_dim), 9)
    inputs = tensors(ops, dtype, seq_q=64, seq_k=96, head_dim=head_dim, batch=1, heads=2)
    assert_blocks(ops, *inputs, make_block_mask(2, 2, 3, ops.device), 32)


SIZES = [(1, 1), (1, 70), (70, 1), (65, 333), (333, 65), (129, 131)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_any_number_of_queries_and_keys(ops, dtype, sizes, causal):
    """On both sides of a tile boundary; includes queries that see no key, since none is at or before them."""
    inputs = tensors(ops, dtype, seq_q=sizes[0], seq_k=sizes[1], head_dim=8, batch=1, heads=2)
    for stride, offset in ((1, 0), (2, 1), (5, 3), (sizes[1], 0), (sizes[1], sizes[1] - 1)):
        if offset < stride <= sizes[1]:
            assert_strided(ops, *inputs, stride, offset, causal)
    for window in (1, 2, 31, 32, 33, 100, max(sizes) - 1, max(sizes), 2**40):
        if window >= 1:
            assert_window(ops, *inputs, window, causal)


def test_wide_windows(ops, dtype):
    """Wide enough for blocks of four warps, with rows on both sides of every edge of the band."""
    inputs = tensors(ops, dtype, seq_q=1250, seq_k=1200, head_dim=8, batch=1, heads=1)
    assert_window(ops, *inputs, 1100)
    assert_window(ops, *inputs, 600, False)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", BLOCKS)
def test_block_masks(ops, dtype, block, causal):
    """Rows with no block, with one, with all; a head with none; more key blocks than query blocks and fewer."""
    for q_blocks, k_blocks in ((1, 1), (3, 5), (5, 2)):
        inputs = tensors(
            ops, dtype, seq_q=q_blocks * block, seq_k=k_blocks * block, head_dim=8, batch=2, heads=4, kv_heads=2
        )
        block_mask = make_block_mask(4, q_blocks, k_blocks, ops.device)
        block_mask[0] = True
        block_mask[1] = False
        block_mask[2, 0] = False
        assert_blocks(ops, *inputs, block_mask, block, causal)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("block", BLOCKS)
def test_block_masks_with_whole_pieces(ops, dtype, block, head_dim):
    """The same with the kernels for rows of 16-byte pieces."""
    inputs = tensors(ops, dtype, seq_q=2 * block, seq_k=3 * block, head_dim=head_dim, batch=1, heads=2)
    block_mask = make_block_mask(2, 2, 3, ops.device)
    assert_blocks(ops, *inputs, block_mask, block)
    assert_blocks(ops, *inputs, block_mask, block, True)


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_fewer_heads_of_keys_than_of_queries(ops, dtype, kv_heads):
    inputs = tensors(ops, dtype, heads=6, kv_heads=kv_heads)
    assert_strided(ops, *inputs, 2, 1, True)
    assert_window(ops, *inputs, 5, False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("head_dim", [16, 20])
def test_inputs_of_any_strides(ops, dtype, head_dim, layout):
    query, key, value = LAYOUTS[layout](*tensors(ops, dtype, seq_q=64, seq_k=64, head_dim=head_dim))
    assert_strided(ops, query, key, value, 3, 2)
    assert_window(ops, query, key, value, 20)
    assert_blocks(ops, query, key, value, make_block_mask(query.size(1), 2, 2, ops.device), 32)


@pytest.mark.parametrize("scale", [0.0, -0.4, 0.5, 30.0])
def test_any_scale(ops, dtype, scale):
    query, key, value = tensors(ops, dtype, seq_q=64, seq_k=64)
    assert_strided(ops, query, key, value, 2, 1, True, scale=scale)
    assert_window(ops, query, key, value, 40, scale=scale)
    assert_blocks(ops, query, key, value, make_block_mask(query.size(1), 2, 2, ops.device), 32, True, scale)


def test_scores_that_rise_and_fall_along_the_keys(ops, dtype):
    """From 300 to -300 and back: a row's maximum is in the first tile, or each tile raises it."""
    query, key, value = tensors(ops, dtype, seq_q=192, seq_k=192, head_dim=16, batch=1)
    query[..., 1:] *= 0.01
    key[..., 1:] *= 0.01
    ramp = torch.linspace(300, -300, 192, device=ops.device)
    for slope in (ramp, -ramp):
        query[..., 0], key[..., 0] = 4, slope
        assert_strided(ops, query, key, value, 2, 0, True)
        assert_window(ops, query, key, value, 70)
        assert_blocks(ops, query, key, value, make_block_mask(query.size(1), 3, 3, ops.device), 64)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_nobody_attends_to_is_not_read(ops, dtype, bad):
    """Keys between the strided ones, keys beyond every window and unlisted blocks may hold anything."""
    query, key, value = tensors(ops, dtype, seq_q=128, seq_k=256, head_dim=16, batch=1, heads=2)

    def spoiled(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query, *(x.masked_fill(rows[:, None], bad) for x in (key, value))

    keys = torch.arange(256, device=ops.device)
    clean = ops.strided_attention(query, key, value, 3, 1, True)
    assert torch.equal(ops.strided_attention(*spoiled(keys % 3 != 1), 3, 1, True), clean)
    clean = ops.sliding_window_attention(query, key, value, 40)
    assert torch.equal(ops.sliding_window_attention(*spoiled(keys >= 128), 40), clean)
    lists = lists_of((torch.arange(4, device=ops.device) % 2 == 0).expand(2, 2, 4))
    clean = ops.block_sparse_attention(query, key, value, *lists, 64)
    assert torch.equal(ops.block_sparse_attention(*spoiled(keys // 64 % 2 == 1), *lists, 64), clean)


def test_the_same_bits_every_time(ops, dtype):
    query, key, value = tensors(ops, dtype, seq_q=128, seq_k=192)
    lists = lists_of(make_block_mask(query.size(1), 2, 3, ops.device))
    for call in (
        partial(ops.strided_attention, query, key, value, 2, 1, True),
        partial(ops.sliding_window_attention, query, key, value, 50),
        partial(ops.block_sparse_attention, query, key, value, *lists, 64, True),
    ):
        first = call()
        for _ in range(10):
            assert torch.equal(call(), first)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 31), (3, 1, 32), (2, 5, 33), (1, 4, 100)], ids=str)
def test_a_block_mask_is_compressed(ops, shape):
    for share in (0.0, 0.3, 1.0):
        block_mask = make_block_mask(*shape, ops.device, share)
        counts, columns = ops.compress_block_mask(block_mask)
        expected = lists_of(block_mask)
        assert counts.dtype == columns.dtype == torch.int32
        assert torch.equal(counts, expected[0]) and torch.equal(columns, expected[1])


NORMAL = {"query": (2, 4, 6, 8), "key": (2, 2, 5, 8), "value": (2, 2, 5, 8)}
BAD_INPUTS = [
    ({"query": torch.float32}, "query has dtype Float; it must be Half or BFloat16$"),
    ({"query": torch.float64}, "query has dtype Double; it must be Half or BFloat16$"),
    ({"key": torch.bfloat16}, "key has dtype BFloat16; it must be Half"),
    ({"query": (4, 6, 8)}, r"query has 3 dimensions, shape \[4, 6, 8\]; it must be \[batch, heads, S_q, head_dim\]"),
    ({"key": (2, 3, 5, 8), "value": (2, 3, 5, 8)}, r"query has 4 heads, .* and key 3, .* must be a multiple of key's"),
    ({"value": (2, 2, 4, 8)}, "dimension 2 of value .4. must equal dimension 2 of key .5."),
    ({"key": (2, 2, 0, 8)}, "key has shape .* so S_k is 0; it must be at least 1"),
    ({"query": (2, 4, 6, 129), "key": (2, 2, 5, 129), "value": (2, 2, 5, 129)}, r"head_dim = 129, .* 1 \.\. 128"),
    ({"stride": 0}, r"stride is 0; it must be 1 \.\. S_k = 5"),
    ({"stride": -2}, r"stride is -2; it must be 1 \.\. S_k = 5"),
    ({"stride": 6}, r"stride is 6; it must be 1 \.\. S_k = 5"),
    ({"offset": -1}, r"offset is -1; it must be 0 \.\. stride - 1 = 1"),
    ({"offset": 2}, r"offset is 2; it must be 0 \.\. stride - 1 = 1"),
    ({"scale": math.nan}, "scale is nan; it must be finite"),
]


@pytest.mark.parametrize(("changed", "words"), BAD_INPUTS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_bad_argument_is_named(ops, changed, words):
    def tensor(name: str) -> Tensor:
        given = changed.get(name, NORMAL[name])
        shape, dtype = (NORMAL[name], given) if isinstance(given, torch.dtype) else (given, torch.float16)
        return torch.zeros(shape, dtype=dtype, device=ops.device)

    options = {"stride": 2, **{name: x for name, x in changed.items() if name not in NORMAL}}
    with pytest.raises(ValueError, match=words):
        ops.strided_attention(*map(tensor, NORMAL), **options)


@pytest.mark.parametrize("window", [0, -3])
def test_a_bad_window_is_named(ops, window):
    with pytest.raises(ValueError, match=f"window is {window}; it must be at least 1"):
        ops.sliding_window_attention(*tensors(ops, torch.float16), window)


BAD_LISTS = [
    ({"block": 16}, "block is 16; it must be 32, 64, 96 or 128"),
    ({"block": 0}, "block is 0; it must be"),
    ({"block": 96}, "block is 96, query has S_q = 64 and key S_k = 128; S_q and S_k must be multiples of block"),
    ({"block": 32}, r"counts has shape \[3, 1\]; dimension 1 must be S_q / block = 2"),
    ({"counts": (2, 1)}, r"counts has shape \[2, 1\]; dimension 0 must be heads = 3"),
    ({"columns": (3, 2, 2)}, r"columns has shape \[3, 2, 2\]; dimension 1 must be S_q / block = 1"),
    ({"columns": (3, 1, 3)}, r"columns has shape \[3, 1, 3\]; dimension 2 must be S_k / block = 2"),
    ({"columns": torch.int64}, "columns has dtype Long; it must be Int"),
    ({"counts": torch.float32}, "counts has dtype Float; it must be Int"),
]


@pytest.mark.parametrize(("changed", "words"), BAD_LISTS, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_lists_of_blocks_are_named(ops, changed, words):
    inputs = tensors(ops, torch.float16, seq_q=64, seq_k=128)
    lists = []
    for name, shape in (("counts", (3, 1)), ("columns", (3, 1, 2))):
        given = changed.get(name, shape)
        shape, dtype = (shape, given) if isinstance(given, torch.dtype) else (given, torch.int32)
        lists.append(torch.zeros(shape, dtype=dtype, device=ops.device))
    with pytest.raises(ValueError, match=words):
        ops.block_sparse_attention(*inputs, *lists, changed.get("block", 64))


def test_a_bad_block_mask_is_named(ops):
    with pytest.raises(ValueError, match="block_mask has dtype Float; it must be Bool"):
        ops.compress_block_mask(torch.zeros(1, 2, 3, device=ops.device))
    with pytest.raises(ValueError, match=r"block_mask has 2 dimensions, .* \[heads, S_q / block, S_k / block\]"):
        ops.compress_block_mask(torch.zeros(2, 3, dtype=torch.bool, device=ops.device))


@pytest.fixture(scope="module")
def checked(load):
    """Calls a function of the operators in the checked simulator; nothing may be found."""
    ops = load("simulator", checked=True)

    def run(call) -> None:
        with nothing_found(ops):
            call(ops)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [40, 64, 72, 75])
def test_no_race_and_no_stray_access(checked, dtype, head_dim):
    def call(ops) -> None:
        inputs = tensors(ops, dtype, seq_q=150, seq_k=203, head_dim=head_dim, batch=1, heads=2, kv_heads=1)
        assert_strided(ops, *inputs, 3, 2, True)
        assert_window(ops, *inputs, 50)
        for block in (32, 64, 96):
            inputs = tensors(ops, dtype, seq_q=2 * block, seq_k=3 * block, head_dim=head_dim, batch=1, heads=2)
            assert_blocks(ops, *inputs, make_block_mask(2, 2, 3, "cpu"), block, True)

    checked(call)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [8, 9])
def test_lists_that_make_no_sense_read_nothing_else(checked, head_dim):
    """The caller chooses the block indices: whatever they are, every access stays inside the tensors."""

    def call(ops) -> None:
        inputs = tensors(ops, torch.float16, seq_q=128, seq_k=96, head_dim=head_dim, batch=1, heads=2)
        generator = torch.Generator().manual_seed(0)
        for low, high in ((-(2**31), 2**31 - 1), (-5, 6)):
            counts = torch.randint(low, high, (2, 4), dtype=torch.int32, generator=generator)
            columns = torch.randint(low, high, (2, 4, 3), dtype=torch.int32, generator=generator)
            for causal in (False, True):
                ops.block_sparse_attention(*inputs, counts, columns, 32, causal)

    checked(call)


@pytest.fixture(scope="session")
def cuda(load):
    return load("cuda")


def all_operators(ops, query: Tensor, key: Tensor, value: Tensor, block_mask: Tensor, block: int = 64) -> list[Tensor]:
    """One call of each."""
    return [
        ops.strided_attention(query, key, value, 4, 1, True),
        ops.sliding_window_attention(query, key, value, 100),
        ops.block_sparse_attention(query, key, value, *ops.compress_block_mask(block_mask), block),
    ]


@pytest.mark.gpu
def test_a_cuda_graph_captures_all_operators(cuda):
    """Includes building the lists: a replay with another mask uses the new lists."""
    inputs = tensors(cuda, torch.bfloat16, seq_q=256, seq_k=512, head_dim=64)
    masks = [make_block_mask(inputs[0].size(1), 4, 8, "cuda", share) for share in (0.2, 0.8)]
    static = [*(torch.zeros_like(x) for x in inputs), masks[0].clone()]
    all_operators(cuda, *static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = all_operators(cuda, *static)
    for mask in masks:
        for given, to in zip((*inputs, mask), static, strict=True):
            to.copy_(given)
        graph.replay()
        for out, expected in zip(outs, all_operators(cuda, *inputs, mask), strict=True):
            assert torch.equal(out, expected)


@pytest.mark.gpu
def test_the_current_stream_is_used(cuda):
    """On another stream, after work that writes the inputs late: only kernels on the same stream see them."""
    inputs = [*tensors(cuda, torch.bfloat16, seq_q=256, seq_k=512), make_block_mask(flash_inputs.HEADS, 4, 8, "cuda")]
    expected = all_operators(cuda, *inputs)
    late = [torch.zeros_like(x) for x in inputs]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for x, given in zip(late, inputs, strict=True):
            x.copy_(given)
        outs = all_operators(cuda, *late)
    stream.synchronize()
    assert all(torch.equal(x, y) for x, y in zip(outs, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
def test_long_sequences(cuda, dtype, head_dim):
    inputs = tensors(cuda, dtype, seq_q=3968, seq_k=4096, head_dim=head_dim, batch=1, heads=2, kv_heads=1)
    for causal in (False, True):
        assert_strided(cuda, *inputs, 8, 5, causal)
        for window in (200, 1000, 1500):
            assert_window(cuda, *inputs, window, causal)
        for block in (32, 64, 128):
            block_mask = make_block_mask(2, 3968 // block, 4096 // block, "cuda", 0.2)
            assert_blocks(cuda, *inputs, block_mask, block, causal)


@pytest.mark.gpu
def test_more_than_2_31_elements(cuda, much_memory):
    """Head offsets must not overflow; the last batch is compared, where overflow would show."""
    inputs = [torch.randn(2200, 8, 1024, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    assert inputs[0].numel() > 2**31
    block_mask = make_block_mask(8, 8, 8, "cuda")
    outs = [x[-1:] for x in all_operators(cuda, *inputs, block_mask, 128)]
    last = [x[-1:].contiguous() for x in inputs]
    assert all(torch.equal(x, y) for x, y in zip(outs, all_operators(cuda, *last, block_mask, 128), strict=True))


@pytest.mark.gpu
def test_rows_more_than_2_31_elements_apart(cuda, much_memory):
    """Slices of one tensor with 6 x 2^20 elements per row; with stride 8 that is 48 x 2^20."""
    whole = torch.empty(1, 1, 512, 6 * 2**20, device="cuda", dtype=torch.bfloat16)
    views = [whole[..., start : start + 64] for start in (0, 3 * 2**20, whole.size(-1) - 64)]
    for x in views:
        x.copy_(torch.randn(x.shape, device="cuda"))
    block_mask = make_block_mask(1, 8, 8, "cuda")
    outs = all_operators(cuda, *views, block_mask)
    contiguous = [x.contiguous() for x in views]
    assert all(torch.equal(x, y) for x, y in zip(outs, all_operators(cuda, *contiguous, block_mask), strict=True))


@pytest.mark.gpu
def test_more_heads_than_a_grid_has_along_y(cuda):
    inputs = tensors(cuda, torch.float16, batch=25_000, heads=3, seq_q=32, seq_k=32, head_dim=8)
    lists = lists_of(torch.ones(3, 1, 1, dtype=torch.bool, device="cuda"))
    out = cuda.block_sparse_attention(*inputs, *lists, 32)
    last = [x[-1:].contiguous() for x in inputs]
    assert torch.equal(out[-1:], cuda.block_sparse_attention(*last, *lists, 32))
