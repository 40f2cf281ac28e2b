"""Task 4's tuned kernels against attention in float64: every dtype, size, layout and way to hide keys.

Gradients and PyTorch features (torch.compile, CUDA graphs, ...): tests/common/kernels/flash/test_flash_torch.py.
"""

from __future__ import annotations

import math
from functools import partial

import flash_inputs
import flash_room as tuned
import pytest
import torch
from checked_findings import nothing_found
from flash_inputs import (
    ALIGNMENTS,
    BATCH,
    HEADS,
    LAYOUTS,
    POSITIONS,
    S_K,
    S_Q,
    assert_near,
    attention,
    gaps,
    operators_of,
    packed,
    position_mask,
)
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.reference.bounds import max_error_of, running_sum_floor

KINDS = {  # the four forward kernels: dtype, tensor_cores
    "fp32": (torch.float32, False),
    "3xfp16": (torch.float32, True),
    "fp16": (torch.float16, True),
    "bf16": (torch.bfloat16, True),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def tensors(ops, kind: str, **sizes) -> list[Tensor]:
    """query, key and value."""
    return flash_inputs.tensors(ops, KINDS[kind][0], **sizes)[:3]


def make_mask(kind: str, shape: tuple[int, ...], device, seed: int = 0) -> Tensor:
    """A mask that hides about one key in three."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.rand(shape, generator=generator) < 0.35
    if kind == "bool":
        return ~hidden.to(device)
    return (2 * torch.randn(shape, generator=generator)).masked_fill(hidden, -math.inf).to(device)


def assert_right(
    ops,
    kind: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spread: float = 1.5**2,
    positions: tuple[int, int] | None = None,
    **options,
) -> Tensor:
    """Runs the kernel; out and lse must be close to float64 (assert_near). `spread` is the standard deviation of the
    scaled scores. `positions` are key_step and key_offset under a causal mask: the kernel gets the two numbers,
    PyTorch the mask.
    """
    arguments = {"causal": False, **options, "tensor_cores": KINDS[kind][1]}
    if positions is not None:
        arguments |= {"causal": True, "key_step": positions[0], "key_offset": positions[1]}
        seen = position_mask(query.size(2), key.size(2), *positions, query.device)
        options["mask"] = options["mask"] & seen if "mask" in options else seen
    out, lse = operators_of(ops).flash_attention_forward(query, key, value, **arguments)
    assert_near(out, lse, query, key, value, spread, **options)
    return out


@pytest.mark.parametrize("head_dim", [1, 5, 32, 40, 64, 72, 80, 96, 128, 200, 256])
def test_every_head_dim(ops, kind, head_dim):
    assert_right(ops, kind, *tensors(ops, kind, head_dim=head_dim))


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("sizes", [(1, 1), (1, 70), (70, 1), (65, 133), (133, 65), (64, 64), (129, 131)], ids=str)
def test_any_number_of_queries_and_keys(ops, kind, sizes, alignment):
    """S_q < S_k, S_q = S_k and S_q > S_k, on both sides of a tile boundary; includes rows that see no key."""
    query, key, value = tensors(ops, kind, seq_q=sizes[0], seq_k=sizes[1], head_dim=8, batch=1, heads=2)
    out = assert_right(ops, kind, query, key, value, **ALIGNMENTS[alignment])
    blind = max(sizes[0] - sizes[1], 0) if alignment == "lower right" else 0
    assert bool((out[:, :, :blind] == 0).all()) and bool((out[:, :, blind:] != 0).any())


@pytest.mark.parametrize("case", POSITIONS, ids=str)
def test_keys_that_stand_apart(ops, kind, case):
    seq_q, seq_k, *positions = case
    query, key, value = tensors(ops, kind, seq_q=seq_q, seq_k=seq_k, head_dim=8, batch=1, heads=2)
    out = assert_right(ops, kind, query, key, value, positions=positions)
    blind = max(positions[1], 0)
    assert bool((out[:, :, :blind] == 0).all()) and bool((out[:, :, blind:] != 0).any())


def test_keys_that_stand_very_far_apart(ops, kind):
    """The largest step, with the first key, the first two or none visible."""
    query, key, value = tensors(ops, kind, seq_q=40, seq_k=5, head_dim=8)
    largest = 0x7FFFFF00
    for offset in (0, 20, 40 - largest, largest):
        assert_right(ops, kind, query, key, value, positions=(largest, offset))
    assert_right(ops, kind, query, key, value, positions=(largest - 20, 40 - largest))  # two keys from row 20 on


def test_every_third_row_of_longer_keys_under_a_mask(ops, kind):
    """Strided keys and values are read in place; the mask tensor is for the strided keys and applies as well."""
    query, key, value = tensors(ops, kind, seq_q=100, seq_k=100, head_dim=8, heads=4, kv_heads=2)
    key, value = key[:, :, 1::3], value[:, :, 1::3]
    assert_right(ops, kind, query, key, value, positions=(3, 1), mask=make_mask("bool", (4, 100, 33), ops.device))
    dense = {"causal": False, "key_step": 3, "key_offset": 1, "tensor_cores": KINDS[kind][1]}
    everything = tuned.flash_attention(ops, query, key, value, **dense)
    assert torch.equal(everything, tuned.flash_attention(ops, query, key, value, tensor_cores=KINDS[kind][1]))


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_fewer_heads_of_keys_than_of_queries(ops, kind, kv_heads):
    query, key, value = tensors(ops, kind, heads=6, kv_heads=kv_heads)
    mask = make_mask("float", (6, 1, S_K), ops.device)
    assert_right(ops, kind, query, key, value, causal=True, mask=mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask_kind", ["bool", "float"])
def test_a_mask_of_any_shape(ops, kind, mask_kind, causal):
    query, key, value = tensors(ops, kind, head_dim=8)
    for shape in [
        (S_Q, S_K),
        (1, S_K),
        (S_Q, 1),
        (HEADS, 1, S_K),
        (BATCH, 1, 1, S_K),
        (BATCH, HEADS, S_Q, S_K),
        (1, 1, 1, 1),
    ]:
        mask = make_mask(mask_kind, shape, ops.device, seed=1)
        assert_right(ops, kind, query, key, value, causal=causal, mask=mask, lower_right=causal)


@pytest.mark.parametrize("mask_kind", ["bool", "float"])
def test_a_mask_that_lies_in_memory_in_any_way(ops, kind, mask_kind):
    query, key, value = tensors(ops, kind, head_dim=8)
    mask = make_mask(mask_kind, (S_Q, S_K), ops.device)
    expanded = mask.expand(BATCH, HEADS, S_Q, S_K)
    for same in (expanded, mask.mT.contiguous().mT, mask.repeat_interleave(2, -1)[:, ::2]):
        assert_right(ops, kind, query, key, value, mask=same)


def test_padding_and_queries_that_may_see_no_key(ops, kind):
    query, key, value = tensors(ops, kind, seq_q=70, seq_k=150, head_dim=8)
    lengths = torch.tensor([7, 130], device=ops.device)
    padding = torch.arange(150, device=ops.device) < lengths[:, None, None, None]
    assert_right(ops, kind, query, key, value, mask=padding)
    for mask in (make_mask("bool", (70, 150), ops.device), make_mask("float", (70, 150), ops.device)):
        mask[3] = mask[40:] = False if mask.dtype == torch.bool else -math.inf
        out = assert_right(ops, kind, query, key, value, mask=mask)
        assert bool((out[:, :, 3] == 0).all()) and bool((out[:, :, 40:] == 0).all())
        assert bool((out[:, :, 4] != 0).any())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("head_dim", [16, 20])
def test_inputs_of_any_strides(ops, kind, head_dim, layout):
    query, key, value = tensors(ops, kind, seq_q=37, head_dim=head_dim)
    views = LAYOUTS[layout](query, key, value)
    assert not all(x.is_contiguous() for x in views)
    assert all(torch.equal(x, y) for x, y in zip(views, (query, key, value), strict=True))
    assert_right(ops, kind, *views, causal=True)


@pytest.mark.parametrize("head_dim", [7, 64])
def test_an_output_by_rows(ops, kind, head_dim):
    """Keys and values are the start of a cache; rows that see a NaN are recomputed."""
    query, key, value = tensors(ops, kind, seq_q=65, seq_k=133, head_dim=head_dim)
    key, value = key[:, :, :65], value[:, :, :65]
    value[0, 0, 30] = torch.nan
    if query.dtype == torch.float32:
        with pytest.raises(ValueError, match="query is float32; flash_attention_rows takes float16 and bfloat16"):
            ops.flash_attention_rows(query, key, value, True)
        return
    by_rows = ops.flash_attention_rows(query, key, value, True, 0.5)
    assert by_rows.is_contiguous() and bool(by_rows[:, 30:].isnan().any()) and bool(by_rows[:, :30].isfinite().all())
    expected = ops.flash_attention(query, key, value, True, 0.5)
    torch.testing.assert_close(by_rows.transpose(1, 2), expected, rtol=0, atol=0, equal_nan=True)


def test_expanded_inputs_and_strides_of_size_1_dimensions(ops, kind):
    query, key, value = tensors(ops, kind)
    assert_right(ops, kind, query[:1].expand(BATCH, -1, -1, -1), key[:, :1].expand(-1, HEADS, -1, -1), value)
    assert_right(ops, kind, query[:, :, :1].expand(-1, -1, S_Q, -1), key, value)
    query, key, value = tensors(ops, kind, batch=1, heads=1)
    odd = [torch.as_strided(x, x.shape, (3, 5, x.size(3), 1)) for x in (query, key, value)]
    assert_right(ops, kind, *odd)
    query, key, value = tensors(ops, kind, head_dim=1)
    assert_right(ops, kind, *(x.repeat_interleave(3, 3)[..., ::3] for x in (query, key, value)))


@pytest.mark.parametrize("scale", [0.0, -0.4, 0.5, 30.0])
def test_any_scale(ops, kind, scale):
    """Scale 0 gives the mean of the values; at 30 most queries attend to only one key."""
    query, key, value = tensors(ops, kind, seq_k=150)
    spread = 1.5**2 * query.size(-1) ** 0.5 * abs(scale)
    assert_right(ops, kind, query, key, value, spread, scale=scale)
    assert_right(ops, kind, query, key, value, spread, scale=scale, causal=True, lower_right=True)


def test_scores_that_rise_and_fall_along_the_keys(ops, kind):
    """From 300 to -300 and back: a row's maximum is in the first tile, or changes with every tile."""
    query, key, value = tensors(ops, kind, seq_q=20, seq_k=203, head_dim=16)
    ramp = torch.linspace(300, -300, 203, device=ops.device)
    for slope in (ramp, -ramp):
        query[..., 1:] *= 0.01
        key[..., 1:] *= 0.01
        query[..., 0], key[..., 0] = 4, slope
        assert_right(ops, kind, query, key, value)


def test_infinite_keys_are_hidden(ops, kind):
    """A key with the score -inf has weight 0, wherever it is; with no other key a query gets zeros."""
    query, key, value = tensors(ops, kind, seq_k=150)
    query[..., 0] = query[..., 0].abs() + 1
    key[:, :, :70, 0] = -math.inf
    assert_right(ops, kind, query, key, value)
    key[..., 0] = -math.inf
    assert bool((assert_right(ops, kind, query, key, value) == 0).all())


def test_masks_near_the_smallest_float_hide_no_more_than_they_say(ops, kind):
    """Models hide keys with finfo.min: a row with nothing else gets the mean of V; the larger of two biases wins."""
    query, key, value = tensors(ops, kind, seq_k=70)
    smallest = torch.finfo(torch.float32).min
    mask = torch.zeros(S_Q, 70, device=ops.device)
    mask[0] = smallest
    mask[1] = -2.5e38
    mask[2], mask[2, 40] = smallest, -1e38
    mask[3], mask[3, 5:] = smallest, -math.inf
    mask[4, 3:] = smallest
    out = tuned.flash_attention(ops, query, key, value, mask=mask, tensor_cores=KINDS[kind][1])
    mean = value.double().mean(2, keepdim=True).repeat_interleave(HEADS // value.size(1), 1)
    ref64 = attention(torch.float64, query, key, value, mask=mask)
    torch.testing.assert_close(ref64[:, :, :2], mean.expand_as(ref64[:, :, :2]))
    error = max_error_of(out, ref64)
    assert error <= 2e-5 + (torch.finfo(KINDS[kind][0]).eps * 4 if KINDS[kind][0] != torch.float32 else 0), error


HIDDEN = {
    "causal": {"causal": True},
    "lower right": {"causal": True, "lower_right": True},
    "bool": {"mask": True},
    "float": {"mask": True, "causal": True},
    "every third": {"causal": True, "key_step": 3, "key_offset": 1},
}


@pytest.mark.parametrize("head_dim", [8, 20, 128])
@pytest.mark.parametrize("way", HIDDEN)
def test_what_hidden_keys_hold_reaches_nobody(ops, kind, way, head_dim):
    """NaN and infinity in a key and in a value: rows that do not see them are unchanged, the others show them."""
    query, key, value = tensors(ops, kind, seq_q=70, seq_k=77, head_dim=head_dim, heads=2, kv_heads=1, batch=2)
    options = dict(HIDDEN[way])
    hidden = torch.zeros(70, 77, dtype=torch.bool, device=ops.device)
    if "mask" in options:
        hidden[:, 20] = hidden[:40, 50] = True
        float_mask = torch.randn(70, 77, device=ops.device).masked_fill(hidden, -math.inf)
        options["mask"] = float_mask if way == "float" else ~hidden
    if "causal" in options:
        rows, keys = torch.arange(70, device=ops.device)[:, None], torch.arange(77, device=ops.device)
        diagonal = 7 if way == "lower right" else -options.get("key_offset", 0)
        hidden |= keys * options.get("key_step", 1) > rows + diagonal
    call = partial(tuned.flash_attention, ops, tensor_cores=KINDS[kind][1], **options)
    clean = call(query, key, value)
    at = {"every third": 13}.get(way, 50)
    unseen = hidden[:, at]
    assert bool(unseen.any()) and not bool(unseen.all())
    size = float(clean.abs().max())
    for tensor, bad in ((value, math.nan), (value, math.inf), (key, math.nan)):
        held = tensor[0, 0, at, 3].clone()
        tensor[0, 0, at, 3] = bad
        out = call(query, key, value)
        tensor[0, 0, at, 3] = held
        bound = 2 * (1e-5 * 1.5**2 + running_sum_floor(77, 4)) + size * 4 * torch.finfo(KINDS[kind][0]).eps
        assert max_error_of(out[0][:, unseen], clean[0][:, unseen].double()) <= bound
        assert torch.equal(out[1], clean[1])
        assert not bool(out[0][:, ~unseen][..., 3].isfinite().any())
        if tensor is value:  # in its own column and no other
            others = [column for column in range(head_dim) if column != 3]
            seeing = out[0][:, ~unseen][..., others], clean[0][:, ~unseen][..., others]
            assert max_error_of(seeing[0], seeing[1].double()) <= bound


def test_float32_accuracy_on_tensor_cores(ops):
    """Three fp16 products in place of one keep the relative error, over all elements, below 1e-6."""
    query, key, value = tensors(ops, "3xfp16", seq_q=70, seq_k=133, head_dim=64, sharpness=1.0)
    value -= 2
    out = tuned.flash_attention(ops, query, key, value)
    ref64 = attention(torch.float64, query, key, value)
    assert float((out - ref64).norm() / ref64.norm()) < 1e-6


@pytest.mark.parametrize("tensor_cores", [False, True])
def test_float32_inputs_of_any_size(ops, tensor_cores):
    """Powers of two that cancel in the scores change nothing; a column of large values leaves the others exact."""
    kind = "3xfp16" if tensor_cores else "fp32"
    query, key, value = tensors(ops, kind, seq_k=70)
    ref64 = attention(torch.float64, query, key, value)
    large = tuned.flash_attention(ops, query * 2.0**-60, key * 2.0**60, value * 2.0**80, tensor_cores=tensor_cores)
    assert float((large.double() * 2.0**-80 - ref64).norm() / ref64.norm()) < 1e-6
    query[:, :, 3], key[:, :, 5], value[:, :, 7] = 0, 0, 0
    assert_right(ops, kind, query, key, value)
    value[..., 0] *= 2**12
    out = tuned.flash_attention(ops, query, key, value, tensor_cores=tensor_cores)
    ref64 = attention(torch.float64, query, key, value)
    for columns in (slice(0, 1), slice(1, None)):
        assert float((out - ref64)[..., columns].norm() / ref64[..., columns].norm()) < 1e-6


def test_the_same_bits_every_time(ops, kind):
    """Also without the logsumexp. Blocks run in any order on a GPU, and in the simulator with several threads."""
    query, key, value = tensors(ops, kind, seq_q=70, seq_k=133)
    mask = make_mask("float", (70, 133), ops.device)
    call = partial(tuned.flash_attention, ops, query, key, value, True, mask=mask, tensor_cores=KINDS[kind][1])
    first = assert_right(ops, kind, query, key, value, causal=True, mask=mask)
    for _ in range(50 if ops.backend == "cuda" else 10):
        assert torch.equal(call().view(torch.int16), first.view(torch.int16))


NORMAL = {"query": (2, 4, 6, 8), "key": (2, 2, 5, 8), "value": (2, 2, 5, 8)}
BAD = [
    ({"query": torch.float64}, "query has dtype Double; it must be Float, Half or BFloat16"),
    ({"key": torch.float16}, "key has dtype Half; it must be Float"),
    ({"value": torch.bfloat16}, "value has dtype BFloat16; it must be Float"),
    ({"query": (4, 6, 8)}, r"query has 3 dimensions, shape \[4, 6, 8\]; it must be \[batch, heads, S_q, head_dim\]"),
    ({"key": (2, 3, 5, 8), "value": (2, 3, 5, 8)}, r"query has 4 heads, .* and key 3, .* must be a multiple of key's"),
    ({"key": (2, 8, 5, 8), "value": (2, 8, 5, 8)}, "query has 4 heads, .* and key 8, .* must be a multiple of key's"),
    ({"key": (1, 2, 5, 8)}, r"key has shape \[1, 2, 5, 8\] and query has shape .*; dimension 0 of key \(1\)"),
    ({"key": (2, 2, 5, 7)}, "dimension 3 of key .7. must equal dimension 3 of query .8."),
    ({"value": (2, 2, 4, 8)}, "dimension 2 of value .4. must equal dimension 2 of key .5."),
    ({"value": (2, 1, 5, 8)}, "dimension 1 of value .1. must equal dimension 1 of key .2."),
    ({"query": (2, 4, 0, 8)}, "query has shape .* so S_q is 0; it must be at least 1"),
    ({"key": (2, 2, 0, 8)}, "key has shape .* so S_k is 0; it must be at least 1"),
    ({"query": (0, 4, 6, 8)}, "so batch is 0; it must be at least 1"),
    ({"query": (2, 0, 6, 8)}, "so heads is 0; it must be at least 1"),
    ({"query": (2, 4, 6, 0)}, "so head_dim is 0; it must be at least 1"),
    ({"query": (2, 4, 6, 257), "key": (2, 2, 5, 257), "value": (2, 2, 5, 257)}, r"head_dim = 257, .* 1 \.\. 256"),
    ({"scale": math.nan}, "scale is nan; it must be finite"),
    ({"scale": 1e300}, "scale is 1.*; it must be finite as a float32"),
    ({"key_step": 0}, r"key_step is 0; it must be 1 \.\. 2147483392"),
    ({"key_step": 2**31}, r"key_step is 2147483648; it must be 1 \.\. 2147483392"),
    ({"key_offset": 2**31}, r"key_offset is 2147483648; it must be S_q - 2147483392 = -2147483386 \.\. 2147483392"),
    ({"key_offset": -(2**31)}, "key_offset is -2147483648; it must be S_q - 2147483392 = -2147483386"),
    ({"lower_right": True, "key_step": 2}, "lower_right is true, key_step 2 and key_offset 0; .*: give one of both"),
    ({"lower_right": True, "key_offset": 1}, "lower_right is true, key_step 1 and key_offset 1; .*: give one of both"),
    ({"mask": (6, 6)}, r"mask has shape \[6, 6\], .* \[2, 4, 6, 5\]: dimension 1 must be 1 or S_k = 5"),
    ({"mask": torch.int32}, "mask has dtype Int; it must be Bool .* or Float"),
    ({"mask": torch.zeros(6, 5, requires_grad=True)}, r"mask requires a gradient.*mask.detach\(\)"),
    ({"softcap": -1.0}, r"softcap is -1.000000; it must be 0 \(none\) or positive and finite"),
    ({"softcap": math.nan}, "softcap is nan"),
    ({"dropout_p": 1.0}, "dropout_p is 1.000000; it must be 0 or more and less than 1"),
    ({"dropout_p": -0.1}, "dropout_p is -0.100000"),
    ({"dropout_p": 0.5, "seed": torch.zeros(2, dtype=torch.int64)}, r"seed has shape \[2\]; it must be \[1\]"),
    ({"dropout_p": 0.5, "seed": torch.zeros(1)}, "seed has dtype Float; it must be Long"),
    ({"sinks": torch.zeros(2)}, r"sinks has shape \[2\] and query has shape .*must equal dimension 1 of query \(4\)"),
    ({"sinks": torch.zeros(4, dtype=torch.int32)}, "sinks has dtype Int; it must be Float"),
    ({"sinks": torch.zeros(1, 4)}, r"sinks has 2 dimensions, shape \[1, 4\]; it must be \[heads\]"),
    ({"window_left": 2**31}, "window_left is 2147483648; it must be -1 .. 2147483392"),
]


@pytest.mark.parametrize(("changed", "words"), BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_a_bad_argument_is_named(ops, changed, words):
    """By the operator; what attention rejects is in tests/common/kernels/test_attention.py."""

    def tensor(shape_or_dtype, usual):
        if isinstance(shape_or_dtype, Tensor):
            return shape_or_dtype.to(ops.device)
        if isinstance(shape_or_dtype, torch.dtype):
            return torch.zeros(usual, dtype=shape_or_dtype, device=ops.device)
        return torch.zeros(shape_or_dtype, device=ops.device)

    usual = {**NORMAL, "mask": (6, 5)}
    given = {
        name: tensor(changed.get(name, shape), shape) for name, shape in usual.items() if name in {*NORMAL, *changed}
    }
    rest = {name: x.to(ops.device) if isinstance(x, Tensor) else x for name, x in changed.items() if name not in usual}
    with pytest.raises(ValueError, match=words):
        operators_of(ops).flash_attention_forward(**given, causal=False, **rest)


def test_a_bad_layout_is_named(ops):
    query, key, value = tensors(ops, "bf16")
    with pytest.raises(ValueError, match=r"value of shape .* has stride 37 along its last dimension; it must be 1"):
        tuned.flash_attention(ops, query, key, value.mT.contiguous().mT)


@pytest.mark.slow
def test_no_race_and_no_stray_access(kind):
    """The checked simulator finds nothing, forward and backward: aligned and other rows, hidden keys, ragged tiles."""
    ops = tuned.load("simulator", checked=True)
    options = {"causal": True, "lower_right": True}
    query, key, value = tensors(ops, kind, seq_q=70, seq_k=100, head_dim=40, batch=1, heads=2, kv_heads=1)
    calls = [
        ((query, key, value), {}),
        (gaps(query, key, value, before=1, behind=4), {**options, "mask": make_mask("bool", (70, 1), "cpu")}),
        (packed(*tensors(ops, kind, seq_q=37, head_dim=72)), {"causal": True}),
        (tensors(ops, kind, seq_q=70, seq_k=40, head_dim=8, batch=1), {"positions": (3, 2)}),
    ]
    for inputs, given in calls:
        with nothing_found(ops):
            out = assert_right(ops, kind, *inputs, **given)
            if kind != "3xfp16":  # its gradients are those of "fp32"
                leaves = [x.requires_grad_() for x in inputs]
                if "positions" in given:
                    step, offset = given.pop("positions")
                    given = {"causal": True, "key_step": step, "key_offset": offset}
                tuned.flash_attention(ops, *leaves, **given).backward(out)


READS_PAST_A_PACKED_TENSOR = """
#include <stdexcept>
#include "common/kernels/flash/flash.h"
__global__ void read(const float* element, float* out) { out[threadIdx.x] = *element; }
ForwardKernel forward_kernel(const FlashArguments&) { return ForwardKernel::FP32; }
void flash_forward(const FlashArguments& a, void*) {
    const float* last_row = static_cast<const float*>(a.value) + (a.heads - 1) * a.value_strides.head;
    const float* end = last_row + (a.S_k - 1) * a.value_strides.row + a.head_dim;
    read<<<1, 1>>>(end - 1, static_cast<float*>(a.out));
    read<<<1, 1>>>(end, static_cast<float*>(a.out));
}
BackwardKernel backward_kernel(const FlashGradients&) { return BackwardKernel::PLAIN; }
int64_t backward_workspace(const FlashGradients&, BackwardKernel) { return 0; }
void flash_backward(const FlashGradients&, BackwardKernel) {}
void block_forward(const FlashArguments&, const BlockLists&) {}
void block_backward(const FlashGradients&, const BlockLists&, int*) {}
void flash_merge(const MergeArguments&) {}
void dropout_mask(const DropoutMaskArguments&) {}
"""


@pytest.mark.slow
def test_views_of_one_tensor_are_watched_as_one(tmp_path):
    """The checked simulator knows where a packed tensor ends, and that all three inputs are slices of it."""
    from common.inspect.checked_library import CHECK, CheckedLibrary

    source = tmp_path / "past.cu"
    source.write_text(READS_PAST_A_PACKED_TENSOR)
    ops = load(BuildRequest("flash", backend="simulator", sources=[source], checked=True, label="past"))
    library = CheckedLibrary(ops.libraries[0].path)
    query, key, value = packed(*tensors(ops, "fp32", seq_q=S_K, batch=1))
    library.begin(CHECK)
    try:
        with pytest.raises(RuntimeError, match=r"read of 4 byte\(s\), 0 byte\(s\) past the end of query/key/value"):
            ops.flash_attention(query, key, value, False, tensor_cores=False)
    finally:
        library.begin(0)
