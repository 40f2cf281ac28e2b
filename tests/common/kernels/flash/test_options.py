"""Attention with options against float64: forward and backward, every dtype, size and layout, alone and combined."""

from __future__ import annotations

import math
from itertools import pairwise

import attention_oracle
import flash_inputs
import pytest
import torch
from attention_oracle import seen_of
from checked_findings import nothing_found
from flash_inputs import LAYOUTS, gaps, spoil
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.kernels.attention import attention, attention_varlen, dropout_mask, quantized_dropout
from common.kernels.attention_gradients import operators_of, register
from common.kernels.attention_kernels import new_seed
from common.reference.bounds import max_error_of, running_sum_floor

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
BAD = [math.nan, math.inf, -math.inf]
SOFTCAP, DROPOUT_P, SEED = 1.5, 0.3, 2**40 + 12345


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return DTYPES[request.param]


def options_attention(query, key, value, causal=False, mask=None, **options):
    """attention by the flash kernels, with the operators' names."""
    return attention(query, key, value, mask, is_causal=causal, enable_gqa=True, kernel="flash", **options)


def packed_attention(query, key, value, *boundaries, causal=False, lower_right=True, **options):
    """attention_varlen aligned to the lower right, with the operators' names."""
    return attention_varlen(query, key, value, *boundaries, is_causal=causal, lower_right=lower_right, **options)


def sinks_of(query: Tensor, heads_at: int = 1) -> Tensor:
    """One per head; the last one is larger than most scores."""
    return torch.linspace(-2, 6, query.size(heads_at), device=query.device)


def seed_of(device, seed: int = SEED) -> Tensor:
    return torch.tensor([seed], device=device)


def options_of(names: str, query: Tensor, heads_at: int = 1) -> dict:
    """ "softcap sinks dropout" -> the options themselves."""
    all_of_them = {
        "softcap": {"softcap": SOFTCAP},
        "sinks": {"sinks": sinks_of(query, heads_at)},
        "dropout": {"dropout_p": DROPOUT_P, "seed": seed_of(query.device)},
        "causal": {"causal": True},
        "lower_right": {"causal": True, "lower_right": True},
        "upper_left": {"causal": True, "lower_right": False},
        "from_the_right": {"lower_right": True},
        "window": {"window_size": (9, 3)},
        "past": {"window_size": (20, -1)},
        "coming": {"window_size": (-1, 4)},
        "itself": {"window_size": (0, 0)},
        "broad": {"window_size": (120, 70)},
    }
    return {name: x for one in names.split() for name, x in all_of_them[one].items()}


def pieces(
    dtype, query, key, value, causal=False, scale=None, lower_right=False, mask=None, softcap=0.0, sinks=None,
    dropout_p=0.0, kept=None, window_size=(-1, -1),
) -> tuple[Tensor, ...]:  # fmt: skip
    """(output, lse, weights, weights after dropout) in PyTorch, as in the helper, in dtype."""
    seen, bias = seen_of(query.size(2), key.size(2), causal, tuple(window_size), lower_right).to(query.device), None
    if mask is not None:
        visible = mask if mask.dtype == torch.bool else mask > -math.inf
        seen = seen & visible
        bias = None if mask.dtype == torch.bool else mask.masked_fill(~visible, 0.0)  # -infinity's gradient is NaN
    kept = 1.0 if kept is None else kept / (1 - quantized_dropout(dropout_p))
    return attention_oracle.pieces(query, key, value, seen, softcap, sinks, scale, kept, dtype, bias)


def assert_right(query, key, value, grad_out, spoiled=None, **options) -> None:
    """Output, lse and all gradients must be as close to float64 as common/testing/judging.py requires of every kernel.

    The floors are the additional roundings allowed in a kernel: the weights, dS and delta, which is computed from the
    rounded output, once to dtype each, and a score in float32, which is a relative error of its weight. They are summed
    without regard to sign.

    spoiled: key and value as the kernels get them, if different from the float64 ones: the difference must not matter.
    """
    given = query, *(spoiled or (key, value))
    dtype, sinks = query.dtype, options.get("sinks")
    kept = None
    if options.get("dropout_p"):
        sizes = query.size(0), query.size(1), query.size(2), key.size(2)
        kept = dropout_mask(options["seed"], options["dropout_p"], *sizes)
    leaves = [x.detach().requires_grad_() for x in given]
    leaves += [] if sinks is None else [sinks.detach().requires_grad_()]
    asked = options | ({} if sinks is None else {"sinks": leaves[3]})
    out, lse = options_attention(*leaves[:3], **asked, return_lse=True)
    assert out.shape == query.shape and out.dtype == dtype and out.is_contiguous()
    found = torch.autograd.grad(out, leaves, grad_out)

    options = {name: x for name, x in options.items() if name != "seed"} | {"kept": kept}
    references = []
    for one in (torch.float64, dtype):
        inputs = [x.detach().to(one).requires_grad_() for x in (query, key, value)]
        if sinks is not None:
            inputs.append(sinks.detach().double().requires_grad_())
            options["sinks"] = inputs[3]
        outs = pieces(one, *inputs[:3], **options)
        grads = torch.autograd.grad(outs[0], inputs, grad_out.to(one))
        references.append(([x.detach().double() for x in (outs[0], *grads)], outs))
    (exact, (out64, lse64, weights, dropped)), (near, _) = references

    unit = torch.finfo(dtype).eps + 1e-5
    group = query.size(1) // key.size(1)
    with torch.no_grad():
        q, k, v, g = (x.double().abs() for x in (query, key, value, grad_out))
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        scale = abs(options.get("scale") or query.size(-1) ** -0.5)
        ds = unit * (dropped * (g @ v.mT) + 2 * weights * (g * out64.abs()).sum(-1, keepdim=True))
        of_keys = [x.unflatten(1, (-1, group)).sum(2) for x in (scale * ds.mT @ q, unit * dropped.mT @ g)]
        floors = [unit * dropped @ v + running_sum_floor(key.size(2), 4), scale * ds @ k, *of_keys]
        if sinks is not None:
            floors.append(unit * (g * out64.abs()).sum((0, 2, 3)))
    names = "out", "grad_query", "grad_key", "grad_value", "grad_sinks"
    for name, x, ref, same, floor in zip(names, (out, *found), exact, near, floors, strict=False):
        error, noise = max_error_of(x.detach(), ref), max_error_of(same, ref)
        assert error <= 2 * noise + float(floor.max()), (name, error, noise, float(floor.max()))
    assert all(x.dtype == y.dtype and x.shape == y.shape for x, y in zip(found, leaves, strict=True))

    lse64 = lse64.detach()
    size = float(lse64[lse64.isfinite()].abs().max()) if bool(lse64.isfinite().any()) else 0.0
    assert max_error_of(lse, lse64) <= 1e-5 * (1 + size)


def operators(x: Tensor):
    """The raw operators for the device of x."""
    return operators_of("flash", x.device)


# without any: test_flash.py and test_flash_torch.py
OPTIONS = ["softcap", "sinks", "dropout", "softcap sinks dropout lower_right"]


@pytest.mark.parametrize("names", OPTIONS)
@pytest.mark.parametrize("head_dim", [1, 40, 64, 72, 128, 200, 256])
def test_every_head_dim(ops, dtype, head_dim, names):
    inputs = flash_inputs.tensors(ops, dtype, head_dim=head_dim, batch=1, heads=2)
    assert_right(*inputs, **options_of(names, inputs[0]))


@pytest.mark.parametrize("sizes", [(1, 1), (1, 70), (70, 1), (65, 133), (133, 65), (64, 64), (129, 131)], ids=str)
def test_any_number_of_queries_and_keys(ops, dtype, sizes):
    """Includes rows that see no key and keys that no row sees."""
    inputs = flash_inputs.tensors(ops, dtype, seq_q=sizes[0], seq_k=sizes[1], head_dim=8, batch=1, heads=2)
    assert_right(*inputs, **options_of("softcap sinks dropout causal", inputs[0]))


@pytest.mark.parametrize("names", OPTIONS)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_fewer_heads_of_keys_than_of_queries(ops, dtype, kv_heads, names):
    inputs = flash_inputs.tensors(ops, dtype, seq_q=70, heads=4, kv_heads=kv_heads)
    assert_right(*inputs, **options_of(names, inputs[0]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(ops, dtype, layout):
    """The gradient of the output has the same layout."""
    query, key, value, grad_out = flash_inputs.tensors(ops, dtype, seq_q=flash_inputs.S_K, head_dim=16)
    inputs = LAYOUTS[layout](query, key, value)
    (grad_out, *_) = LAYOUTS[layout](grad_out, key, value)
    assert_right(*inputs, grad_out, **options_of("softcap sinks dropout causal", query))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_beside_the_options(ops, dtype, kind):
    """It is added after the cap; includes a row that hides every key, where a sink takes all the weight."""
    inputs = flash_inputs.tensors(ops, dtype)
    seen = torch.rand(3, 21, 37, generator=torch.Generator().manual_seed(1)) < 0.7
    seen[:, 4] = False
    mask = seen if kind == "bool" else torch.where(seen, 3 * torch.randn(3, 21, 37), -math.inf)
    for names in ("softcap", "sinks dropout", "softcap sinks lower_right"):
        assert_right(*inputs, mask=mask.to(ops.device), **options_of(names, inputs[0]))
    out = options_attention(*inputs[:3], mask=mask.to(ops.device), sinks=sinks_of(inputs[0]))
    assert bool((out[:, :, 4] == 0).all()) and bool((out[:, :, 5] != 0).any())


def test_a_scale_of_any_sign(ops, dtype):
    inputs = flash_inputs.tensors(ops, dtype)
    for scale in (0.0, -0.4, 0.7):
        assert_right(*inputs, scale=scale, **options_of("softcap sinks", inputs[0]))


def test_sixteen_bit_sinks_get_a_sixteen_bit_gradient(ops):
    query, key, value, grad_out = flash_inputs.tensors(ops, torch.bfloat16)
    sinks = sinks_of(query).bfloat16().requires_grad_()
    (found,) = torch.autograd.grad(options_attention(query, key, value, sinks=sinks), [sinks], grad_out)
    exact = sinks.detach().float().requires_grad_()
    (expected,) = torch.autograd.grad(options_attention(query, key, value, sinks=exact), [exact], grad_out)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected.bfloat16())


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1.0, 0.05])
@pytest.mark.parametrize(
    "names", ["sinks causal", "softcap sinks causal", "window sinks", "itself", "softcap past causal"]
)
def test_gradients_beside_pytorchs_own_error(ops, half, size, names):
    """Many rows that see few keys, and small numbers: at most three times PyTorch's error in the same dtype, as in
    FlashAttention's tests; the floor, one float32 rounding, is for gradients that PyTorch computes exactly."""
    query, key, value, grad_out = flash_inputs.tensors(
        ops, half, 12, 12, head_dim=64, heads=4, kv_heads=2, mean_value=0
    )
    inputs = [(size * x).to(half) for x in (query, key, value)]
    floor = 1e-6 * math.prod(float(x.abs().max()) for x in (*inputs[1:], grad_out))
    options = options_of(names, query)
    if "sinks" in options:
        options["sinks"] = torch.linspace(-2, 2, 4, device=query.device).requires_grad_()
    results = []
    for one in (torch.float64, half, None):
        leaves = [x.detach().to(one or half).requires_grad_() for x in inputs]
        out = options_attention(*leaves, **options) if one is None else pieces(one, *leaves, **options)[0]
        leaves += [options["sinks"]] if "sinks" in options else []
        results.append([x.double() for x in torch.autograd.grad(out, leaves, grad_out.to(one or half))])
    for exact, near, found in zip(*results, strict=True):
        noise = max_error_of(near, exact)
        assert max_error_of(found, exact) <= 3 * noise + floor, names


# ---- windows

WINDOWS = ["window", "past", "coming", "itself", "window from_the_right", "past causal", "window lower_right"]


@pytest.mark.parametrize("names", [*WINDOWS, "softcap sinks dropout window", "softcap sinks dropout past lower_right"])
@pytest.mark.parametrize("sizes", [(1, 70), (70, 1), (65, 133), (133, 65), (129, 131)], ids=str)
def test_windows(ops, dtype, sizes, names):
    """With different ends, aligned to either corner, over tiles that some or all rows do not see; includes rows that
    see no key and keys that no row sees."""
    inputs = flash_inputs.tensors(ops, dtype, seq_q=sizes[0], seq_k=sizes[1], head_dim=8, batch=1, heads=2)
    assert_right(*inputs, **options_of(names, inputs[0]))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_windows_at_every_size(ops, dtype, head_dim):
    """Every shape of the kernels, also with a mask and with fewer KV heads."""
    inputs = flash_inputs.tensors(ops, dtype, 70, 101, head_dim=head_dim, batch=1, heads=2, kv_heads=1)
    mask = torch.rand(70, 101, generator=torch.Generator().manual_seed(1)) < 0.7
    assert_right(*inputs, mask=mask.to(ops.device), **options_of("window from_the_right", inputs[0]))


@pytest.mark.parametrize("names", ["broad", "dropout broad lower_right", "softcap sinks broad from_the_right"])
@pytest.mark.parametrize("head_dim", [8, 128, 256])
def test_tiles_between_the_ends_of_a_window(ops, dtype, head_dim, names):
    """Tiles in which all rows see all keys, forward and backward: kernels do not mask them."""
    inputs = flash_inputs.tensors(ops, dtype, 150, 230, head_dim=head_dim, batch=1, heads=2, kv_heads=1)
    assert_right(*inputs, **options_of(names, inputs[0]))


def test_a_window_as_wide_as_all_is_none(ops, dtype):
    """The same bits with ends beyond all keys; without a window float32 uses other kernels."""
    query, key, value, grad_out = flash_inputs.tensors(ops, dtype, 70, 70, batch=1)
    results = []
    for window_size in ((-1, -1), (69, 69), (2**31 - 512, -1)):
        leaves = [x.clone().requires_grad_() for x in (query, key, value)]
        out = options_attention(*leaves, window_size=window_size, deterministic=True)
        results.append((out.detach(), *torch.autograd.grad(out, leaves, grad_out)))
    for none, whole, beyond in zip(*results, strict=True):
        assert torch.equal(whole, beyond)
        (assert_near if dtype == torch.float32 else assert_equal)(none, whole)


@pytest.mark.parametrize("bad", BAD)
def test_nothing_comes_through_the_ends_of_a_window(ops, dtype, bad):
    """Bad keys before and after reach only the rows whose window includes them, and only the gradients of such rows
    and of keys that these see."""
    query, key, value, grad_out = flash_inputs.tensors(ops, dtype, 100, 100, head_dim=16, batch=1, heads=2)
    results = []
    for one in (bad, None):
        leaves = [query.clone(), *(x if one is None else spoil(x, [10, 80], one) for x in (key, value))]
        leaves = [x.requires_grad_() for x in leaves]
        out = options_attention(*leaves, window_size=(7, 5))
        results.append((out.detach(), *torch.autograd.grad(out, leaves, grad_out)))
    rows = [i for i in range(100) if not any(i - 7 <= j <= i + 5 for j in (10, 80))]
    reached = [i for i in range(100) if i not in rows]
    keys = [j for j in range(100) if not any(i - 7 <= j <= i + 5 for i in reached)]
    assert len(rows) == 74 and keys
    for found, expected, kept in zip(*results, (rows, rows, keys, keys), strict=True):
        assert_near(found[:, :, kept], expected[:, :, kept])
    assert not bool(results[0][0][:, :, reached].isfinite().all())


# ---- packed sequences

LENGTHS = {  # rows and keys of every sequence
    "one": [(37, 37)],
    "of all lengths": [(1, 1), (70, 70), (0, 0), (33, 33), (64, 64), (5, 5)],
    "more keys": [(3, 40), (1, 70), (65, 100), (0, 4)],
    "fewer keys": [(40, 3), (70, 65), (4, 0), (33, 33)],
}


def packed_tensors(ops, dtype, lengths, heads=4, kv_heads=2, head_dim=16) -> list[Tensor]:
    """query, key, value, a gradient of the output, cu_seqlens_q, cu_seqlens_k."""
    totals = [sum(x) for x in zip(*lengths, strict=True)]
    query, key, value, grad_out = flash_inputs.tensors(
        ops, dtype, *totals, head_dim=head_dim, batch=1, heads=heads, kv_heads=kv_heads
    )
    rows = [x[0].transpose(0, 1).contiguous() for x in (query, key, value, grad_out)]
    boundaries = torch.tensor([(0, 0), *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return [*rows, *(x.contiguous().to(ops.device) for x in boundaries.unbind(1))]


PACKED = [  # every pair of a dtype and lengths, of a dtype and options, of lengths and options
    (list(DTYPES.values())[(i + j) % len(DTYPES)], lengths, names)
    for i, lengths in enumerate(LENGTHS)
    for j, names in enumerate(["", "causal", "upper_left", "softcap sinks dropout causal", "window", "past causal"])
]


@pytest.mark.parametrize(("dtype", "lengths", "names"), PACKED, ids=str)
def test_packed_sequences(ops, dtype, lengths, names):
    """Every sequence equals options_attention on it alone, which the tests above check against float64: the same bits,
    except in float32 without options, which uses other kernels alone. Causal masks are aligned to the lower right
    unless specified otherwise."""
    query, key, value, grad_out, *boundaries = packed_tensors(ops, dtype, LENGTHS[lengths])
    options = options_of(names, query)
    of_dense = dtype == torch.float32 and not options.keys() - {"causal", "lower_right"}
    assert_same = assert_near if of_dense else assert_equal
    leaves = [x.requires_grad_() for x in (query, key, value)]
    out = packed_attention(*leaves, *boundaries, **options, deterministic=True)
    found = torch.autograd.grad(out, leaves, grad_out)
    assert out.shape == query.shape and out.is_contiguous()
    heads = query.size(1)
    for number, (rows, keys) in enumerate(zip(*(list(pairwise(x.tolist())) for x in boundaries), strict=True)):
        of_rows, of_keys = slice(*rows), slice(*keys)
        alone = [x[s].detach().transpose(0, 1)[None] for x, s in zip(leaves, (of_rows, of_keys, of_keys), strict=True)]
        if 0 in (alone[0].size(2), alone[1].size(2)):
            assert bool((out[of_rows] == 0).all())
            assert all(bool((x[s] == 0).all()) for x, s in zip(found, (of_rows, of_keys, of_keys), strict=True))
            continue
        given = {"lower_right": True, "deterministic": True} | options
        if "dropout" in names:  # the last sequence in a batch of number + 1
            alone = [torch.cat([x] * (number + 1)) for x in alone]
        alone = [x.requires_grad_() for x in alone]
        expected = options_attention(*alone, **given)
        grad = grad_out[of_rows].transpose(0, 1).expand(expected.size(0), heads, -1, -1)
        grads = torch.autograd.grad(expected, alone, grad)
        assert_same(out[of_rows].detach(), expected[-1].detach().transpose(0, 1))
        lone = alone[1].size(2) == 1 and "sinks" not in names  # attention sets the first two to exactly 0 then
        for x, right, s in list(zip(found, grads, (of_rows, of_keys, of_keys), strict=True))[2 * lone :]:
            assert_same(x[s], right[-1].transpose(0, 1))
        if lone:
            assert all(float(x[s].abs().max()) <= 1e-4 for x, s in zip(found, (of_rows, of_keys), strict=False))


def test_packed_sequences_beside_float64(ops, dtype):
    """Directly against float64, including the gradient of the sinks, to which all sequences add."""
    query, key, value, grad_out, *boundaries = packed_tensors(ops, dtype, LENGTHS["more keys"])
    options = options_of("softcap sinks", query) | {"causal": True}
    sinks = options["sinks"].requires_grad_()
    results = []
    for one in (torch.float64, dtype, None):
        leaves = [x.detach().to(one or dtype).requires_grad_() for x in (query, key, value)]
        if one is None:
            out = packed_attention(*leaves, *boundaries, **options)
        else:
            parts = []
            for rows, keys in zip(*(list(pairwise(x.tolist())) for x in boundaries), strict=True):
                if rows[0] == rows[1]:
                    continue
                alone = [x[slice(*s)].transpose(0, 1)[None] for x, s in zip(leaves, (rows, keys, keys), strict=True)]
                parts.append(pieces(one, *alone, lower_right=True, **options)[0][0].transpose(0, 1))
            out = torch.cat(parts)
        grads = torch.autograd.grad(out, [*leaves, sinks], grad_out.to(one or dtype))
        results.append([x.detach().double() for x in (out, *grads)])
    for exact, near, found in zip(*results, strict=True):
        unit = torch.finfo(dtype).eps + 1e-5
        assert max_error_of(found, exact) <= 2 * max_error_of(near, exact) + 4 * unit * float(exact.abs().max())


def test_packed_slices_of_one_tensor(ops, dtype):
    """query, key and value as returned by one linear layer, [total, 3, heads, head_dim], read in place."""
    query, key, value, grad_out, boundaries, _ = packed_tensors(ops, dtype, LENGTHS["of all lengths"], kv_heads=4)
    whole = torch.stack([query, key, value], 1).requires_grad_()
    out = packed_attention(*whole.unbind(1), boundaries, causal=True, deterministic=True)
    (found,) = torch.autograd.grad(out, [whole], grad_out)
    leaves = [x.requires_grad_() for x in (query, key, value)]
    expected = packed_attention(*leaves, boundaries, boundaries, causal=True, deterministic=True)
    assert torch.equal(out, expected)
    assert torch.equal(found, torch.stack(torch.autograd.grad(expected, leaves, grad_out), 1))


@pytest.mark.gpu
def test_rows_of_no_sequence_are_zeros():
    """Only a GPU accepts such boundaries, as it does not check them. Decreasing ones cause no out-of-bounds access."""
    ops = load(BuildRequest("flash", backend="cuda"))
    query, key, value, grad_out, boundaries, _ = packed_tensors(ops, torch.float16, [(20, 20), (30, 30), (7, 7)])
    leaves = [x.requires_grad_() for x in (query, key, value)]
    out = packed_attention(*leaves, boundaries[:-1].contiguous())
    for x in (out, *torch.autograd.grad(out, leaves, grad_out)):
        assert bool((x[50:] == 0).all()) and bool((x[:50] != 0).any())
    wild = torch.tensor([50, 3, 900, -7, 57], dtype=torch.int32, device=ops.device)
    torch.autograd.grad(packed_attention(*leaves, wild), leaves, grad_out)
    torch.cuda.synchronize()


# ---- values at hidden keys


HIDING = ["bool mask", "float mask", "future"]
SPOILED = [  # every pair of a way and options, of a way and a value, of options and a value
    (way, names, BAD[(i + j) % len(BAD)])
    for i, way in enumerate(HIDING)
    for j, names in enumerate(["softcap", "sinks", "dropout", "softcap sinks dropout", "broad"])
]


@pytest.mark.parametrize(("way", "names", "bad"), SPOILED)
def test_what_lies_at_hidden_keys_reaches_nothing(ops, dtype, way, names, bad):
    """Keys no row sees: output, lse and all gradients match float64's with zeros there. All tiles have such keys."""
    rows, keys = 70, 101
    inputs = flash_inputs.tensors(ops, dtype, rows, keys, head_dim=40, batch=1, heads=2, kv_heads=1)
    hidden = torch.arange(keys) % 5 == 1
    options = options_of(names, inputs[0])
    if way == "future":
        hidden, options["causal"] = torch.arange(keys) >= rows, True
    else:
        mask = ~hidden if way == "bool mask" else torch.zeros(keys).masked_fill(hidden, -math.inf)
        options["mask"] = mask[None].to(ops.device)
    query, key, value, grad_out = inputs
    spoiled = [spoil(x, hidden.to(ops.device), bad) for x in (key, value)]
    key, value = (x.masked_fill(hidden.to(ops.device)[:, None], 0) for x in (key, value))
    assert_right(query, key, value, grad_out, spoiled=spoiled, **options)


@pytest.mark.parametrize("head_dim", [16, 128, 136, 256])
def test_keys_hidden_from_padding_at_every_size(ops, dtype, head_dim):
    """Every shape of the kernels, with a per-sequence mask as made by padding."""
    query, key, value, grad_out = flash_inputs.tensors(ops, dtype, 37, 37, head_dim=head_dim, heads=1)
    seen = torch.arange(37, device=ops.device) < torch.tensor([[37], [20]], device=ops.device)
    zeros = [x.masked_fill(~seen[:, None, :, None], 0) for x in (key, value)]
    spoiled = [x.masked_fill(~seen[:, None, :, None], math.nan) for x in (key, value)]
    mask = seen[:, None, None]
    assert_right(query, *zeros, grad_out, spoiled=spoiled, mask=mask, causal=True)


def assert_equal(found: Tensor, expected: Tensor) -> None:
    assert torch.equal(found, expected)


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Compared with another result of the same kernels, whose sums may have had another order."""
    bound = (4 * torch.finfo(found.dtype).eps + 1e-5) * float(expected.abs().max())
    assert max_error_of(found, expected.double()) <= bound


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("names", ["softcap sinks", "softcap sinks dropout"])
@pytest.mark.parametrize("which", ["key", "value"])
def test_a_key_that_some_rows_see(ops, dtype, which, names, bad):
    """Rows before it, and their gradients, are unchanged; the others show what they see."""
    query, key, value, grad_out = flash_inputs.tensors(ops, dtype, 70, 70, head_dim=16, batch=1, heads=2)
    options = options_of(names, query) | {"causal": True}
    results = []
    for one in (bad, None):
        leaves = [query.clone().requires_grad_(), key, value]
        if one is not None:
            at = 1 if which == "key" else 2
            leaves[at] = spoil(leaves[at], 40, one)
        out = options_attention(*leaves, **options)
        results.append((out.detach(), *torch.autograd.grad(out, leaves[:1], grad_out)))
    for found, expected in zip(*results, strict=True):
        assert_near(found[:, :, :40], expected[:, :, :40])
    out = results[0][0]
    if which == "value":
        seeing = slice(40, 70 if "dropout" in names else 41)  # dropout may drop this weight of a row
        assert not bool(out[:, :, seeing, 3:5].isfinite().all())
        assert_near(out[..., 5:], results[1][0][..., 5:])
    elif bad != bad:
        assert bool(out[:, :, 40:].isnan().all())


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("names", ["", "softcap sinks"])
def test_two_groups_that_do_not_see_each_other(ops, dtype, names, kind):
    """One group is all NaN, including its queries and output gradient; the other's results are as if it held zeros.
    The recomputed results are as precise, compared with float64, as those they replace."""
    inputs = flash_inputs.tensors(ops, dtype, 90, 90, head_dim=16, batch=1, heads=2, kv_heads=1)
    group = torch.arange(90, device=ops.device) % 2
    options, mask = options_of(names, inputs[0]), group[:, None] == group
    if kind == "float":
        mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -math.inf)
    results = []
    for fill in (math.nan, 0.0):
        *leaves, grad_out = (x.masked_fill(group.bool()[:, None], fill).requires_grad_() for x in inputs)
        out = options_attention(*leaves, mask=mask, **options)
        results.append((out.detach(), *torch.autograd.grad(out, leaves, grad_out)))
    exact = [x.detach().double().requires_grad_() for x in leaves]
    given = {name: x.double() if name == "sinks" else x for name, x in options.items()}
    out = pieces(torch.float64, *exact, mask=mask, **given)[0]
    results.append((out.detach(), *torch.autograd.grad(out, exact, grad_out.double())))
    for found, clean, right in zip(*results, strict=True):
        errors = [max_error_of(x[:, :, ::2], right[:, :, ::2]) for x in (found, clean)]
        rounding = max(torch.finfo(dtype).eps, 1e-5) * float(right.abs().max())
        assert errors[0] <= errors[1] + rounding, errors
        assert bool(found[:, :, 1::2].isnan().all())


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("names", ["", "upper_left", "softcap sinks dropout upper_left"])
def test_other_sequences_and_none(ops, dtype, names, bad):
    """One sequence is bad, and so are the rows after the last one, which only the operator accepts: the others keep
    their bits. Only the Hopper kernels' tiles extend into the next sequence: they recompute the rows that share one.
    Future keys under a causal mask are bad, too, which may change the order of a sum."""
    lengths = [(33, 33), (40, 50), (20, 60), (9, 9)]
    query, key, value, grad_out, *boundaries = packed_tensors(ops, dtype, lengths)
    of_rows, of_keys = ([slice(*x) for x in pairwise(b.tolist())] for b in boundaries)
    short = [x[:-1].contiguous() for x in boundaries]
    options = {"causal": False, "lower_right": True, "deterministic": True} | options_of(names, query)

    def run(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (query, key, value)]
        out, _ = operators(query).packed_attention(*leaves, *short, **options)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]

    def assert_same(found: Tensor, right: Tensor) -> None:
        assert_near(found, right) if by_wgmma else assert_equal(found, right)

    asked = {name: x for name, x in options.items() if name != "deterministic"}
    by_wgmma = operators(query).packed_attention_kernel(query, key, value, *short, **asked) == "wgmma"
    expected = run(query, key, value)
    for number in (1, 3):
        query[of_rows[number]] = bad
        key[of_keys[number]] = value[of_keys[number]] = bad
    results = run(query, key, value)
    for found, right, parts in zip(results, expected, (of_rows, of_rows, of_keys, of_keys), strict=True):
        for number in (0, 2):
            assert_same(found[parts[number]], right[parts[number]])
        assert bool((found[parts[3]] == 0).all())
    assert not bool(results[0][of_rows[1]].isfinite().all())
    if "upper_left" not in names:
        return
    future = slice(of_keys[2].start + 20, of_keys[2].stop)
    key[future] = value[future] = bad
    for found, right, parts in zip(run(query, key, value), expected, (of_rows, of_rows, of_keys, of_keys), strict=True):
        assert_same(found[parts[0]], right[parts[0]])
        assert_near(found[parts[2]], right[parts[2]])
    assert all(bool((x[future] == 0).all()) for x in run(query, key, value)[2:])


# ---- dropout


def philox(place: tuple[int, int, int, int], key: tuple[int, int], rounds: int = 10) -> tuple[int, ...]:
    """Philox 4x32 in Python integers."""
    a, b, c, d = place
    k, m = key
    word = 0xFFFFFFFF
    for _ in range(rounds):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right >> 32) ^ b ^ k, right & word, (left >> 32) ^ d ^ m, left & word
        k, m = (k + 0x9E3779B9) & word, (m + 0xBB67AE85) & word
    return a, b, c, d


def test_philox_gives_the_published_numbers():
    """The known-answer vectors that come with the authors' Random123."""
    ones = 0xFFFFFFFF
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert philox((0,) * 4, (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((ones,) * 4, (ones, ones)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert philox(*pi) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@pytest.mark.parametrize("seed", [0, 1, SEED, -1, -(2**63)])
def test_the_mask_is_philox(ops, seed):
    batch, heads, rows, keys = 2, 3, 35, 21
    kept = dropout_mask(seed_of(ops.device, seed), DROPOUT_P, batch, heads, rows, keys).tolist()
    key = seed % 2**32, seed % 2**64 >> 32
    for head in range(batch * heads):
        for row in range(rows):
            for column in range(keys):
                place = column // 16 * 4 + column % 8 // 2, row // 16 * 4 + row % 8 // 2, head, 0
                word = philox(place, key, rounds=7)[row % 2 * 2 + column % 2]
                byte = word >> (row % 16 // 8 * 16 + column % 16 // 8 * 8) & 255
                assert kept[head // heads][head % heads][row][column] == (byte >= 256 * quantized_dropout(DROPOUT_P))


@pytest.mark.parametrize(
    ("dropout_p", "quantized"), [(1e-9, 1), (0.001, 1), (0.1, 26), (0.3, 77), (0.5, 128), (0.9, 230), (0.9999, 255)]
)
def test_the_probability_is_quantized(dropout_p, quantized):
    assert quantized_dropout(dropout_p) == quantized / 256
    assert quantized_dropout(0.0) == 0


@pytest.mark.parametrize("dropout_p", [0.001, 0.1, 0.5, 0.9])
def test_the_share_that_dropout_leaves_out(ops, dropout_p):
    """Within five standard deviations of a binomial distribution, over all elements and for every head, row and key;
    neighbors are uncorrelated."""
    kept = dropout_mask(seed_of(ops.device), dropout_p, 2, 4, 128, 128).double()
    dropout_p = quantized_dropout(dropout_p)
    variance = dropout_p * (1 - dropout_p)
    for dims in ((0, 1, 2, 3), (2, 3), (0, 1, 3), (0, 1, 2)):
        share = kept.mean(dims)
        deviation = math.sqrt(variance / (kept.numel() / share.numel()))
        assert float((share - (1 - dropout_p)).abs().max()) <= 5 * deviation
    centered = kept - (1 - dropout_p)
    for one, other in (
        (centered[..., 1:], centered[..., :-1]),
        (centered[..., 1:, :], centered[..., :-1, :]),
        (centered[..., 8:, :], centered[..., :-8, :]),
        (centered[:, 1:], centered[:, :-1]),
        (centered[1:], centered[:-1]),
    ):
        assert float((one * other).mean().abs()) <= 5 * variance / math.sqrt(one.numel())


def test_dropout_is_reproducible(ops):
    query, key, value, grad_out = flash_inputs.tensors(ops, torch.float32, seq_q=70)
    leaves = [x.requires_grad_() for x in (query, key, value)]

    def run(**options) -> list[Tensor]:
        out = options_attention(*leaves, dropout_p=0.5, **options)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]

    torch.manual_seed(3)
    first, second = run(), run()
    torch.manual_seed(3)
    again = run()
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    assert not torch.equal(first[0], second[0])
    given = [run(seed=seed_of(ops.device, seed))[0] for seed in (5, 5, 6)]
    assert torch.equal(given[0], given[1]) and not torch.equal(given[0], given[2])
    assert torch.equal(options_attention(*leaves, seed=seed_of(ops.device)), options_attention(*leaves))


def test_a_checkpoint_draws_the_same_seed(ops):
    """Activation checkpointing repeats the forward pass with the same generator state."""
    from torch.utils.checkpoint import checkpoint

    leaves = [x.requires_grad_() for x in flash_inputs.tensors(ops, torch.float32)[:3]]

    def attend(*inputs: Tensor) -> Tensor:
        return options_attention(*inputs, dropout_p=0.4).square()

    results = []
    for again in (False, True):
        torch.manual_seed(4)
        out = checkpoint(attend, *leaves, use_reentrant=False) if again else attend(*leaves)
        torch.rand(3, device=ops.device)
        results.append((out.detach(), *torch.autograd.grad(out.sum(), leaves)))
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_the_mean_over_many_seeds_is_attention_without_dropout(ops):
    query, key, value = flash_inputs.tensors(ops, torch.float32, batch=1, heads=1, seq_q=8, seq_k=8, head_dim=4)[:3]
    outs = torch.stack(
        [options_attention(query, key, value, dropout_p=0.5, seed=seed_of(ops.device, seed)) for seed in range(400)]
    )
    deviation = outs.std(0) / math.sqrt(400)
    assert bool(((outs.mean(0) - options_attention(query, key, value)).abs() <= 5 * deviation + 1e-5).all())


# ---- use from PyTorch


@pytest.mark.parametrize(
    ("names", "dynamic"),
    [
        pytest.param("causal", False, marks=pytest.mark.slow),
        pytest.param("causal", True, marks=pytest.mark.slow),
        pytest.param("softcap sinks causal", True, marks=pytest.mark.slow),
        ("dropout", None),
        ("window", None),
    ],
)
def test_a_compiled_graph_without_breaks(ops, names, dynamic):
    """Inside a larger function, with a 16-bit mask and no options; then with other heads."""
    dtype = torch.bfloat16 if names == "causal" else torch.float32
    mask = torch.randn(flash_inputs.S_K, device=ops.device).expand(flash_inputs.S_Q, -1) if names == "causal" else None
    packed = packed_tensors(ops, torch.float32, LENGTHS["of all lengths"])
    others = [*packed[:3], *packed[4:]]

    def dense_and_packed(query, key, value, *others):
        options = options_of(names, query)
        out = options_attention(2 * query, key, value, mask=mask, **options).transpose(1, 2).square().sum()
        return out + packed_attention(*others, causal=True, window_size=(3, -1)).square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(dense_and_packed, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for heads in (3, 4) if names == "causal" else (3,):
        results = []
        for function in (dense_and_packed, compiled):
            leaves = [x.requires_grad_() for x in flash_inputs.tensors(ops, dtype, heads=heads)[:3]]
            total = function(*leaves, *others)
            results.append((total.detach(), *torch.autograd.grad(total, leaves)))
        torch.testing.assert_close(*results)


def test_a_compiled_graph_draws_its_seed(ops):
    """Forward and backward of one call use the same, and every call another."""
    query, key = flash_inputs.tensors(ops, torch.float32, batch=1, heads=1, seq_q=8, seq_k=8, head_dim=8)[:2]
    value = torch.eye(8, device=ops.device)[None, None].contiguous().requires_grad_()
    torch._dynamo.reset()
    options_attention(query, key, value)  # builds
    compiled = torch.compile(
        lambda *x: options_attention(*x, dropout_p=0.5), fullgraph=True, backend="aot_eager", dynamic=False
    )
    outs = []
    for _ in range(3):
        out = compiled(query, key, value)
        (grad,) = torch.autograd.grad(out.sum(), [value])
        torch.testing.assert_close(grad, out.mT.sum(-1, keepdim=True).expand_as(grad))
        outs.append(out.detach())
    assert not torch.equal(outs[0], outs[1]) and not torch.equal(outs[1], outs[2])


def replays(call, number: int) -> list[list[Tensor]]:
    """What repeated replays of a call's CUDA graph give, starting from PyTorch's seed 3."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    torch.cuda.manual_seed(3)
    results = []
    for _ in range(number):
        graph.replay()
        torch.cuda.synchronize()
        results.append([x.clone() for x in captured])
    return results


@pytest.mark.gpu
def test_a_cuda_graph_draws_its_seed_at_every_replay():
    """Forward and backward, captured once: each replay drops other weights. The generator determines which: after the
    same torch.cuda.manual_seed they are those of calls without a graph, bit for bit."""
    ops = load(BuildRequest("flash", backend="cuda"))
    query, key, _, grad_out = flash_inputs.tensors(ops, torch.float32, batch=1, heads=1, seq_q=8, seq_k=8, head_dim=8)
    value = torch.eye(8, device=ops.device)[None, None].contiguous()
    leaves = [x.requires_grad_() for x in (query, key, value)]

    def draw() -> list[Tensor]:
        return [new_seed(ops.device)]

    def step() -> list[Tensor]:
        out = options_attention(*leaves, dropout_p=0.5)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]

    for call, names in ((draw, ["seed"]), (step, ["out", "grad_query", "grad_key", "grad_value"])):
        call()  # built, loaded and warm before the capture
        torch.cuda.manual_seed(3)
        expected = [call(), call()]
        assert not torch.equal(expected[0][0], expected[1][0])
        for _ in range(2):
            for number, (found, wanted) in enumerate(zip(replays(call, 2), expected, strict=True)):
                other = [name for name, x, y in zip(names, found, wanted, strict=True) if not torch.equal(x, y)]
                assert not other, (number, other)
    for out, *_, grad_value in expected:
        torch.testing.assert_close(grad_value, out.mT @ grad_out)  # the output is the weights, dropped as in backward


@pytest.mark.gpu
def test_the_device_of_the_inputs_is_used():
    """Inputs on the second GPU while the first is current; inputs on two GPUs are rejected."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    ops = load(BuildRequest("flash", backend="cuda"))
    for dtype, names in ((torch.float32, ""), (torch.float16, "softcap sinks dropout window")):
        query, key, value, grad_out = flash_inputs.tensors(ops, dtype)
        results = []
        for device in ("cuda:0", "cuda:1"):
            leaves = [x.detach().to(device).requires_grad_() for x in (query, key, value)]
            out = options_attention(*leaves, **options_of(names, leaves[0]), deterministic=True)
            results.append((out, *torch.autograd.grad(out, leaves, grad_out.to(device))))
            assert all(str(x.device) == device for x in results[-1])
        assert all(torch.equal(x, y.to("cuda:0")) for x, y in zip(*results, strict=True))
    with pytest.raises(ValueError, match="they must be on the same one"):
        options_attention(query, key.to("cuda:1"), value)


def test_what_has_no_derivative_says_so(ops):
    query, key, value, _ = flash_inputs.tensors(ops, torch.float32)
    leaf = query.clone().requires_grad_()
    (grad,) = torch.autograd.grad(options_attention(leaf, key, value).square().sum(), [leaf], create_graph=True)
    with pytest.raises(NotImplementedError, match="attention has no second derivative"):
        grad.sum().backward()
    under = torch.func.grad(
        lambda x: torch.func.grad(lambda y: options_attention(y, key, value).square().sum())(x).sum()
    )
    with pytest.raises(NotImplementedError, match="attention has no second derivative"):
        under(query)
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: options_attention(x, key, value), (query,), (query,))
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(query, query)
        options_attention(dual, key, value)


FUNC_OPTIONS = ["", *OPTIONS, "window lower_right", "softcap sinks dropout window"]


@pytest.mark.parametrize("names", FUNC_OPTIONS)
def test_under_torch_func(ops, names):
    """grad, vmap and vmap of grad, over inputs and sinks, compared with torch.autograd one sample at a time."""
    query, key, value, mask = (
        torch.randn(size, generator=torch.Generator().manual_seed(2)).to(ops.device)
        for size in ((3, 2, 4, 9, 8), (3, 2, 2, 11, 8), (3, 2, 2, 11, 8), (2, 1, 9, 11))
    )
    options = options_of(names, query, 2)
    sinks = options.pop("sinks", None)
    tensors = [query, key, value] + ([] if sinks is None else [sinks])

    def total(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None) -> Tensor:
        return options_attention(query, key, value, sinks=sinks, mask=mask, **options).square().sum()

    every = tuple(range(len(tensors)))
    samples = [[x[i] if x.dim() == 5 else x for x in tensors] for i in range(3)]
    leaves = [[x.detach().clone().requires_grad_() for x in sample] for sample in samples]
    expected = [torch.autograd.grad(total(*x), x) for x in leaves]
    for found, right in zip(torch.func.grad(total, every)(*samples[0]), expected[0], strict=True):
        assert torch.equal(found, right)
    dims = tuple(0 if x.dim() == 5 else None for x in tensors)
    results = torch.vmap(total, dims)(*tensors)
    torch.testing.assert_close(results, torch.stack([total(*x) for x in samples]), rtol=1e-5, atol=1e-5)
    grads = torch.vmap(torch.func.grad(total, every), dims)(*tensors)
    for found, right in zip(grads, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(right), rtol=1e-5, atol=1e-5)
    turned = [x.movedim(0, -1).contiguous() if x.dim() == 5 else x for x in tensors]
    other = torch.vmap(total, tuple(-1 if x.dim() == 5 else None for x in tensors))(*turned)
    torch.testing.assert_close(other, results, rtol=1e-5, atol=1e-5)


def test_packed_sequences_and_sinks_of_each_sample_under_torch_func(ops):
    query, key, value, _, *boundaries = packed_tensors(ops, torch.float32, LENGTHS["more keys"])
    sinks = torch.linspace(-1, 2, 8, device=ops.device).view(2, 4)

    def total(query: Tensor, sinks: Tensor) -> Tensor:
        out = packed_attention(query, key, value, *boundaries, causal=True, sinks=sinks, window_size=(6, -1))
        return out.square().sum()

    for mapped in (query.expand(2, -1, -1, -1), torch.stack([query, 2 * query])):
        grads = torch.vmap(torch.func.grad(total, (0, 1)))(mapped, sinks)
        expected = []
        for one, own in zip(mapped, sinks, strict=True):
            leaves = [one.clone().requires_grad_(), own.clone().requires_grad_()]
            expected.append(torch.autograd.grad(total(*leaves), leaves))
        for found, right in zip(grads, zip(*expected, strict=True), strict=True):
            torch.testing.assert_close(found, torch.stack(right))


def test_dropout_under_vmap(ops):
    """randomness="same": every sample drops the same weights; "different": others; by default PyTorch raises."""
    query, key = flash_inputs.tensors(ops, torch.float32, batch=1, heads=1, seq_q=8, seq_k=8, head_dim=8)[:2]
    value = torch.eye(8, device=ops.device)[None, None]

    def attend(query: Tensor) -> Tensor:
        return options_attention(query, key, value, dropout_p=0.5)

    queries = query.expand(3, *query.shape)
    same = torch.vmap(attend, randomness="same")(queries)
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], same[2]) and bool((same[0] == 0).any())
    different = torch.vmap(attend, randomness="different")(queries)
    assert not torch.equal(different[0], different[1]) and not torch.equal(different[1], different[2])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(attend)(queries)


def test_only_the_gradients_that_are_asked_for(ops):
    """Gradients of one input, of the sinks alone, of none, as in models with frozen parts; also by the operator
    without the logsumexp."""
    *inputs, grad_out = flash_inputs.tensors(ops, torch.float32)
    for sinks in ([], [sinks_of(inputs[0])]):

        def call(query, key, value, sinks=None):
            return options_attention(query, key, value, causal=True, sinks=sinks, deterministic=True)

        every = [*inputs, *sinks]
        whole = [x.clone().requires_grad_() for x in every]
        expected = torch.autograd.grad(call(*whole), whole, grad_out)
        for i, wanted in enumerate(expected):
            some = [x.clone().requires_grad_(number == i) for number, x in enumerate(every)]
            (alone,) = torch.autograd.grad(call(*some), some[i], grad_out)
            assert torch.equal(alone, wanted)
        with torch.no_grad():
            assert not call(*whole).requires_grad
        assert not call(*every).requires_grad
        if not sinks:
            raw = operators(inputs[0]).flash_attention(*whole, True)
            torch.testing.assert_close(torch.autograd.grad(raw, whole, grad_out), expected)


# ---- errors


def numbers(*x: int) -> Tensor:
    return torch.tensor(x, dtype=torch.int32)


REFUSED_PACKED = [
    ({"cu_seqlens_q": torch.zeros(3)}, "cu_seqlens_q has dtype Float; it must be Int"),
    ({"cu_seqlens_q": numbers(0)}, r"cu_seqlens_q has shape \[1\]; it must be \[batch \+ 1\], at least \[2\]"),
    ({"cu_seqlens_k": numbers(0, 4, 6, 10)}, "cu_seqlens_k has shape .* and cu_seqlens_q"),
    ({"query": torch.zeros(1, 10, 2, 8)}, r"query has 4 dimensions, .*it must be \[total_q, heads, head_dim\]"),
    ({"value": torch.zeros(9, 2, 8)}, "value has shape .* and key"),
    ({"query": torch.zeros(10, 3, 8)}, "query has 3 heads, .*must be a multiple of key's"),
    ({"query": torch.zeros(10, 2, 9)}, "key has shape .*must equal dimension 2 of query"),
]
REFUSED_NUMBERS = [
    (numbers(1, 4, 10), r"cu_seqlens_q\[0\] is 1; the first sequence begins at 0"),
    (numbers(0, 7, 4, 10), r"cu_seqlens_q\[1\] is 7 and cu_seqlens_q\[2\] is 4; they must not fall"),
    (numbers(0, 4, 9), r"cu_seqlens_q\[2\] is 9; it must be the number of rows of query, 10"),
]


@pytest.mark.parametrize(("changed", "words"), REFUSED_PACKED, ids=[words for _, words in REFUSED_PACKED])
def test_what_is_refused_of_packed_sequences(ops, changed, words):
    tensors = {name: torch.zeros(10, 2, 8) for name in ("query", "key", "value")}
    given = tensors | {"cu_seqlens_q": numbers(0, 4, 10), "cu_seqlens_k": numbers(0, 4, 10)} | changed
    with pytest.raises(ValueError, match=words):
        operators(torch.empty(0, device=ops.device)).packed_attention(
            **{name: x.to(ops.device) for name, x in given.items()}, causal=False
        )


@pytest.mark.parametrize(("wrong", "words"), REFUSED_NUMBERS, ids=[words for _, words in REFUSED_NUMBERS])
def test_numbers_that_are_no_boundaries_are_refused_in_the_simulator(wrong, words):
    query, key, value = (torch.zeros(10, 2, 8) for _ in range(3))
    with pytest.raises(ValueError, match=words):
        packed_attention(query, key, value, wrong)


# ---- the checked simulator


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
def test_no_races_and_no_bad_accesses(dtype):
    """The checked simulator finds nothing, forward and backward: aligned and unaligned rows, hidden keys, NaN at
    them, ragged tiles."""
    ops = load(BuildRequest("flash", backend="simulator", checked=True))
    register(ops)
    operators = getattr(torch.ops, ops.libraries[0].name)

    def run(operator, tensors, grad_out, *options) -> None:
        leaves = [x.detach().requires_grad_() for x in tensors]
        with nothing_found(ops):
            out, _ = operator(*leaves, *options)
            torch.autograd.grad(out, leaves, grad_out)

    def options(query: Tensor, heads_at: int = 1) -> tuple:
        return SOFTCAP, sinks_of(query, heads_at), DROPOUT_P, seed_of("cpu")

    def dense(query: Tensor) -> tuple:
        return True, 1, 0, False, *options(query)

    forward = operators.flash_attention_forward
    for head_dim in (40, 100, 136):
        query, key, value, grad_out = flash_inputs.tensors(
            ops, dtype, seq_q=40, seq_k=70, head_dim=head_dim, batch=1, heads=2, kv_heads=1
        )
        run(forward, (query, key, value), grad_out, False)
        run(forward, (query, key, value), grad_out, True, None, True, None, *dense(query))
    strided = gaps(*flash_inputs.tensors(ops, dtype, head_dim=8), before=1, behind=4)
    mask = torch.ones(21, 37, dtype=torch.bool).tril(5)
    run(forward, strided[:3], strided[3], False, None, False, mask, *dense(strided[0]))
    seen_late = spoil(strided[1], 20, math.nan), spoil(strided[2], 20, math.nan)  # every loop runs twice
    run(forward, (strided[0], *seen_late), strided[3], False, None, False, mask, *dense(strided[0]))
    query, key, value, grad_out, *boundaries = packed_tensors(ops, dtype, LENGTHS["fewer keys"])
    given = *boundaries, True, None, True, False, *options(query)
    run(operators.packed_attention, (query, key, value), grad_out, *given)
    run(operators.packed_attention, (query, key, value), grad_out, *given, 9, 3)
