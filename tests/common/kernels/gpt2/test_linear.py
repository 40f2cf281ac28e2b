"""Linear layers with a few hundred rows on Hopper (linear.cuh), against float64."""

import pytest
import torch
from checked_findings import nothing_found

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.kernels.gpt2.engine_kernels import tuned_kernels

pytestmark = pytest.mark.slow  # a separate build for sm_90a
DTYPES = (torch.float16, torch.bfloat16)
# rows, N, K; with the 132 SMs of an H100: split-K, then tiles of 64 x 96, 128 x 96, 128 x 128 and 128 x 192
SIZES = [(1, 8, 136), (70, 200, 392), (330, 776, 72), (520, 1608, 8), (520, 2600, 72), (520, 3400, 72)]


@pytest.fixture(scope="module")
def ops(backend):
    if backend == "cuda":
        if torch.cuda.get_device_capability()[0] != 9:
            pytest.skip("needs compute capability 9.0")
        return tuned_kernels("cuda").gpt2
    return load(BuildRequest("gpt2", backend="simulator", arch="sm_90a", label="hopper"))


def numbers(ops, *shapes, dtype=torch.float16):
    generator = torch.Generator().manual_seed(sum(shapes[0]))
    return [torch.randn(*shape, generator=generator).to(dtype).to(ops.device) for shape in shapes]


def assert_near(found, x, weight, exact):
    """Float32 sums, each addition off by at most 2^-24 of the sum of magnitudes, then rounded once."""
    eps, K = torch.finfo(found.dtype).eps, weight.size(1)
    sums = x.double().abs() @ weight.double().abs().t()
    bound = eps * exact.abs() + (K + 8) * 2.0**-24 * sums.view(exact.shape) + 1e-6
    assert bool(((found.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_against_float64(ops, dtype, sizes):
    rows, n, k = sizes
    x, weight, bias = numbers(ops, (rows, k), (n, k), (n,), dtype=dtype)
    assert ops.linear_fits(x, weight)
    exact = x.double() @ weight.double().t() + bias.double()
    found = ops.linear(x, weight, bias)
    assert_near(found, x, weight, exact)
    assert torch.equal(ops.linear(x, weight, bias), found)
    # gelu's input is rounded, as in transformers, and so is its output
    gelu = torch.nn.functional.gelu(found.double(), approximate="tanh")
    error = (ops.linear(x, weight, bias, True).double() - gelu).abs()
    assert bool((error <= torch.finfo(dtype).eps * gelu.abs() + 1e-6).all())


def test_a_nan_stays_in_its_row(ops):
    x, weight, bias = numbers(ops, (130, 136), (104, 136), (104,))
    right = ops.linear(x, weight, bias)
    x[77] = torch.nan
    found = ops.linear(x, weight, bias, False)
    assert bool(found[77].isnan().all())
    found[77] = right[77]
    assert torch.equal(found, right)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "heads", "seq_len", "head_dim"), [(1, 3, 70, 64), (3, 2, 37, 8), (2, 5, 7, 24)])
def test_queries_keys_and_values_go_where_attention_reads_them(ops, dtype, batch, heads, seq_len, head_dim):
    width, slots = heads * head_dim, seq_len + 3
    x, weight, bias = numbers(ops, (batch * seq_len, width), (3 * width, width), (3 * width,), dtype=dtype)
    caches = numbers(ops, *2 * [(batch, heads, slots, head_dim)], dtype=dtype)
    before = [cache.clone() for cache in caches]
    query = ops.linear_qkv(x, weight, bias, *caches)
    whole = ops.linear(x, weight, bias).view(batch, seq_len, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
    assert torch.equal(query, whole[0].transpose(1, 2).reshape(batch * seq_len, width))
    for part, (cache, old) in enumerate(zip(caches, before, strict=True), 1):
        assert torch.equal(cache[:, :, :seq_len], whole[part])
        assert torch.equal(cache[:, :, seq_len:], old[:, :, seq_len:])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": (5, 40)}, "dimension 1 of x .40. must equal dimension 1 of weight .48."),
        ({"bias": (47,)}, "bias has shape"),
        ({"weight": (150, 48), "bias": (150,)}, "there is no kernel for them here"),
        ({"weight": (96, 48), "bias": (96,)}, r"weight must be \[3 heads head_dim, K\]"),
        ({"v_cache": (1, 2, 9, 24)}, "v_cache has shape"),
        ({"k_cache": (1, 2, 4, 24), "v_cache": (1, 2, 4, 24)}, r"with seq_len of at most 4"),
        ({"k_cache": (1, 12, 5, 4), "v_cache": (1, 12, 5, 4)}, "head_dim = 4; it must be a multiple of 8"),
    ],
)
def test_bad_arguments_are_named(ops, change, words):
    shapes = {"x": (5, 48), "weight": (144, 48), "bias": (144,), "k_cache": (1, 2, 6, 24), "v_cache": (1, 2, 6, 24)}
    given = {
        name: torch.zeros(shape, dtype=torch.float16, device=ops.device) for name, shape in (shapes | change).items()
    }
    with pytest.raises(ValueError, match=words):
        ops.linear_qkv(**given)


def test_what_has_no_kernel(ops):
    def fits(rows, n, k, dtype=torch.float16):
        return ops.linear_fits(*(torch.empty(*s, dtype=dtype, device=ops.device) for s in ((rows, k), (n, k))))

    assert fits(16, 96, 64) and not fits(16, 96, 64, torch.float32)
    assert not fits(16, 100, 64) and not fits(16, 96, 100) and not fits(16, 96, 8192) and not fits(100_000, 96, 64)


def test_checked(backend):
    if backend == "cuda":
        pytest.skip("of the simulator")
    ops = load(BuildRequest("gpt2", backend="simulator", arch="sm_90a", checked=True, label="hopper"))
    with nothing_found(ops):
        for rows, n, k in [(70, 200, 392), (330, 776, 72), (520, 1608, 72)]:
            x, weight, bias = numbers(ops, (rows, k), (n, k), (n,))
            ops.linear(x, weight, bias, True)
        ops.linear_qkv(*numbers(ops, (74, 48), (144, 48), (144,), *2 * [(2, 2, 40, 24)]))
