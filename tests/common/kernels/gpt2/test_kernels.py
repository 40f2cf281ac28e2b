"""Task 7's tuned kernels against float64: layernorm and bias + gelu in every dtype, and the parts of a decode step."""

import pytest
import torch

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.kernels.gpt2.decode_step import NormedProduct
from common.kernels.gpt2.weights import Affine
from task7.cases import mistakes

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EPS = 1e-5


@pytest.fixture(scope="module")
def ops(backend):
    return load(BuildRequest("task7", "tuned", backend))


@pytest.fixture
def draw(ops):
    generator = torch.Generator().manual_seed(3)

    def normal(*shape, dtype=torch.float32, scale=1.0, shift=0.0):
        return (scale * torch.randn(*shape, generator=generator) + shift).to(dtype).to(ops.device)

    return normal


def rounding(dtype):
    """Half the distance between 1 and the next number."""
    return torch.finfo(dtype).eps / 2


def assert_near(found, expected, dtype, size):
    """Within a few roundings to dtype of numbers as large as `size`, plus float32 noise."""
    assert bool(found.isfinite().all())
    error = float((found.double().cpu() - expected.cpu()).abs().max())
    assert error <= (2.5 * rounding(dtype) + 2e-6) * size, error


def behind_layernorm(draw, dtype, rows, n, k):
    """A linear layer after a layernorm: (the operators' arguments before their outputs, the float64 result)."""
    residual = draw(rows, k, scale=3.0, shift=50.0)
    norm = Affine(draw(k, dtype=dtype, shift=1.0, scale=0.2), draw(k, dtype=dtype))
    linear = Affine(draw(n, k, dtype=dtype, scale=k**-0.5), draw(n, dtype=dtype))
    product = NormedProduct.of(norm, linear.weight, linear.bias)
    x = mistakes.layernorm(residual.double(), norm.weight.double(), norm.bias.double(), eps=EPS)[0]
    given = (residual, product.norm_weight, product.weight_sum, EPS, product.weight, product.bias)
    return given, x @ linear.weight.double().t() + linear.bias.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(3, 768), (5, 31), (2, 1), (9, 264)])
def test_layernorm_and_gelu(ops, draw, dtype, rows, width):
    x, residual = draw(rows, width, dtype=dtype, shift=3.0), draw(rows, width, dtype=dtype)
    weight, bias = draw(width, dtype=dtype), draw(width, dtype=dtype)
    out, total = ops.layernorm(x, residual, weight, bias, EPS)
    assert torch.equal(total, x + residual)
    expected = mistakes.layernorm(total.double(), weight.double(), bias.double(), eps=EPS)[0]
    assert_near(out, expected, dtype, float(expected.abs().max()))
    alone, same = ops.layernorm(x, None, weight, bias, EPS)
    assert torch.equal(same, x) and (width == 1 or not torch.equal(alone, out))
    activated = mistakes.bias_gelu(x.double(), bias.double())
    assert_near(ops.bias_gelu(x, bias), activated, dtype, float(activated.abs().max()))


# K: less than a chunk of 512 bytes, several, exactly a warp's share, shared by 2, 4 and 8 warps, and more than that
SHAPES = [(1, 8, 24), (1, 40, 768), (2, 37, 264), (3, 50, 1040), (4, 19, 1600), (4, 24, 768), (1, 9, 6400)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "n", "k"), SHAPES)
def test_product_into_the_residual_stream(ops, draw, dtype, rows, n, k):
    weight, bias = draw(n, k, dtype=dtype, scale=k**-0.5), draw(n)
    x, residual = draw(rows, k, dtype=dtype), draw(rows, n)
    expected = residual.double() + x.double() @ weight.double().t() + bias.double()
    if not ops.step_fits(weight, rows, False):
        with pytest.raises(ValueError, match="use fewer rows"):
            ops.step_residual(x, weight, bias, residual)
        return
    ops.step_residual(x, weight, bias, residual)
    assert_near(residual, expected, torch.float32, 8.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 50, 768), (3, 70, 264), (4, 33, 32)])
def test_products_behind_a_layernorm(ops, draw, dtype, rows, n, k):
    given, expected = behind_layernorm(draw, dtype, rows, n, k)
    out = torch.full((rows, n), torch.nan, dtype=dtype, device=ops.device)
    ops.step_gelu(*given, out)
    assert_near(out, mistakes.bias_gelu(expected, torch.zeros_like(expected)), dtype, 4.0)

    logits = torch.full((rows, n), torch.nan, device=ops.device)
    best = torch.zeros(rows, ops.step_blocks(given[4], rows), dtype=torch.int64, device=ops.device)
    ops.step_logits(*given, logits, best)
    assert_near(logits, expected, torch.float32, 40.0)  # a mean of 50 is subtracted
    values, tokens = best.view(torch.float32).view(rows, -1, 2).unbind(-1)
    largest = values.argmax(-1, keepdim=True)
    assert torch.equal(values.gather(1, largest)[:, 0], logits.amax(-1))
    assert torch.equal(tokens.gather(1, largest).view(torch.int32)[:, 0], logits.argmax(-1).int())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("positions", [[0], [6, 2], [3, -1, 7, 2**31 - 1]])
def test_queries_keys_and_values(ops, draw, dtype, positions):
    rows, heads, head_dim, slots = len(positions), 3, 16, 7
    width = heads * head_dim
    given, expected = behind_layernorm(draw, dtype, rows, 3 * width, width)
    caches = [draw(rows, heads, slots, head_dim, dtype=dtype) for _ in range(2)]
    query = torch.full((rows, heads, 1, head_dim), torch.nan, dtype=dtype, device=ops.device)
    at = torch.tensor(positions, dtype=torch.int32, device=ops.device)
    q, *new = expected.view(rows, 3, heads, head_dim).unbind(1)
    kept = [cache.clone() for cache in caches]
    ops.step_qkv(*given, at, query, *caches)
    size = 40.0 if dtype == torch.float32 else 4.0  # a mean of 50 is subtracted
    assert_near(query[:, :, 0], q, dtype, size)
    for cache, before, values in zip(caches, kept, new, strict=True):
        for sequence, position in enumerate(positions):
            if 0 <= position < slots:
                assert_near(cache[sequence, :, position], values[sequence], dtype, size)
                before[sequence, :, position] = cache[sequence, :, position]
        assert torch.equal(cache, before)  # nothing else was written


def next_token_arguments(ops, draw, dtype, rows, blocks):
    def ints(*values):
        return torch.tensor(values, dtype=torch.int32, device=ops.device)

    best = torch.zeros(rows, blocks, 2, device=ops.device)
    best[..., 0] = draw(rows, blocks)
    best[..., 1] = torch.arange(blocks, dtype=torch.int32, device=ops.device).view(torch.float32)
    state = {
        "stop": ints(-1),
        "finished": ints(*[0] * rows),
        "steps": ints(*range(rows)),
        "positions": ints(*range(4, 4 + rows)),
        "lengths": ints(*[0] * rows),
        "history": torch.full((rows + 1, rows), -1, dtype=torch.int32, device=ops.device),
        "wte": draw(blocks, 40, dtype=dtype),
        "wpe": draw(rows + 5, 40, dtype=dtype),
        "residual": draw(rows, 40),
    }
    return best.view(rows, 2 * blocks).view(torch.int64), state


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("given", ["best", "tokens"])
def test_next_token(ops, draw, dtype, given):
    rows, blocks = 3, 300
    best, state = next_token_arguments(ops, draw, dtype, rows, blocks)
    tokens = best.view(torch.float32).view(rows, blocks, 2)[..., 0].argmax(-1)
    state["stop"][0] = tokens[1]  # sequence 1 ends
    one = (best, None) if given == "best" else (None, tokens)
    arrived = torch.full((rows + 1, rows), -1, dtype=torch.int32, pin_memory=ops.device.type == "cuda")
    ops.next_token(*one, *state.values(), arrived=arrived)
    stays = (tokens == tokens[1]).int()
    assert torch.equal(state["finished"], stays)
    positions = torch.arange(4, 4 + rows, device=ops.device, dtype=torch.int32) + 1 - stays
    assert torch.equal(state["positions"], positions) and torch.equal(state["lengths"], positions + 1)
    assert state["steps"].tolist() == [1, 2, 3]
    assert [int(state["history"][i, i]) for i in range(rows)] == tokens.tolist()
    assert int((state["history"] == -1).sum()) == state["history"].numel() - rows
    assert torch.equal(arrived, state["history"].cpu())
    assert torch.equal(state["residual"], state["wte"][tokens].float() + state["wpe"][positions.long()].float())


def test_of_equal_logits_the_first_wins(ops, draw):
    best, state = next_token_arguments(ops, draw, torch.float32, 1, 64)
    best.view(torch.float32).view(1, 64, 2)[..., 0] = 0.5
    ops.next_token(best, None, *state.values())
    assert int(state["history"][0, 0]) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"residual": torch.zeros(5, 16)}, "rows is 5; a step takes 1 .. 4"),
        ({"weight": torch.zeros(48, 18), "residual": torch.zeros(2, 18)}, "K must be a multiple of 4"),
        ({"bias": torch.zeros(47)}, "bias has shape .47."),
        ({"norm_weight": torch.zeros(16).half()}, "norm_weight has dtype"),
        ({"positions": torch.zeros(3, dtype=torch.int32)}, "positions has shape .3.; rows must be 2"),
        ({"query": torch.zeros(2, 2, 1, 4)}, "3 heads head_dim = N"),
        ({"k_cache": torch.zeros(2, 2, 5, 7)}, "k_cache has shape"),
        ({"eps": -1.0}, "eps is -1"),
    ],
)
def test_bad_arguments_are_named(ops, change, words):
    arguments = {
        "residual": torch.zeros(2, 16),
        "norm_weight": torch.zeros(16),
        "weight_sum": torch.zeros(48),
        "eps": EPS,
        "weight": torch.zeros(48, 16),
        "bias": torch.zeros(48),
        "positions": torch.zeros(2, dtype=torch.int32),
        "query": torch.zeros(2, 2, 1, 8),
        "k_cache": torch.zeros(2, 2, 5, 8),
        "v_cache": torch.zeros(2, 2, 5, 8),
    } | change
    moved = {name: x.to(ops.device) if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
    with pytest.raises(ValueError, match=words):
        ops.step_qkv(**moved)
