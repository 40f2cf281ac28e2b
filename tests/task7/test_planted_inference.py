"""Mistakes planted in the Python around task 7's kernels: `python -m task7.test` must detect each.

A mistake replaces a method of the real objects; the kernels are `TorchOps`, so nothing else is wrong.
"""

from __future__ import annotations

import pytest
import torch
from torch_operators import TorchOps, tiny_model, torch_kernels

from common.kernels.decode.cache import KVCache
from common.kernels.gpt2 import decode_step, engine
from common.kernels.gpt2 import forward as gpt2_forward
from common.kernels.gpt2.decode_step import DecodeState, TorchStep
from common.kernels.gpt2.engine import Engine
from common.kernels.gpt2.prefill import PromptBuffer
from task7.cases import model as task7_model
from task7.front_door.cache import KernelCacheLayer
from task7.front_door.kernel_attention import KernelAttention
from task7.tools import models

NEW_TOKENS = 10

pytestmark = pytest.mark.usefixtures("one_thread_without_gradients")


def in_place_of(owner, name: str):
    """Makes a mistake, planted by mistake(monkeypatch), from the function called in place of a method; its first
    argument is the original method."""

    def made(wrong):
        def plant(monkeypatch):
            right = getattr(owner, name)
            monkeypatch.setattr(owner, name, lambda *given, **options: wrong(right, *given, **options))

        plant.__name__ = wrong.__name__
        return plant

    return made


# ---- transformers' modules: attention and cache ----------------------------------------------------


@in_place_of(KVCache, "append")
def one_slot_off(right, self, key, value):
    """From the second token on, every key and value is one slot too far."""
    if self.seq_len > 0:
        self.ops.update_cache(self.k, self.v, key, value, self.lengths + 1)
        self.lengths += key.shape[2]
        self._host_lengths = [length + key.shape[2] for length in self._host_lengths]
    else:
        self.k.zero_()
        self.v.zero_()
        right(self, key, value)


@in_place_of(KVCache, "append")
def length_not_advanced(right, self, key, value):
    """The lengths on the device are not updated: each token overwrites the one before."""
    before = self.lengths.clone()
    right(self, key, value)
    if key.shape[2] == 1:
        self.lengths.copy_(before)


@in_place_of(KernelCacheLayer, "update")
def keys_and_values_exchanged(right, self, key, value, *rest):
    return right(self, value, key, *rest)


@in_place_of(KernelAttention, "forward")
def scale_of_the_wrong_width(right, self, module, query, key, value, mask, scaling=None, **others):
    """1 / head_dim in place of its square root."""
    return right(self, module, query, key, value, mask, scaling=1 / query.size(-1), **others)


@in_place_of(KernelAttention, "_flash")
def prefill_not_causal(right, self, query, key, value, scale, causal=True, **others):
    return right(self, query, key, value, scale, causal=False, **others)


@in_place_of(KernelAttention, "_flash")
def groups_interleaved(right, self, query, key, value, *rest, **others):
    """Query head h uses key head h % kv_heads in place of h // group."""
    group = query.size(1) // key.size(1)
    return right(self, query, key.repeat(1, group, 1, 1), value.repeat(1, group, 1, 1), *rest, **others)


# mistake -> where the first difference must be reported
TEXT = {
    one_slot_off: "a decode step",
    length_not_advanced: "a decode step",
    keys_and_values_exchanged: "a decode step|the prefill's token",
    scale_of_the_wrong_width: "a decode step",
    prefill_not_causal: "the prefill's token",
}


def first_of_each(mistakes: dict) -> list:
    """The mistakes as parameters: the first one that shows in each place runs by default, all others are slow."""
    places = list(mistakes.values())
    return [
        pytest.param(mistake, marks=[pytest.mark.slow] if place in places[:i] else [])
        for i, (mistake, place) in enumerate(mistakes.items())
    ]


def texts():
    bench = task7_model.Bench(torch_kernels())
    return [bench.text(number, NEW_TOKENS) for number in range(len(task7_model.PROMPTS))]


def said(verdicts) -> str:
    return "; ".join(verdict.ours for verdict in verdicts if not verdict.passed)


@pytest.mark.parametrize("mistake", first_of_each(TEXT), ids=lambda mistake: mistake.__name__)
def test_the_text_catches_it(monkeypatch, mistake):
    mistake(monkeypatch)
    words = said(texts())
    assert any(place in words for place in TEXT[mistake].split("|")), words


def test_the_perplexity_catches_a_prefill_that_sees_the_future(monkeypatch):
    prefill_not_causal(monkeypatch)
    assert not task7_model.Bench(torch_kernels()).perplexity("perplexity", count=1, length=64).passed


@pytest.fixture
def grouped_storyteller(monkeypatch):
    """Replaces the storyteller by a Llama with random weights: 4 query heads and 2 KV heads."""
    tokenizer, _ = models.load(str(models.STORYTELLER), local=True)
    model = tiny_model("llama", vocab_size=8192, max_position_embeddings=128)
    monkeypatch.setattr(models, "load", lambda *args, **options: (tokenizer, model))


def test_the_text_of_a_model_with_groups_catches_interleaved_ones(monkeypatch, grouped_storyteller):
    assert all(verdict.passed for verdict in texts())
    groups_interleaved(monkeypatch)
    assert "the prefill's token" in said(texts())


# ---- the lean engine -------------------------------------------------------------------------------


@in_place_of(Engine, "generate")
def first_token_dropped(right, self, prompts, **how):
    return right(self, [prompt[1:] or prompt for prompt in prompts], **how)


@in_place_of(PromptBuffer, "put")
def ends_of_the_longest_prompt(right, self, prompts, *more):
    """The first new token is read at the end of the longest prompt; for shorter ones, after their padding."""
    right(self, prompts, *more)
    batch, longest = len(prompts), max(map(len, prompts))
    ends = self.host[self.state.drawn :][: 2 * batch].view(2, batch)  # positions, lengths
    ends[0], ends[1] = longest - 1, longest


@in_place_of(TorchStep, "advance")
def position_is_stale(right, self, tokens):
    """Every new token is embedded at, and written to, the position of the first one."""
    before = self.state.positions.clone()
    right(self, tokens)
    if int(self.state.steps[0]) > 1:
        self.state.positions.copy_(before)
        torch.add(self.state.positions, 1, out=self.state.lengths)


@in_place_of(gpt2_forward.DecodeAttention, "__call__")
def newest_key_not_seen(right, self, number, qkv):
    self.lengths.sub_(1)
    out = right(self, number, qkv)
    self.lengths.add_(1)
    return out


def fixed(name, value):
    """A sampling setting that is always this number."""

    def choose(right, self, logits, sampled):
        getattr(self, name).fill_(value)
        return right(self, logits, sampled)

    choose.__name__ = f"{name}_ignored"
    return in_place_of(DecodeState, "choose")(choose)


@in_place_of(TorchOps, "flash_attention")
def engine_not_causal(right, self, q, k, v, causal, *rest):
    return right(self, q, k, v, False, *rest)


def last_layernorm_without_the_sum(monkeypatch, where=engine):
    """The last block's output never reaches the residual stream."""
    right = where.blocks

    class Without:
        def __init__(self, gpt2, calls):
            self.gpt2, self.left = gpt2, calls

        def layernorm(self, x, residual, *rest):
            self.left -= 1
            return self.gpt2.layernorm(x, residual if self.left else None, *rest)

        def bias_gelu(self, *given):
            return self.gpt2.bias_gelu(*given)

    def blocks(weights, gpt2, x, attend):
        return right(weights, Without(gpt2, 1 + 2 * len(weights.layers)), x, attend)

    monkeypatch.setattr(where, "blocks", blocks)


def last_layernorm_of_a_step_without_the_sum(monkeypatch):
    last_layernorm_without_the_sum(monkeypatch, decode_step)


ENGINE = {
    first_token_dropped: "greedy",
    ends_of_the_longest_prompt: "greedy",
    position_is_stale: "greedy",
    newest_key_not_seen: "greedy",
    fixed("temperature", 1.0): "drawn",
    fixed("top_k", 8192): "drawn",
    fixed("top_p", 1.0): "drawn",
    engine_not_causal: "greedy",
    last_layernorm_without_the_sum: "perplexity",
    last_layernorm_of_a_step_without_the_sum: "greedy",
}


def engine_verdicts():
    bench = task7_model.Bench(torch_kernels())
    return [*bench.engine_texts(NEW_TOKENS), bench.perplexity("engine", count=1, length=64)]


def test_the_right_engine_passes():
    assert all(verdict.passed for verdict in engine_verdicts())


@pytest.mark.parametrize("mistake", first_of_each(ENGINE), ids=lambda mistake: mistake.__name__)
def test_the_engines_part_catches_it(monkeypatch, mistake):
    """By a text or by the perplexity; sampling mistakes show only in the sampled text."""
    mistake(monkeypatch)
    failed = [verdict for verdict in engine_verdicts() if not verdict.passed]
    kinds = {verdict.name.split()[0] for verdict in failed}
    assert ENGINE[mistake] in kinds, kinds
    assert ENGINE[mistake] != "drawn" or kinds == {"drawn"}
