"""The engine's prefill, padded, with or without a captured graph, gives the results of transformers' own modules."""

import dataclasses

import pytest
import torch
from small_gpt2 import unruly, written_by

from common.kernels.gpt2 import prefill as prefill_module
from common.kernels.gpt2.engine import MOST_PREFILLS, Engine
from common.kernels.gpt2.prefill import Captured, Prefill, PromptBuffer
from task7.given.operators import load_engine_kernels

CONTEXT = 512
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def model():
    return unruly(n_positions=CONTEXT)


@pytest.fixture(scope="module")
def tuned(backend):
    return load_engine_kernels("tuned", backend)


def prompt_of(length):
    """Without token 0, which is padding."""
    return torch.randint(1, 97, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def filled(engine, prompts, seq_len, weights):
    """(step, its caches) after an uncaptured prefill, with `weights` in place of the engine's own."""
    batch = len(prompts)
    step = engine._prepared_step(batch, False)
    caches = [(k[:batch], v[:batch]) for k, v in engine.caches]
    buffer = PromptBuffer(step.state)
    buffer.put(prompts, seq_len, None)
    Prefill(weights, engine.kernels, caches, step, buffer, seq_len).run()
    return step, engine.cache[:, :, :batch].clone()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("lengths", [(1,), (63,), (65,), (7, 40)])
def test_padding_never_reaches_a_result(model, tuned, lengths, fused):
    """NaN in the padding's embedding and in those of the positions after the longest prompt."""
    prompts, seq_len = [prompt_of(length) for length in lengths], -(-max(lengths) // 64) * 64
    engine = Engine(model, tuned, max_batch=2, max_seq_len=160, graphs=False, fused=fused)
    _, exact = filled(engine, prompts, max(lengths), engine.weights)
    wte, wpe = engine.weights.wte.clone(), engine.weights.wpe.clone()
    wte[0] = torch.nan
    wpe[max(lengths) :] = torch.nan
    step, cache = filled(engine, prompts, seq_len, dataclasses.replace(engine.weights, wte=wte, wpe=wpe))
    assert step.state.positions.tolist() == list(lengths)
    for sequence, length in enumerate(lengths):
        torch.testing.assert_close(cache[:, :, sequence, :, :length], exact[:, :, sequence, :, :length])
        assert bool(cache[:, :, sequence, :, length:seq_len].isnan().all())  # so there was something to mask
    for _ in range(3):
        step.run(False)
    found = step.state.history[:4].T.tolist()
    assert found == [written_by(model, prompt, 4) for prompt in prompts]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 7])
def test_heads_are_stored(tuned, dtype, head_dim):
    batch, heads, seq_len, slots = 2, 3, 5, 8
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype).to(tuned.device)

    attended, qkv = normal(batch, heads, seq_len, head_dim), normal(batch * seq_len, 3 * heads * head_dim)
    caches = [normal(batch, heads, slots, head_dim) for _ in range(2)]
    expected = [cache.clone() for cache in caches]
    for part, cache in enumerate(expected, 1):
        cache[:, :, :seq_len] = qkv.view(batch, seq_len, 3, heads, head_dim)[:, :, part].transpose(1, 2)
    rows = attended.transpose(1, 2).reshape(batch * seq_len, heads * head_dim)
    assert torch.equal(tuned.gpt2.store_heads(attended, qkv, *caches), rows)
    assert all(map(torch.equal, caches, expected))
    assert torch.equal(tuned.gpt2.store_heads(attended, qkv, None, None), rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [72, 37])
def test_a_text_begins(tuned, dtype, width):
    batch, seq_len, vocab, state_size = 3, 7, 50, 700
    generator = torch.Generator().manual_seed(0)
    wte, wpe = (torch.randn(n, width, generator=generator).to(dtype).to(tuned.device) for n in (vocab, seq_len + 2))
    prompts = torch.randint(vocab, (batch, seq_len), generator=generator, dtype=torch.int32)
    host_state = torch.randint(1 << 30, (state_size,), generator=generator, dtype=torch.int32)
    if tuned.device.type == "cuda":
        prompts, host_state = prompts.pin_memory(), host_state.pin_memory()
    state = torch.zeros(state_size, dtype=torch.int32, device=tuned.device)
    x = tuned.gpt2.begin_text(host_state, prompts, state, wte, wpe)
    assert torch.equal(x.view(batch, seq_len, width), wte[prompts.long().to(tuned.device)] + wpe[:seq_len])
    assert torch.equal(state.cpu(), host_state)
    for wrong, words in (
        ({"wpe": wpe[: seq_len - 1]}, "seq_len of at most 6"),
        ({"host_state": host_state[1:]}, "host_state has shape .699.; it must hold 700 numbers"),
        ({"prompts": prompts.long()}, "prompts must be a contiguous int32 tensor in the host's memory"),
    ):
        given = {"host_state": host_state, "prompts": prompts, "state": state, "wte": wte, "wpe": wpe} | wrong
        with pytest.raises(ValueError, match=words):
            tuned.gpt2.begin_text(**given)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_last_rows_go_on(tuned, dtype):
    batch, seq_len, width = 3, 5, 72
    generator = torch.Generator().manual_seed(0)
    x, heads, head = (torch.randn(n, width, generator=generator).to(dtype).to(tuned.device) for n in (15, 15, 97))
    positions = torch.tensor([4, 0, 2], dtype=torch.int32, device=tuned.device)
    residual = torch.full((batch, width), torch.nan, device=tuned.device)
    rows = [sequence * seq_len + position for sequence, position in enumerate(positions.tolist())]
    assert torch.equal(tuned.gpt2.last_rows(x, heads, positions, head, residual), heads[rows])
    assert torch.equal(residual, x[rows].float())
    for wrong, words in (
        ({"x": x[:14], "heads": heads[:14]}, "must be a multiple"),
        ({"positions": positions[:2]}, "rows must be 3"),
    ):
        given = {"x": x, "heads": heads, "positions": positions, "head": head, "residual": residual} | wrong
        with pytest.raises(ValueError, match=words):
            tuned.gpt2.last_rows(**given)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qkv": torch.zeros(10, 47)}, "qkv must be .batch . seq_len, 3 heads head_dim."),
        ({"k_cache": torch.zeros(2, 2, 4, 8)}, "attended has seq_len = 5; at most 4 fit"),
        ({"v_cache": torch.zeros(2, 2, 7, 8)}, "v_cache has shape"),
        ({"v_cache": None}, "must both be given, or neither"),
        ({"qkv": torch.zeros(10, 48).half()}, "qkv has dtype"),
    ],
)
def test_bad_arguments_are_named(tuned, change, words):
    caches = {"k_cache": torch.zeros(2, 2, 6, 8), "v_cache": torch.zeros(2, 2, 6, 8)}
    if "k_cache" in change:
        caches["v_cache"] = torch.zeros(2, 2, 4, 8)
    arguments = {"attended": torch.zeros(2, 2, 5, 8), "qkv": torch.zeros(10, 48)} | caches | change
    moved = {name: None if x is None else x.to(tuned.device) for name, x in arguments.items()}
    with pytest.raises(ValueError, match=words):
        tuned.gpt2.store_heads(**moved)


# 768 and 1600: a row stays in a warp's registers, in few and in many vectors; 2112: too long for that in any dtype
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [768, 1600, 2112])
def test_long_rows_are_normalized(tuned, dtype, width):
    generator = torch.Generator().manual_seed(0)
    x, residual, weight, bias = (
        torch.randn(*shape, generator=generator).to(dtype).to(tuned.device)
        for shape in ((6, width), (6, width), (width,), (width,))
    )
    x = x + 5
    out, total = tuned.gpt2.layernorm(x, residual, weight, bias, 1e-5)
    assert torch.equal(total, x + residual)
    expected = torch.nn.functional.layer_norm(total.double(), (width,), weight.double(), bias.double(), 1e-5)
    size = float(expected.abs().max())
    assert float((out.double() - expected).abs().max()) <= (1.25 * torch.finfo(dtype).eps + 2e-6) * size


# ------------------------------------------------------------------------------------------------------------ graphs


def test_the_graph_that_was_not_needed_for_longest_goes(monkeypatch):
    made = []
    monkeypatch.setattr(prefill_module, "captured", lambda call, pool: (made.append(call()), call)[1])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    graphs = Captured(2)
    for name in ("a", "b", "a", "c", "a", "b"):
        assert graphs.get(name, lambda name=name: lambda: name)() == name
        assert len(graphs) <= 2
    assert made == ["a", "b", "c", "b"]


def test_what_is_warmed_up(model, tuned):
    engine = Engine(model, tuned, max_batch=2, max_seq_len=200, graphs=False)
    engine.warm_up(100, batch=2)
    assert engine.how_prefill(100) == "one kernel after another"
    with pytest.raises(ValueError, match="longest is 200; allowed: 1 to 199"):
        engine.warm_up(200)
    with pytest.raises(ValueError, match="batch is 3; allowed: 1 to max_batch, which is 2"):
        engine.warm_up(10, batch=3)


LENGTHS = (1, 63, 64, 65, 500, CONTEXT - 4, 64, 1, 500, 63)  # one after the other, with repetitions


def engines(model, variant, dtype, **parts):
    """With and without graphs, prefills padded alike: the same GEMMs, so the same bits."""
    kernels = load_engine_kernels(variant, "cuda")
    captured, plain = (Engine(model, kernels, dtype, 3, graphs=graphs, **parts) for graphs in (True, False))
    plain._seq_len = captured._seq_len
    return captured, plain


@pytest.mark.gpu
@pytest.mark.parametrize(("variant", "dtype"), [("solution", "float32"), ("tuned", "float32"), ("tuned", "float16")])
@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.9, "top_k": 30, "top_p": 0.95, "seed": 5}])
def test_a_captured_prefill_writes_what_launches_write(model, variant, dtype, sampled):
    captured, plain = engines(model, variant, dtype)
    for length in LENGTHS:
        found, expected = (
            engine.generate([prompt_of(length)], max_new_tokens=4, **sampled).tokens for engine in (captured, plain)
        )
        assert found == expected, length
        if dtype == "float32" and not sampled:
            assert found == [written_by(model, prompt_of(length), 4)], length
    assert len(captured._prefills) == len({-(-length // 64) for length in LENGTHS})
    assert captured.how_prefill(65) == "a CUDA graph for 128 tokens"


@pytest.mark.gpu
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_of_unequal_lengths(model, persistent):
    captured, plain = engines(model, "tuned", "float32", persistent=persistent)
    for lengths in ((64, 65), (500, 1), (3, 63, 64), (65, 64), (12,)):
        prompts = [prompt_of(length) for length in lengths]
        found, expected = (engine.generate(prompts, max_new_tokens=4).tokens for engine in (captured, plain))
        assert found == expected == [written_by(model, prompt, 4) for prompt in prompts], lengths


@pytest.mark.gpu
def test_padding_never_reaches_a_captured_result(model):
    """NaN for a prefill of 128 tokens: in the padding's embedding, and in the positions after the prompt."""
    engine, _ = engines(model, "tuned", "float16")
    prompt = prompt_of(70)
    expected = engine.generate([prompt], max_new_tokens=1).tokens
    rows = engine.weights.wpe[70:128].clone()
    engine.weights.wpe[70:128] = torch.nan  # the graph's own tensor
    assert engine.generate([prompt], max_new_tokens=1).tokens == expected
    assert bool(engine.cache[:, :, 0, :, :70].isfinite().all()) and bool(engine.cache[:, :, 0, :, 70:128].isnan().all())
    engine.weights.wpe[70:128] = rows
    assert engine.generate([prompt], max_new_tokens=20).tokens == engine.generate([prompt], max_new_tokens=20).tokens


@pytest.mark.gpu
def test_more_lengths_than_are_kept(model):
    engine, _ = engines(model, "tuned", "float32")
    engine._prefills.most = 2
    engine.warm_up(500)
    for length in (500, 1, 65, 500, 1):
        assert engine.generate([prompt_of(length)], max_new_tokens=2).tokens == [
            written_by(model, prompt_of(length), 2)
        ]
        assert len(engine._prefills) <= 2 < MOST_PREFILLS


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_product_with_gelu_has_the_one_with_tanh(dtype):
    """cuBLASLt's, against float64: within rounding, and on average closer to it than to the version with erf."""
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape, device="cuda").to(dtype) for shape in ((64, 96), (128, 96), (128,)))
    weight *= 0.2
    found = torch._addmm_activation(bias, x, weight.t(), use_gelu=True).double()
    before = x.double() @ weight.double().t() + bias.double()
    with_tanh, with_erf = (torch.nn.functional.gelu(before, approximate=how) for how in ("tanh", "none"))
    assert bool(((found - with_tanh).abs() <= torch.finfo(dtype).eps * (with_tanh.abs() + 0.5)).all())
    apart = (before > -4) & (before < -1.5)
    off_tanh, off_erf = (float((found - one)[apart].abs().mean()) for one in (with_tanh, with_erf))
    assert off_tanh < off_erf
