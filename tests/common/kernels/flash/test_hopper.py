"""The kernel of dense attention for Hopper GPUs (wgmma) beside attention in float64: sizes, layouts, masks, its border.

For GPUs of compute capability 9.0, but for the last test; the operators and their errors: test_flash.py, gradients
and what PyTorch does with them: test_flash_torch.py.
"""

from __future__ import annotations

import math

import flash_room as flash
import pytest
import torch
from flash_inputs import (
    ALIGNMENTS,
    assert_near,
    gaps,
    hopper_only,
    kernels_of,
    operators_of,
    packed,
    rows_first,
    scores,
    tensors,
)
from torch import Tensor
from torch.testing import assert_close

from task7.front_door.sdpa import scaled_dot_product_attention

DTYPES = [torch.float16, torch.bfloat16]
KERNEL = "flash_attention_wgmma_kernel"
gpu = pytest.mark.gpu


@pytest.fixture(scope="module")
def ops():
    """The room's operators on a Hopper GPU."""
    hopper_only()
    return flash.load("cuda")


def assert_right(ops, query: Tensor, key: Tensor, value: Tensor, kernel: str = "wgmma", **options) -> Tensor:
    """The named kernel runs, and out and lse are near to float64."""
    arguments = {"causal": False, **options}
    assert flash.kernel_of(ops, query, key, value, **arguments) == kernel
    out, lse = operators_of(ops).flash_attention_forward(query, key, value, **arguments)
    assert_near(out, lse, query, key, value, **options)
    return out


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("head_dim", range(8, 129, 8))
def test_every_head_dim(ops, dtype, alignment, head_dim):
    query, key, value = tensors(ops, dtype, seq_q=150, seq_k=333, head_dim=head_dim, heads=4, kv_heads=2)[:3]
    assert_right(ops, query, key, value, **ALIGNMENTS[alignment])


@gpu
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    "sizes",
    [
        *[(1, 1), (1, 239), (239, 1), (64, 64), (65, 63), (113, 203), (129, 131), (191, 193), (700, 70), (70, 700)],
        *[(1023, 1024), (1024, 1023), (2000, 777)],
    ],
    ids=str,
)
def test_any_number_of_queries_and_keys(ops, sizes, head_dim, alignment):
    """Ragged numbers of queries and keys, many tiles and less than one; rows that see no key are among them."""
    for dtype in DTYPES:
        query, key, value = tensors(ops, dtype, seq_q=sizes[0], seq_k=sizes[1], head_dim=head_dim, heads=2)[:3]
        out = assert_right(ops, query, key, value, **ALIGNMENTS[alignment])
        blind = max(sizes[0] - sizes[1], 0) if alignment == "lower right" else 0
        assert bool((out[:, :, :blind] == 0).all()) and bool((out[:, :, blind:] != 0).any())


@gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_fewer_heads_of_keys_than_of_queries(ops, head_dim, kv_heads):
    query, key, value = tensors(ops, torch.bfloat16, 300, 500, head_dim, heads=8, kv_heads=kv_heads)[:3]
    assert_right(ops, query, key, value)
    assert_right(ops, query, key, value, causal=True, lower_right=True)


@gpu
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_more_work_than_multiprocessors(ops, head_dim, alignment):
    """A block does several pieces of work, and its barriers go on from one to the next; the same bits every time."""
    query, key, value = tensors(ops, torch.bfloat16, 1100, 1000, head_dim, batch=3, heads=16, kv_heads=4)[:3]
    out = assert_right(ops, query, key, value, **ALIGNMENTS[alignment])
    for _ in range(20):
        assert torch.equal(flash.flash_attention(ops, query, key, value, **ALIGNMENTS[alignment]), out)


@gpu
@pytest.mark.parametrize(
    ("head_dim", "alignment", "keys", "shape"),
    [
        (64, "full", 4133, "64, 3, 128"),
        (64, "lower right", 4133, "64, 4, 64"),
        (120, "full", 4133, "128, 3, 80"),
        (128, "lower right", 8233, "128, 3, 80"),
    ],
)
def test_shapes_for_long_sequences(ops, head_dim, alignment, keys, shape):
    """Some shapes are chosen for much work only. The name of the kernel tells which: D, groups of 64 rows, B_c."""
    query, key, value = tensors(ops, torch.bfloat16, 1900, keys, head_dim, heads=32, kv_heads=8)[:3]
    out = assert_right(ops, query, key, value, **ALIGNMENTS[alignment])
    ran = kernels_of(lambda: flash.flash_attention(ops, query, key, value, **ALIGNMENTS[alignment]))
    assert shape in ran.replace("(int)", "")  # a demangler may say (int)64
    assert torch.equal(flash.flash_attention(ops, query, key, value, **ALIGNMENTS[alignment]), out)


@gpu
@pytest.mark.parametrize("head_dim", [40, 64, 128])
def test_layouts_that_the_copy_engine_takes(ops, head_dim):
    """[batch, S, heads, head_dim], one packed tensor, gaps of 16 bytes, shared batches: read where they lie."""
    query, key, value = tensors(ops, torch.bfloat16, 300, 300, head_dim)[:3]
    expected = assert_right(ops, query, key, value, causal=True)
    for views in (packed(query, key, value), rows_first(query, key, value), gaps(query, key, value, behind=8)):
        assert not all(x.is_contiguous() for x in views)
        assert torch.equal(assert_right(ops, *views, causal=True), expected)
    shared = [x[:1].expand(3, -1, -1, -1) for x in (query, key, value)]
    assert torch.equal(assert_right(ops, *shared, causal=True)[2:], expected[:1])
    odd = [torch.as_strided(x[:1, :1], (1, 1, *x.shape[2:]), (3, 5, *x.stride()[2:])) for x in (query, key, value)]
    assert_right(ops, *odd)  # no stride is used where a size is 1


@gpu
def test_the_border(ops):
    """What it does not take goes to the kernel that takes all: masks, scales of 0 or less, keys that stand apart, rows
    that are not in units of 16 bytes."""
    query, key, value = tensors(ops, torch.bfloat16, 100, 100, 64)[:3]
    assert_right(ops, query, key, value, "mma", mask=torch.rand(100, 100, device="cuda") < 0.7)
    assert_right(ops, query, key, value, "mma", scale=0.0)
    assert_right(ops, query, key, value, "mma", scale=-0.1)
    assert flash.kernel_of(ops, query, key[:, :, ::2], value[:, :, ::2], True, key_step=2) == "mma"
    assert flash.kernel_of(ops, query, key[:, :, ::2], value[:, :, ::2]) == "wgmma"  # as a shorter sequence
    assert flash.kernel_of(ops, query.float(), key.float(), value.float()) == "3xfp16"
    for before, behind in ((0, 1), (0, 4), (4, 4)):
        assert_right(ops, *gaps(query, key, value, before=before, behind=behind), "mma")
    assert_right(ops, query, *gaps(key, value, behind=4), "mma")
    assert_right(ops, *(x[..., :60] for x in (query, key, value)), "mma")  # a head_dim that is no multiple of 8
    assert_right(ops, *(x[..., 8:24] for x in (query, key, value)))


@gpu
def test_scale_and_large_scores(ops):
    """A scale of one's own, and scores whose maximum grows from tile to tile, so that the output is rescaled."""
    for head_dim in (64, 128):
        query, key, value = tensors(ops, torch.float16, 300, 1500, head_dim)[:3]
        assert_right(ops, query, key, value, scale=0.3)
        growing = key * torch.linspace(0.1, 4, 1500, device="cuda", dtype=key.dtype)[:, None]
        assert_right(ops, query, growing, value)
        assert_right(ops, query, growing.flip(2), value, causal=True, lower_right=True)
        hidden = key.clone()
        query[..., 0] = query[..., 0].abs() + 1
        hidden[:, :, :700, 0] = -math.inf
        assert_right(ops, query, hidden, value)
        hidden[..., 0] = -math.inf
        assert bool((assert_right(ops, query, hidden, value) == 0).all())


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_gradients(ops, dtype, alignment):
    """The backward pass takes its out and lse."""
    for head_dim, (seq_q, seq_k) in ((64, (113, 203)), (128, (300, 260))):
        *inputs, grad_out = tensors(ops, dtype, seq_q, seq_k, head_dim, heads=4, kv_heads=2, sharpness=1, mean_value=0)
        inputs = [x.requires_grad_() for x in inputs]
        call = lambda: flash.flash_attention(ops, *inputs, **ALIGNMENTS[alignment])  # noqa: B023, E731
        assert KERNEL in kernels_of(call)
        grads = torch.autograd.grad(call(), inputs, grad_out)
        exact = [x.detach().double().requires_grad_() for x in inputs]
        blind = max(seq_q - seq_k, 0) if alignment == "lower right" else 0
        repeated = [exact[0], *(x.repeat_interleave(2, 1) for x in exact[1:])]
        s = scores(*repeated[:2], **ALIGNMENTS[alignment])[:, :, blind:]
        out = torch.softmax(s, -1) @ repeated[2]
        for x, y in zip(grads, torch.autograd.grad(out, exact, grad_out[:, :, blind:].double()), strict=True):
            assert_close(x.double(), y, rtol=2e-2, atol=4e-2 if dtype == torch.bfloat16 else 6e-3)


@gpu
def test_it_stands_at_every_door(ops):
    """task 4's tuned variant, and the front door, which the door into transformers stands behind."""
    from common.compiling.load import load
    from common.compiling.request import BuildRequest

    query, key, value = tensors(ops, torch.bfloat16, 128, 128, 64)[:3]
    task4 = load(BuildRequest("task4", "tuned", "cuda"))
    assert KERNEL in kernels_of(lambda: task4.flash_attention(query, key, value, True))
    door = lambda: scaled_dot_product_attention(query, key, value, is_causal=True, variant="tuned")  # noqa: E731
    assert KERNEL in kernels_of(door)
    assert torch.equal(door(), flash.flash_attention(ops, query, key, value, causal=True))


def test_the_simulator_has_other_kernels():
    ops = flash.load("simulator")
    query, key, value = tensors(ops, torch.float16, 5, 5, 8)[:3]
    assert flash.kernel_of(ops, query, key, value) == "mma"
    assert flash.kernel_of(ops, query.float(), key.float(), value.float()) == "3xfp16"
    assert flash.kernel_of(ops, query.float(), key.float(), value.float(), tensor_cores=False) == "fp32"
