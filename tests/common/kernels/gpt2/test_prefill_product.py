"""The product of a prefill on Hopper GPUs against float64: layernorm, bias, gelu, addition, keys and values."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.kernels.gpt2.engine import Engine
from common.kernels.gpt2.engine_kernels import EngineKernels

EPS = 1e-5
DTYPES = (torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def ops(backend):
    """In the simulator the kernel is in builds for sm_90a only."""
    if backend == "simulator":
        return load(BuildRequest("gpt2", backend="simulator", arch="sm_90a", label="hopper"))
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs compute capability 9.0")
    return load(BuildRequest("gpt2", backend="cuda"))


@pytest.fixture
def draw(ops):
    generator = torch.Generator().manual_seed(3)

    def normal(*shape, dtype=torch.float32, scale=1.0, shift=0.0):
        return (scale * torch.randn(*shape, generator=generator) + shift).to(dtype).to(ops.device)

    return normal


def assert_near(found, expected, dtype, size):
    """Within a few roundings to dtype of numbers as large as `size`."""
    assert bool(found.isfinite().all())
    assert float((found.double() - expected).abs().max()) <= 1.25 * torch.finfo(dtype).eps * size


# Tiles cut at both ends, more steps than slots, several sequences; of the last two K is divided among blocks
SHAPES = [(1, 5, 8, 64), (1, 150, 200, 128), (2, 70, 136, 192), (1, 64, 64, 768), (2, 130, 136, 1408), (1, 5, 72, 1600)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sequences", "seq_len", "n", "k"), SHAPES)
def test_bias_gelu_and_addition(ops, draw, dtype, sequences, seq_len, n, k):
    x, weight, bias = draw(sequences, seq_len, k, dtype=dtype), draw(n, k, dtype=dtype, scale=k**-0.5), draw(n)
    assert ops.prefill_fits(x, weight)
    expected = x.double() @ weight.double().t() + bias.double()
    out = torch.full((sequences, seq_len, n), torch.nan, dtype=dtype, device=ops.device)
    ops.prefill_product(x, weight, bias, None, EPS, False, out)
    assert_near(out, expected, dtype, float(expected.abs().max()))
    ops.prefill_product(x, weight, bias, None, EPS, True, out)
    assert_near(out, torch.nn.functional.gelu(expected, approximate="tanh"), dtype, float(expected.abs().max()))
    stream = draw(sequences, seq_len, n, dtype=dtype)
    before = stream.double()
    by_heads = x.view(sequences, seq_len, k // 64, 64).transpose(1, 2).contiguous()
    ops.prefill_product_add(by_heads, weight, bias, stream)
    assert_near(stream, before + expected, dtype, 2 * float((before.abs() + expected.abs()).max()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seq_len", [3, 130])
def test_layernorm_and_caches(ops, draw, dtype, seq_len):
    sequences, heads, slots = 2, 3, 140
    width = 64 * heads
    x = draw(sequences, seq_len, width, dtype=dtype, scale=2.0, shift=1.5)
    weight, bias = draw(3 * width, width, dtype=dtype, scale=width**-0.5), draw(3 * width)
    normed = torch.nn.functional.layer_norm(x.double(), (width,), eps=EPS)
    expected = normed @ weight.double().t() + bias.double()
    out = torch.full((sequences, seq_len, 3 * width), torch.nan, dtype=dtype, device=ops.device)
    caches = [draw(sequences, heads, slots, 64, dtype=dtype) for _ in range(2)]
    kept = [cache.clone() for cache in caches]
    ops.prefill_product(x, weight, bias, weight.double().sum(1).float(), EPS, False, out, *caches)
    assert_near(out, expected, dtype, float(expected.abs().max()))
    for part, (cache, before) in enumerate(zip(caches, kept, strict=True), 1):
        before[:, :, :seq_len] = out.view(sequences, seq_len, 3, heads, 64)[:, :, part].transpose(1, 2)
        assert torch.equal(cache, before)


def test_what_it_does_not_take(ops, draw):
    x, weight = draw(1, 4, 96, dtype=torch.float16), draw(8, 96, dtype=torch.float16)
    assert not ops.prefill_fits(x, weight)
    assert not ops.prefill_fits(draw(1, 4, 64), draw(8, 64))
    with pytest.raises(ValueError, match="see prefill_fits"):
        ops.prefill_product(x, weight, draw(8), None, EPS, False, draw(1, 4, 8, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"x must be .sequences, seq_len, K."):
        ops.prefill_fits(draw(1, 4, 64, dtype=torch.float16), weight)
    with pytest.raises(ValueError, match=r"out has shape .1, 4, 16.; it must be .1, 4, 8."):
        ops.prefill_product(x, weight, draw(8), None, EPS, False, draw(1, 4, 16, dtype=torch.float16))


@pytest.fixture(scope="module")
def kernels(ops, backend):
    flash, decode = (load(BuildRequest(room, backend=backend)) for room in ("flash", "decode"))
    return EngineKernels(flash, decode, ops, "tuned")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    config = GPT2Config(n_layer=2, n_head=1, n_embd=64, vocab_size=97, n_positions=256, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("lengths", [(5,), (9, 130)])
def test_the_whole_prefill(model, kernels, lengths):
    """Caches and first tokens beside those of torch's products; the rest of the caches stays."""
    prompts = [torch.randint(97, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in lengths]
    engines = [
        Engine(model, kernels, "float16", 2, 160, graphs=False, fused=True, fused_prefill=fused)
        for fused in (True, False)
    ]
    assert [engine.how_prefill(5).startswith("fused products") for engine in engines] == [True, False]
    found, expected = (engine.generate(prompts, max_new_tokens=1).tokens for engine in engines)
    assert found == expected
    caches = [engine.cache[:, :, : len(prompts)].clone() for engine in engines]
    assert not bool(caches[0][..., max(lengths) :, :].any())

    def assert_alike(found, expected):
        for sequence, length in enumerate(lengths):
            ours, theirs = (cache[:, :, sequence, :, :length].double() for cache in (found, expected))
            assert float((ours - theirs).abs().max()) <= 1e-2 * float(theirs.abs().max())

    assert_alike(*caches)
    # Padding that is NaN: attention computes a row once more whose tile holds such keys, in other roundings
    engines[0]._seq_len = lambda longest: 160
    engines[0].weights.wpe[max(lengths) :] = torch.nan
    assert engines[0].generate(prompts, max_new_tokens=1).tokens == found
    padded = engines[0].cache[:, :, : len(prompts)]
    assert bool(padded[..., max(lengths) :, :].isnan().all())
    assert_alike(padded, caches[0])


@pytest.mark.gpu
def test_a_captured_prefill_in_products_of_its_own(model):
    kernels = EngineKernels(
        *(load(BuildRequest(room, backend="cuda")) for room in ("flash", "decode", "gpt2")), "tuned"
    )
    captured, plain = (
        Engine(model, kernels, "float16", 2, graphs=graphs, fused_prefill=True) for graphs in (True, False)
    )
    plain._seq_len = captured._seq_len  # the same padding, so the same bits
    for lengths in ((1,), (63,), (64,), (65,), (250,), (64, 65), (1, 250), (63,)):
        prompts = [torch.randint(97, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in lengths]
        found, expected = (engine.generate(prompts, max_new_tokens=4).tokens for engine in (captured, plain))
        assert found == expected, lengths


@pytest.mark.parametrize(("seq_len", "n", "k", "norm"), [(70, 192, 576, True), (20, 72, 1280, False)])
def test_no_race_and_no_stray_access(seq_len, n, k, norm):
    """Slots that are filled again, the rows' moments beside the products, sums in place of the tiles."""
    from common.inspect.checked_library import CHECK, CheckedLibrary

    checked = load(BuildRequest("gpt2", backend="simulator", arch="sm_90a", checked=True, label="hopper"))
    library = CheckedLibrary(checked.libraries[0].path)
    x, weight = torch.randn(1, seq_len, k).half(), torch.randn(n, k).half()
    out, numbers = torch.zeros(1, seq_len, n).half(), torch.randn(n)
    caches = [torch.zeros(1, n // 192, 80, 64).half() for _ in range(2 * norm)]
    library.begin(CHECK)
    try:
        checked.prefill_product(x, weight, numbers, numbers if norm else None, EPS, False, out, *caches)
        checked.store_heads(torch.zeros(1, 3, 5, 8).half(), torch.zeros(5, 72).half(), None, None)
        assert library.report()["findings"] == []
    finally:
        library.begin(0)
