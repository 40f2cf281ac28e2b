"""The Hopper kernels (wgmma) of dense attention, forward and backward, compared with float64: sizes, layouts,
masks, their limits, a fixed order of sums.

For GPUs of compute capability 9.0, except the last test. The operators and their errors: test_flash.py; the other
kernels' gradients, and their use from PyTorch: test_flash_torch.py.
"""

from __future__ import annotations

import math
from functools import partial

import flash_room as flash
import pytest
import torch
from flash_gradients import assert_gradients, gradients
from flash_inputs import (
    ALIGNMENTS,
    assert_near,
    gaps,
    hopper_only,
    kernels_of,
    operators_of,
    packed,
    rows_first,
    same_every_time,
    tensors,
)
from torch import Tensor

from task7.front_door.sdpa import scaled_dot_product_attention

DTYPES = [torch.float16, torch.bfloat16]
KERNEL = "flash_attention_wgmma_kernel"
gpu = pytest.mark.gpu


@pytest.fixture(scope="module")
def ops():
    """The flash operators on a Hopper GPU."""
    hopper_only()
    return flash.load("cuda")


def smooth(ops, dtype: torch.dtype, *sizes: int, **more: int) -> list[Tensor]:
    """query, key, value that require gradients, and the gradient of the output, all standard normal."""
    *inputs, grad_out = tensors(ops, dtype, *sizes, **more, sharpness=1, mean_value=0)
    return [x.requires_grad_() for x in inputs] + [grad_out]


def assert_right(ops, query: Tensor, key: Tensor, value: Tensor, kernel: str = "wgmma", **options) -> Tensor:
    """The named kernel runs, and out and lse are close to float64."""
    arguments = {"causal": False, **options}
    assert flash.kernel_of(ops, query, key, value, **arguments) == kernel
    out, lse = operators_of(ops).flash_attention_forward(query, key, value, **arguments)
    assert_near(out, lse, query, key, value, **options)
    return out


def assert_backward(ops, query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, kernel="wgmma", **options):
    """The named kernel runs, and its gradients are as close to float64 as those of the other kernels must be."""
    assert flash.backward_kernel_of(ops, grad_out, query, key, value, **options) == kernel
    assert_gradients(ops, query, key, value, grad_out, **options)


def assert_both(ops, dtype: torch.dtype, *sizes: int, alignment: str = "full", **heads: int) -> Tensor:
    """Forward with peaked weights, backward with smooth ones. Returns the output."""
    options = ALIGNMENTS[alignment]
    assert_backward(ops, *smooth(ops, dtype, *sizes, **heads), **options)
    return assert_right(ops, *tensors(ops, dtype, *sizes, **heads)[:3], **options)


@gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("head_dim", [*range(8, 129, 8), 136, 160, 192, 200, 248, 256])
def test_every_head_dim(ops, dtype, alignment, head_dim):
    assert_both(ops, dtype, 150, 333, head_dim, alignment=alignment, heads=4, kv_heads=2)


@gpu
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
@pytest.mark.parametrize(
    "sizes",
    [
        *[(1, 1), (1, 239), (239, 1), (239, 2), (64, 64), (65, 63), (113, 203), (129, 131), (191, 193), (300, 260)],
        *[(700, 70), (70, 700), (1023, 1024), (1024, 1023), (2000, 777)],
    ],
    ids=str,
)
def test_any_number_of_queries_and_keys(ops, sizes, head_dim, alignment):
    """Ragged sizes, many tiles and less than one; rows that see no key; keys that no row sees have the gradient 0."""
    for dtype in DTYPES:
        out = assert_both(ops, dtype, *sizes, head_dim, alignment=alignment, heads=2)
        blind = max(sizes[0] - sizes[1], 0) if alignment == "lower right" else 0
        assert bool((out[:, :, :blind] == 0).all()) and bool((out[:, :, blind:] != 0).any())


@gpu
@pytest.mark.parametrize("alignment", ["full", "lower right"])
@pytest.mark.parametrize("head_dim", [64, 128, 192])
@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_fewer_heads_of_keys_than_of_queries(ops, head_dim, kv_heads, alignment):
    assert_both(ops, torch.bfloat16, 300, 500, head_dim, alignment=alignment, heads=8, kv_heads=kv_heads)


@gpu
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
@pytest.mark.parametrize("kv_heads", [4, 16])
def test_more_work_than_multiprocessors(ops, head_dim, alignment, kv_heads):
    """A CTA processes several work tiles with the same barriers; the same bits every time."""
    sizes, heads = (1100, 1000, head_dim), {"batch": 3, "heads": 16, "kv_heads": kv_heads}
    out = assert_both(ops, torch.bfloat16, *sizes, alignment=alignment, **heads)
    inputs = tensors(ops, torch.bfloat16, *sizes, **heads)[:3]
    for _ in range(20):
        assert torch.equal(flash.flash_attention(ops, *inputs, **ALIGNMENTS[alignment]), out)


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
    """Some tile shapes are chosen only for large problems. The kernel's name gives D, groups of 64 rows, B_c."""
    query, key, value = tensors(ops, torch.bfloat16, 1900, keys, head_dim, heads=32, kv_heads=8)[:3]
    out = assert_right(ops, query, key, value, **ALIGNMENTS[alignment])
    ran = kernels_of(lambda: flash.flash_attention(ops, query, key, value, **ALIGNMENTS[alignment]))
    assert shape in ran.replace("(int)", "")  # a demangler may say (int)64
    assert torch.equal(flash.flash_attention(ops, query, key, value, **ALIGNMENTS[alignment]), out)


@gpu
@pytest.mark.parametrize("head_dim", [40, 64, 128, 256])
def test_layouts_that_the_copy_engine_takes(ops, head_dim):
    """[batch, S, heads, head_dim], one packed tensor, gaps of 16 bytes, shared batches: read in place."""
    query, key, value = inputs = tensors(ops, torch.bfloat16, 300, 300, head_dim)[:3]
    *leaves, grad_out = (x.detach() for x in smooth(ops, torch.bfloat16, 300, 300, head_dim))
    expected = assert_right(ops, *inputs, causal=True)
    (turned,) = rows_first(grad_out)
    for layout in (packed, rows_first, partial(gaps, behind=8)):
        views = layout(*inputs)
        assert not all(x.is_contiguous() for x in views)
        assert torch.equal(assert_right(ops, *views, causal=True), expected)
        assert_backward(ops, *(x.requires_grad_() for x in layout(*leaves)), turned, causal=True)
    shared = [x[:1].expand(3, -1, -1, -1) for x in inputs]
    assert torch.equal(assert_right(ops, *shared, causal=True)[2:], expected[:1])
    shared = [x[:1].expand(3, -1, -1, -1) for x in (*leaves, grad_out)]
    assert_backward(ops, *(x.requires_grad_() for x in shared[:3]), shared[3], causal=True)
    odd = [torch.as_strided(x[:1, :1], (1, 1, *x.shape[2:]), (3, 5, *x.stride()[2:])) for x in (query, key, value)]
    assert_right(ops, *odd)  # strides of size-1 dimensions are ignored


@gpu
def test_the_border(ops):
    """What they do not support: masks, scales <= 0 and strided keys go to mma; rows not in units of 16 bytes,
    including those of the gradient, to plain."""
    query, key, value = tensors(ops, torch.bfloat16, 100, 100, 64)[:3]
    assert_right(ops, query, key, value, "mma", mask=torch.rand(100, 100, device="cuda") < 0.7)
    assert_right(ops, query, key, value, "mma", scale=0.0)
    assert_right(ops, query, key, value, "mma", scale=-0.1)
    assert flash.kernel_of(ops, query, key[:, :, ::2], value[:, :, ::2], True, key_step=2) == "mma"
    assert flash.kernel_of(ops, query, key[:, :, ::2], value[:, :, ::2]) == "wgmma"  # as a shorter sequence
    assert flash.kernel_of(ops, query.float(), key.float(), value.float()) == "3xfp16"
    for before, behind in ((0, 1), (0, 4), (4, 4)):
        assert_right(ops, *gaps(query, key, value, before=before, behind=behind), "plain")
    assert_right(ops, query, *gaps(key, value, behind=4), "plain")
    assert_right(ops, *(x[..., :60] for x in (query, key, value)), "plain")  # a head_dim that is not a multiple of 8
    assert_right(ops, *(x[..., 8:24] for x in (query, key, value)))

    query, key, value, grad_out = smooth(ops, torch.bfloat16, 100, 100, 64)
    assert_backward(ops, query, key, value, grad_out, "mma", mask=torch.rand(100, 100, device="cuda") < 0.7)
    assert_backward(ops, query, key, value, grad_out, "mma", scale=0.0)
    assert_backward(ops, query, key, value, grad_out, "mma", scale=-0.1)
    assert_backward(ops, query, key, value, grad_out, scale=0.3)
    apart = key[:, :, ::2], value[:, :, ::2]
    assert flash.backward_kernel_of(ops, grad_out, query, *apart, True, key_step=2) == "mma"
    assert flash.backward_kernel_of(ops, grad_out, query, *apart) == "wgmma"  # as a shorter sequence
    assert flash.backward_kernel_of(ops, *(x.float() for x in (grad_out, query, key, value))) == "fp32"
    assert_backward(ops, query, key, value, *gaps(grad_out, behind=4), "plain")
    assert_backward(ops, query, *(x.detach().requires_grad_() for x in gaps(key, value, behind=4)), grad_out, "plain")
    narrow = [x[..., :60].detach().requires_grad_() for x in (query, key, value)]
    assert_backward(ops, *narrow, grad_out[..., :60], "plain")  # a head_dim that is not a multiple of 8


@gpu
def test_scale_and_large_scores(ops):
    """An explicit scale, and scores whose maximum grows from tile to tile, so that the output is rescaled."""
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
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("head_dim", [64, 128, 60])
def test_the_same_bits_in_a_fixed_order(ops, head_dim, alignment):
    """By an argument and by PyTorch's switch, 50 runs; head_dim 60 goes to the fallback kernel."""
    options = ALIGNMENTS[alignment]
    inputs = smooth(ops, torch.bfloat16, 1100, 1000, head_dim, batch=2, heads=16, kv_heads=8)
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
    inputs = smooth(ops, torch.float16, 700, 900, 128, heads=8, kv_heads=2)
    call = partial(flash.flash_attention, ops, causal=True)
    assert same_every_time(lambda: gradients(call, *inputs)[1:], 20)


@gpu
def test_it_stands_at_every_door(ops):
    """Task 4's tuned variant, and the front door, which the transformers integration uses."""
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
    for dtype, forward, backward in ((torch.float16, "mma", "mma"), (torch.float32, "3xfp16", "fp32")):
        query, key, value, grad_out = tensors(ops, dtype, 5, 5, 8)
        assert flash.kernel_of(ops, query, key, value) == forward
        assert flash.backward_kernel_of(ops, grad_out, query, key, value) == backward
    assert flash.kernel_of(ops, query, key, value, tensor_cores=False) == "fp32"
