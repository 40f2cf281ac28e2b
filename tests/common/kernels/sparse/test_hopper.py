"""Task 5's Hopper kernel (wgmma) against dense attention in float64: every pattern, size and layout it supports.

For GPUs of compute capability 9.0; the operators and their errors: tests/common/kernels/sparse/test_sparse.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from flash_inputs import assert_near, hopper_only, kernels_of, tensors
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest

pytestmark = pytest.mark.gpu

DTYPES = [torch.float16, torch.bfloat16]
KERNEL = "flash_attention_wgmma_kernel"


@pytest.fixture(scope="module")
def ops():
    """Task 5's tuned operators on a Hopper GPU."""
    hopper_only()
    return load(BuildRequest("task5", "tuned", "cuda"))


def positions_seen(
    seq_q: int, positions: Tensor, causal: bool = False, window: int | None = None, device="cuda"
) -> Tensor:
    """bool [seq_q, keys]: which of the keys at these positions a query sees."""
    i, p = torch.arange(seq_q, device=device)[:, None], positions.to(device)[None]
    seen = p <= i if causal else torch.ones(seq_q, p.size(1), dtype=torch.bool, device=device)
    return seen if window is None else seen & ((i - p).abs() < window)


def check_strided(
    ops, query: Tensor, key: Tensor, value: Tensor, stride: int, offset: int = 0, causal: bool = False, scale=None
) -> None:
    """The rows between the strided ones are NaN and infinite: they must not be read."""
    positions = torch.arange(offset, key.size(2), stride, device="cuda")
    rest = torch.ones(key.size(2), dtype=torch.bool, device="cuda").index_fill(0, positions, False)
    key, value = key.clone(), value.clone()
    key[:, :, rest], value[:, :, rest] = math.nan, math.inf
    out, lse = ops.strided_attention_forward(query, key, value, stride, offset, causal, scale)
    seen = positions_seen(query.size(2), positions, causal)
    assert_near(out, lse, query, key[:, :, positions], value[:, :, positions], mask=seen, scale=scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_hopper_kernel_is_chosen(ops, dtype, head_dim):
    """For every pattern. Another head_dim, or rows not in units of 16 bytes, use the other kernel."""
    query, key, value = tensors(ops, dtype, seq_q=256, seq_k=256, head_dim=head_dim)[:3]
    columns = ops.compress_block_mask(torch.ones(query.size(1), 2, 2, dtype=torch.bool, device="cuda"))
    assert KERNEL in kernels_of(lambda: ops.strided_attention(query, key, value, 3))
    assert KERNEL in kernels_of(lambda: ops.sliding_window_attention(query, key, value, 100))
    assert KERNEL in kernels_of(lambda: ops.block_sparse_attention(query, key, value, *columns, 128))
    columns = ops.compress_block_mask(torch.ones(query.size(1), 4, 4, dtype=torch.bool, device="cuda"))
    assert KERNEL not in kernels_of(lambda: ops.block_sparse_attention(query, key, value, *columns, 64))
    narrow = [x[..., :40].contiguous() for x in (query, key, value)]
    assert KERNEL not in kernels_of(lambda: ops.strided_attention(*narrow, 3))
    padded = [torch.cat((x, x[..., :2]), -1)[..., :-2] for x in (query, key, value)]
    assert KERNEL not in kernels_of(lambda: ops.strided_attention(*padded, 3))
    check_strided(ops, *padded, stride=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("sizes", "stride", "offset"),
    [
        ((128, 128), 1, 0),
        ((1, 1), 1, 0),
        ((1, 700), 2, 1),
        ((700, 1), 1, 0),
        ((129, 353), 2, 1),
        ((300, 1057), 3, 0),
        ((1000, 1023), 4, 3),
        ((777, 600), 8, 7),
        ((200, 4000), 500, 499),
        ((2000, 50), 50, 49),
    ],
    ids=str,
)
def test_strided(ops, dtype, head_dim, causal, sizes, stride, offset):
    """Ragged numbers of queries and keys, several tiles and less than one; rows that see no key under a causal mask."""
    query, key, value = tensors(ops, dtype, seq_q=sizes[0], seq_k=sizes[1], head_dim=head_dim, heads=2, batch=2)[:3]
    check_strided(ops, query, key, value, stride, offset, causal)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(500, 500), (300, 1000), (1000, 300)], ids=str)
@pytest.mark.parametrize("window", [1, 64, 129, 400, 5000])
def test_sliding_window(ops, dtype, head_dim, causal, sizes, window):
    query, key, value = tensors(ops, dtype, seq_q=sizes[0], seq_k=sizes[1], head_dim=head_dim, batch=1)[:3]
    out, lse = ops.sliding_window_attention_forward(query, key, value, window, causal)
    seen = positions_seen(sizes[0], torch.arange(sizes[1]), causal, window)
    assert_near(out, lse, query, key, value, mask=seen)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_block_sparse(ops, dtype, head_dim, causal, density):
    """A separate mask for every head; includes block rows without any block."""
    query, key, value = tensors(ops, dtype, seq_q=640, seq_k=896, head_dim=head_dim, heads=4, kv_heads=2)[:3]
    mask = torch.rand(4, 5, 7, generator=torch.Generator().manual_seed(0)).to("cuda") < density
    out, lse = ops.block_sparse_attention_forward(query, key, value, *ops.compress_block_mask(mask), 128, causal)
    seen = mask.repeat_interleave(128, 1).repeat_interleave(128, 2)
    assert_near(out, lse, query, key, value, mask=seen & positions_seen(640, torch.arange(896), causal))


def test_wrong_lists_read_nothing_outside(ops):
    """counts and columns out of range: which keys are seen is unspecified, but the kernel ends, and reads no NaN."""
    query, key, value = tensors(ops, torch.bfloat16, seq_q=256, seq_k=256, head_dim=128, heads=4)[:3]
    counts = torch.tensor([[-5, 2**31 - 1]] * 4, dtype=torch.int32, device="cuda")
    columns = torch.tensor([[[0, 1], [-(2**31), 2**31 - 1]]] * 4, dtype=torch.int32, device="cuda")
    for causal in (False, True):
        out = ops.block_sparse_attention(query, key, value, counts, columns, 128, causal)
        assert bool((out == 0).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_grouped_heads_and_any_layout(ops, dtype):
    """GQA; [batch, rows, heads, head_dim] and one packed tensor, read in place."""
    query, key, value = tensors(ops, dtype, seq_q=300, seq_k=500, head_dim=128, heads=6, kv_heads=2)[:3]
    layouts = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value)]
    assert KERNEL in kernels_of(lambda: ops.strided_attention(*layouts, 2))
    check_strided(ops, query, key, value, 2, 1)
    expected = ops.strided_attention(query, key, value, 2, 1, True)
    assert torch.equal(ops.strided_attention(*layouts, 2, 1, True), expected)
    packed = torch.cat((key, value), -1).chunk(2, -1)
    assert torch.equal(ops.strided_attention(query, *packed, 2, 1, True), expected)
    one = [x[:1] for x in (query, key, value)]
    shared = [x.expand(3, -1, -1, -1) for x in one]
    assert torch.equal(ops.strided_attention(*shared, 2)[2:], ops.strided_attention(*one, 2))


def test_scale_and_large_scores(ops):
    """An explicit scale, and scores whose maximum grows from tile to tile, so that the output is rescaled."""
    query, key, value = tensors(ops, torch.float16, seq_q=300, seq_k=1500, head_dim=64)[:3]
    check_strided(ops, query, key, value, 1, scale=0.3)
    growing = key * torch.linspace(0.1, 4, 1500, device="cuda", dtype=key.dtype)[:, None]
    check_strided(ops, query, growing, value, 1)
    check_strided(ops, query, growing.flip(2), value, 3, causal=True)
    check_strided(ops, query, key, value, 2, scale=-0.2)  # not supported by this kernel


def test_a_cuda_graph_can_hold_it(ops):
    query, key, value = tensors(ops, torch.bfloat16, seq_q=500, seq_k=500, head_dim=128)[:3]
    static = [torch.zeros_like(x) for x in (query, key, value)]
    ops.strided_attention(*static, 2, 1, True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.strided_attention(*static, 2, 1, True)
    for given, to in zip((query, key, value), static, strict=True):
        to.copy_(given)
    graph.replay()
    assert torch.equal(out, ops.strided_attention(query, key, value, 2, 1, True))


def test_many_heads_and_rows(ops):
    """More work than SMs: a CTA processes several work tiles with the same barriers."""
    query, key, value = tensors(
        ops, torch.bfloat16, seq_q=1024, seq_k=1000, head_dim=128, heads=16, kv_heads=4, batch=3
    )[:3]
    for causal in (False, True):
        check_strided(ops, query, key, value, 2, 1, causal)
