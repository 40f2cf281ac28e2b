"""NaN and infinity at hidden keys, and in rows that do not see a key, stay out of every kernel's gradients."""

from __future__ import annotations

import math
from functools import partial

import flash_room as flash
import pytest
import torch
from checked_findings import nothing_found
from flash_gradients import attention, gradients
from flash_inputs import operators_of, spoil, tensors
from hopper_sources import flash_build
from torch import Tensor

from common.compiling.load import load
from common.reference.bounds import max_error_of

BAD = [math.nan, math.inf, -math.inf]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def hopper():
    """The Hopper kernels, in the simulator."""
    return load(flash_build())


def run(ops, query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, **options) -> tuple[Tensor, ...]:
    """The three gradients, from the operators."""
    operators = operators_of(ops)
    options = {"causal": False} | options
    out, lse = operators.flash_attention_forward(query, key, value, **options)
    return operators.flash_attention_backward(grad_out, query, key, value, out, lse, **options)[:3]


def assert_clean(found, clean: list[Tensor], rows=None, keys=None, mask: Tensor | None = None, **options) -> None:
    """The gradients of the given rows and keys (None: all) equal those of clean tensors in float64.

    found: of query, or of all three. clean: query, key, value, grad_out without anything bad. mask: bool, equivalent
    to the kernel's options.
    """
    dtype = clean[0].dtype
    function = partial(attention, mask=mask, **options)
    exact, near = (gradients(function, *clean, of) for of in (torch.float64, dtype))
    for x, x64, same, which in zip(found, exact, near, (rows, keys, keys), strict=False):
        which = torch.ones(x.size(2), dtype=torch.bool, device=x.device) if which is None else which
        assert bool(which.any()) and bool(x[:, :, which].isfinite().all())
        floor = 1e-5 + (torch.finfo(dtype).eps * float(x64.abs().max()) if dtype != torch.float32 else 0)
        error = max_error_of(x[:, :, which], x64[:, :, which])
        assert error <= 2 * max_error_of(same, x64) + floor


def causal_mask(seq_q: int, seq_k: int, diagonal: int = 0, step: int = 1) -> Tensor:
    return step * torch.arange(seq_k) <= torch.arange(seq_q)[:, None] + diagonal


WAYS = ["bool", "float", "float and causal", "future", "every third"]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keys_that_no_row_sees(ops, dtype, way, bad):
    """As if they held zeros: all gradients match float64's, theirs are 0."""
    rows, keys = 70, 101
    *inputs, grad_out = tensors(ops, dtype, rows, keys, 40, 1, 2, 1, sharpness=1, mean_value=0)
    hidden, mask, options = torch.arange(keys) % 5 == 1, None, {}
    if way == "future":
        hidden, options = torch.arange(keys) >= rows, {"causal": True}
    elif way == "every third":
        hidden, options = torch.arange(keys) * 3 + 1 > rows - 1, {"causal": True, "key_step": 3, "key_offset": 1}
        mask = causal_mask(rows, keys, -1, 3)
    else:
        mask = ~hidden[None]
        options["mask"] = (mask if way == "bool" else torch.zeros(1, keys).masked_fill(~mask, -math.inf)).to(ops.device)
        if "causal" in way:
            options["causal"], mask = True, mask & causal_mask(rows, keys)
    hidden = hidden.to(ops.device)
    query, key, value = inputs
    found = run(ops, query, spoil(key, hidden, bad), spoil(value, hidden, bad), grad_out, **options)
    clean = [query, *(x.masked_fill(hidden[:, None], 0) for x in (key, value)), grad_out]
    reference = {"mask": mask.to(ops.device)} if mask is not None else {"causal": True}
    assert_clean(found, clean, **reference)
    assert all(bool((x[:, :, hidden] == 0).all()) for x in found[1:])


@pytest.mark.parametrize("head_dim", [8, 64, 128])
@pytest.mark.parametrize("which", ["key", "value", "both"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_key_that_later_rows_see(ops, dtype, which, head_dim):
    """Rows before it keep their gradients; the others show what they see."""
    inputs = tensors(ops, dtype, 90, 90, head_dim, 2, 2, 1, sharpness=1, mean_value=0)
    at = torch.arange(90, device=ops.device) == 50
    spoiled = {"key": [1], "value": [2], "both": [1, 2]}[which]
    query, key, value, grad_out = (spoil(x, at, math.nan) if i in spoiled else x for i, x in enumerate(inputs))
    found = run(ops, query, key, value, grad_out, causal=True)
    assert_clean(found[:1], inputs, rows=torch.arange(90, device=ops.device) < 50, causal=True)
    assert bool(found[0][:, :, 50:].isnan().all())


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_do_not_see_a_key(ops, dtype, bad):
    """The first rows are bad, query and output gradient: later rows, and keys that only these see, are clean."""
    inputs = tensors(ops, dtype, 100, 100, 16, 1, 4, 2, sharpness=1, mean_value=0)
    first = torch.arange(100, device=ops.device) < 37
    query, key, value, grad_out = inputs
    found = run(ops, spoil(query, first, bad), key, value, spoil(grad_out, first, bad), causal=True)
    clean = [query.masked_fill(first[:, None], 0), key, value, grad_out.masked_fill(first[:, None], 0)]
    assert_clean(found, clean, rows=~first, keys=~first, causal=True)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("way", ["lower right", "mask"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_see_no_key(ops, dtype, way, bad):
    """Whatever they contain reaches no key, and their own gradients are 0."""
    query, key, value, grad_out = tensors(ops, dtype, 70, 40, 16, 1, 2, 2, sharpness=1, mean_value=0)
    none = torch.arange(70, device=ops.device) < 30
    options = {"causal": True, "lower_right": True} if way == "lower right" else {"mask": ~none[:, None]}
    clean = [query.masked_fill(none[:, None], 0), key, value, grad_out.masked_fill(none[:, None], 0)]
    for of_query, of_grad in ((bad, bad), (bad, 0.0), (0.0, bad)):
        given = spoil(clean[0], none, of_query), key, value, spoil(clean[3], none, of_grad)
        found = run(ops, *given, **options)
        assert_clean(found, clean, **options)
        assert bool((found[0][:, :, none] == 0).all())


def test_any_strides_and_a_fixed_order(ops):
    """Rows at any alignment; a repeated run gives the same bits every time."""
    inputs = tensors(ops, torch.float16, 70, 70, 24, 2, 2, 2, sharpness=1, mean_value=0)
    hidden = torch.arange(70, device=ops.device) % 7 == 3
    wide = [torch.nn.functional.pad(x, (1, 4), value=math.nan)[..., 1:-4] for x in inputs]
    wide[1:3] = [x.masked_fill(hidden[:, None], math.nan) for x in wide[1:3]]
    clean = [inputs[0], *(x.masked_fill(hidden[:, None], 0) for x in inputs[1:3]), inputs[3]]
    results = [run(ops, *wide, mask=~hidden[None], deterministic=True) for _ in range(3)]
    assert_clean(results[0], clean, mask=~hidden[None])
    assert all(torch.equal(x, y) for other in results[1:] for x, y in zip(results[0], other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128, 192])
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_kernels_for_hopper_gpus(hopper, dtype, head_dim, deterministic):
    """Future keys that are never seen, a key that later rows see, rows that see no key."""
    inputs = tensors(hopper, dtype, 140, 200, head_dim, 1, 1, 1, sharpness=1, mean_value=0)
    query, key, value, grad_out = inputs
    assert flash.backward_kernel_of(hopper, grad_out, query, key, value, causal=True) == "wgmma"
    call = partial(run, hopper, deterministic=deterministic)
    future = torch.arange(200) >= 140
    clean = [query, *(x.masked_fill(future[:, None], 0) for x in (key, value)), grad_out]
    for bad in BAD:
        found = call(query, spoil(key, future, bad), spoil(value, future, bad), grad_out, causal=True)
        assert_clean(found, clean, causal=True)
    at = torch.arange(200) == 100
    found = call(query, key, spoil(value, at, math.inf), grad_out, causal=True)
    assert_clean(found[:1], inputs, rows=torch.arange(140) < 100, causal=True)
    none = torch.arange(140) < 50
    short = key[:, :, :90].contiguous(), value[:, :, :90].contiguous()
    clean = [query.masked_fill(none[:, None], 0), *short, grad_out.masked_fill(none[:, None], 0)]
    for bad in BAD:
        given = spoil(clean[0], none, bad), *short, clean[3]
        assert_clean(call(*given, causal=True, lower_right=True), clean, causal=True, lower_right=True)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_long_sequences_on_a_gpu(dtype, head_dim):
    """The padding after 1,500 tokens, where TMA and all pipeline stages are in use."""
    ops = flash.load("cuda")
    inputs = tensors(ops, dtype, 1500, 2048, head_dim, 2, 8, 4, sharpness=1, mean_value=0)
    query, key, value, grad_out = inputs
    future = torch.arange(2048, device=ops.device) >= 1500
    found = run(ops, query, spoil(key, future, math.nan), spoil(value, future, math.inf), grad_out, causal=True)
    clean = [query, *(x.masked_fill(future[:, None], 0) for x in (key, value)), grad_out]
    assert_clean(found, clean, causal=True)


def test_a_nan_that_all_see_stays(ops):
    """A model that has diverged gives NaN throughout, without the slow recomputation."""
    inputs = [torch.full_like(x, math.nan) for x in tensors(ops, torch.float16, 200, 200, 64, 1, 1)]
    assert all(bool(x.isnan().all()) for x in run(ops, *inputs, causal=True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_race_and_no_stray_access_on_the_second_way(dtype):
    """The checked simulator finds nothing where gradients are recomputed."""
    ops = flash.load("simulator", checked=True)
    *inputs, grad_out = tensors(ops, dtype, 40, 70, 20, 1, 2, 1, sharpness=1, mean_value=0)
    hidden = torch.arange(70) % 5 == 1
    query, key, value = inputs[0], *(spoil(x, hidden, math.nan) for x in inputs[1:])
    for options in ({"mask": ~hidden[None]}, {"causal": True}):
        with nothing_found(ops):
            found = run(ops, query, key, value, grad_out, **options)
        assert bool(found[0].isfinite().all()) == ("mask" in options)
