"""The gradients of dense attention on Hopper GPUs (wgmma) beside float64: sizes, layouts, masks, its border, a fixed
order of sums.

For GPUs of compute capability 9.0, but for few keys, some of the keys, and the simulator; the other kernels' gradients:
test_flash_torch.py.
"""

from __future__ import annotations

from functools import partial

import flash_inputs
import flash_room as flash
import pytest
import torch
from flash_gradients import assert_gradients, attention, gradients
from flash_inputs import ALIGNMENTS, gaps, hopper_only, operators_of, packed, rows_first
from torch import Tensor
from torch.testing import assert_close

from common.reference.bounds import max_error_of

DTYPES = [torch.float16, torch.bfloat16]
gpu = pytest.mark.gpu


@pytest.fixture(scope="module")
def ops():
    """The room's operators on a Hopper GPU."""
    hopper_only()
    return flash.load("cuda")


def tensors(ops, dtype: torch.dtype, *sizes: int, **more: int) -> list[Tensor]:
    """query, key, value that require gradients, and the gradient of the output, all standard normal."""
    *inputs, grad_out = flash_inputs.tensors(ops, dtype, *sizes, **more, sharpness=1, mean_value=0)
    return [x.requires_grad_() for x in inputs] + [grad_out]


def assert_right(ops, query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, kernel="wgmma", **options) -> None:
    """The named kernel runs, and its gradients are as near to float64 as those of the other kernels must be."""
    assert flash.backward_kernel_of(ops, grad_out, query, key, value, **options) == kernel
    assert_gradients(ops, query, key, value, grad_out, **options)


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("head_dim", range(8, 129, 8))
def test_every_head_dim(ops, dtype, alignment, head_dim):
    assert_right(ops, *tensors(ops, dtype, 150, 333, head_dim, heads=4, kv_heads=2), **ALIGNMENTS[alignment])


@gpu
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    "sizes",
    [
        *[(1, 1), (1, 239), (239, 1), (239, 2), (64, 64), (65, 63), (113, 203), (129, 131), (191, 193), (700, 70)],
        *[(70, 700), (1023, 1024), (1024, 1023), (2000, 777)],
    ],
    ids=str,
)
def test_any_number_of_queries_and_keys(ops, sizes, head_dim, alignment):
    """Ragged numbers of queries and keys, rows that see no key, and keys that no row sees: their gradients are 0."""
    for dtype in DTYPES:
        assert_right(ops, *tensors(ops, dtype, *sizes, head_dim, heads=2), **ALIGNMENTS[alignment])


@gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_fewer_heads_of_keys_than_of_queries(ops, head_dim, kv_heads):
    inputs = tensors(ops, torch.bfloat16, 300, 500, head_dim, heads=8, kv_heads=kv_heads)
    assert_right(ops, *inputs)
    assert_right(ops, *inputs, causal=True, lower_right=True)


@gpu
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kv_heads", [4, 16])
def test_more_work_than_multiprocessors(ops, head_dim, alignment, kv_heads):
    """A block does several pieces of work, and its barriers go on from one to the next."""
    inputs = tensors(ops, torch.bfloat16, 1100, 1000, head_dim, batch=3, heads=16, kv_heads=kv_heads)
    assert_right(ops, *inputs, **ALIGNMENTS[alignment])


@gpu
@pytest.mark.parametrize("head_dim", [40, 64, 128])
def test_layouts_that_the_copy_engine_takes(ops, head_dim):
    """[batch, S, heads, head_dim], one packed tensor, gaps of 16 bytes, shared batches: read where they lie."""
    query, key, value, grad_out = (x.detach() for x in tensors(ops, torch.bfloat16, 300, 300, head_dim))
    for views in (packed(query, key, value), rows_first(query, key, value), gaps(query, key, value, behind=8)):
        assert not all(x.is_contiguous() for x in views)
        (turned,) = rows_first(grad_out)
        assert_right(ops, *(x.requires_grad_() for x in views), turned, causal=True)
    shared = [x[:1].expand(3, -1, -1, -1).requires_grad_() for x in (query, key, value)]
    assert_right(ops, *shared, grad_out[:1].expand(3, -1, -1, -1), causal=True)


@gpu
def test_the_border(ops):
    """What it does not take goes to the kernel that takes all: masks, scales of 0 or less, keys that stand apart, rows
    that are not in units of 16 bytes, also those of the gradient."""
    query, key, value, grad_out = tensors(ops, torch.bfloat16, 100, 100, 64)
    assert_right(ops, query, key, value, grad_out, "mma", mask=torch.rand(100, 100, device="cuda") < 0.7)
    assert_right(ops, query, key, value, grad_out, "mma", scale=0.0)
    assert_right(ops, query, key, value, grad_out, "mma", scale=-0.1)
    assert_right(ops, query, key, value, grad_out, scale=0.3)
    apart = key[:, :, ::2], value[:, :, ::2]
    assert flash.backward_kernel_of(ops, grad_out, query, *apart, True, key_step=2) == "mma"
    assert flash.backward_kernel_of(ops, grad_out, query, *apart) == "wgmma"  # as a shorter sequence
    assert flash.backward_kernel_of(ops, *(x.float() for x in (grad_out, query, key, value))) == "fp32"
    assert_right(ops, query, key, value, *gaps(grad_out, behind=4), "mma")
    assert_right(ops, query, *(x.detach().requires_grad_() for x in gaps(key, value, behind=4)), grad_out, "mma")
    narrow = [x[..., :60].detach().requires_grad_() for x in (query, key, value)]
    assert_right(ops, *narrow, grad_out[..., :60], "mma")  # a head_dim that is no multiple of 8


@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES], ids=str)
def test_rows_that_see_few_keys(backend, dtype):
    """Their dS is a difference of numbers that are almost the same: 0 if there is one key. No error beyond PyTorch's
    own, whatever the output was rounded to."""
    ops = flash.load(backend)
    for seq_q, seq_k, options in ((200, 1, {}), (200, 2, {}), (200, 3, {}), (8, 8, {"causal": True})):
        query, key, value, grad_out = tensors(ops, dtype, seq_q, seq_k, 64)
        value = (value.detach() + 4).requires_grad_()  # an output far from 0
        plain = partial(attention, **options)
        got = gradients(partial(flash.flash_attention, ops, **options), query, key, value, grad_out)
        exact = gradients(plain, query, key, value, grad_out, torch.float64)
        same = gradients(plain, query, key, value, grad_out)
        for x, x64, x_same in zip(got, exact, same, strict=True):
            floor = 1e-5 + torch.finfo(dtype).eps / 2 * float(x64.abs().max())
            assert max_error_of(x, x64) <= 2 * max_error_of(x_same, x64) + floor


@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES], ids=str)
def test_some_of_the_keys(backend, dtype):
    """The operator takes out and lse of more keys than it is given, as ring attention has them: gradients of parts add
    up to those of the whole, also where a row sees few keys of a part."""
    operators = operators_of(flash.load(backend))
    query, key, value, grad_out = (x.detach() for x in tensors(flash.load(backend), dtype, 40, 60, 16))
    out, lse = operators.flash_attention_forward(query, key, value, False)
    whole = operators.flash_attention_backward(grad_out, query, key, value, out, lse, False)
    parts = [
        operators.flash_attention_backward(grad_out, query, key[:, :, part], value[:, :, part], out, lse, False)
        for part in (slice(0, 3), slice(3, 4), slice(4, 60))
    ]
    rounding = 4 * torch.finfo(dtype).eps
    assert_close(sum(part[0].double() for part in parts), whole[0].double(), rtol=rounding, atol=rounding)
    for i in (1, 2):
        assert_close(torch.cat([part[i] for part in parts], 2), whole[i], rtol=rounding, atol=rounding)


def same_every_time(run, times: int) -> bool:
    first = run()
    return all(torch.equal(x, y) for _ in range(times) for x, y in zip(run(), first, strict=True))


@gpu
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("head_dim", [64, 128, 60])
def test_the_same_bits_in_a_fixed_order(ops, head_dim, alignment):
    """By an argument and by PyTorch's switch, 50 runs; head_dim 60 goes to the kernel that takes all."""
    options = ALIGNMENTS[alignment]
    inputs = tensors(ops, torch.bfloat16, 1100, 1000, head_dim, batch=2, heads=16, kv_heads=8)
    assert_gradients(ops, *inputs, deterministic=True, **options)
    call = partial(flash.flash_attention, ops, deterministic=True, **options)
    assert same_every_time(lambda: gradients(call, *inputs), 50)
    torch.use_deterministic_algorithms(True)
    try:
        switched = gradients(partial(flash.flash_attention, ops, **options), *inputs)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(x, y) for x, y in zip(switched, gradients(call, *inputs), strict=True))


@gpu
def test_gradients_of_key_and_value_have_the_same_bits_anyway(ops):
    inputs = tensors(ops, torch.float16, 700, 900, 128, heads=8, kv_heads=2)
    call = partial(flash.flash_attention, ops, causal=True)
    assert same_every_time(lambda: gradients(call, *inputs)[1:], 20)


@gpu
def test_a_cuda_graph_can_hold_it(ops):
    """Forward and backward; the counter that items are drawn from begins anew with every replay."""
    query, key, value, grad_out = (x.detach() for x in tensors(ops, torch.bfloat16, 700, 900, 128, heads=16))
    run = partial(gradients, partial(flash.flash_attention, ops, causal=True, deterministic=True))
    expected = run(query, key, value, grad_out)
    static = [torch.zeros_like(x) for x in (query, key, value, grad_out)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(*static)
    for given, to in zip((query, key, value, grad_out), static, strict=True):
        to.copy_(given)
    for _ in range(3):
        graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(captured, expected, strict=True))


def test_the_simulator_has_other_kernels():
    ops = flash.load("simulator")
    query, key, value, grad_out = (x.detach() for x in tensors(ops, torch.float16, 5, 5, 8))
    assert flash.backward_kernel_of(ops, grad_out, query, key, value) == "mma"
    assert flash.backward_kernel_of(ops, *(x.float() for x in (grad_out, query, key, value))) == "fp32"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_fixed_order_in_the_simulator(dtype):
    """Blocks on several threads add in any order unless told otherwise; the bound is the usual one either way."""
    ops = flash.load("simulator")
    inputs = tensors(ops, dtype, 70, 300, 8)
    assert_gradients(ops, *inputs, deterministic=True)
    operators = operators_of(ops)
    query, key, value, grad_out = (x.detach() for x in inputs)
    out, lse = operators.flash_attention_forward(query, key, value, False)
    run = partial(operators.flash_attention_backward, grad_out, query, key, value, out, lse, False, deterministic=True)
    assert same_every_time(run, 10)
