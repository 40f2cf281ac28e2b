"""Task 7's lean engine against transformers' own modules; its sampling against probabilities computed here."""

import copy

import pytest
import torch
from small_gpt2 import unruly, written_by
from transformers import GPT2Config, GPT2LMHeadModel

from common.kernels.gpt2.engine import Engine
from common.kernels.gpt2.sampling import draw, uniform_numbers
from task7.given.operators import load_engine_kernels
from task7.tools import models

PROMPTS = [[5, 17, 80, 3, 41], [9, 2], [60, 61, 62, 63, 64, 65, 66, 67, 68]]


@pytest.fixture(scope="module")
def load(backend):
    return lambda variant: load_engine_kernels(variant, backend)


@pytest.fixture(scope="module")
def kernels(load):
    return load("solution")


@pytest.fixture(scope="module")
def tuned(load):
    return load("tuned")


@pytest.fixture(scope="module")
def model():
    return unruly()


# -------------------------------------------------------------------------------------------------------- the text


def test_the_storyteller_writes_what_it_writes_in_transformers(kernels):
    tokenizer, model = models.load(str(models.STORYTELLER), local=True)
    model.set_attn_implementation("sdpa")
    prompts = [tokenizer(text).input_ids for text in ("Once upon a time", "Ben and his dog")]
    expected = [written_by(model, prompt, 12) for prompt in prompts]
    assert Engine(model, kernels, max_batch=2).generate(prompts, max_new_tokens=12).tokens == expected


def test_a_batch_of_different_lengths_and_each_alone(model, kernels):
    expected = [written_by(model, prompt, 20) for prompt in PROMPTS]
    engine = Engine(model, kernels, max_batch=3)
    assert engine.generate(PROMPTS, max_new_tokens=20).tokens == expected
    assert [engine.generate([prompt], max_new_tokens=20).tokens[0] for prompt in PROMPTS] == expected


def test_a_batch_of_single_tokens(model, kernels):
    """The position embedding is one row shared by all of them."""
    prompts = [[7], [9], [2]]
    found = Engine(model, kernels, max_batch=3, graphs=False).generate(prompts, max_new_tokens=3).tokens
    assert found == [written_by(model, prompt, 3) for prompt in prompts]


def test_a_text_leaves_nothing_behind(model, kernels):
    """A longer text sampled and stopped before it changes nothing."""
    engine = Engine(model, kernels, max_batch=3)
    first = engine.generate(PROMPTS, max_new_tokens=6).tokens
    stop = first[0][2]
    engine.generate(PROMPTS[::-1], max_new_tokens=50, temperature=1.0, seed=1, stop_token=stop)
    assert engine.generate(PROMPTS, max_new_tokens=6).tokens == first


def test_up_to_the_end_of_the_context(model, kernels):
    prompt = PROMPTS[0]
    new_tokens = 64 - len(prompt)
    assert Engine(model, kernels).generate([prompt], max_new_tokens=new_tokens).tokens == [
        written_by(model, prompt, new_tokens)
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_fused_step_writes_the_same(model, tuned, dtype):
    """Every position is processed once: a step with an outdated position would read other keys."""
    fused, plain = (Engine(model, tuned, dtype, max_batch=3, graphs=False, fused=fused) for fused in (True, False))
    found, expected = (engine.generate(PROMPTS, max_new_tokens=8).tokens for engine in (fused, plain))
    if dtype == "float32":
        assert found == expected == [written_by(model, prompt, 8) for prompt in PROMPTS]
    assert [tokens[0] for tokens in found] == [tokens[0] for tokens in expected]
    step = fused._steps[3, False]  # both processed the same positions, whatever token rounding chose
    assert step.state.positions.tolist() == [len(prompt) + 7 for prompt in PROMPTS]
    assert step.state.lengths.tolist() == [len(prompt) + 8 for prompt in PROMPTS]


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-5), ("float16", 4e-3), ("bfloat16", 4e-2)])
def test_logits_of_prefill_and_step(model, tuned, dtype, bound):
    """Against float64, relative to the largest logit; transformers' model in that dtype has about the same error."""
    tokens = torch.tensor([PROMPTS[2], PROMPTS[2][::-1]])
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(tokens).logits
    engine = Engine(model, tuned, dtype, graphs=False, fused=True)
    size = float(expected.abs().max())
    assert float((engine.logits(tokens).cpu() - expected).abs().max()) <= bound * size
    engine.generate([PROMPTS[2][:-1]], max_new_tokens=1)
    step = engine._steps[1, False]
    step.advance(tokens[0, -1:].to(engine.device))
    step.state.positions.sub_(1)  # advance() has moved past the token that generate() chose
    step.state.lengths.sub_(1)
    step.residual.copy_(engine.weights.wte[tokens[0, -1]] + engine.weights.wpe[len(PROMPTS[2]) - 1])
    step.run(False)
    assert float((step.logits[0].cpu() - expected[0, -1]).abs().max()) <= bound * size


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["solution", "tuned"])
@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.9, "top_k": 30, "top_p": 0.95, "seed": 5}])
def test_graphs_write_what_single_launches_write(model, variant, sampled):
    kernels = load_engine_kernels(variant, "cuda")
    with_graphs, without = (Engine(model, kernels, max_batch=3, graphs=graphs) for graphs in (True, False))
    found = with_graphs.generate(PROMPTS, max_new_tokens=50, **sampled).tokens
    assert found == without.generate(PROMPTS, max_new_tokens=50, **sampled).tokens
    if not sampled:
        assert found == [written_by(copy.deepcopy(model).cpu(), prompt, 50) for prompt in PROMPTS]


# -------------------------------------------------------------------------------------------------- stopping, streams


def test_each_sequence_stops_at_its_own_end_of_text(model, kernels):
    expected = [written_by(model, prompt, 20) for prompt in PROMPTS]
    stop = max(expected[0], key=expected[0].index)  # the token whose first occurrence is last
    heard = []
    engine = Engine(model, kernels, max_batch=3)
    result = engine.generate(PROMPTS, max_new_tokens=20, stop_token=stop, on_token=lambda *one: heard.append(one))
    ends = [tokens.index(stop) if stop in tokens else None for tokens in expected]
    assert ends[0] > 2
    assert result.tokens == [tokens[:end] for tokens, end in zip(expected, ends, strict=True)]
    assert result.stopped_by == ["max_new_tokens" if end is None else "end of text" for end in ends]
    for sequence, tokens in enumerate(result.tokens):
        assert [token for number, token in heard if number == sequence] == tokens
    assert len(result.tbt_ms) == 19 or None not in ends


def test_it_ends_when_all_have(model, kernels):
    text = written_by(model, PROMPTS[0], 20)
    stop = max(text, key=text.index)
    end = text.index(stop)
    result = Engine(model, kernels).generate([PROMPTS[0]], max_new_tokens=40, stop_token=stop)
    assert result.tokens == [text[:end]] and result.stopped_by == ["end of text"]
    assert len(result.tbt_ms) == end and result.ttft_ms > 0 and result.tokens_per_s > 0


# ----------------------------------------------------------------------------------------------------------- sampling


def probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    """Token by token, straight from the definition."""
    weight = {i: float(x) for i, x in enumerate(torch.softmax(logits.double() / temperature, -1))}
    order = sorted(weight, key=weight.get, reverse=True)[:top_k]
    total, kept, mass = sum(weight[i] for i in order), [], 0.0
    for i in order:
        if top_p is not None and mass >= top_p * total:
            break
        kept.append(i)
        mass += weight[i]
    return torch.tensor([weight[i] / mass if i in kept else 0.0 for i in range(len(logits))], dtype=torch.float64)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 3.0},
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.01},
        {"top_p": 0.6},
        {"top_k": 9, "top_p": 0.8},
        {"temperature": 1.7, "top_k": 20, "top_p": 0.5},
        {"temperature": 1e-6},
    ],
    ids=str,
)
def test_tokens_are_drawn_with_their_probabilities(settings):
    """With numbers spread evenly over 0 .. 1, every token's count matches its probability to within 1."""
    draws = 4000
    logits = 2 * torch.randn(50, generator=torch.Generator().manual_seed(0))
    evenly = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    one = torch.tensor([settings.get("temperature", 1.0)], dtype=torch.float64)
    top_k = torch.tensor([settings.get("top_k", 50)])
    top_p = torch.tensor([settings.get("top_p", 1.0)], dtype=torch.float64)
    tokens = draw(logits.expand(draws, -1), evenly, one, top_k, top_p)
    counts = torch.bincount(tokens, minlength=50)
    assert float((counts - draws * probabilities(logits, **settings)).abs().max()) <= 1


def test_a_seed_draws_the_same_and_another_does_not(model, kernels):
    engine = Engine(model, kernels, max_batch=3)

    def texts(prompts, seed):
        return engine.generate(prompts, max_new_tokens=12, temperature=1.0, seed=seed).tokens

    assert texts(PROMPTS, 7) == texts(PROMPTS, 7) != texts(PROMPTS, 8)
    assert texts(PROMPTS[:1], 7) == texts(PROMPTS, 7)[:1]  # nor does the rest of the batch matter
    alike = texts([PROMPTS[0]] * 3, 7)
    assert len(set(map(tuple, alike))) == 3  # every sequence has its own numbers


def test_uniform_numbers():
    numbers = uniform_numbers(3, 4, 5000)
    assert numbers.shape == (5000, 4) and bool((numbers >= 0).all()) and bool((numbers < 1).all())
    assert abs(float(numbers.mean()) - 0.5) < 0.02
    assert float(torch.corrcoef(numbers.T).fill_diagonal_(0).abs().max()) < 0.06
    assert torch.equal(uniform_numbers(3, 2, 5000), numbers[:, :2])


def test_top_k_of_1_is_greedy(model, kernels):
    engine = Engine(model, kernels, max_batch=3)
    greedy = engine.generate(PROMPTS, max_new_tokens=10).tokens
    assert engine.generate(PROMPTS, max_new_tokens=10, temperature=2.0, top_k=1).tokens == greedy


# ------------------------------------------------------------------------------------------------------ bad arguments


@pytest.mark.parametrize(
    ("prompts", "changes", "words"),
    [
        ([[1] * 60], {}, "together 70; the model's context is 64"),
        ([[1], [1] * 40], {"max_new_tokens": 30}, "the model's context is 64"),
        ([[1] * 35], {}, "prompt 0 has 35 tokens .* at most 40 are allowed, this engine's max_seq_len"),
        ([], {}, "there are 0 prompts"),
        ([[1]] * 4, {}, "there are 4 prompts; allowed: 1 to max_batch, which is 3"),
        ([[1], []], {}, "the prompt has 0 tokens"),
        ([[1, 97]], {}, "prompt 0 holds the token 97; allowed: 0 to 96"),
        ([[1, -1]], {}, "prompt 0 holds the token -1"),
        ([[1]], {"temperature": -1.0}, "temperature is -1"),
        ([[1]], {"top_k": 0}, "top_k is 0"),
        ([[1]], {"top_p": 0.0}, "top_p is 0"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_a_bad_request_is_named(model, kernels, prompts, changes, words):
    engine = Engine(model, kernels, max_batch=3, max_seq_len=40)
    with pytest.raises(ValueError, match=words):
        engine.generate(prompts, **{"max_new_tokens": 10, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "float16"}, "dtype is 'float16'; the solution kernels take 'float32'"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"max_seq_len": 65}, "max_seq_len is 65; allowed: 2 to 64"),
    ],
)
def test_a_bad_engine_is_named(model, kernels, changes, words):
    with pytest.raises(ValueError, match=words):
        Engine(model, kernels, **changes)


def test_models_that_are_no_gpt2_are_refused(kernels):
    other = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9, activation_function="relu"))
    with pytest.raises(ValueError, match="activation_function is 'relu'"):
        Engine(other, kernels)
    with pytest.raises(ValueError, match="variant is 'fast'; allowed: 'student', 'solution', 'tuned'"):
        load_engine_kernels("fast")


def test_logits_of_bad_tokens_are_refused(model, kernels):
    engine = Engine(model, kernels)
    with pytest.raises(ValueError, match="the model's context is 64"):
        engine.logits(torch.zeros(1, 65, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"must be .batch, seq_len."):
        engine.logits(torch.zeros(5, dtype=torch.int64))


def test_an_unfilled_gap_is_reported(model, load):
    with pytest.raises(NotImplementedError, match=r"task7/gpt2_kernels.cu:"):
        Engine(model, load("student")).generate([[1, 2]], max_new_tokens=2)
