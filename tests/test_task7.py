"""Task 7: the generation loop, the connection to transformers, the command lines, GPT-2 on the real kernels.

The oracle is transformers' own sdpa attention with DynamicCache. `TorchOps` stands in for the kernels where
only the Python around them is tested, and carries the planted mistakes.
"""

import copy
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig

from task7 import inference, models
from task7 import test as task7_test
from task7.cache import KernelCache
from task7.generation import generate, sample
from task7.kernel_attention import KernelAttention, check_config
from task7.perplexity import held_out_sequences, perplexity
from task7.streaming import TextStream


class TorchOps:
    """The operators of tasks 4 and 6 in plain PyTorch, in float64, as strict about layouts as the kernels."""

    device = torch.device("cpu")
    backend = "simulator"

    def scores(self, query, key, scale):
        scale = query.size(-1) ** -0.5 if scale is None else scale
        return query.double() @ key.double().transpose(-1, -2) * scale

    def flash_attention(self, query, key, value, causal, scale=None):
        assert query.shape == key.shape == value.shape
        assert all(x.is_contiguous() and x.dtype == torch.float32 for x in (query, key, value))
        scores = self.scores(query, key, scale)
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return (scores.softmax(-1) @ value.double()).float()

    def update_cache(self, k_cache, v_cache, key, value, positions):
        assert all(x.is_contiguous() and x.dtype == torch.float32 for x in (key, value))
        for b, at in enumerate(positions.tolist()):
            k_cache[b, :, at : at + key.size(2)] = key[b]
            v_cache[b, :, at : at + key.size(2)] = value[b]

    def decode_attention(self, query, k_cache, v_cache, lengths, scale=None):
        assert query.size(2) == 1 and all(x.is_contiguous() for x in (query, k_cache, v_cache))
        out = []
        for b, n in enumerate(lengths.tolist()):
            weights = self.scores(query[b], k_cache[b, :, :n], scale).softmax(-1)
            out.append((weights @ v_cache[b, :, :n].double()).float())
        return torch.stack(out)


@pytest.fixture(autouse=True)
def torch_settings():
    """No gradients, and one thread: on a busy machine PyTorch's threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def tiny_model(**config):
    """A GPT-2 with random weights, large enough ones for attention to matter. Returns it in eval mode."""
    torch.manual_seed(0)
    sizes = {
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 2,
        "n_positions": 32,
        "vocab_size": 50,
        "initializer_range": 0.3,
    }
    return GPT2LMHeadModel(GPT2Config(**(sizes | {"bos_token_id": 0, "eos_token_id": 0} | config))).eval()


def attached(model):
    """A copy of the model on our attention, TorchOps for kernels. Returns (copy, KernelAttention)."""
    attention = KernelAttention(TorchOps(), TorchOps())
    return attention.attach(copy.deepcopy(model)), attention


def assert_exact(logits, model, ids, begin=0):
    """At most twice as far from float64 as transformers' own float32 logits of ids[:, begin:], plus their rounding."""
    exact = copy.deepcopy(model).double()(ids).logits[:, begin:]
    sdpa = model(ids).logits[:, begin:]
    assert (logits - exact).abs().max() <= 2 * (sdpa - exact).abs().max() + 1e-5


def tokens(batch, length, vocab=50, seed=1):
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


# ---- the generation loop -------------------------------------------------------------------------


class Scripted:
    """A model whose next token is always the last one plus 1, so that the loop's own behaviour shows."""

    config = SimpleNamespace(max_position_embeddings=20)
    device = torch.device("cpu")

    def __init__(self):
        self.seen = []

    def __call__(self, new, past_key_values, **kwargs):
        self.seen.append((new.tolist(), past_key_values))
        return SimpleNamespace(logits=torch.nn.functional.one_hot(new[:, -1:] + 1, 100).float())


def test_loop_prefills_once_then_decodes_one_token_at_a_time():
    model, cache, streamed = Scripted(), object(), []
    result = generate(model, [3, 4, 5], cache, max_new_tokens=4, on_token=streamed.append)
    assert result.tokens == streamed == [6, 7, 8, 9]
    assert model.seen == [([[3, 4, 5]], cache), ([[6]], cache), ([[7]], cache), ([[8]], cache)]
    assert result.stopped_by == "max_new_tokens"
    assert result.ttft_ms > 0 and len(result.tbt_ms) == 3 and result.tokens_per_s > 0


def test_loop_stops_at_the_stop_token_without_returning_it():
    result = generate(Scripted(), [3], None, max_new_tokens=9, stop_token=6)
    assert result.tokens == [4, 5] and result.stopped_by == "end of text" and len(result.tbt_ms) == 2
    first = generate(Scripted(), [5], None, max_new_tokens=9, stop_token=6)
    assert first.tokens == [] and first.tbt_ms == []


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"max_new_tokens": 0}, ["max_new_tokens is 0", "1 or more"]),
        ({"max_new_tokens": 19}, ["2 tokens", "max_new_tokens is 19", "context is 20", "at most 18"]),
        ({"prompt": [1] * 20}, ["20 tokens", "context is 20", "a prompt of at most 19"]),
        ({"prompt": []}, ["0 tokens"]),
        ({"temperature": -0.5}, ["temperature is -0.5", "0 (greedy)"]),
        ({"temperature": float("nan")}, ["temperature is nan"]),
        ({"top_k": 0}, ["top_k is 0", "1 or more"]),
    ],
)
def test_loop_refuses_wrong_requests(wrong, words):
    request = {"prompt": [1, 2], "cache": None, "max_new_tokens": 3} | wrong
    with pytest.raises(ValueError) as error:
        generate(Scripted(), **request)
    assert all(word in str(error.value) for word in words)


def test_loop_fills_the_context_to_the_last_token():
    assert len(generate(Scripted(), [1, 2], None, max_new_tokens=18).tokens) == 18
    model, attention = attached(tiny_model())
    assert len(generate(model, [1, 2], KernelCache(attention, model, 32), max_new_tokens=30).tokens) == 30


def test_greedy_is_deterministic_and_sampling_follows_the_seed():
    model, attention = attached(tiny_model(initializer_range=0.05))

    def run(**how):
        return generate(model, [1, 2, 3], KernelCache(attention, model), max_new_tokens=20, **how).tokens

    assert run() == run(seed=7)
    before = torch.get_rng_state()
    assert run(temperature=1.0, seed=5) == run(temperature=1.0, seed=5) != run(temperature=1.0, seed=6)
    assert torch.equal(before, torch.get_rng_state())  # the loop has a generator of its own
    assert run(temperature=1.0, top_k=1, seed=5) == run()
    assert run(temperature=1e-30, seed=5) == run()


@pytest.mark.parametrize("top_k", [None, 1, 3, 5, 99])
def test_sampling_draws_from_the_truncated_distribution(top_k):
    logits = torch.tensor([0.1, 2.0, -1.0, 1.5, 0.7])
    keep = logits.argsort(descending=True)[:top_k]
    expected = torch.zeros(5).index_put((keep,), torch.softmax(logits[keep] / 0.7, 0))
    generator = torch.Generator().manual_seed(0)
    draws = torch.tensor([sample(logits, 0.7, top_k, generator) for _ in range(4000)])
    found = torch.bincount(draws, minlength=5) / 4000
    assert (found[expected == 0] == 0).all()
    assert (found - expected).abs().max() < 0.03  # over 3 standard deviations


# ---- streaming -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return models.load(str(models.STORYTELLER), local=True)[0]


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time, there was a cat.",
        "na\u00efve caf\u00e9",
        "\u65e5\u672c\u8a9e \u6f22\u5b57\u6f22\u5b57",
        "a \U0001f642\U0001f468\u200d\U0001f469 b",
        "\U0001f642",
        "two  spaces\n\nand lines , x",
        "a\ufffdb",
        "",
    ],
)
def test_stream_shows_only_whole_characters(tokenizer, text):
    pieces, ids = [], tokenizer(text).input_ids
    stream = TextStream(tokenizer, pieces.append)
    for token in ids:
        stream.put(token)
    stream.close()
    assert "".join(pieces) == text
    assert all(pieces) and ("\ufffd" in text or not any("\ufffd" in piece for piece in pieces))


def test_stream_shows_complete_text_at_once_and_a_broken_end_at_close(tokenizer):
    pieces = []
    stream = TextStream(tokenizer, pieces.append)
    ids = tokenizer("ab\U0001f642").input_ids
    assert len(ids) >= 4  # the emoji is several tokens
    for token in ids[:-1]:
        stream.put(token)
    assert pieces and "".join(pieces) == "ab"
    stream.close()
    assert re.fullmatch("ab\ufffd+", "".join(pieces))


# ---- our attention inside transformers -----------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False},
        {"n_embd": 64, "n_head": 1},
    ],
)
def test_prefill_and_decode_match_sdpa(config):
    model = tiny_model(**config)
    ours, attention = attached(model)
    ids = tokens(3, 20)
    assert_exact(ours(ids, use_cache=False).logits, model, ids)
    assert attention.calls == {"flash_attention": 2}

    attention.reset_calls()
    cache = KernelCache(attention, ours)
    parts = [ours(ids[:, :9], past_key_values=cache).logits]
    parts += [ours(ids[:, t : t + 1], past_key_values=cache).logits for t in range(9, 20)]
    assert_exact(torch.cat(parts, 1), model, ids)
    assert attention.calls == {"flash_attention": 2, "update_cache": 24, "decode_attention": 22}
    assert cache.get_seq_length() == 20 and cache.get_max_length() == 32

    cache.reset()
    assert cache.get_seq_length() == 0
    assert_exact(ours(ids, past_key_values=cache).logits, model, ids)


def test_a_prompt_of_one_token_is_a_prefill():
    model = tiny_model()
    ours, attention = attached(model)
    logits = ours(tokens(2, 1), past_key_values=KernelCache(attention, ours)).logits
    assert_exact(logits, model, tokens(2, 1))
    assert attention.calls == {"flash_attention": 2, "update_cache": 2}


def test_transformers_own_cache_decodes_through_our_kernel():
    model = tiny_model()
    ours, attention = attached(model)
    cache, ids = DynamicCache(), tokens(2, 6)
    ours(ids[:, :5], past_key_values=cache)
    logits = ours(ids[:, 5:], past_key_values=cache).logits
    assert_exact(logits, model, ids, begin=5)
    assert attention.calls == {"flash_attention": 2, "decode_attention": 2}


def test_our_cache_serves_transformers_own_attention():
    model, ids = tiny_model(), tokens(2, 6)
    cache = KernelCache(KernelAttention(TorchOps(), TorchOps()), model)
    model(ids[:, :5], past_key_values=cache)
    logits = model(ids[:, 5:], past_key_values=cache).logits
    assert_exact(logits, model, ids, begin=5)


@pytest.mark.parametrize("ours_cache", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_plain_generate_gives_the_same_tokens(ours_cache, batch):
    model = tiny_model(eos_token_id=None)
    ours, attention = attached(model)
    how = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    cache = {"past_key_values": KernelCache(attention, ours)} if ours_cache else {}
    ids = tokens(batch, 5) % 49 + 1
    assert torch.equal(ours.generate(ids, **how, **cache), model.generate(ids, **how))
    assert attention.calls["decode_attention"] == 2 * 11
    assert attention.calls["update_cache"] == (2 * 12 if ours_cache else 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_are_converted_at_the_boundary(dtype):
    model = tiny_model().to(dtype)
    ours, attention = attached(model)
    cache, ids = KernelCache(attention, ours), tokens(1, 8)
    first = ours(ids[:, :7], past_key_values=cache).logits
    second = ours(ids[:, 7:], past_key_values=cache).logits
    assert first.dtype == second.dtype == dtype
    assert cache.layers[0].kv_cache.k.dtype == torch.float32
    expected, found = model(ids).logits.float(), torch.cat([first, second], 1).float()
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_two_attentions_in_one_process_do_not_mix():
    model = tiny_model()
    first, first_attention = attached(model)
    _, second_attention = attached(model)
    first(tokens(1, 4), use_cache=False)
    assert first_attention.calls["flash_attention"] == 2 and not second_attention.calls


# ---- what is refused -----------------------------------------------------------------------------


def test_unsupported_calls_are_refused_by_name():
    ours, attention = attached(tiny_model())
    ids = tokens(2, 6)
    padded = torch.ones(2, 6, dtype=torch.int64)
    padded[0, 0] = 0
    with pytest.raises(ValueError, match="padding mask"):
        ours(ids, attention_mask=padded)
    with pytest.raises(ValueError, match="an attention mask"):
        ours(ids, attention_mask=torch.zeros(2, 1, 6, 6))
    with pytest.raises(ValueError, match="packed"):
        ours(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), use_cache=False)
    for cache in (KernelCache(attention, ours), DynamicCache()):
        ours(ids, past_key_values=cache)
        with pytest.raises(ValueError, match="2 new tokens on a KV cache that holds 6"):
            ours(ids[:, :2], past_key_values=cache)
        assert cache.get_seq_length() == (6 if isinstance(cache, KernelCache) else 8)
    with pytest.raises(ValueError, match="beam search"):
        ours.generate(ids, num_beams=2, past_key_values=KernelCache(attention, ours), max_new_tokens=3)
    with torch.enable_grad(), pytest.raises(ValueError, match="no backward"):
        ours(ids)
    with pytest.raises(ValueError, match=r"dropout=0.1"):
        ours.train()(ids)


def test_a_full_cache_is_refused_and_keeps_its_tokens():
    ours, attention = attached(tiny_model())
    cache, ids = KernelCache(attention, ours, max_seq_len=6), tokens(1, 6)
    ours(ids, past_key_values=cache)
    with pytest.raises(ValueError, match="full"):
        ours(ids[:, :1], past_key_values=cache)
    assert cache.get_seq_length() == 6


@pytest.mark.parametrize(
    "config, words",
    [
        (GPT2Config(n_embd=1024, n_head=4), ["head_dim is 256", "at most 128"]),
        (GPT2Config(add_cross_attention=True), ["add_cross_attention"]),
        (LlamaConfig(), ["model_type is 'llama'", "'gpt2'"]),
    ],
)
def test_other_models_are_refused(config, words):
    with pytest.raises(ValueError) as error:
        check_config(config)
    assert all(word in str(error.value) for word in words)


# ---- the command lines ---------------------------------------------------------------------------


@pytest.fixture
def no_kernels(monkeypatch):
    """Command lines run on TorchOps. Returns the list of operators; replace its items to plant others."""
    ops = [TorchOps(), TorchOps()]
    for module in (inference, task7_test):
        monkeypatch.setattr(module, "load_kernels", lambda *args: ops)
    monkeypatch.setattr(inference.cli, "say_backend", lambda *args: None)
    monkeypatch.setenv("COLUMNS", "200")
    return ops


def story(text):
    return text[text.index("Once upon") : text.index("\u250c")]


def test_both_command_lines_tell_the_same_story(no_kernels, capsys):
    for options in (
        ["--max-new-tokens", "12"],
        ["--max-new-tokens", "12", "--temperature", "0.8", "--top-k", "40", "--seed", "3"],
    ):
        assert inference.main(options) == 0
        ours = capsys.readouterr().out
        assert inference.main([*options, "--backend", "simulator"], reference=True) == 0
        reference = capsys.readouterr().out
        assert story(ours) == story(reference)
        for words in (
            "TTFT",
            "TBT",
            "tokens/s",
            "flash_attention: 6 ",
            "update_cache: 72",
            "decode_attention: 66",
        ):
            assert words in ours
        assert "sdpa" in reference and "flash_attention" not in reference


def test_an_empty_prompt_starts_a_text(no_kernels, capsys):
    assert inference.main(["--prompt", "", "--max-new-tokens", "4"]) == 0
    assert "Once upon a time" in capsys.readouterr().out


@pytest.mark.parametrize("main", [inference.main, task7_test.main])
def test_an_unfilled_gap_is_a_message_and_no_traceback(no_kernels, capsys, main):
    def gap(*args, **kwargs):
        raise NotImplementedError("flash_attention is not implemented yet: task4/flash_attention.cu:57 in tile")

    no_kernels[0].flash_attention = gap
    assert main([]) == 1
    out = capsys.readouterr().out
    assert "task4/flash_attention.cu:57" in out and "--solution" in out and "Traceback" not in out


@pytest.mark.parametrize(
    "options, words",
    [
        (["--temperature", "-1"], ["temperature is -1", "allowed"]),
        (["--top-k", "0"], ["top_k is 0", "allowed"]),
        (["--max-new-tokens", "0"], ["max_new_tokens is 0", "allowed"]),
        (["--max-new-tokens", "1021"], ["max_new_tokens is 1021", "context is 1024", "at most 1020"]),
        (["--model", "./nowhere"], ["'./nowhere'", "no such folder", "allowed"]),
        (["--model", "tests"], ["'tests'", "config.json"]),
    ],
)
def test_wrong_arguments_are_named(no_kernels, capsys, monkeypatch, root, options, words):
    monkeypatch.chdir(root)
    assert inference.main(options) == 2
    out = capsys.readouterr().out
    assert all(word in out for word in words), out


def test_a_model_that_is_too_wide_is_refused_before_its_weights_are_read(tmp_path, no_kernels, capsys):
    GPT2Config(n_embd=512, n_head=2).save_pretrained(tmp_path)
    assert inference.main(["--model", str(tmp_path)]) == 2
    assert "head_dim is 256" in capsys.readouterr().out


def test_a_hub_out_of_reach_is_said_so_with_the_choices(tmp_path, root):
    """A closed port stands for the hub; in a process of its own, as the address is read at import."""
    environment = os.environ | {
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path),
        "COLUMNS": "500",
    }
    done = subprocess.run(
        [sys.executable, "-m", "task7.inference_ref", "--model", "gpt2"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "cannot be reached" in done.stdout and "storyteller" in done.stdout and "FOLDER" in done.stdout
    assert not done.stderr


def test_a_hub_that_never_answers_is_given_up_on(tmp_path, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *args, **kwargs: time.sleep(5))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args: None)
    monkeypatch.setattr(models, "HUB_SECONDS", 0.05)
    with pytest.raises(ConnectionError, match="no answer"):
        models.find("gpt2")


# ---- the task's own test -------------------------------------------------------------------------


def test_the_reference_has_the_published_perplexity(tokenizer):
    model = models.load(str(models.STORYTELLER), local=True)[1]
    assert perplexity(model, *held_out_sequences(tokenizer)) == pytest.approx(2.5872, abs=2e-4)


class Bf16Scores(TorchOps):
    def scores(self, query, key, scale):
        return super().scores(query, key, scale).bfloat16().double()


class NoScale(TorchOps):
    def flash_attention(self, query, key, value, causal, scale=None):
        return super().flash_attention(query, key, value, causal, 1.0)


class NoMask(TorchOps):
    def flash_attention(self, query, key, value, causal, scale=None):
        return super().flash_attention(query, key, value, False, scale)


class LastKeyDropped(TorchOps):
    def flash_attention(self, query, key, value, causal, scale=None):
        out = super().flash_attention(query, key, value, causal, scale)
        out[:, :, -1:] = self.decode_attention(
            query[:, :, -1:].contiguous(), key, value, torch.tensor([key.size(2) - 1]), scale
        )
        return out


class NanOutput(TorchOps):
    def flash_attention(self, query, key, value, causal, scale=None):
        return super().flash_attention(query, key, value, causal, scale) * torch.nan


class NewestKeyIgnored(TorchOps):
    def decode_attention(self, query, k_cache, v_cache, lengths, scale=None):
        return super().decode_attention(query, k_cache, v_cache, lengths - 1, scale)


class DecodeWithoutScale(TorchOps):
    def decode_attention(self, query, k_cache, v_cache, lengths, scale=None):
        return super().decode_attention(query, k_cache, v_cache, lengths, 1.0)


class CacheOnePositionOff(TorchOps):
    def update_cache(self, k_cache, v_cache, key, value, positions):
        k_cache.nan_to_num_()
        v_cache.nan_to_num_()
        super().update_cache(k_cache, v_cache, key, value, positions + (key.size(2) == 1))


def text_verdicts(ops):
    """What task7.test says about the greedy text of these operators, on fewer tokens than it takes itself."""
    bench = task7_test.Bench((ops, ops))
    return [bench.text(prompt, new_tokens=10) for prompt in task7_test.PROMPTS]


def perplexity_verdict(ops):
    return task7_test.Bench((ops, ops)).perplexity(count=1, length=256)


def test_right_kernels_pass():
    assert all(verdict.passed for verdict in (*text_verdicts(TorchOps()), perplexity_verdict(TorchOps())))


@pytest.mark.parametrize("broken", [Bf16Scores, NoScale, NoMask, NanOutput])
def test_broken_prefill_fails_the_perplexity(broken):
    assert not perplexity_verdict(broken()).passed


@pytest.mark.parametrize("broken", [LastKeyDropped, NewestKeyIgnored, DecodeWithoutScale, CacheOnePositionOff])
def test_broken_last_row_or_decode_fails_the_text(broken):
    verdicts = text_verdicts(broken())
    assert not all(verdict.passed for verdict in verdicts)
    assert any("differs at" in verdict.ours for verdict in verdicts)


def test_the_test_command_prints_points_and_the_status(no_kernels, capsys, monkeypatch):
    monkeypatch.setattr(task7_test, "SEQUENCES", 2)
    monkeypatch.setattr(task7_test, "LENGTH", 128)
    monkeypatch.setattr(task7_test, "NEW_TOKENS", 10)
    assert task7_test.main([]) == 0
    assert "1 of 1 points" in capsys.readouterr().out
    no_kernels[1] = NewestKeyIgnored()
    assert task7_test.main(["--perplexity"]) == 0
    assert task7_test.main([]) == 1
    assert "0 of 1 points" in capsys.readouterr().out


# ---- the real kernels ----------------------------------------------------------------------------


def test_gpt2_on_the_solution_kernels(solution):
    bench = task7_test.Bench((solution("task4"), solution("task6")))
    for prompt in task7_test.PROMPTS:
        verdict = bench.text(prompt, new_tokens=24)
        assert verdict.passed, verdict
    verdict = bench.perplexity(count=2, length=200)
    assert verdict.passed, verdict


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gpt2_on_the_solution_kernels(solution, dtype):
    """Prefill and one decode of a half-precision model on our kernels against the float32 model on sdpa."""
    attention = KernelAttention(solution("task4"), solution("task6"))
    tokenizer, model = models.load(str(models.STORYTELLER), local=True)
    ours = attention.attach(copy.deepcopy(model).to(dtype))
    ids = held_out_sequences(tokenizer, 1, 65)[0].to(attention.device)
    cache = KernelCache(attention, ours, 65)
    parts = [ours(ids[:, :64], past_key_values=cache).logits, ours(ids[:, 64:], past_key_values=cache).logits]
    found, expected = torch.cat(parts, 1), model.to(ids.device)(ids).logits
    divergence = torch.nn.functional.kl_div(
        found.float().log_softmax(-1), expected.log_softmax(-1), log_target=True, reduction="none"
    ).sum(-1)
    assert divergence.mean() < 0.02
    assert divergence[0, -1] < 0.1
