"""Test cases for customAttention and the model around it: every output compared with full attention, no cache."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from common.compiling.operators import Operators
from common.diagnosis.mistakes.known import Mistake, Words
from common.reference import oracle as reference
from common.testing.case import Call, Case, Python
from common.testing.python_side import naming_the_line, python_side
from task6.cases.layer_mistakes import layer_mistakes
from task6.given.attention_layer import CachedAttentionLayer
from task6.given.model import DummyLLM, Sizes
from task6.given.operators import load_beside

SHARPNESS = 1.5  # the scaled scores have a standard deviation of about its square
FLOOR = 1.35e-5 * SHARPNESS**2  # the rounding of the scores, propagated through two GEMMs
HEAD_DIM = 16
SPARE = 3  # slots of the cache that stay empty
ONE = torch.ones(3)  # nothing is multiplied
OTHER_INPUTS = (
    "A kernel was called with inputs that are not this step's. flash_attention and decode_attention take the queries "
    "of the new tokens and the keys of all tokens so far, which decode_attention's lengths count; update_cache takes "
    "the new tokens' values."
)
BUILT_ON = "If it calls task 4's flash_attention, that kernel is not checked here."
known = Words(__file__)


def pipeline_cases() -> list[Case]:
    """The layer alone, with prompts and single tokens; then the model."""
    return [
        layer_case("a prompt of 21", [(21, 0)], points=0.2, required=True),
        layer_case("a prompt of 9, then 12", [(9, 12)], points=0.3, required=True),
        layer_case("a layer of 6 heads on 2", [(10, 7)], heads=6, kv_heads=2, points=0.2),
        layer_case("a prompt of 1, then 9", [(1, 9)], heads=4, kv_heads=1, points=0.1),
        layer_case("three prompts in turn", [(12, 3), (5, 4), (1, 3)], points=0.1),
        layer_case("each phase by its kernels: 9 tokens, then 12", [(9, 12)], changed=True, required=True),
        model_case("model: logits of 14 steps", points=0.1),
        layer_case("a prompt of 1,024, then 100", [(1024, 100)], 2, 12, 4, 64, gpu_only=True, draws=1),
    ]


def multiplied(ops: Operators, factors: Tensor, heads: tuple[Tensor, ...]) -> Operators:
    """The operators with inputs of token i multiplied by `factors` [3, tokens, head_dim], unless these are ONE: its
    query by factors[0, i] in flash_attention and by factors[1, i] in decode_attention; its value by factors[2, i] in
    update_cache (not with a whole prompt, since prefill may read that from the cache).

    Attention takes only the layer's own queries, with its keys up to the last query's: what a kernel answers about
    other inputs would reveal the factors.

    Args:
        heads: the layer's queries, keys and values, each [batch, heads, tokens, head_dim].
    """
    if factors is ONE:
        return ops
    made = copy.copy(ops)
    caches = ("k_cache", "v_cache")
    for name, index, names in (
        ("flash_attention", 0, ("query", "key", "value", "causal", "scale")),
        ("decode_attention", 1, ("query", *caches, "lengths", "scale")),
        ("decode_attention_split", 1, ("query", *caches, "lengths", "splits", "scale")),
        ("update_cache", 2, (*caches, "key", "value", "positions")),
    ):
        if name in vars(ops):
            setattr(made, name, _Times(getattr(ops, name), names, factors[index], heads))
    return made


class _Times:
    """kernel(...) with its queries, or the value of a single token to cache, times factors; see multiplied.

    Args:
        names: the arguments' names, in order.
    """

    def __init__(self, kernel: Callable, names: tuple[str, ...], factors: Tensor, heads: tuple[Tensor, ...]):
        self.kernel, self.names, self.factors = kernel, names, factors
        self.query, self.key, self.value = heads

    def __call__(self, *given, **named) -> object:
        named |= zip(self.names, given, strict=False)
        what, rows = ("query", self.query) if "query" in self.names else ("value", self.value)
        tokens = named[what].size(-2)
        if what == "value" and tokens > 1:
            return self.kernel(**named)
        starts = range(self.query.size(2) - tokens + 1)
        start = next((i for i in starts if _same(named[what], rows[:, :, i : i + tokens])), None)
        if start is None or (what == "query" and not self._has_keys(start + tokens, **named)):
            raise RuntimeError(OTHER_INPUTS)
        return self.kernel(**{**named, what: named[what] * self.factors[start : start + tokens]})

    def _has_keys(self, count: int, lengths: Tensor | None = None, **named: Tensor) -> bool:
        """Whether the first `count` keys are the layer's, and all lengths are `count`."""
        if lengths is None:
            return _same(named["key"], self.key[:, :, :count])
        return bool((lengths == count).all()) and _same(named["k_cache"][..., :count, :], self.key[:, :, :count])


def _same(x: Tensor, own: Tensor) -> bool:
    """Whether x has the layer's own numbers, in any shape; they may be scaled."""
    own = own.flatten().double()
    return x.numel() == own.numel() and bool(F.cosine_similarity(x.flatten().double(), own, 0) > 1 - 1e-6)


def layer_case(
    name: str,
    prompts: list[tuple[int, int]],
    batch: int = 2,
    heads: int = 2,
    kv_heads: int = 2,
    head_dim: int = HEAD_DIM,
    changed: bool = False,
    **options,
) -> Case:
    """A case for customAttention.

    Args:
        name: see common.testing.case.Case, which also takes `options`.
        prompts: (prompt tokens, single tokens after it); each prompt starts with the cache that the previous one left.
        batch, heads, kv_heads, head_dim: of the layer.
        changed: change each kernel's inputs in a different way (see multiplied), so that the output shows which kernel
            computed it; for as many K/V heads as heads.
    """
    hidden_dim = heads * head_dim
    sizes = [prompt + new for prompt, new in prompts]
    layer_sizes = (hidden_dim, heads, kv_heads, batch, sum(sizes) + SPARE)
    projected = hidden_dim + 2 * kv_heads * head_dim

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        normal = partial(torch.randn, generator=generator)
        return {
            "x": normal(batch, sum(sizes), hidden_dim),
            "in_weight": SHARPNESS * hidden_dim**-0.5 * normal(projected, hidden_dim),
            "in_bias": normal(projected) + 1,
            "out_weight": hidden_dim**-0.5 * normal(hidden_dim, hidden_dim),
            "out_bias": normal(hidden_dim),
            **({"factors": 0.5 + torch.rand(3, sum(sizes), head_dim, generator=generator)} if changed else {}),
        }

    def call(
        ops, x: Tensor, in_weight: Tensor, in_bias: Tensor, out_weight: Tensor, out_bias: Tensor, factors: Tensor = ONE
    ) -> Tensor:
        python = python_side(ops)
        own = heads_of(x, in_weight, in_bias)
        both = (multiplied(one, factors, own) for one in (ops, load_beside(ops, "task4")))
        layer = python.customAttention(*layer_sizes, *both)
        for linear, weight, bias in (
            (layer.qkv_projection, in_weight, in_bias),
            (layer.out_projection, out_weight, out_bias),
        ):
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        outs = []
        with naming_the_line(python):
            for rows, (prompt, new) in zip(x.split(sizes, 1), prompts, strict=True):
                for position, tokens in _steps(rows, prompt, new):
                    outs.append(_checked_shape(layer(tokens, position), tokens))
        return torch.cat(outs, 1)

    def heads_of(x: Tensor, in_weight: Tensor, in_bias: Tensor) -> tuple[Tensor, ...]:
        split = F.linear(x, in_weight, in_bias).view(batch, -1, heads + 2 * kv_heads, head_dim).transpose(1, 2)
        return split.split((heads, kv_heads, kv_heads), 1)

    def expected(of_query: Tensor | int, of_value: Tensor | int, x: Tensor, in_weight, in_bias, out_weight, out_bias):
        """The output; of_query, of_value: factors of queries and values."""
        outs, (queries, keys, values) = [], heads_of(x, in_weight, in_bias)
        whole = (queries * of_query, keys, values * of_value)
        for query, *both in zip(*(one.split(sizes, 2) for one in whole), strict=True):
            key, value = (one.repeat_interleave(heads // kv_heads, 1) for one in both)
            outs.append(reference.attention(query, key, value, causal=True))
        return F.linear(torch.cat(outs, 2).transpose(1, 2).reshape(x.shape), out_weight, out_bias)

    def phases(prompt: Tensor, later: Tensor) -> Tensor:
        """Factors [tokens, head_dim]: those of `prompt` for the tokens of prompts, of `later` for single ones."""
        in_prompt = torch.cat([torch.arange(size + new) < size for size, new in prompts])
        return torch.where(in_prompt[:, None].to(prompt.device), prompt, later)

    def right(factors: Tensor = ONE, **given: Tensor) -> Tensor:
        if factors is ONE:
            return expected(1, 1, **given)
        prefill, decode, written = factors
        return expected(phases(prefill, decode), phases(torch.ones_like(written), written), **given)

    def mistakes(factors: Tensor = ONE, **given: Tensor) -> list[Mistake]:
        def project(out: Tensor) -> Tensor:
            return F.linear(out.transpose(1, 2).reshape(given["x"].shape), given["out_weight"], given["out_bias"])

        if factors is ONE:
            return layer_mistakes(*heads_of(*_of_layer(given)), prompts, project)
        prefill, decode, written = factors
        return [
            known("decodes by flash_attention", partial(expected, prefill, 1, **given)),
            known("prefill by decode_attention", partial(expected, decode, written, **given)),
            known("attends to a copy", partial(expected, phases(prefill, decode), 1, **given)),
            known("kernels ignored", partial(expected, 1, 1, **given)),
        ]

    def of_forward(given: Call) -> dict[str, Tensor]:
        """What the layer's call for these tokens must return, and its queries, keys and values."""
        start, at, tokens = _calls(prompts)[given.number - 1]
        query, key, value = (one[:, :, start + at : start + at + tokens] for one in heads_of(*_of_layer(given.inputs)))
        keys, values = (one.repeat_interleave(heads // kv_heads, 1) for one in (key, value))
        out = right(**given.inputs)[:, start + at : start + at + tokens]
        return {"returned": out, "query": query, "key": key, "value": value, "keys": keys, "values": values}

    def built_on(given: Call) -> str:
        _, at, _ = _calls(prompts)[given.number - 1]
        return "" if changed or at else BUILT_ON  # decoding does not call it

    return Case(
        name,
        "pipeline",
        inputs,
        call,
        right,
        floor=FLOOR,
        python=Python("attention", {"forward": of_forward}, built_on),
        axes=("batch", "token", "channel"),
        mistakes=mistakes,
        **options,
    )


def _steps(x: Tensor, prompt: int, new: int) -> list[tuple[int, Tensor]]:
    """(position, input tokens) of each step: the prompt, then one token at a time; tokens are dimension 1 of x."""
    return [(0, x[:, :prompt]), *((at, x[:, at : at + 1]) for at in range(prompt, prompt + new))]


def _calls(prompts: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(start of the prompt among all tokens, position, number of tokens) of each call of the layer."""
    found, start = [], 0
    for prompt, new in prompts:
        found += [(start, 0, prompt), *((start, at, 1) for at in range(prompt, prompt + new))]
        start += prompt + new
    return found


def _of_layer(inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return inputs["x"], inputs["in_weight"], inputs["in_bias"]


def _checked_shape(out: Tensor, x: Tensor) -> Tensor:
    if not isinstance(out, Tensor) or out.shape != x.shape:
        got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise RuntimeError(f"customAttention.forward gave {got} for x {list(x.shape)}; both must have the same shape")
    return out


class _FullAttention(CachedAttentionLayer):
    """Without a cache, in the precision of the weights: every call is given all tokens from the first on."""

    def forward(self, x: Tensor, position: int) -> Tensor:
        self.check_call(x, position, 0)
        query, key, value = self.project(x)
        key, value = (rows.repeat_interleave(self.num_heads // self.num_kv_heads, 1) for rows in (key, value))
        return self.merge(reference.attention(query, key, value, causal=True))


def model_case(name: str, **options) -> Case:
    """The logits of a model after a prompt of 8 tokens and after 13 more, passed one at a time."""
    sizes, batch, prompt, new = Sizes(2, 32, 4, 2, 40), 2, 8, 13

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        return {
            "embedding": torch.randn(sizes.vocab_size, sizes.hidden_dim, generator=generator),
            "tokens": torch.randint(sizes.vocab_size, (batch, prompt + new), generator=generator),
        }

    def model(make_attention, embedding: Tensor) -> DummyLLM:
        made = DummyLLM(sizes, make_attention, batch, prompt + new, embedding.device).to(embedding.dtype)
        made.token_embedding.weight.copy_(embedding)
        return made

    def call(ops, embedding: Tensor, tokens: Tensor) -> Tensor:
        python = python_side(ops)
        flash_ops = load_beside(ops, "task4")
        made = model(lambda *given: python.customAttention(*given, ops, flash_ops), embedding)
        with naming_the_line(python):
            return torch.stack([made(given, position) for position, given in _steps(tokens, prompt, new)], 1)

    def right(embedding: Tensor, tokens: Tensor) -> Tensor:
        made = model(lambda *given: _FullAttention(*given, embedding.device), embedding)
        return torch.stack([made(tokens[:, : prompt + i], 0) for i in range(new + 1)], 1)

    return Case(
        name,
        "pipeline",
        inputs,
        call,
        right,
        floor=2 * sizes.layers * FLOOR,  # attention and MLP of each layer
        python=Python("attention", {"forward": lambda call: None}),  # the layer's own cases check this
        axes=("batch", "step", "token"),
        **options,
    )
