"""Attention by the Hopper kernels, with and without options, forward and backward, compared with float64: in the
simulator, and on a GPU of compute capability 9.0."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from attention_oracle import exact, seen_of
from checked_findings import nothing_found
from flash_inputs import hopper_only
from hopper_sources import flash_build
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.kernels.attention import quantized_dropout
from common.reference.bounds import max_error_of, running_sum_floor

DTYPES = [torch.float16, torch.bfloat16]
SEED = 2**40 + 12345


EACH_TYPE = pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str
)


@pytest.fixture(params=["simulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def operators(request):
    """The flash operators and their device; only the dense bfloat16 ones where they suffice."""
    if request.param == "simulator":
        params = request.node.callspec.params
        dense = params["names"] in PLAIN and params["head_dim"] <= 128
        request_ = flash_build(dense=dense and params.get("dtype") == torch.bfloat16)
    else:
        hopper_only()
        request_ = BuildRequest("flash", backend="cuda")
    ops = load(request_)
    return getattr(torch.ops, ops.libraries[0].name), ops.device


def randn(device, *sizes: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(sizes).to(device, dtype)


def attention(dtype, query, key, value, causal, options, kept=None) -> tuple[Tensor, Tensor]:
    """(out, lse) of one sequence [heads, rows, head_dim]: scores in at least float32, weights and output in dtype."""
    window = options.get("window_left", -1), options.get("window_right", -1)
    seen = seen_of(query.size(1), key.size(1), causal, window, options.get("lower_right", False))
    kept = 1.0 if kept is None else kept / (1 - quantized_dropout(options["dropout_p"]))
    return exact(query, key, value, seen, options.get("softcap", 0.0), options.get("sinks"), kept=kept, dtype=dtype)


def assert_near(out, lse, query, key, value, causal, options, kept=None) -> None:
    """out [heads, rows, head_dim] and lse compared with float64, by the bounds of test_options.py.

    The softcap uses tanh.approx, with a relative error of 2^-11: for a score this is a few times as much as bfloat16
    rounding of a weight.
    """
    ref, lse64 = attention(torch.float64, query, key, value, causal, options, kept)
    same = attention(query.dtype, query, key, value, causal, options, kept)[0]
    floor = 1e-5 * 1.5**2 + running_sum_floor(key.size(1), 4)
    floor += 2 * torch.finfo(query.dtype).eps * float(ref.abs().max())
    error, noise = max_error_of(out, ref), max_error_of(same, ref)
    assert error <= 2 * noise + floor, (error, noise, floor)
    finite = lse64[lse64.isfinite()].abs()
    bound = 1e-5 if not options.get("softcap") else 2**-11
    assert max_error_of(lse, lse64) <= bound * (1 + float(finite.max() if len(finite) else 0))
    assert bool((out[lse64 == -math.inf] == 0).all())


def options_of(names: str, heads: int, device) -> tuple[bool, dict]:
    """Whether causal, and the options by name."""
    known = {
        "softcap": {"softcap": 1.5},
        "sinks": {"sinks": torch.linspace(-2, 6, heads, device=device)},
        "dropout": {"dropout_p": 0.3, "seed": torch.tensor([SEED], device=device)},
        "lower_right": {"lower_right": True},
        "upper_left": {"lower_right": False},
        "window": {"window_left": 70, "window_right": 20},
        "past": {"window_left": 33},
        "coming": {"window_right": 50},
        "itself": {"window_left": 0, "window_right": 0},
    }
    return "causal" in names, {k: x for name in names.split() for k, x in known.get(name, {}).items()}


SIZES = [(1, 1), (70, 150), (200, 330), (330, 200)]
PLAIN = ["", "causal", "causal lower_right"]
NAMES = ["softcap", "softcap causal", "sinks causal"]
NAMES += [
    "sinks softcap lower_right causal",
    "window",
    "past causal",
    "coming lower_right",
    "itself",
    "past lower_right",
    "sinks window softcap",
]
NAMES += ["dropout", "dropout causal", "dropout sinks window lower_right"]


@pytest.mark.parametrize("head_dim", [40, 64, 80, 128])
@pytest.mark.parametrize("sizes", [*SIZES, (130, 130)], ids=str)
@pytest.mark.parametrize("names", PLAIN)
@EACH_TYPE
def test_no_options(operators, dtype, names, sizes, head_dim):
    """Includes rows that see no key and keys that no row sees."""
    check(operators, names, sizes, head_dim, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [40, 64, 128])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("names", NAMES)
def test_options(operators, names, sizes, head_dim):
    check(operators, names, sizes, head_dim)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [72, 96, 136, 160, 192, 248, 256])
@pytest.mark.parametrize("names", ["causal", "softcap sinks past lower_right", "window"])
def test_wide_heads(operators, names, head_dim):
    check(operators, names, (200, 330), head_dim)


def one_call(operators, names: str, sizes: tuple[int, int], head_dim: int, dtype: torch.dtype | None) -> tuple:
    """query, the output's gradient, key, value, whether causal, the options, and what dropout keeps."""
    ops, device = operators
    dtype = dtype or DTYPES[(len(names) + sizes[0] // 10) % 2]
    heads, kv_heads = (4, 2) if names in ("", "softcap") else (2, 1)
    query, grad_out = (randn(device, 1, heads, sizes[0], head_dim, dtype=dtype) for _ in range(2))
    key, value = (randn(device, 1, kv_heads, sizes[1], head_dim, dtype=dtype) for _ in range(2))
    causal, options = options_of(names, heads, device)
    kept = None
    if "dropout" in names:
        kept = ops.dropout_mask(options["seed"], options["dropout_p"], 1, heads, *sizes)[0]
    return query, grad_out, key, value, causal, options, kept


def check(operators, names: str, sizes: tuple[int, int], head_dim: int, dtype: torch.dtype | None = None) -> None:
    ops, _ = operators
    query, _, key, value, causal, options, kept = one_call(operators, names, sizes, head_dim, dtype)
    assert ops.flash_attention_kernel(query, key, value, causal, **options) == "wgmma"
    out, lse = ops.flash_attention_forward(query, key, value, causal, **options)
    assert_near(out[0], lse[0], query[0], key[0], value[0], causal, options, kept)


MANY = ["softcap past causal", "sinks window", "dropout causal"]
PACKED_NAMES = ["", "causal lower_right", "sinks causal upper_left", "softcap", "window", "dropout causal"]
LENGTHS = [([1], [1]), ([70, 0, 130, 1, 260], [70, 30, 130, 0, 260]), ([5, 300], [200, 40]), ([3] * 20, [4] * 20)]
SPARE = 3  # rows and keys of no sequence, before the first one and after the last


def packed_call(operators, names: str, lengths, head_dim: int) -> tuple:
    """query, the output's gradient, key, value, the ends of all rows and keys, whether causal, the options."""
    device, dtype = operators[1], DTYPES[len(names) % 2]
    rows, keys = (sum(x) + 2 * SPARE for x in lengths)
    query, grad_out = (randn(device, rows, 4, head_dim, dtype=dtype) for _ in range(2))
    key, value = (randn(device, keys, 2, head_dim, dtype=dtype) for _ in range(2))
    causal, options = options_of(names, 4, device)
    ends = [torch.tensor([SPARE, *x]).cumsum(0).to(device, torch.int32) for x in lengths]
    return query, grad_out, key, value, ends, causal, {"lower_right": False} | options


def sequences(ops, ends, options: dict) -> Iterator[tuple[slice, slice, Tensor | None]]:
    """Every sequence's rows and keys, and what dropout keeps of its weights."""
    count = len(ends[0]) - 1
    for number in range(count):
        own, its = (slice(*x[number : number + 2].tolist()) for x in ends)
        kept = None
        if "dropout_p" in options and own.start < own.stop and its.start < its.stop:
            sizes = count, 4, own.stop - own.start, its.stop - its.start
            kept = ops.dropout_mask(options["seed"], options["dropout_p"], *sizes)[number]
        yield own, its, kept


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("names", PACKED_NAMES)
def test_packed_sequences(operators, names, lengths, head_dim):
    """Each sequence compared with float64; rows of no sequence are zeros, and NaN there reaches none."""
    ops, _ = operators
    query, _, key, value, ends, causal, options = packed_call(operators, names, lengths, head_dim)
    key[:SPARE] = value[:SPARE] = value[-SPARE:] = math.nan
    assert ops.packed_attention_kernel(query, key, value, *ends, causal, **options) == "wgmma"
    out, lse = ops.packed_attention(query, key, value, *ends, causal, **options)
    for own, its, kept in sequences(ops, ends, options):
        if own.start == own.stop:
            continue
        parts = [x.transpose(0, 1) for x in (query[own], key[its], value[its])]
        assert_near(out[own].transpose(0, 1), lse[:, own], *parts, causal, options, kept)
    for rest in (slice(0, SPARE), slice(-SPARE, None)):
        assert bool((out[rest] == 0).all()) and bool((lse[:, rest] == 0).all())


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("names", ["causal", *(pytest.param(x, marks=pytest.mark.slow) for x in MANY)])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.bfloat16], ids=str)
def test_what_hidden_keys_hold_reaches_no_row(operators, dtype, names, bad, head_dim):
    """In one head a key is bad, in another a value column; those of the other sequence are unchanged."""
    ops, device = operators
    query, key, value = (randn(device, 2, 2, 300, head_dim, dtype=dtype) for _ in range(3))
    causal, options = options_of(names, 2, device)
    call = partial(ops.flash_attention_forward, causal=causal, **options)
    clean = call(query, key, value)[0]
    key[0, 0, 150] = value[0, 1, 150, 3] = bad
    out = call(query, key, value)[0]
    left, right = options.get("window_left", 300), 0 if causal else options.get("window_right", 300)
    blind = torch.tensor([not -left <= 150 - row <= right for row in range(300)])
    bound = 4 * torch.finfo(dtype).eps * float(clean.abs().max())
    assert max_error_of(out[0][:, blind], clean[0][:, blind].double()) <= bound
    assert torch.equal(out[1], clean[1])
    columns = torch.arange(head_dim) == 3
    if "dropout" not in names:  # it may drop this weight of a row
        assert not bool(out[0, 1, ~blind][:, columns].isfinite().any())
    assert bool(out[0, 1][:, ~columns].isfinite().all())


# ---- gradients


def assert_gradients(found, inputs, grad_out, causal, options, kept=None) -> None:
    """found: of query, key, value and, if present, sinks; the others of one sequence [heads, rows, head_dim]."""
    sinks = options.get("sinks")
    results = []
    for dtype in (torch.float64, grad_out.dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
        leaves += [] if sinks is None else [sinks.double().requires_grad_()]
        given = options if sinks is None else options | {"sinks": leaves[3]}
        out = attention(dtype, *leaves[:3], causal, given, kept)[0]
        results.append([x.double() for x in torch.autograd.grad(out, leaves, grad_out.to(dtype))])
    unit = torch.finfo(grad_out.dtype).eps + 1e-5
    most = 4 if options.keys() - {"lower_right"} else 2  # number of roundings
    floors = [most * unit * float(x.abs().max()) + 1e-5 for x in results[0][:3]]
    if sinks is not None:  # as in test_options.py: delta is computed from the rounded output
        exact_out = attention(torch.float64, *inputs, causal, options, kept)[0]
        floors.append(unit * float((grad_out.double() * exact_out).abs().sum((1, 2)).max()) + 1e-5)
    for x, right, near, floor in zip(found, *results, floors, strict=False):  # packed: the sinks' sum is omitted
        assert max_error_of(x, right) <= 2 * max_error_of(near, right) + floor


GRADIENT_NAMES = ["softcap causal", "sinks softcap lower_right causal", "window"]
GRADIENT_NAMES += ["past lower_right", "dropout causal", "dropout sinks window lower_right"]


@pytest.mark.parametrize("head_dim", [64, 128, *(pytest.param(x, marks=pytest.mark.slow) for x in (160, 256))])
@pytest.mark.parametrize("names", PLAIN)
@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        *((torch.bfloat16, sizes) for sizes in ((1, 200), (130, 130), (330, 200))),
        pytest.param(torch.float16, (330, 200), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_gradients_without_options(operators, dtype, names, sizes, head_dim):
    """float16 differs from bfloat16 in its conversions, which see the ragged size."""
    check_gradients(operators, names, sizes, head_dim, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 128, 192])
@pytest.mark.parametrize("sizes", [(1, 200), (330, 200)], ids=str)  # the one row sees one key under an upper left mask
@pytest.mark.parametrize("names", GRADIENT_NAMES)
def test_gradients(operators, names, sizes, head_dim):
    check_gradients(operators, names, sizes, head_dim)


def check_gradients(
    operators, names: str, sizes: tuple[int, int], head_dim: int, dtype: torch.dtype | None = None
) -> None:
    """With a fixed order of additions, two runs give the same bits."""
    ops, _ = operators
    query, grad_out, key, value, causal, options, kept = one_call(operators, names, sizes, head_dim, dtype)
    inputs = [x[0] for x in (query, key, value)]
    if kept is not None and head_dim > 128:  # no Hopper forward kernel has dropout at that size
        out, lse = attention(torch.float64, *inputs, causal, options, kept)
        out, lse = out[None].to(query.dtype), lse[None].float()
    else:
        out, lse = ops.flash_attention_forward(query, key, value, causal, **options)
    given = grad_out, query, key, value, out, lse, causal
    assert ops.flash_attention_backward_kernel(*given, **options) == "wgmma"
    call = partial(ops.flash_attention_backward, *given, **options)
    *both, again = (call(deterministic=deterministic) for deterministic in (False, True, True))
    for *found, of_sinks in both:
        found = [x[0] for x in found] + ([of_sinks] if "sinks" in options else [])
        assert_gradients(found, inputs, grad_out[0], causal, options, kept)
    assert all(torch.equal(x, y) for x, y in zip(both[1], again, strict=True))


PACKED_GRADIENTS = [
    (names, head_dim, lengths)
    for names in ("causal lower_right", "softcap", "sinks window", "dropout causal")
    for head_dim, lengths in ((64, LENGTHS[1]), (64, LENGTHS[3]), (128, LENGTHS[1]), (256, LENGTHS[1]))
    if head_dim <= 128 or "dropout" not in names
]


@pytest.mark.slow
@pytest.mark.parametrize(("names", "head_dim", "lengths"), PACKED_GRADIENTS, ids=str)
def test_gradients_of_packed_sequences(operators, names, head_dim, lengths):
    """Each sequence compared with float64; rows of no sequence get zeros, and so do keys that no row sees."""
    ops, _ = operators
    query, grad_out, key, value, ends, causal, options = packed_call(operators, names, lengths, head_dim)
    out, lse = ops.packed_attention(query, key, value, *ends, causal, **options)
    found = ops.packed_attention_backward(grad_out, query, key, value, out, lse, *ends, causal, **options)
    for own, its, kept in sequences(ops, ends, options):
        if own.start == own.stop or its.start == its.stop:
            assert all(bool((x[y] == 0).all()) for x, y in zip(found, (own, its, its), strict=False))
            continue
        parts = [x.transpose(0, 1) for x in (query[own], key[its], value[its])]
        alone = [x[y].transpose(0, 1) for x, y in zip(found, (own, its, its), strict=False)]
        assert_gradients(alone, parts, grad_out[own].transpose(0, 1), causal, options, kept)
    for x in found[:3]:
        assert bool((x[:SPARE] == 0).all()) and bool((x[-SPARE:] == 0).all())


@pytest.mark.slow
@pytest.mark.parametrize(("head_dim", "deterministic"), [(192, True), (256, False)])
def test_no_race_in_a_cluster(head_dim, deterministic):
    """Two CTAs exchange dS, and a group's part of dQ reuses the memory of its other operands."""
    ops = load(flash_build(dense=True, checked=True))
    query, grad_out = (randn("cpu", 1, 2, 150, head_dim, dtype=torch.bfloat16) for _ in range(2))
    key, value = (randn("cpu", 1, 1, 150, head_dim, dtype=torch.bfloat16) for _ in range(2))
    out, lse = attention(torch.float64, query[0], key[0], value[0], True, {})
    given = grad_out, query, key, value, out[None].to(torch.bfloat16), lse[None].float(), True
    operators = getattr(torch.ops, ops.libraries[0].name)
    with nothing_found(ops):
        *found, _ = operators.flash_attention_backward(*given, deterministic=deterministic)
    assert_gradients([x[0] for x in found], [x[0] for x in (query, key, value)], grad_out[0], True, {})
