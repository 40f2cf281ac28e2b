"""Task 4's tuned kernels as PyTorch operators: gradients, torch.compile, opcheck, CUDA graphs, streams, sizes."""

from __future__ import annotations

import math
from functools import partial

import flash_inputs
import flash_room as tuned
import pytest
import torch
from flash_gradients import assert_gradients, attention, gradients
from flash_inputs import BATCH, HEADS, POSITIONS, S_K, S_Q, operators_of, position_mask
from torch import Tensor
from torch.testing import assert_close

from common.reference.bounds import max_error_of

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def tensors(ops, dtype: torch.dtype = torch.float32, **sizes) -> list[Tensor]:
    """query, key, value that require gradients, and the gradient of the output, all standard normal."""
    *inputs, grad_out = flash_inputs.tensors(ops, dtype, **sizes, sharpness=1, mean_value=0)
    return [x.requires_grad_() for x in inputs] + [grad_out]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [1, 5, 40, 64, 72, 96, 128, 200, 256])
def test_gradients_of_every_head_dim(ops, dtype, head_dim):
    assert_gradients(ops, *tensors(ops, dtype, head_dim=head_dim))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lower_right", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 70), (70, 1), (65, 133), (133, 65), (64, 64), (129, 131)], ids=str)
def test_gradients_of_causal_attention(ops, dtype, sizes, lower_right):
    """Includes rows that see no key, and keys that no row sees: their gradients are 0."""
    inputs = tensors(ops, dtype, seq_q=sizes[0], seq_k=sizes[1], head_dim=8)
    assert_gradients(ops, *inputs, causal=True, lower_right=lower_right)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", POSITIONS, ids=str)
def test_gradients_of_keys_that_stand_apart(ops, dtype, case):
    seq_q, seq_k, *positions = case
    inputs = tensors(ops, dtype, seq_q=seq_q, seq_k=seq_k, head_dim=8, heads=2, kv_heads=1)
    assert_gradients(ops, *inputs, positions=positions)


def test_gradients_of_strided_attention(ops):
    """Through PyTorch's slices of longer keys and values: rows between the strided ones get the gradient 0."""
    query, key, value, grad_out = tensors(ops, seq_q=50, seq_k=50, head_dim=8)

    def strided(query: Tensor, key: Tensor, value: Tensor, function=attention, **options) -> Tensor:
        return function(query, key[:, :, 2::4], value[:, :, 2::4], **options)

    kernel = partial(strided, function=partial(tuned.flash_attention, ops), causal=True, key_step=4, key_offset=2)
    plain = partial(strided, mask=position_mask(50, 12, 4, 2, ops.device))
    wanted = gradients(plain, query, key, value, grad_out, torch.float64)
    for x, y in zip(gradients(kernel, query, key, value, grad_out), wanted, strict=True):
        assert_close(x.double(), y, rtol=0, atol=1e-5)
    raw = operators_of(ops).flash_attention  # the operator without logsumexp also finds the positions for its gradient
    (grad_key,) = torch.autograd.grad(
        strided(query, key, value, raw, causal=True, key_step=4, key_offset=2), key, grad_out
    )
    assert_close(grad_key.double(), wanted[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_gradients_with_fewer_heads_of_keys(ops, dtype, kv_heads):
    assert_gradients(ops, *tensors(ops, dtype, heads=4, kv_heads=kv_heads), causal=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [None, 0.0, -0.4, 0.5])
def test_gradients_with_a_mask_and_a_scale(ops, dtype, scale):
    """A bool mask that hides every key from some queries, and a float one."""
    inputs = tensors(ops, dtype)
    generator = torch.Generator().manual_seed(0)
    hidden = (torch.rand(BATCH, 1, S_Q, S_K, generator=generator) < 0.4).to(ops.device)
    hidden[:, :, 4] = True
    assert_gradients(ops, *inputs, mask=~hidden, scale=scale)
    bias = torch.randn(HEADS, 1, S_K, generator=generator).to(ops.device)
    assert_gradients(ops, *inputs, mask=bias.masked_fill(hidden[0, :, :1], -math.inf), scale=scale, causal=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_inputs_of_any_strides(ops, dtype):
    """A packed QKV tensor of odd row length, and gradients that arrive transposed or as one expanded number."""
    whole = torch.randn(BATCH, S_K, 3, HEADS, 21, device=ops.device).to(dtype)[..., :20].requires_grad_()
    query, key, value = (x.transpose(1, 2) for x in whole.unbind(2))
    grad_out = torch.randn(BATCH, S_K, HEADS, 20, device=ops.device).to(dtype).transpose(1, 2)
    assert_gradients(ops, query, key, value, grad_out, causal=True)
    (packed_grad,) = torch.autograd.grad(tuned.flash_attention(ops, query, key, value).sum(), whole)
    ones = torch.ones_like(grad_out)
    separate = gradients(partial(tuned.flash_attention, ops), query, key, value, ones)
    assert_close(packed_grad, torch.stack([x.transpose(1, 2) for x in separate], 2))


def test_the_gradient_is_the_slope(ops):
    """gradcheck in the kernels' float32. A central difference over 2e-2 is off by about 1e-4 of the third derivative,
    plus the output's rounding, 1e-7, over 2e-2; both are well below the tolerance of 2e-3."""
    query, key, value, _ = tensors(ops, batch=1, heads=2, kv_heads=1, seq_q=3, seq_k=4, head_dim=2)
    mask = torch.tensor([True, True, False, True], device=ops.device).expand(3, 4)
    for options in ({}, {"causal": True}, {"mask": mask, "scale": 0.5}):
        function = partial(tuned.flash_attention, ops, tensor_cores=False, **options)
        with pytest.warns(UserWarning, match="not a double precision"):
            assert torch.autograd.gradcheck(function, (query, key, value), eps=1e-2, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_see_few_keys(ops, dtype):
    """Their dS is a difference of nearly equal numbers: 0 if there is one key. The error is at most PyTorch's own,
    regardless of how the output was rounded."""
    for seq_q, seq_k, options in ((200, 1, {}), (200, 2, {}), (200, 3, {}), (8, 8, {"causal": True})):
        query, key, value, grad_out = tensors(ops, dtype, seq_q=seq_q, seq_k=seq_k, head_dim=64)
        value = (value.detach() + 4).requires_grad_()  # an output far from 0
        plain = partial(attention, **options)
        got = gradients(partial(tuned.flash_attention, ops, **options), query, key, value, grad_out)
        exact = gradients(plain, query, key, value, grad_out, torch.float64)
        same = gradients(plain, query, key, value, grad_out)
        for x, x64, x_same in zip(got, exact, same, strict=True):
            floor = 1e-5 + torch.finfo(dtype).eps / 2 * float(x64.abs().max())
            assert max_error_of(x, x64) <= 2 * max_error_of(x_same, x64) + floor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_some_of_the_keys(ops, dtype):
    """The operator accepts out and lse over more keys than it is given, as in ring attention: the parts' gradients
    add up to the whole, also if a row sees few keys of a part."""
    operators = operators_of(ops)
    query, key, value, grad_out = (x.detach() for x in tensors(ops, dtype, seq_q=40, seq_k=60))
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


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str)
def test_a_fixed_order_in_the_simulator(dtype):
    """Blocks on several threads add in any order unless deterministic; the usual bound holds either way."""
    ops = tuned.load("simulator")
    inputs = tensors(ops, dtype, seq_q=70, seq_k=300, head_dim=8)
    assert_gradients(ops, *inputs, deterministic=True)
    operators = operators_of(ops)
    query, key, value, grad_out = (x.detach() for x in inputs)
    out, lse = operators.flash_attention_forward(query, key, value, False)
    run = partial(operators.flash_attention_backward, grad_out, query, key, value, out, lse, False, deterministic=True)
    assert flash_inputs.same_every_time(run, 10)


@pytest.fixture
def cuda():
    """The operators on the GPU."""
    return tuned.load("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [{}, {"seq_q": 700, "seq_k": 900, "head_dim": 128, "heads": 16}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_cuda_graph_can_hold_forward_and_backward(cuda, dtype, sizes):
    """The counter that work tiles are drawn from is reset at every replay."""
    run = partial(gradients, partial(tuned.flash_attention, cuda, causal=True, deterministic=True))
    inputs = [x.detach() for x in tensors(cuda, dtype, **sizes)]
    expected = run(*inputs)  # compiled, loaded and warm before the capture
    graph = torch.cuda.CUDAGraph()
    static = [torch.zeros_like(x) for x in inputs]
    with torch.cuda.graph(graph):
        out = tuned.flash_attention(cuda, *static[:3], causal=True)
        captured = run(*static)
    for given, to in zip(inputs, static, strict=True):
        to.copy_(given)
    for _ in range(3):
        graph.replay()
        assert torch.equal(out, tuned.flash_attention(cuda, *inputs[:3], causal=True))
        assert all(torch.equal(x, y) for x, y in zip(captured, expected, strict=True))


@pytest.mark.gpu
def test_the_current_stream_is_used(cuda):
    """On another stream, after work that writes the inputs late: only a kernel on the same stream sees them."""
    query, key, value, _ = (x.detach() for x in tensors(cuda, torch.bfloat16))
    expected = tuned.flash_attention(cuda, query, key, value)
    late = [torch.zeros_like(x) for x in (query, key, value)]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for x, given in zip(late, (query, key, value), strict=True):
            x.copy_(given)
        out = tuned.flash_attention(cuda, *late)
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.gpu
def test_inductor_compiles_around_the_operator(cuda):
    query, key, value, _ = (x.detach() for x in tensors(cuda, torch.float16))
    torch.compiler.reset()
    compiled = torch.compile(lambda *inputs: 2 * tuned.flash_attention(cuda, *inputs, causal=True), fullgraph=True)
    assert torch.equal(compiled(query, key, value), 2 * tuned.flash_attention(cuda, query, key, value, causal=True))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "tensor_cores"), [(torch.float32, False), (torch.float32, True), (torch.bfloat16, True)]
)
def test_more_than_2_31_elements(cuda, much_memory, dtype, tensor_cores):
    """Head offsets must not overflow; the last batch is compared, where overflow would show."""
    inputs = [torch.randn(2200, 8, 1024, 128, device="cuda", dtype=dtype) for _ in range(3)]
    assert inputs[0].numel() > 2**31
    out = tuned.flash_attention(cuda, *inputs, causal=True, tensor_cores=tensor_cores)
    expected = attention(*(x[-1:].double() for x in inputs), causal=True)
    atol = 1e-4 if dtype == torch.float32 else 2e-2
    assert_close(out[-1:].double(), expected, rtol=1e-4, atol=atol)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_more_than_2_31_elements_apart(cuda, much_memory, dtype):
    """Slices of one tensor with 6 x 2^20 elements per row: row offsets must not overflow either."""
    whole = torch.empty(1, 1, 500, 6 * 2**20, device="cuda", dtype=dtype)
    views = [whole[..., start : start + 64] for start in (0, 3 * 2**20, whole.size(-1) - 64)]
    for x in views:
        x.copy_(torch.randn(x.shape, device="cuda"))
    for tensor_cores in (True, False):
        out = tuned.flash_attention(cuda, *views, causal=True, tensor_cores=tensor_cores)
        contiguous = tuned.flash_attention(
            cuda, *(x.contiguous() for x in views), causal=True, tensor_cores=tensor_cores
        )
        assert torch.equal(out, contiguous)
    grad_out = torch.randn(1, 1, 500, 64, device="cuda", dtype=dtype)
    function = partial(tuned.flash_attention, cuda, causal=True)
    contiguous = gradients(function, *(x.contiguous() for x in views), grad_out)
    inputs = [x.requires_grad_() for x in views]
    for x, y in zip(torch.autograd.grad(function(*inputs), inputs, grad_out), contiguous, strict=True):
        assert_close(x, y)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_more_than_2_31_elements(cuda, much_memory, dtype):
    batch = 2200 if dtype == torch.bfloat16 else 1100  # with float32, 2^30 elements: limits memory and time
    inputs = [torch.randn(batch, 8, 1024, 128, device="cuda", dtype=dtype).requires_grad_() for _ in range(3)]
    out = tuned.flash_attention(cuda, *inputs, causal=True)
    grads = torch.autograd.grad(out, inputs, out)
    last = [x[-1:].detach() for x in inputs]
    expected = gradients(partial(attention, causal=True), *last, out[-1:], torch.float64)
    for x, y in zip(grads, expected, strict=True):
        assert float((x[-1:] - y).norm() / y.norm()) < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.gpu
def test_more_heads_than_a_grid_has_along_y(cuda):
    for dtype, tensor_cores in [(torch.float32, False), (torch.float32, True), (torch.float16, True)]:
        query, key, value, grad_out = tensors(cuda, dtype, batch=35_000, seq_q=2, seq_k=3, head_dim=8)
        out = tuned.flash_attention(cuda, query, key, value, tensor_cores=tensor_cores)
        last = [x[-1:].detach() for x in (query, key, value, grad_out)]
        atol = 1e-5 if dtype == torch.float32 else 4e-3
        assert_close(out[-1:].double(), attention(*(x.double() for x in last[:3])), rtol=0, atol=atol)
        grads = torch.autograd.grad(out, (query, key, value), grad_out)
        for x, y in zip(grads, gradients(attention, *last, torch.float64), strict=True):
            assert_close(x[-1:].double(), y, rtol=0, atol=2 * atol)
