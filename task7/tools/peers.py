"""The versions timed by `python -m task7.benchmark`: the engine, and transformers in several modes. Needs a GPU.

random_model                                       a GPT-2 of one of SIZES
EnginePeer, transformers_peer, compiled_peer       each a Generate
measure                                            warm-up runs, then measured runs
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, StaticCache

from common.kernels.gpt2.engine import Engine
from task7.given.operators import load_engine_kernels

DRAWN = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
SIZES = {  # n_embd, n_layer, n_head
    "gpt2": (768, 12, 12),
    "gpt2-medium": (1024, 24, 16),
    "gpt2-large": (1280, 36, 20),
    "gpt2-xl": (1600, 48, 25),
}

# generate(prompts, new_tokens) -> (time to first token, times between tokens), milliseconds
Generate = Callable[[list, int], tuple[float, list]]


def random_model(size: str, dtype: torch.dtype) -> GPT2LMHeadModel:
    """A GPT-2 with random weights on the GPU, the same ones in every call. size: a name in SIZES."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        width, layers, heads = SIZES[size]
        return GPT2LMHeadModel(GPT2Config(n_embd=width, n_layer=layers, n_head=heads)).to(dtype).eval()


def weight_bytes(model: GPT2LMHeadModel) -> int:
    """The bytes of the model that a step reads: all matrices, vectors and the head, and one row of the embeddings."""
    return sum(x.numel() * x.element_size() for x in model.parameters()) - model.transformer.wpe.weight.nbytes


@dataclass(frozen=True)
class Measured:
    """One version's times in milliseconds: to the first token, one per run, and between tokens, of the last run."""

    ttft: list
    tbt: list

    @property
    def tbt_median(self) -> float:
        return statistics.median(self.tbt)


def measure(generate: Generate, prompts: list, new_tokens: int, rounds: int) -> Measured:
    """Two warm-up runs, then `rounds` measured ones."""
    for _ in range(2):
        generate(prompts, new_tokens)
    results = [generate(prompts, new_tokens) for _ in range(rounds)]
    return Measured([ttft for ttft, _ in results], results[-1][1])


class EnginePeer:
    """The engine as a Generate. drawn: sampling options. parts: graphs, fused, persistent, see Engine."""

    def __init__(self, model, dtype: str, variant: str, batch: int, max_seq_len: int, drawn=None, **parts) -> None:
        self.drawn = drawn or {}
        self.engine = Engine(model, load_engine_kernels(variant, "cuda"), dtype, batch, max_seq_len, **parts)
        self.batch, self.how_prefill = batch, self.engine.how_prefill

    @property
    def how(self) -> str:
        """A description of how a step runs."""
        return self.engine.how(self.batch, bool(self.drawn))

    def __call__(self, prompts, new_tokens):
        result = self.engine.generate(prompts, max_new_tokens=new_tokens, **self.drawn)
        return result.ttft_ms, result.tbt_ms


def transformers_peer(model, attention: str) -> Generate:
    """transformers' modules with a DynamicCache. attention: "eager" or "sdpa"."""

    @torch.no_grad()
    def generate(prompts, new_tokens):
        model.set_attn_implementation(attention)
        cache = DynamicCache(config=model.config)

        def step(tokens):
            return model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits

        return _timed(step, prompts, new_tokens, lambda number: step)

    return generate


def compiled_peer(model, max_seq_len: int) -> Generate:
    """transformers' modules with a StaticCache; the steps are compiled, CUDA graphs included."""
    model.set_attn_implementation("sdpa")
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    cache = StaticCache(config=model.config, max_cache_len=max_seq_len)

    @torch.no_grad()
    def generate(prompts, new_tokens):
        model.set_attn_implementation("sdpa")
        cache.reset()
        positions = torch.arange(max_seq_len, device=model.device)
        cached = {"past_key_values": cache, "use_cache": True}

        def prefill(tokens):
            return model(tokens, cache_position=positions[: len(prompts[0])], logits_to_keep=1, **cached).logits

        def step(number):
            here = positions[len(prompts[0]) + number - 1 :][:1]
            return lambda tokens: compiled(tokens, cache_position=here, position_ids=here[None], **cached).logits

        return _timed(prefill, prompts, new_tokens, step)

    return generate


def _timed(prefill, prompts: list, new_tokens: int, step) -> tuple[float, list]:
    """Greedy generation. prefill(tokens) and step(number)(tokens) give logits [batch, tokens, vocab]."""
    times = [time.perf_counter()]
    tokens = torch.tensor(prompts, device="cuda")
    for number in range(new_tokens):
        tokens = (step(number) if number else prefill)(tokens)[:, -1:].argmax(-1)
        tokens.tolist()  # synchronizes
        times.append(time.perf_counter())
    between = [1e3 * (after - before) for before, after in itertools.pairwise(times)]
    return between[0], between[1:]
