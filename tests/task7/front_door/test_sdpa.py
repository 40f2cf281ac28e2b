"""task7.front_door.sdpa: compared with torch's scaled_dot_product_attention on everything it accepts, and what it
rejects."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from attention_oracle import exact, seen_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from common.reference import oracle as reference
from common.reference.bounds import max_error_of, running_sum_floor
from common.testing.case import PASS, Case
from common.testing.judging import judge
from task7.front_door import taught
from task7.front_door.sdpa import CUDAAttention, scaled_dot_product_attention

DOORS = [("naive", "solution"), ("tiled", "solution"), ("flash", "solution"), ("flash", "tuned")]
MASKED = [door for door in DOORS if door != ("flash", "solution")]
every_door = pytest.mark.parametrize(("mode", "variant"), DOORS)
every_masked_door = pytest.mark.parametrize(("mode", "variant"), MASKED)

# shapes of query, key and value; all sizes differ, so a wrong stride is caught
ONE, TWO = ((5, 8), (7, 8), (7, 8)), ((3, 5, 8), (3, 7, 8), (3, 7, 8))
FOUR = ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
FIVE = ((2, 4, 3, 5, 8), (2, 4, 3, 7, 8), (2, 4, 3, 7, 8))
GROUPED = ((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))


@pytest.fixture
def device(backend: str) -> torch.device:
    return torch.device("cuda" if backend == "cuda" else "cpu")


def pytorch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **options) -> Tensor:
    """torch's function on the CPU. For a scale <= 0 its unfused kernels: the fused one multiplies the -inf of
    is_causal by the scale, which makes the result NaN."""
    scale = options.get("scale")
    given = (x if x is None else x.cpu() for x in (query, key, value, mask))
    with sdpa_kernel(SDPBackend.MATH) if scale is not None and scale <= 0 else nullcontext():
        return F.scaled_dot_product_attention(*given, **options).to(query.device)


def as_mask(mask: Tensor | None) -> Tensor | None:
    """Bool masks are passed as uint8, which can have guards around it; see common.testing.cases.attention_cases."""
    return mask.bool() if mask is not None and mask.dtype == torch.uint8 else mask


def assert_agrees(
    device: torch.device,
    door: tuple[str, str],
    shapes,
    mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    layout=lambda x: x,
    expected=pytorch,
    **options,
) -> None:
    """The front door's result compared with torch's in float64, by the bound in common.testing.judging.

    layout: the memory layout of query, key and value. expected: replaces torch's function.
    """
    mode, variant = door

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        query, key, value = (torch.randn(shape, generator=generator).to(dtype).float() for shape in shapes)
        made = {"query": query, "key": key, "value": (value + 2).to(dtype).float()}
        return made if mask is None else {**made, "mask": mask}

    def call(ops, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        laid = (layout(x.to(dtype)) for x in (query, key, value))
        out = scaled_dot_product_attention(*laid, as_mask(mask), mode=mode, variant=variant, **options)
        assert out.dtype == dtype and out.is_contiguous()
        return out.float()

    def wanted(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return expected(query, key, value, as_mask(mask), **options)

    floor = 1e-5 + running_sum_floor(max(shapes[1][-2], 1), 4)
    if dtype != torch.float32:
        floor += 8 * torch.finfo(dtype).eps / 2  # weights and outputs, at most 8, are rounded to dtype
    axes = ("batch", "head", "row", "col")
    verdict = judge(Case("case", "part", inputs, call, wanted, floor, axes, draws=1), SimpleNamespace(device=device))
    assert verdict.status == PASS, "\n".join([f"{verdict.max_error} > {verdict.bound}", *verdict.diagnosis])


SHAPES = {
    "no batch": ONE,
    "one batch dimension": TWO,
    "two": FOUR,
    "three": FIVE,
    "four": ((2, 1, 2, 3, 5, 8), (2, 1, 2, 3, 7, 8), (2, 1, 2, 3, 7, 8)),
    "one query": ((2, 3, 1, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
    "one of each": ((1, 1), (1, 1), (1, 1)),
    "more queries than keys": ((3, 9, 8), (3, 4, 8), (3, 4, 8)),
    "heads of keys broadcast": ((2, 3, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8)),
    "heads of queries broadcast": ((2, 1, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
    "each broadcasts to another": ((2, 1, 1, 5, 8), (1, 3, 1, 7, 8), (4, 7, 8)),
    "fewer dimensions of keys": ((2, 3, 5, 8), (7, 8), (3, 7, 8)),
    "narrow values": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 3)),
    "wide values": ((3, 5, 8), (3, 7, 8), (3, 7, 20)),
    "head_dim 72": ((2, 5, 72), (2, 7, 72), (2, 7, 72)),
    "head_dim 128": ((2, 5, 128), (2, 7, 128), (2, 7, 128)),
    "no keys": ((2, 3, 5, 8), (2, 3, 0, 8), (2, 3, 0, 8)),
    "no queries": ((2, 3, 0, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
    "no batches": ((0, 3, 5, 8), (0, 3, 7, 8), (0, 3, 7, 8)),
    "values of width 0": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 0)),
    "queries of width 0": ((2, 3, 5, 0), (2, 3, 7, 0), (2, 3, 7, 4)),
    "all of width 0": ((2, 3, 5, 0), (2, 3, 7, 0), (2, 3, 7, 0)),
}


@every_door
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(device, mode, variant, name, is_causal):
    assert_agrees(device, (mode, variant), SHAPES[name], is_causal=is_causal)


GQA_SHAPES = {
    "6 on 2 heads": GROUPED,
    "6 on 1": ((2, 6, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8)),
    "6 on 6": ((2, 6, 5, 8), (2, 6, 7, 8), (2, 6, 7, 8)),
    "another number for values": ((2, 6, 5, 8), (2, 2, 7, 8), (2, 3, 7, 8)),
    "no batch": ((6, 5, 8), (3, 7, 8), (3, 7, 8)),
    "two batch dimensions": ((2, 2, 6, 5, 8), (2, 2, 3, 7, 8), (2, 2, 3, 7, 8)),
    "batches broadcast": ((2, 6, 5, 8), (1, 2, 7, 8), (2, 7, 8)),
    "wide values": ((6, 5, 8), (3, 7, 8), (3, 7, 12)),
    "no keys": ((2, 6, 5, 8), (2, 2, 0, 8), (2, 2, 0, 8)),
}


@every_door
@pytest.mark.parametrize("name", GQA_SHAPES)
def test_fewer_heads_of_keys_than_of_queries(device, mode, variant, name):
    for is_causal in (False, True):
        assert_agrees(device, (mode, variant), GQA_SHAPES[name], is_causal=is_causal, enable_gqa=True)


@every_door
@pytest.mark.parametrize("scale", [0.0, 0.5, -1.5, 2])
def test_scale(device, mode, variant, scale):
    for is_causal in (False, True):
        assert_agrees(device, (mode, variant), FOUR, scale=scale, is_causal=is_causal)


MEMORY = {
    "heads next to each other": lambda x: x.transpose(-3, -2).contiguous().transpose(-3, -2),
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second element": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "a slice": lambda x: torch.cat([x, x], -1)[..., x.size(-1) :],
    "expanded": lambda x: x[:1].expand(x.shape),
}


@every_door
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("layout", MEMORY)
def test_inputs_may_lie_in_memory_in_any_way(device, mode, variant, layout, dtype):
    def expected(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return pytorch(*(MEMORY[layout](x) for x in (query, key, value)))

    for shapes in (TWO, FOUR):
        assert_agrees(device, (mode, variant), shapes, dtype=dtype, layout=MEMORY[layout], expected=expected)


@every_door
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_inputs(device, mode, variant, dtype):
    for shapes, options in ((TWO, {"is_causal": True}), (GROUPED, {"enable_gqa": True}), (SHAPES["no keys"], {})):
        assert_agrees(device, (mode, variant), shapes, dtype=dtype, **options)
    if (mode, variant) in MASKED:
        assert_agrees(device, (mode, variant), FOUR, make_mask("float", 3, 5, 7), dtype=dtype)


def make_mask(kind: str, *shape: int) -> Tensor:
    """Hides about a third of it, and every key from the second query, if there is one."""
    generator = torch.Generator().manual_seed(sum(shape))
    shown = torch.rand(shape, generator=generator) < 0.65
    if len(shape) > 1 and shape[-2] > 1:
        shown[..., 1, :] = False
    if kind == "bool":
        return shown.to(torch.uint8)
    return torch.randn(shape, generator=generator).masked_fill(~shown, -math.inf)


MASKS = [  # of scores [2, 3, 5, 7]
    *((5, 7), (1, 7), (5, 1), (1, 1), (3, 5, 7), (3, 1, 1), (2, 3, 5, 7), (2, 1, 1, 7), (1, 3, 5, 1)),
]


@every_masked_door
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_a_mask_broadcasts(device, mode, variant, shape, kind):
    """Includes rows with nothing to attend to: torch gives zeros, too."""
    assert_agrees(device, (mode, variant), FOUR, make_mask(kind, *shape))


@every_masked_door
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_with_any_number_of_dimensions(device, mode, variant, kind):
    door = mode, variant
    for shapes, mask in (
        (ONE, (5, 7)),
        (TWO, (1, 5, 7)),
        (TWO, (7,)),
        (FIVE, (4, 3, 5, 7)),
        (FIVE, (2, 1, 3, 1, 7)),
        (SHAPES["each broadcasts to another"], (2, 3, 1, 5, 7)),
        (SHAPES["no keys"], (5, 0)),
    ):
        assert_agrees(device, door, shapes, make_mask(kind, *mask))
    # torch's mask broadcasts to the batch dimensions of query and key; this one also to those of value
    assert_agrees(
        device,
        door,
        SHAPES["each broadcasts to another"],
        make_mask(kind, 2, 3, 4, 5, 7),
        expected=lambda query, key, value, mask: reference.attention(query, key, value, mask=mask),
    )
    assert_agrees(device, door, GROUPED, make_mask(kind, 6, 5, 7), enable_gqa=True)
    assert_agrees(device, door, GROUPED, make_mask(kind, 2, 1, 1, 7), enable_gqa=True)


@every_masked_door
@pytest.mark.parametrize("shape", [(), (7,), (1,)], ids=str)
def test_a_mask_with_fewer_dimensions_than_torch_takes(device, mode, variant, shape):
    def expected(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return pytorch(query, key, value, mask.expand(5, 7))

    assert_agrees(device, (mode, variant), FOUR, torch.rand(shape), expected=expected)


@every_masked_door
def test_a_16_bit_mask(device, mode, variant):
    query, key, value = (torch.randn(shape, device=device).half() for shape in TWO)
    mask = make_mask("float", 5, 7).half().to(device)
    out = scaled_dot_product_attention(query, key, value, mask, mode=mode, variant=variant)
    wide = scaled_dot_product_attention(query, key, value, mask.float(), mode=mode, variant=variant)
    assert torch.equal(out, wide)
    exact = F.scaled_dot_product_attention(*(x.double() for x in (query, key, value, mask)))
    assert max_error_of(out, exact) <= 4 * torch.finfo(torch.float16).eps


@every_door
def test_autocast_casts_as_torch_does(device, mode, variant):
    query, key, value = (torch.randn(shape, device=device) for shape in TWO)
    with torch.autocast(device.type, torch.bfloat16):
        out = scaled_dot_product_attention(query.half(), key, value, mode=mode, variant=variant)
        assert F.scaled_dot_product_attention(query.half(), key, value).dtype == out.dtype == torch.bfloat16
    cast = [query.half().bfloat16(), key.bfloat16(), value.bfloat16()]
    assert torch.equal(out, scaled_dot_product_attention(*cast, mode=mode, variant=variant))


sizes = st.integers(0, 5)


@st.composite
def calls(draw):
    """Shapes that broadcast or group, and options; with or without a mask that broadcasts to the scores."""
    batch = draw(st.lists(st.integers(1, 3), max_size=3))
    seq_q, seq_k, head_dim, value_head_dim = draw(sizes), draw(sizes), draw(st.integers(1, 9)), draw(sizes)
    grouped = len(batch) > 0 and draw(st.booleans())

    def part_of(whole: list[int], keep: int = 0) -> list[int]:
        """Sets some of its dimensions to 1 and drops some leading ones, except the last `keep`."""
        fewer = [size if number >= len(whole) - keep or draw(st.booleans()) else 1 for number, size in enumerate(whole)]
        return fewer[draw(st.integers(0, len(whole) - keep)) :]

    heads = batch[-1] if batch else 1
    query = [*batch[:-1], heads * draw(st.integers(1, 3))] if grouped else batch
    keys = part_of(batch, keep=int(grouped))
    shapes = (*query, seq_q, head_dim), (*keys, seq_k, head_dim), (*keys, seq_k, value_head_dim)
    mask = draw(st.sampled_from(["bool", "float", None]))
    options = {"enable_gqa": grouped, "scale": draw(st.sampled_from([None, 0.4, -1.0]))}
    if mask is None:
        return shapes, None, options | {"is_causal": draw(st.booleans())}
    shape = part_of([*query, seq_q, seq_k])
    return shapes, make_mask(mask, *([1] * (2 - len(shape)) + shape)), options


@every_masked_door
@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls())
def test_any_call(device, mode, variant, call):
    shapes, mask, options = call
    assert_agrees(device, (mode, variant), shapes, mask, **options)


GRADIENTS = {
    "causal": (FOUR, None, {"is_causal": True}),
    "no batch": (ONE, None, {}),
    "broadcast": (SHAPES["each broadcasts to another"], None, {"scale": 0.4}),
    "grouped": (GROUPED, "bool", {"enable_gqa": True}),
    "grouped in two ways": (GQA_SHAPES["another number for values"], None, {"enable_gqa": True}),
    "narrow values": (SHAPES["narrow values"], "float", {}),
    "wide values": (SHAPES["wide values"], None, {"is_causal": True}),
    "no keys": (SHAPES["no keys"], None, {}),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_the_tuned_kernels(device, name):
    shapes, kind, options = GRADIENTS[name]
    torch.manual_seed(0)
    mask = None if kind is None else as_mask(make_mask(kind, 5, 7)).to(device)
    inputs = [torch.randn(shape, device=device).requires_grad_() for shape in shapes]
    weight = torch.randn(pytorch(*inputs, mask, **options).shape, device=device)

    def gradients(function, dtype: torch.dtype, **door) -> list[Tensor]:
        copies = [x.detach().to(dtype).requires_grad_() for x in inputs]
        cast = mask.to(dtype) if kind == "float" else mask
        return torch.autograd.grad(function(*copies, cast, **options, **door), copies, weight.to(dtype))

    got = gradients(scaled_dot_product_attention, torch.float32, mode="flash", variant="tuned")
    same = gradients(pytorch, torch.float32)
    exact = gradients(pytorch, torch.float64)
    for x, x_same, x64, x_in in zip(got, same, exact, inputs, strict=True):
        assert x.shape == x_in.shape
        assert max_error_of(x, x64) <= 2 * max_error_of(x_same, x64) + 1e-5


@pytest.mark.parametrize("by_switch", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_deterministic_gradients_have_the_same_bits_every_time(device, dtype, by_switch):
    """By the argument and by PyTorch's switch. Blocks on a GPU, and the simulator's threads, run in any order."""
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 2, 70, 8), (1, 1, 150, 8), (1, 1, 150, 8), (1, 2, 70, 8)
    query, key, value, grad = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    inputs = [x.requires_grad_() for x in (query, key, value)]
    options = {"enable_gqa": True, "deterministic": not by_switch}

    def bits() -> list[Tensor]:
        out = scaled_dot_product_attention(*inputs, **options)
        return [x.view(torch.int16) for x in torch.autograd.grad(out, inputs, grad)]

    torch.use_deterministic_algorithms(by_switch)
    try:
        first = bits()
        for _ in range(49 if device.type == "cuda" else 9):
            assert all(torch.equal(x, y) for x, y in zip(first, bits(), strict=True))
    finally:
        torch.use_deterministic_algorithms(False)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    right = torch.autograd.grad(pytorch(*exact, enable_gqa=True), exact, grad.double())
    for x, y in zip(first, right, strict=True):
        assert max_error_of(x.view(dtype), y) <= (1e-5 if dtype == torch.float32 else 0.03)


def test_torch_func_of_the_tuned_kernels(device):
    """grad, vmap over any inputs, and per-sample gradients, compared with PyTorch's function."""
    shapes = (3, 2, 4, 5, 8), (3, 2, 2, 7, 8), (2, 2, 7, 8)
    query, key, value = (torch.randn(shape, device=device) for shape in shapes)
    masks = as_mask(make_mask("bool", 3, 5, 7)).to(device), torch.randn(3, 2, 1, 5, 7, device=device)

    def ours(query, key, value, mask=None):
        return scaled_dot_product_attention(query, key, value, mask, enable_gqa=True, variant="tuned")

    def theirs(query, key, value, mask=None):
        key, value = (x.repeat_interleave(2, -3) for x in (key, value))
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(query, key, value, mask)

    def loss(function):
        return lambda *inputs: function(*inputs).square().sum()

    found, right = (torch.func.grad(loss(f), (0, 1, 2))(query[0], key[0], value) for f in (ours, theirs))
    for x, y in zip(found, right, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
    for mask in (None, *masks):
        given = (query, key, value) if mask is None else (query, key, value, mask)
        dims = (0, 0, None) if mask is None else (0, 0, None, 0)
        out, expected = (torch.vmap(f, dims)(*given) for f in (ours, theirs))
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        samples = [torch.vmap(torch.func.grad(loss(f), (0, 2)), dims)(*given) for f in (ours, theirs)]
        for x, y in zip(*samples, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
    with pytest.raises(NotImplementedError, match="attention has no second derivative"):
        torch.func.grad(lambda x: torch.func.grad(loss(ours))(x, key[0], value).sum())(query[0])
    with pytest.raises(NotImplementedError, match="attention has no forward-mode derivative"):
        torch.func.hessian(loss(ours))(query[0], key[0], value)
    with pytest.raises(NotImplementedError, match="attention has no forward-mode derivative"):
        torch.func.jvp(lambda x: ours(x, key[0], value), (query[0],), (query[0],))
    for mode in ("naive", "tiled", "flash"):
        with pytest.raises(ValueError, match="query requires a gradient, and mode"):
            torch.func.grad(
                lambda x, mode=mode: scaled_dot_product_attention(x, x, x, mode=mode, variant="solution").sum()
            )(value)


COMPILED = {
    "grouped, causal, narrow values": (GROUPED, 3, {"is_causal": True, "enable_gqa": True, "variant": "tuned"}),
    "a window": (((2, 3, 5, 8), *[(2, 3, 9, 8)] * 2), 8, {"window_size": (3, 1), "lower_right": True, "softcap": 2.0}),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compile_without_a_graph_break_once_loaded(device, name):
    shapes, width, options = COMPILED[name]
    query, key, value = (torch.randn(shape, device=device).requires_grad_() for shape in shapes)
    module = CUDAAttention(mode="flash", **options)
    expected = module(2 * query, key, value[..., :width])
    torch.compiler.reset()
    compiled = torch.compile(lambda *given: module(2 * given[0], *given[1:]), fullgraph=True, backend="aot_eager")
    out = compiled(query, key, value[..., :width])
    assert torch.equal(out, expected)
    inputs = (query, key, value)
    for x, y in zip(*(torch.autograd.grad(x.square().sum(), inputs) for x in (out, expected)), strict=True):
        torch.testing.assert_close(x, y)


@every_door
def test_every_mode_compiles_and_exports_without_a_break(mode, variant, device):
    """One graph for torch.compile and for torch.export; the exported one also accepts other lengths."""
    module = CUDAAttention(is_causal=True, mode=mode, variant=variant)
    query, key, value = (torch.randn(2, 3, length, 8, device=device) for length in (5, 5, 5))
    with torch.no_grad():
        expected = module(query, key, value)  # loads the operators
        torch.compiler.reset()
        assert torch.equal(torch.compile(module, fullgraph=True, backend="aot_eager")(query, key, value), expected)
        length = {2: torch.export.Dim("length", min=2, max=64)}
        lengths = dict.fromkeys(("query", "key", "value"), length)
        exported = torch.export.export(module, (query, key, value), dynamic_shapes=lengths).module()
        assert torch.equal(exported(query, key, value), expected)
        longer = [torch.randn(2, 3, 9, 8, device=device) for _ in range(3)]
        assert torch.equal(exported(*longer), module(*longer))


def test_no_gradient_is_asked_of_other_kernels(device):
    inputs = [torch.randn(shape, device=device).requires_grad_() for shape in TWO]
    for mode in ("naive", "tiled", "flash"):
        for number, name in enumerate(("query", "key", "value")):
            some = [x if i == number else x.detach() for i, x in enumerate(inputs)]
            words = f"{name} requires a gradient, and mode '{mode}' with variant 'solution' has no backward pass: use"
            with pytest.raises(ValueError, match=words):
                scaled_dot_product_attention(*some, mode=mode, variant="solution")
        with torch.no_grad():
            assert not scaled_dot_product_attention(*inputs, mode=mode).requires_grad
    mask = torch.zeros(5, 7, device=device, requires_grad=True)
    for mode, variant in MASKED:
        with pytest.raises(
            ValueError, match=r"attn_mask requires a gradient, and no kernel here .*: pass attn_mask.detach\(\)"
        ):
            scaled_dot_product_attention(*(x.detach() for x in inputs), mask, mode=mode, variant=variant)


@every_door
@pytest.mark.parametrize(
    "sizes", [(5, 7), (7, 5), (6, 6), (1, 7), (4, 1), (9, 35), (35, 9), (70, 150), (150, 70)], ids=str
)
def test_pytorchs_causal_biases(device, mode, variant, sizes):
    """Includes rows with no visible key: PyTorch's function with the same mask as a tensor gives zeros, too."""
    query, key, value = (torch.randn(2, 3, size, 8, device=device) for size in (sizes[0], sizes[1], sizes[1]))
    how = {"mode": mode, "variant": variant}
    for bias, diagonal in ((causal_lower_right, sizes[1] - sizes[0]), (causal_upper_left, 0)):
        out = scaled_dot_product_attention(query, key, value, bias(*sizes), **how)
        mask = torch.ones(sizes, dtype=torch.bool, device=device).tril(diagonal)
        torch.testing.assert_close(out, pytorch(query, key, value, mask), rtol=1e-5, atol=1e-5)
        lower_right = bias is causal_lower_right
        same = scaled_dot_product_attention(query, key, value, is_causal=True, lower_right=lower_right, **how)
        assert torch.equal(out, same)
        oracle = reference.attention(*(x.double() for x in (query, key, value)), causal=True, lower_right=lower_right)
        torch.testing.assert_close(out.double(), oracle, rtol=1e-5, atol=1e-5)
    # without is_causal and a window there is nothing to align
    plain = (scaled_dot_product_attention(query, key, value, lower_right=x, **how) for x in (False, True))
    assert torch.equal(*plain)
    with pytest.raises(RuntimeError, match="attn_mask is given and is_causal is True"):
        scaled_dot_product_attention(query, key, value, causal_lower_right(*sizes), is_causal=True, mode=mode)


def test_the_module_is_the_function(device):
    query, key, value = (torch.randn(shape, device=device) for shape in GROUPED)
    mask = as_mask(make_mask("bool", 5, 7)).to(device)
    module = CUDAAttention(scale=0.3, enable_gqa=True, mode="tiled")
    expected = scaled_dot_product_attention(query, key, value, mask, scale=0.3, enable_gqa=True, mode="tiled")
    assert torch.equal(module(query, key, value, mask), expected)
    causal = CUDAAttention(is_causal=True, enable_gqa=True, mode="flash", variant="tuned")
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(causal(query, key, value), expected, rtol=1e-5, atol=1e-5)
    assert "enable_gqa=True" in repr(causal) and "variant='tuned'" in repr(causal)
    assert not list(module.parameters())
    assert torch.equal(torch.fx.symbolic_trace(causal)(query, key, value), causal(query, key, value))
    with pytest.raises(NotImplementedError, match=r"torch.jit.script does not take CUDAAttention: use torch.compile"):
        torch.jit.script(causal)
    with pytest.raises(ValueError, match="mode is 'fast'"):
        CUDAAttention(mode="fast")


def test_dropout_of_the_module(device):
    query, key, value = (torch.randn(2, 3, 9, 8, device=device) for _ in range(3))
    module = CUDAAttention(dropout_p=0.4)
    assert not torch.equal(module(query, key, value), module(query, key, value))
    module.eval()
    assert torch.equal(module(query, key, value), scaled_dot_product_attention(query, key, value))


def test_options_under_autocast(device):
    query, key, value = (torch.randn(1, 2, 9, 8, device=device) for _ in range(3))
    sinks = torch.randn(2, device=device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        found = scaled_dot_product_attention(query, key, value, softcap=0.7, sinks=sinks)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(
        found.double(), exact(query, key, value, seen_of(9, 9), 0.7, sinks)[0], rtol=0.02, atol=0.02
    )


def of(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


REFUSED = [
    ({"mode": "fast"}, "mode is 'fast'; it must be 'naive', 'tiled' or 'flash'"),
    ({"variant": "best"}, "variant is 'best'; it must be 'student', 'solution' or 'tuned'"),
    ({"mode": "tiled", "variant": "tuned"}, "variant is 'tuned' with mode 'tiled'; only mode 'flash' has tuned"),
    (
        {"dropout_p": 0.1},
        "dropout_p is 0.1, and mode 'naive' with variant 'solution' has no such option: use mode='flash'",
    ),
    ({"dropout_p": 1.0, "mode": "flash"}, "dropout_p is 1.0; it must be 0 or more and less than 1"),
    (
        {"softcap": 30.0},
        "softcap is 30.0, and mode 'naive' with variant 'solution' has no such option: use mode='flash'",
    ),
    ({"softcap": -1.0, "mode": "flash"}, r"softcap is -1.0; it must be 0 \(none\) or positive and finite"),
    (
        {"sinks": of(3)},
        "sinks are given, and mode 'naive' with variant 'solution' has no such option: use mode='flash'",
    ),
    (
        {"sinks": of(3), "mode": "flash", "variant": "student"},
        "variant 'student' has no such option: use mode='flash' with va",
    ),
    ({"sinks": of(2), "mode": "flash"}, r"sinks has shape \[2\]; it must be \[heads\] = \[3\]"),
    ({"sinks": of(3, dtype=torch.int32), "mode": "flash"}, "sinks has dtype torch.int32; it must be a floating-point"),
    ({"query": of(8)}, r"query has shape \[8\]; it must have 2 dimensions or more"),
    ({"value": of(7, 8), "enable_gqa": True}, "value has shape .* 3 dimensions or more with enable_gqa"),
    ({"key": of(3, 7, 9)}, "query has shape .* and key .*; their last sizes, head_dim, must be equal"),
    ({"value": of(3, 6, 8)}, "key has shape .* and value .*; their last sizes but one, S_k, must be equal"),
    ({"key": of(2, 7, 8)}, r"batch dimensions \[3\], \[2\], \[3\], which do not broadcast; .* enable_gqa=True"),
    ({"key": of(2, 7, 8), "enable_gqa": True}, "key has 2 heads, .* and query 3, .* key must divide that of query"),
    ({"value": of(0, 7, 8), "enable_gqa": True}, "value has 0 heads"),
    ({"query": of(3, 5, 8, dtype=torch.float64)}, "query has dtype torch.float64; it must be torch.float32, torch.fl"),
    ({"value": of(3, 7, 8, dtype=torch.float16)}, "value has dtype torch.float16; it must be query's, torch.float32"),
    ({"key": torch.zeros(3, 7, 8, device="meta")}, "key is on the device 'meta'; it must be on query's"),
    ({"query": torch.zeros(3, 5, 8, device="meta")}, "query is on the device 'meta'; it must be on 'cpu' or 'cuda'"),
    ({"attn_mask": torch.zeros(5, 7, device="meta")}, "attn_mask is on the device 'meta'; it must be on query's"),
    ({"key": of(3, 7, 8).to_sparse()}, "key is torch.sparse_coo; it must be dense"),
    (
        {"query": torch.nested.nested_tensor([of(5, 8)] * 3, layout=torch.jagged)},
        "query is nested; it must be dense",
    ),
    ({"attn_mask": of(4, 7)}, r"attn_mask has shape \[4, 7\]; it must broadcast to .* = \[3, 5, 7\]"),
    ({"attn_mask": of(1, 3, 5, 7)}, r"attn_mask has shape \[1, 3, 5, 7\]; it must broadcast"),
    ({"attn_mask": of(5, 7, dtype=torch.int32)}, "attn_mask has dtype torch.int32; it must be torch.bool, torch.fl"),
    ({"attn_mask": of(5, 7, dtype=torch.float16)}, "attn_mask has dtype torch.float16; it must be .* or query's"),
    (
        {"attn_mask": causal_lower_right(5, 6)},
        r"attn_mask is a CausalBias of 5 queries and 6 keys; query has shape \[3, 5",
    ),
    (
        {"mode": "flash", "variant": "solution", "attn_mask": of(5, 7)},
        "mode 'flash' with variant 'solution' takes none: use variant='tuned'",
    ),
    (
        {"mode": "flash", "value": of(3, 7, 129), "variant": "solution"},
        r"head_dim is 129 .*up to 128: use variant='tuned' \(up to 256\), or mode='naive' or mode='tiled'",
    ),
    ({"mode": "flash", "value": of(3, 7, 257)}, "head_dim is 257, over 256; mode='naive' and mode='tiled' take any"),
    ({"scale": math.inf}, "scale is inf; it must be finite"),
    ({"is_causal": None}, "is_causal is None; it must be True or False"),
    ({"lower_right": 1, "mode": "flash"}, "lower_right is 1; it must be True or False"),
    ({"window_size": (3, 1)}, r"window_size is \(3, 1\), and mode 'naive' with variant 'solution' has no such opt"),
    ({"window_size": (-2, 1), "mode": "flash"}, r"window_size is \(-2, 1\); it must be \(left, right\), integers of 0"),
    ({"return_lse": True}, "return_lse is True, and mode 'naive' with variant 'solution' has no such option"),
    ({"window_size": 4, "mode": "flash"}, r"window_size is 4; it must be \(left, right\)"),
    (
        {"attn_mask": causal_upper_left(5, 7), "lower_right": True},
        "lower_right is True and attn_mask is causal_upper_left; only one of them may be",
    ),
]


@pytest.mark.parametrize(("changed", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(changed, words):
    arguments = {"query": of(3, 5, 8), "key": of(3, 7, 8), "value": of(3, 7, 8), "mode": "naive"}
    with pytest.raises(ValueError, match=words):
        scaled_dot_product_attention(**{**arguments, **changed})


def test_without_a_variant_flash_takes_what_torchs_takes(device):
    """A mask and gradients go to the tuned kernels, everything else to the solution's."""
    query, key, value = (torch.randn(shape, device=device).requires_grad_() for shape in FOUR)
    mask = as_mask(make_mask("bool", 5, 7)).to(device)
    for masks, options in (((mask,), {}), ((), {"is_causal": True})):
        out = scaled_dot_product_attention(query, key, value, *masks, **options)
        tuned = scaled_dot_product_attention(query, key, value, *masks, **options, variant="tuned")
        assert torch.equal(out, tuned) and out.requires_grad
        with torch.no_grad():
            out = CUDAAttention(**options)(query, key, value, *masks)
            variant = "tuned" if masks else "solution"
            same = scaled_dot_product_attention(query, key, value, *masks, **options, variant=variant)
            assert torch.equal(out, same)
            expected = pytorch(query, key, value, *masks, **options)
            torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    for head_dim in (129, 256):  # above 128 also by the tuned kernels
        assert_agrees(device, ("flash", None), ((1, 7, head_dim),) * 3)


def test_a_mask_with_is_causal_is_torchs_error():
    query, key, value = (of(*shape) for shape in TWO)
    mask = torch.ones(5, 7, dtype=torch.bool)
    for function in (F.scaled_dot_product_attention, scaled_dot_product_attention):
        with pytest.raises(RuntimeError, match="is_causal"):
            function(query, key, value, mask, is_causal=True)
    with pytest.raises(TypeError, match="key is None; it must be a tensor"):
        scaled_dot_product_attention(query, None, value)


def test_operators_are_built_on_first_use_and_kept(monkeypatch):
    """Which task, variant and backend the modes mean."""
    asked = []

    def load(request):
        asked.append((request.task, request.variant, request.backend))
        zeros = lambda query, *_: torch.zeros_like(query)  # noqa: E731
        return SimpleNamespace(naive_attention=zeros, attention=zeros, flash_attention=zeros)

    monkeypatch.setattr(taught, "load", load)
    monkeypatch.setattr(taught, "_loaded", {})
    for mode in ("naive", "tiled", "flash"):
        for variant in ("student", "solution"):
            for _ in range(2):
                scaled_dot_product_attention(*(of(*shape) for shape in TWO), mode=mode, variant=variant)
    tasks = ("task1", "task2", "task4")
    assert asked == [(task, variant, "simulator") for task in tasks for variant in ("student", "solution")]
