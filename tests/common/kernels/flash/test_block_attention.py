"""Attention to listed key blocks, forward and backward, compared with float64 under a dense mask."""

from __future__ import annotations

import math

import flash_inputs
import pytest
import torch
from checked_findings import nothing_found
from flash_gradients import attention, gradients
from flash_inputs import lists_of
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.kernels.attention import block_sparse_attention, compress_block_mask
from common.kernels.attention_gradients import register
from common.reference.bounds import max_error_of, running_sum_floor

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# None: the forward pass of 16 bits by the sparse kernel, everything else by flash
KERNELS = [(torch.float32, None), (torch.float16, None), (torch.bfloat16, None), (torch.float16, "flash")]


def some_blocks(ops, heads: int, q_blocks: int, k_blocks: int, share: float = 0.5) -> Tensor:
    """bool [heads, q_blocks, k_blocks]; one row of blocks sees nothing, and one column is never seen."""
    blocks = torch.rand(heads, q_blocks, k_blocks, generator=torch.Generator().manual_seed(q_blocks + k_blocks)) < share
    blocks[0, 0] = False
    blocks[:, :, k_blocks - 1] = False
    blocks[-1, -1, 0] = True
    return blocks.to(ops.device)


def dense_mask(blocks: Tensor, block: int, causal: bool) -> Tensor:
    mask = blocks.repeat_interleave(block, 1).repeat_interleave(block, 2)
    return mask & mask.new_ones(mask.shape[1:]).tril() if causal else mask


def assert_right(
    kernel: str | None, inputs: list[Tensor], grad_out: Tensor, blocks: Tensor, block: int, causal: bool, **options
):
    """Output and gradients: at most twice PyTorch's error in dtype, plus a floor for float32 sums and rounding."""
    dtype = inputs[0].dtype
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = block_sparse_attention(*leaves, lists_of(blocks), is_causal=causal, kernel=kernel, **options)
    found = torch.autograd.grad(out, leaves, grad_out)
    mask = dense_mask(blocks, block, causal)[None]

    def dense(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, mask=mask, **options)

    outs = [dense(*(x.detach().to(of) for x in inputs)) for of in (torch.float64, dtype)]
    exact, near = (gradients(dense, *inputs, grad_out, of) for of in (torch.float64, dtype))
    for x, x64, same in zip((out, *found), (outs[0], *exact), (outs[1], *near), strict=True):
        size = float(x64.abs().max())
        floor = running_sum_floor(inputs[1].size(2), 4) + size * (torch.finfo(dtype).eps + 1e-5)
        assert x.dtype == dtype and x.is_contiguous()
        assert max_error_of(x.detach(), x64) <= 2 * max_error_of(same, x64) + floor
    unseen = ~mask[0].any(-1)
    assert bool((out[:, unseen] == 0).all()) and bool((found[0][:, unseen] == 0).all())
    return out.detach(), *found


def tensors(ops, dtype, seq_q: int, seq_k: int, head_dim: int, heads: int = 2, kv_heads: int = 1) -> list[Tensor]:
    """query, key, value and a gradient of the output for two sequences."""
    return flash_inputs.tensors(ops, dtype, seq_q, seq_k, head_dim, 2, heads, kv_heads, sharpness=1, mean_value=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [32, 64, 96, 128])
@pytest.mark.parametrize(("dtype", "kernel"), KERNELS, ids=str)
def test_every_block(ops, dtype, block, causal, kernel):
    *inputs, grad_out = tensors(ops, dtype, 3 * block, 4 * block, 16)
    assert_right(kernel, inputs, grad_out, some_blocks(ops, 2, 3, 4), block, causal)


@pytest.mark.parametrize("head_dim", [1, 40, 64, 72, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_head_dim(ops, dtype, head_dim):
    *inputs, grad_out = tensors(ops, dtype, 96, 64, head_dim, 4, 2)
    assert_right(None, inputs, grad_out, some_blocks(ops, 4, 3, 2, 0.7), 32, True, scale=-0.3)


@pytest.mark.parametrize("layout", flash_inputs.LAYOUTS)
def test_every_layout(ops, layout):
    query, key, value, grad_out = tensors(ops, torch.float16, 64, 64, 16, 3, 3)
    inputs = flash_inputs.LAYOUTS[layout](query, key, value)
    (grad_out, *_) = flash_inputs.LAYOUTS[layout](grad_out, key, value)
    assert_right("flash", inputs, grad_out, some_blocks(ops, 3, 2, 2), 32, False)


@pytest.mark.slow
def test_many_blocks_are_transposed(ops):
    """More than a warp examines at a time; every number of listed blocks."""
    *inputs, grad_out = tensors(ops, torch.float16, 70 * 32, 67 * 32, 8, 1)
    blocks = torch.arange(67, device=ops.device) < torch.arange(70, device=ops.device)[None, :, None]
    blocks = blocks.roll(5, 2).clone()
    assert_right("flash", [x[:1] for x in inputs], grad_out[:1], blocks, 32, False)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "kernel"), [*KERNELS, (torch.bfloat16, "flash")], ids=str)
def test_what_lies_at_unlisted_blocks_reaches_nothing(ops, dtype, kernel, causal, bad):
    """Keys that are never seen may hold anything, and so may the queries and gradients of rows that see none."""
    *inputs, grad_out = tensors(ops, dtype, 96, 128, 16)
    blocks = some_blocks(ops, 2, 3, 4)
    blocks[:, 0] = False
    mask = dense_mask(blocks, 32, causal)
    unseen, none = ~mask.any(1).any(0), ~mask.any(2).any(0)
    assert bool(unseen.any()) and bool(none.any())
    clean = [x.masked_fill(where[:, None], 0) for x, where in zip(inputs, (none, unseen, unseen), strict=True)]
    clean_grad = grad_out.masked_fill(none[:, None], 0)
    expected = assert_right(kernel, clean, clean_grad, blocks, 32, causal)
    spoiled = [x.masked_fill(where[:, None], bad) for x, where in zip(inputs, (none, unseen, unseen), strict=True)]
    leaves = [x.requires_grad_() for x in spoiled]
    out = block_sparse_attention(*leaves, lists_of(blocks), is_causal=causal, kernel=kernel)
    found = torch.autograd.grad(out, leaves, grad_out.masked_fill(none[:, None], bad))
    for x, y in zip((out, *found), expected, strict=True):
        bound = (4 * torch.finfo(dtype).eps + 1e-5) * float(y.abs().max())
        assert max_error_of(x.detach(), y.double()) <= bound


def test_the_same_bits_every_time(ops):
    *inputs, grad_out = tensors(ops, torch.float32, 128, 128, 32)
    lists = lists_of(some_blocks(ops, 2, 4, 4))
    results = []
    for _ in range(5):
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = block_sparse_attention(*leaves, lists, is_causal=True, kernel="flash")
        results.append((out, *torch.autograd.grad(out, leaves, grad_out)))
    assert all(torch.equal(x, y) for other in results[1:] for x, y in zip(results[0], other, strict=True))


@pytest.mark.slow
def test_lists_that_make_no_sense_read_nothing_else():
    """Block indices below 0 and past the end, counts that are too large, unsorted lists: the checked simulator
    finds no out-of-bounds access."""
    ops = load(BuildRequest("flash", backend="simulator", checked=True))
    register(ops)
    operators = getattr(torch.ops, ops.libraries[0].name)
    generator = torch.Generator().manual_seed(0)
    for dtype in DTYPES:
        *inputs, grad_out = tensors(ops, dtype, 96, 128, 40)
        for causal in (False, True):
            counts = torch.randint(-3, 9, (2, 3), generator=generator, dtype=torch.int32)
            columns = torch.randint(-9, 9, (2, 3, 4), generator=generator, dtype=torch.int32)
            right = lists_of(some_blocks(ops, 2, 3, 4))
            for lists in (right, (counts, columns)):
                leaves = [x.detach().requires_grad_() for x in inputs]
                with nothing_found(ops):
                    out, _ = operators.block_attention(*leaves, *lists, 32, causal)
                    torch.autograd.grad(out, leaves, grad_out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_torch_compile_and_torch_func(ops, dtype):
    """One graph, including gradients; grad, vmap and vmap of grad, compared with one sample at a time."""
    *inputs, grad_out = tensors(ops, dtype, 64, 96, 16)
    blocks = some_blocks(ops, 2, 2, 3)
    lists = compress_block_mask(blocks)
    assert all(torch.equal(x, y) for x, y in zip(lists, lists_of(blocks), strict=True))

    def call(*x: Tensor) -> Tensor:
        return block_sparse_attention(*x, lists, is_causal=True)

    def total(*x: Tensor) -> Tensor:
        return (call(*x).float() * grad_out.float()).sum()

    leaves = [x.requires_grad_() for x in inputs]
    expected = torch.autograd.grad(call(*leaves), leaves, grad_out)
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    close = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 8 * torch.finfo(dtype).eps}
    for found in (torch.autograd.grad(compiled(*leaves), leaves, grad_out), torch.func.grad(total, (0, 1, 2))(*inputs)):
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x.detach(), y, **close)
    many = torch.vmap(torch.func.grad(total, (0, 1, 2)))(*(torch.stack([x, x]).detach() for x in inputs))
    for x, y in zip(many, expected, strict=True):
        torch.testing.assert_close(x, torch.stack([y, y]), **close)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"query": torch.ones(2, 2, 48 * 3, 16)}, "block is 48; it must be 32, 64, 96 or 128"),
        ({"query": torch.ones(2, 2, 95, 16)}, "S_q a multiple of q_blocks"),
        ({"kernel": "fast"}, "kernel is 'fast'; it must be None, 'sparse' or 'flash'"),
        ({"counts": torch.ones(2, 3)}, "counts has dtype Float; it must be Int"),
        (
            {"columns": torch.ones(2, 3, 3, dtype=torch.int32)},
            "columns has shape .*dimension 2 must be S_k / block = 4",
        ),
        ({x: torch.ones(1, 1, 96, 136) for x in ("query", "key", "value")}, r"head_dim = 136.* it must be 1 \.\. 128"),
        ({x: torch.ones(2, 1, 90, 16) for x in ("key", "value")}, "S_q and S_k must be multiples of block"),
        ({"query": torch.ones(2, 2, 96, 16, dtype=torch.float64)}, "query has dtype torch.float64; it must be"),
    ],
)
def test_what_is_refused(ops, changed, words):
    query, key, value, _ = tensors(ops, torch.float32, 96, 128, 16)
    counts, columns = lists_of(some_blocks(ops, 2, 3, 4))
    given = {"query": query, "key": key, "value": value, "kernel": "flash"}
    given |= {name: x.to(ops.device) if isinstance(x, Tensor) else x for name, x in changed.items()}
    lists = given.pop("counts", counts), given.pop("columns", columns)
    with pytest.raises(ValueError, match=words):
        block_sparse_attention(block_mask=lists, **given)


def test_no_second_derivative_and_no_forward_mode(ops):
    *inputs, _ = tensors(ops, torch.float32, 32, 32, 8)
    lists = lists_of(torch.ones(2, 1, 1, dtype=torch.bool, device=ops.device))
    leaf = inputs[0].clone().requires_grad_()
    out = block_sparse_attention(leaf, *inputs[1:], lists).square().sum()
    (grad,) = torch.autograd.grad(out, [leaf], create_graph=True)
    with pytest.raises(NotImplementedError, match="has no second derivative"):
        grad.sum().backward()
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: block_sparse_attention(x, *inputs[1:], lists), (leaf.detach(),), (leaf.detach(),))
