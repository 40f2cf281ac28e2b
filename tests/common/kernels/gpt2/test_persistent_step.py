"""All steps of a text in one persistent kernel, against transformers' own modules and the step of separate kernels."""

import copy
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from checked_findings import nothing_found
from small_gpt2 import unruly, written_by

from common.compiling.load import load
from common.compiling.program import build_program
from common.compiling.request import BuildRequest
from common.kernels.gpt2.decode_step import DecodeState
from common.kernels.gpt2.engine import Engine
from common.kernels.gpt2.engine_kernels import EngineKernels, tuned_kernels
from common.kernels.gpt2.persistent_step import (
    PackedWeights,
    PersistentStep,
    Plan,
    by_heads,
    packed,
    packed_by_slices,
    padded_heads,
)
from common.kernels.gpt2.sampling import draw, uniform_numbers
from common.kernels.gpt2.weights import weights_of
from common.reference.bounds import running_sum_floor
from task7.tools import models

pytestmark = pytest.mark.slow  # separate builds for sm_90a
ROOT = Path(__file__).resolve().parents[4]
DTYPES = ("float32", "float16", "bfloat16")
ON_GPU = pytest.mark.parametrize(
    "backend", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True, scope="session"
)  # but not in the simulator
PROMPTS = [[5, 17, 80, 3, 41], [9, 2], [60, 61, 62, 63, 64, 65, 66, 67, 68], [1]]


def kernels_for(backend, checked=False):
    """In the simulator only builds for sm_90a have the persistent kernel; the other folders' builds exist anyway."""
    if backend == "cuda":
        return tuned_kernels("cuda")
    flash, decode = (load(BuildRequest(room, backend="simulator")) for room in ("flash", "decode"))
    gpt2 = load(BuildRequest("gpt2", backend="simulator", arch="sm_90a", checked=checked, label="hopper"))
    return EngineKernels(flash, decode, gpt2, "tuned")


@pytest.fixture(scope="module")
def kernels(backend):
    found = kernels_for(backend)
    if backend == "cuda" and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("needs compute capability 9.0")
    return found


@pytest.fixture(scope="module")
def model():
    return unruly()


def step_of(model, kernels, dtype, batch, ctas=0, keep_logits=False, weights=None, sampled=False):
    """A step at the start of the context: (PersistentStep, its cache)."""
    weights = weights or weights_of(model, getattr(torch, dtype), kernels.device)
    plan = Plan.of(weights, kernels, batch, weights.context, sampled, ctas)
    shape = (len(weights.layers), 2, batch, weights.heads, weights.context, weights.head_dim)
    cache = torch.zeros(shape, dtype=weights.wte.dtype, device=kernels.device)
    state = DecodeState.empty(batch, weights.context, kernels.device)
    state.begin(torch.full((batch,), -1, dtype=torch.int32, device=kernels.device), None)
    return PersistentStep(weights, kernels, PackedWeights.of(weights), plan, cache, state, keep_logits, ctas)


def run(step, first, count):
    """The tokens after `first`, which has one per sequence: a list for every sequence."""
    step.advance(torch.tensor(first, device=step.kernels.device))
    step.start(count)
    return [list(one) for one in zip(*(step.tokens(1 + i) for i in range(count)), strict=True)]


# -------------------------------------------------------------------------------------------------------- the text


def test_the_storyteller_writes_what_it_writes_in_transformers(kernels):
    tokenizer, model = models.load(str(models.STORYTELLER), local=True)
    model.set_attn_implementation("sdpa")
    prompt = tokenizer("Once upon a time").input_ids
    engine = Engine(model, kernels, max_seq_len=64, persistent=True)
    assert engine.how(1).startswith("part of one persistent kernel")
    assert engine.generate([prompt], max_new_tokens=4).tokens == [written_by(model, prompt, 4)]


def test_a_batch_of_different_lengths_and_each_alone(model, kernels):
    expected = [written_by(model, prompt, 5) for prompt in PROMPTS]
    engine = Engine(model, kernels, max_batch=4, persistent=True)
    for batch in (4, 1, 3):
        assert engine.generate(PROMPTS[:batch], max_new_tokens=5).tokens == expected[:batch]


def test_up_to_the_end_of_the_context(model, kernels):
    prompt, new_tokens = [*range(1, 57)], 8
    engine = Engine(model, kernels, persistent=True)
    assert model.config.n_positions == len(prompt) + new_tokens
    assert engine.generate([prompt], max_new_tokens=new_tokens).tokens == [written_by(model, prompt, new_tokens)]


@pytest.mark.parametrize("ctas", [1, 5, 12, 8])
def test_however_many_ctas(model, kernels, ctas):
    """Clusters of 1, 4 and 8 CTAs, with one, several or no heads; a run leaves no state behind for the next."""
    step = step_of(model, kernels, "float32", 1, ctas)
    assert step.plan.ctas == ctas
    expected = written_by(model, [9], 10)
    assert run(step, [9], 10) == [expected]
    step.state.begin(torch.full_like(step.state.positions, -1), None)
    assert run(step, [9], 10) == [expected]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ctas", [3, 16])
@pytest.mark.parametrize(
    "sizes",
    [
        {"n_head": 1, "n_embd": 64, "vocab_size": 530},
        {"n_head": 2, "n_embd": 160, "n_layer": 1, "n_inner": 352},
        {"n_head": 4, "n_embd": 512, "n_layer": 1, "vocab_size": 40},
    ],
    ids=lambda sizes: f"width {sizes['n_embd']}",
)
def test_logits_against_float64(kernels, dtype, sizes, ctas):
    """Several stages per tile, batches of tiles, several lanes per token, several heads in a cluster of 1 or 8 CTAs."""
    model = unruly(**sizes | ({"n_head": 10} if sizes["n_embd"] == 160 else {}))
    assert_close_to_float64(model, step_of(model, kernels, dtype, 2, ctas, keep_logits=True), dtype)


def assert_close_to_float64(model, step, dtype):
    """The logits after some tokens: relative to the largest one."""
    tokens = run(step, [9, 11], 5)
    fed = torch.tensor([[first, *rest[:-1]] for first, rest in zip([9, 11], tokens, strict=True)])
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(fed).logits[:, -1]
    bound = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2}[dtype]
    assert float((step.logits.cpu() - expected).abs().max()) <= bound * float(expected.abs().max())
    assert step.logits.argmax(-1).tolist() == [one[-1] for one in tokens]


def test_the_same_bits_every_time(model, kernels):
    """Sums over clusters don't depend on the order of their addends; and a launch leaves no state for the next."""
    step = step_of(model, kernels, "float16", 2, keep_logits=True)
    found = []
    for _ in range(3):
        step.state.begin(torch.full_like(step.state.positions, -1), None)
        found.append((run(step, [9, 11], 3), step.logits.clone()))
    assert all(tokens == found[0][0] and torch.equal(logits, found[0][1]) for tokens, logits in found)


@torch.no_grad()
def with_large_columns(model, by_product):
    """A GPT-2 in which some columns of the residual stream are in the thousands: from the embedding, a bias, GEMMs."""
    body = model.transformer
    body.wpe.weight[:, 3] = 3000.0
    body.h[0].mlp.c_proj.bias[5] = -2500.0
    body.h[0].attn.c_proj.weight[:, 7] *= by_product
    body.h[1].mlp.c_proj.weight[:, 11] *= by_product
    return model


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_residual_stream_of_thousands(kernels, dtype):
    """In fixed point the small columns stay exact; they are what the next layernorm makes small."""
    model = with_large_columns(unruly(), 3000.0).to(getattr(torch, dtype)).float()  # weights that both dtypes represent
    with torch.no_grad():
        streams = model(torch.tensor([[9, 11, 13]]), output_hidden_states=True).hidden_states
    assert min(float(x.abs().amax()) for x in streams[:-1]) > 1000
    assert_close_to_float64(model, step_of(model, kernels, dtype, 2, 16, keep_logits=True), dtype)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body.h[0].mlp.c_proj.bias.__setitem__(3, 2.0e5),
        lambda body: body.h[1].attn.c_proj.weight.__setitem__((slice(None), 9), 1e30),
        lambda body: body.h[0].mlp.c_fc.weight.__setitem__((2, 7), float("nan")),
        lambda body: body.wte.weight.__setitem__((9, 1), float("inf")),
    ],
    ids=["bias", "product", "nan", "embedding"],
)
def test_numbers_that_are_too_large_end_the_run(kernels, spoil):
    """No thread waits forever, and no sequence gets a wrong token."""
    model = unruly()
    with torch.no_grad():
        spoil(model.transformer)
    step = step_of(model, kernels, "float32", 1, 8)
    step.advance(torch.tensor([9], device=kernels.device))
    step.start(30)
    with pytest.raises(ArithmeticError, match="step 1 of sequence 0 has logits that are no numbers"):
        step.tokens(1)
    step.cancel()
    assert step.state.steps.tolist() == [2]


def assert_no_worse_than_transformers(model, step, dtype, first, count):
    """The logits after this many tokens: at most twice as far from float64 as transformers' modules in this dtype."""
    tokens = run(step, first, count)
    fed = torch.tensor([[one, *rest[:-1]] for one, rest in zip(first, tokens, strict=True)], device=step.kernels.device)
    there = copy.deepcopy(model).to(step.kernels.device)
    with torch.no_grad():
        theirs = copy.deepcopy(there).to(getattr(torch, dtype))(fed).logits[:, -1].double()
        expected = there.double()(fed).logits[:, -1]
    floor = running_sum_floor(step.weights.width, float(expected.abs().max()))
    assert float((step.logits - expected).abs().max()) <= 2 * float((theirs - expected).abs().max()) + floor


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_logits_of_a_width_that_is_used(kernels, dtype):
    """The most clusters of 8 CTAs that a GPU with 132 SMs may have, and more clusters than heads."""
    model = unruly(0.05, n_layer=1, n_head=12, n_embd=768, vocab_size=600)
    step = step_of(model, kernels, dtype, 1, keep_logits=True)
    assert kernels.device.type == "cuda" or step.plan.ctas == 128
    assert_no_worse_than_transformers(model, step, dtype, [9], 3)


# --------------------------------------------------------------------------------------------------------- drawing


def logits_of(kind, vocab):
    """float32 [vocab]: the logits of each kind that the tests sample from."""
    generator = torch.Generator().manual_seed(3)
    normal = torch.randn(vocab, generator=generator)
    return {
        "spread": 3 * normal,
        "almost flat": 1e-4 * normal,
        "all the same": torch.full((vocab,), 0.25),
        "two groups": (torch.arange(vocab) % 3 == 1).float() * 2 - 1,
        "one far above": torch.where(torch.arange(vocab) == 40, 50.0, normal),
        "far apart": 3e4 * normal,
    }[kind]


def drawn_from(kernels, logits, batch, ctas, temperature, top_k, top_p, steps):
    """Tokens [steps, batch] from a model whose logits are these at every step, and what sampling.draw takes."""
    model = unruly(n_layer=1, vocab_size=len(logits))
    with torch.no_grad():  # the last layernorm outputs a 1 in the first column and nothing of its input
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.zero_()
        model.transformer.ln_f.bias[0] = 1
        model.transformer.wte.weight[:, 0] = logits
    step = step_of(model, kernels, "float32", batch, ctas, sampled=True)
    state = step.state
    state.uniforms.copy_(uniform_numbers(7, batch, len(state.uniforms)))
    state.temperature.fill_(temperature)
    state.top_k.fill_(min(top_k or len(logits), len(logits)))
    state.top_p.fill_(top_p)
    tokens = torch.tensor(run(step, [1] * batch, steps)).T
    assert torch.equal(step.logits.cpu(), logits.expand(batch, -1))
    taken = (state.temperature, state.top_k, state.top_p)
    expected = [draw(step.logits, state.uniforms[1 + i], *taken).tolist() for i in range(steps)]
    return tokens.tolist(), expected


SETTINGS = [  # temperature, top_k, top_p
    (1.0, None, 1.0),
    (0.7, 40, 0.9),
    (1.3, None, 0.5),
    (1.0, 1, 1.0),
    (0.05, None, 1.0),
    (1.0, None, 1e-9),
    (50.0, 200, 0.99),
    (1.0, 3, 0.999),
]


@pytest.mark.parametrize("kind", ["spread", "almost flat", "all the same", "two groups", "one far above", "far apart"])
def test_what_is_drawn_is_what_sampling_draws(kernels, kind):
    """The same numbers give the same tokens as a sort on the host, for every setting; ties go by token number."""
    for number, (temperature, top_k, top_p) in enumerate(SETTINGS):
        batch, ctas, vocab = 1 + number % 2, (3, 12, 1)[number % 3], (530, 97)[number % 2]
        steps = 5 if kind in ("all the same", "two groups") else 8  # every digit has to be examined
        logits = logits_of(kind, vocab)
        found, expected = drawn_from(kernels, logits, batch, ctas, temperature, top_k, top_p, steps)
        assert found == expected, (temperature, top_k, top_p)


@pytest.mark.parametrize("kind", ["spread", "all the same", "two groups", "one far above", "far apart"])
def test_a_token_drawn_by_itself_is_what_sampling_draws(kernels, kind):
    """As after a prefill or a step of separate kernels; `best` has the maxima of parts of any size."""
    ops, device = kernels.gpt2, kernels.device
    for number, (temperature, top_k, top_p) in enumerate(SETTINGS):
        rows, vocab, part = 1 + number % 3, (530, 97)[number % 2], (1, 7, 40)[number % 3]
        logits = torch.stack([logits_of(kind, vocab).roll(row) for row in range(rows)]).to(device)
        parts = torch.nn.functional.pad(logits, (0, -vocab % part), value=-torch.inf).view(rows, -1, part)
        values, places = parts.max(-1)  # the first of equal ones
        best = torch.stack(
            [values, (places + torch.arange(values.size(1), device=device) * part).int().view(values.dtype)], -1
        )
        uniforms = uniform_numbers(7, rows, 12).to(device)
        taken = [torch.tensor([one], dtype=torch.float64, device=device) for one in (temperature, top_p)]
        k = torch.tensor([min(top_k or vocab, vocab)], device=device)
        assert ops.draw_fits(logits)
        for step in range(len(uniforms)):
            steps, tokens = (
                torch.full((rows,), step, dtype=torch.int32, device=device),
                torch.full_like(logits[:, 0], -1).long(),
            )
            ops.draw_token(
                logits, best.view(torch.int64)[..., 0].contiguous(), steps, uniforms, taken[0], k, taken[1], tokens
            )
            assert torch.equal(tokens, draw(logits, uniforms[step], taken[0], k, taken[1])), (number, step)


def test_a_drawn_text_is_that_of_the_other_steps(model, kernels):
    """Seeds, prompts of different lengths, batches and single sequences, up to 4 sequences."""
    one = Engine(model, kernels, max_batch=4, persistent=True)
    other = Engine(model, kernels, max_batch=4, persistent=False)
    for batch, how in ((4, {"top_k": 20}), (1, {"top_p": 0.9}), (2, {})):
        how |= {"temperature": 0.8, "seed": batch, "max_new_tokens": 5}
        assert one.how(batch, sampled=True).startswith("part of one persistent kernel")
        assert one.generate(PROMPTS[:batch], **how).tokens == other.generate(PROMPTS[:batch], **how).tokens


# -------------------------------------------------------------------------------------------------------- its end


def test_each_sequence_stops_at_its_own_end_of_text(model, kernels):
    expected = [written_by(model, prompt, 8) for prompt in PROMPTS[:3]]
    stop = max(expected[0][:6], key=expected[0].index)
    engine = Engine(model, kernels, max_batch=3, persistent=True)
    result = engine.generate(PROMPTS[:3], max_new_tokens=8, stop_token=stop)
    ends = [tokens.index(stop) if stop in tokens else None for tokens in expected]
    assert result.tokens == [tokens[:end] for tokens, end in zip(expected, ends, strict=True)]


def test_the_kernel_ends_where_all_texts_have(model, kernels):
    expected = written_by(model, [9], 30)
    stop = max(expected[:10], key=expected.index)
    step = step_of(model, kernels, "float32", 1, ctas=12)
    step.state.stop.fill_(stop)
    step.advance(torch.tensor([9], device=kernels.device))
    step.start(30)
    made = expected.index(stop) + 1
    assert [step.tokens(1 + i)[0] for i in range(made)] == expected[:made]
    step.cancel()  # waits
    assert step.state.steps.tolist() == [1 + made] and step.state.finished.tolist() == [1]
    assert int((step.arrived >= 0).sum()) == made


def test_it_can_be_cancelled(model, kernels):
    """It stops after the step in progress; later calls continue from there."""
    step = step_of(model, kernels, "float32", 1, ctas=12)
    step.cancelled.fill_(1)
    expected = written_by(model, [9], 6)
    step.advance(torch.tensor([9], device=kernels.device))
    step.start(30)
    assert step.tokens(1) == expected[:1]
    step.cancel()
    assert step.state.steps.tolist() == [2] and step.state.positions.tolist() == [1]
    step.start(5)
    assert [step.tokens(2 + i)[0] for i in range(5)] == expected[1:]


@pytest.mark.parametrize("ending", ["count", "stop token", "cancel"])
def test_a_text_of_several_launches(model, kernels, ending):
    """Three steps per launch: the same text, and launches past its end do nothing."""
    step = step_of(model, kernels, "float32", 1, ctas=12)
    step.launch_steps = 3
    expected = written_by(model, [9], 11)
    stop = max(expected[:8], key=expected.index)
    made = expected.index(stop) + 1 if ending == "stop token" else 11
    step.state.stop.fill_(stop if ending == "stop token" else -1)
    step.advance(torch.tensor([9], device=kernels.device))
    step.start(11)
    if ending == "cancel":
        assert step.tokens(1) == expected[:1]
        step.cancelled.fill_(1)
        step._launch(False)
        step._launch(False)  # the first of these sees the flag and does one step, the second does nothing
        step.cancel()
        ended = int(step.state.steps) - 1
        assert ended < 11 and step.arrived[1 : 1 + ended, 0].tolist() == expected[:ended]
        assert (step.arrived[1 + ended :] < 0).all()
        return
    assert [step.tokens(1 + i)[0] for i in range(made)] == expected[:made]
    step.cancel()
    assert step.state.steps.tolist() == [1 + made] and int((step.arrived >= 0).sum()) == made


def test_an_interruption_ends_the_kernel(model, kernels):
    engine = Engine(model, kernels, persistent=True)

    def interrupt(sequence, token):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate([PROMPTS[0]], max_new_tokens=10, on_token=interrupt)
    assert engine.generate([PROMPTS[0]], max_new_tokens=6).tokens == [written_by(model, PROMPTS[0], 6)]


# ------------------------------------------------------------------------------------------ where it does not fit


def test_it_says_where_it_is_not_used(model, kernels):
    engine = Engine(model, kernels, max_batch=5, persistent=True)
    on_gpu = kernels.device.type == "cuda"
    by_default = on_gpu and torch.cuda.get_device_capability()[0] == 9
    assert Engine(model, kernels).how(1).startswith("part of one persistent kernel") == by_default
    assert "MB more for its copy of the weights" in engine.how(1)
    assert engine.how(4).startswith("part of one persistent kernel of ")
    assert engine.how(2, sampled=True).startswith("part of one persistent kernel of ")
    assert "not one persistent kernel: it does not fit" in engine.how(5)
    assert "persistent" not in Engine(model, kernels, persistent=False).how(1)
    plain = Engine(model, kernels, max_batch=5, persistent=False)
    found = engine.generate([[7]] * 5, max_new_tokens=5).tokens
    assert found == plain.generate([[7]] * 5, max_new_tokens=5).tokens
    odd = unruly(n_head=2, n_embd=48)  # columns that don't form whole groups
    assert Plan.of(weights_of(odd, torch.float16, kernels.device), kernels, 1, 64) is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("no"), "there is no memory for a second copy of the weights"),
        (RuntimeError("too many blocks"), "the GPU does not launch it: too many blocks"),
    ],
)
def test_where_it_cannot_start_the_graph_takes_over_and_says_so(model, kernels, monkeypatch, error, words):
    def refuse(*_):
        raise error

    monkeypatch.setattr("common.kernels.gpt2.engine.PackedWeights.of", refuse)
    engine = Engine(model, kernels, persistent=True)
    assert engine.generate([PROMPTS[0]], max_new_tokens=4).tokens == [written_by(model, PROMPTS[0], 4)]
    assert f"(not one persistent kernel: {words})" in engine.how(1)


def test_the_simulator_of_older_gpus_has_none(backend):
    """In a separate process: a name is loaded once, for one architecture."""
    if backend == "cuda":
        pytest.skip("of the simulator's default target")
    code = (
        "import torch; from common.compiling.load import load; from common.compiling.request import BuildRequest; "
        "old = load(BuildRequest('gpt2', backend='simulator', arch='sm_89')); "
        "print(old.plan_steps(torch.zeros(97, 32), 2, 2, 128, 1, 64))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "(0, 0, 0, 0)", done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": torch.zeros(8, 512, dtype=torch.uint8)}, r"weights has shape .8, 512.; for this .* be .218, 512"),
        ({"workspace": torch.zeros(6, dtype=torch.int64)}, r"workspace has shape \[6\]"),
        ({"cache": torch.zeros(2, 2, 1, 2, 64, 8)}, "cache has shape .* heads head_dim = width"),
        ({"first_flag": 0}, "first_flag is 0; it must be 1 .. "),
        ({"count": 0}, "count is 0"),
        ({"cancel": torch.zeros(1)}, "cancel must be a contiguous int32 tensor in the host's memory"),
        ({"arrived": torch.zeros(3, 1, dtype=torch.int32)}, "arrived has shape .3, 1.; it must hold 64 numbers"),
        ({"uniforms": torch.zeros(64, 1, dtype=torch.float64)}, "uniforms, temperature, top_k and top_p must all be"),
    ],
)
def test_bad_arguments_are_named(model, kernels, change, words):
    step = step_of(model, kernels, "float32", 1)
    arguments = {
        "weights": step.packed.weights,
        "vectors": step.packed.vectors,
        "wte": step.weights.wte,
        "wpe": step.weights.wpe,
        "cache": step.cache,
        "workspace": step.workspace,
        "logits": None,
        "positions": step.state.positions,
        "lengths": step.state.lengths,
        "steps": step.state.steps,
        "finished": step.state.finished,
        "stop": step.state.stop,
        "history": step.state.history,
        "arrived": step.arrived,
        "cancel": step.cancelled,
        "eps": 1e-5,
        "hidden": 128,
        "count": 1,
        "first_flag": 1,
    }
    host = {"arrived", "cancel"}
    moved = {k: x.to(kernels.device) if isinstance(x, torch.Tensor) and k not in host else x for k, x in change.items()}
    with pytest.raises(ValueError, match=words):
        kernels.gpt2.run_steps(**arguments | moved)


def test_packed_weights_hold_every_number_once():
    """Column-parallel; and row-parallel, where 8 slices share 11 tiles, one or two each, stored chunk by chunk."""
    weight = torch.arange(11 * 64, dtype=torch.float32).view(11, 64)
    units = packed(weight).view(torch.float32).view(2, 4, 8, 16)  # [tiles][chunks][rows][64 bytes]
    assert torch.equal(units[1, 2, 1], weight[9, 32:48]) and torch.equal(units[0, 3, 7], weight[7, 48:])
    assert float(units[1, :, 3:].abs().max()) == 0 and float(units.sum()) == float(weight.sum())
    weight = torch.arange(88 * 64, dtype=torch.float32).view(88, 64)
    flat = packed_by_slices(weight).view(torch.float32)
    assert sorted(flat.tolist()) == weight.flatten().tolist()
    second = flat[1 * 8 * 64 :][: 1 * 8 * 64].view(4, 1, 8, 16)  # slices start at tiles 0, 1, 2, 4, 5, 6, 8, 9
    assert torch.equal(second[2, 0, 3], weight[8 + 3, 32:48])
    third = flat[2 * 8 * 64 :][: 2 * 8 * 64].view(4, 2, 8, 16)
    assert torch.equal(third[1, 1, 5], weight[24 + 5, 16:32])


def test_heads_are_packed_together():
    qkv = torch.arange(3 * 6).view(3 * 6, 1)  # 2 heads of 3 rows
    assert by_heads(qkv, 2).flatten().tolist() == [0, 1, 2, 6, 7, 8, 12, 13, 14, 3, 4, 5, 9, 10, 11, 15, 16, 17]
    projection = torch.arange(1.0, 49.0).view(1, 48)  # 2 heads of 24 columns, padded to 32
    filled = padded_heads(projection, 2).view(2, 32)
    assert torch.equal(filled[:, :24], projection.view(2, 24)) and not filled[:, 24:].any()


# ------------------------------------------------------------------------------------------------- the checked build


@pytest.mark.parametrize(("dtype", "batch", "sampled"), [("float16", 1, False), ("float32", 1, True)])
def test_no_race_and_no_stray_access(dtype, batch, sampled):
    """The pipeline's stages, LL lines, a cluster's histograms, and the cache's old and newest tokens.

    One sequence: the checker does not model a fence and an atomic by different warps with a named barrier between them
    (common/simulator/runtime/races.cpp), and a second sequence's LL lines belong to another warp.
    """
    kernels = kernels_for("simulator", checked=True)
    step = step_of(unruly(n_layer=1, vocab_size=40), kernels, dtype, batch, ctas=2, sampled=sampled)
    step.state.begin(torch.full((batch,), 11, dtype=torch.int32), None)
    step.advance(torch.tensor([9, 11][:batch]))
    with nothing_found(kernels.gpt2):
        step.start(3)


# ------------------------------------------------------------------------------------------- programs, and on GPUs


@pytest.mark.parametrize("backend", ["simulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_trace_program_makes_the_same_tokens_every_time(backend):
    program = build_program(ROOT / "common/kernels/gpt2/benchmarks/step_trace.cu", backend).path
    for sampled in ("0", "1"):
        done = subprocess.run([program, "1", "20", sampled], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "the same tokens: right" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("backend", ["simulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_fixed_point_sums_count_whatever_is_added(backend):
    program = build_program(Path(__file__).with_name("fixed_point.cu"), backend).path
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count("right") == 8, done.stdout + done.stderr


@ON_GPU
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_thousand_tokens_ten_times(kernels, dtype):
    """Without drift, hang or leak: the same text every time, and constant memory use."""
    model = unruly(n_layer=4, n_head=12, n_embd=768, n_positions=1024, vocab_size=50257)
    engine = Engine(model, kernels, dtype, persistent=True)
    assert engine.how(1).startswith("part of one persistent kernel")
    texts, used = [], []
    for _ in range(10):
        texts.append(engine.generate([[7, 8, 9]], max_new_tokens=1000).tokens[0])
        used.append(torch.cuda.memory_allocated())
    assert all(text == texts[0] for text in texts) and len(texts[0]) == 1000
    assert used[1:] == used[1:2] * 9
    if dtype == "float32":
        expected = Engine(model, kernels, dtype, persistent=False).generate([[7, 8, 9]], max_new_tokens=100).tokens[0]
        assert texts[0][:100] == expected


@ON_GPU
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "heads", "layers"), [(768, 12, 12), (1024, 16, 3), (1280, 20, 3), (1600, 25, 2)])
def test_logits_at_the_sizes_of_gpt2(kernels, dtype, width, heads, layers):
    """After 40 tokens of its own; the largest does not fit in float32."""
    model = unruly(0.05, n_layer=layers, n_head=heads, n_embd=width, n_positions=1024, vocab_size=50257)
    for batch in (1, 4):
        weights = weights_of(model, getattr(torch, dtype), kernels.device)
        if Plan.of(weights, kernels, batch, 1024) is None:
            assert dtype == "float32" or batch == 4
            continue
        step = step_of(model, kernels, dtype, batch, keep_logits=True, weights=weights)
        assert_no_worse_than_transformers(model, step, dtype, [9, 11, 13, 15][:batch], 40)


def a_thousand_tokens(kernels):
    """The step of a model as wide as GPT-2, running on them."""
    model = unruly(n_layer=4, n_head=12, n_embd=768, n_positions=1024, vocab_size=50257)
    step = step_of(model, kernels, "float16", 1)
    step.advance(torch.tensor([9], device=kernels.device))
    step.start(1000)
    return step


@ON_GPU
def test_cancelling_ends_the_run_within_a_second(kernels):
    step = a_thousand_tokens(kernels)
    step.tokens(5)
    start = time.perf_counter()
    step.cancel()
    assert time.perf_counter() - start < 1.0
    assert 5 <= int(step.state.steps) < 1001


@ON_GPU
def test_a_launch_is_sized_by_the_time_of_its_steps(kernels, monkeypatch):
    """8 steps of 2 ms in total, at the end of the context: 36 of them last 9 ms."""
    monkeypatch.setattr(torch.cuda.Event, "elapsed_time", lambda *_: 2.0)
    step = a_thousand_tokens(kernels)
    step.measure_launch()
    assert step.launch_steps == 36


@ON_GPU
def test_the_host_reads_while_the_kernel_runs(kernels):
    """Another thread sees tokens arrive one by one, long before the last one."""
    step = a_thousand_tokens(kernels)
    seen = []

    def look():
        while not seen or seen[-1] < 1000:
            seen.append(int((step.arrived >= 0).sum()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(30)
    assert not thread.is_alive() and len(set(seen)) > 10
