"""The parts of task 7's test that run a model, as cases: the grader can only compare outputs.

    text         prefill, then token after token through transformers' modules: the logits of every step
    engine       the lean engine: greedy tokens of two prompts as a batch, and the logits of a long prefill
    perplexity   long prefill in transformers' modules: the log-probability of every held-out token

python -m task7.test compares the same on fixed texts (model.py); here the tokens are windows of the held-out stories
chosen by the inputs' seed, so they are not known in advance.
"""

from __future__ import annotations

import copy
import functools

import torch
from torch import Tensor

from common.testing.case import Case
from task7.given.operators import load_engine_kernels
from task7.tools import models
from task7.tools.writers import attached_writer, lean_writer, reference_writer

PROMPT, STEPS = 9, 40
PROMPTS, NEW_TOKENS = 2, 24
SEQUENCES, LENGTH = 1, 384
CLOSE = 0.02  # logits; where the reference's top two are closer, rounding could decide
FLOOR = 2e-2  # for logits of about 10 after six layers; correct kernels differ by 2e-3


@functools.cache
def storyteller():
    """(tokenizer, model, all held-out tokens), loaded once per process."""
    tokenizer, model = models.load(str(models.STORYTELLER), local=True)
    text = (models.STORYTELLER / "held_out.txt").read_text(encoding="utf-8").split("\n<|endoftext|>\n")
    tokens = [token for story in text for token in (*tokenizer(story).input_ids, tokenizer.eos_token_id)]
    return tokenizer, model, torch.tensor(tokens)


@functools.cache
def _reference():
    return reference_writer(copy.deepcopy(storyteller()[1]), "simulator")


@functools.cache
def _kernels(variant: str, backend: str):
    return load_engine_kernels(variant, backend)


@functools.cache
def _attached(variant: str, backend: str):
    kernels = _kernels(variant, backend)
    return attached_writer(storyteller()[1], (kernels.flash, kernels.decode), variant)


def _lean(ops, prompts: int, length: int):
    kernels = _kernels(ops.variant, ops.backend)
    return lean_writer(storyteller()[1], kernels, "float32", [[0] * length] * prompts, 0)


def _windows(generator: torch.Generator, count: int, length: int) -> Tensor:
    """[count, length] held-out tokens, at positions that the generator chooses."""
    tokens = storyteller()[2]
    first = torch.randint(len(tokens) - length, (count,), generator=generator)
    return torch.stack([tokens[at : at + length] for at in first])


@torch.no_grad()
def _stepwise(writer, tokens: Tensor) -> Tensor:
    """tokens [1, PROMPT + STEPS] -> logits [STEPS + 1, vocab]: a prefill, then one token at a time."""
    cache = writer.new_cache(tokens.size(1) + 1)
    pieces = [tokens[:, :PROMPT], *tokens[:, PROMPT:].split(1, 1)]
    return torch.cat([writer.model(one, past_key_values=cache, use_cache=True).logits[:, -1] for one in pieces])


def _likelihoods(writer, tokens: Tensor) -> Tensor:
    """tokens [count, length] -> log-probability of each token except the first, [count, length - 1]."""
    logits = torch.cat([writer.logits(one[None]) for one in tokens])
    chosen = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, tokens[:, 1:, None])
    return chosen[..., 0]


def _greedy(writer, prompts: Tensor, steps: int) -> Tensor:
    """The new tokens, [prompts, steps], as numbers."""
    tokens = writer.generate(prompts.tolist(), max_new_tokens=steps).tokens
    return torch.tensor([one[-steps:] for one in tokens]).float()


def _clear_prompts(generator: torch.Generator) -> Tensor:
    """Prompts after which the reference's choice of a token is never close."""
    found = []
    for _ in range(50):
        prompt = _windows(generator, 1, PROMPT)
        new = _greedy(_reference(), prompt, NEW_TOKENS).long()
        best = _reference().logits(torch.cat([prompt, new], 1))[0, PROMPT - 1 :].topk(2).values
        if bool((best[:, 0] - best[:, 1] > CLOSE).all()):
            found.append(prompt)
        if len(found) == PROMPTS:
            return torch.cat(found)
    raise RuntimeError("50 prompts, and hardly one after which the reference's choices are clear")


def _counted(writer, part) -> Tensor:
    """The result of part(); an error if not every layer ran in the kernels."""
    writer.attention.reset_calls()
    out = part()
    if not writer.attention.calls["flash_attention"]:
        raise RuntimeError("task 4's flash_attention was not called")
    return out


def graded_cases() -> list[Case]:
    """Cases that only grading runs; they carry the points of model.py's parts."""

    def case(name: str, part: str, inputs, call, reference, points: float, floor: float = FLOOR) -> Case:
        made = {"floor": floor, "points": points, "required": True, "draws": 1}
        axes = ("row", "col")
        return Case(
            name, part, lambda g: {"tokens": inputs(g)}, call, lambda tokens: reference(tokens), axes=axes, **made
        )

    def attached(ops):
        return _attached(ops.variant, ops.backend)

    return [
        case(
            f"a prompt of {PROMPT}, then {STEPS} tokens",
            "text",
            lambda generator: _windows(generator, 1, PROMPT + STEPS),
            lambda ops, tokens: _counted(attached(ops), lambda: _stepwise(attached(ops), tokens)),
            lambda tokens: _stepwise(_reference(), tokens),
            0.2,
        ),
        case(
            f"{PROMPTS} prompts, {NEW_TOKENS} greedy tokens each",
            "engine",
            _clear_prompts,
            lambda ops, tokens: _greedy(_lean(ops, PROMPTS, PROMPT + NEW_TOKENS), tokens, NEW_TOKENS),
            lambda tokens: _greedy(_reference(), tokens, NEW_TOKENS),
            0.2,
            0.5,
        ),
        case(
            f"log-probabilities of {LENGTH} held-out tokens",
            "engine",
            lambda generator: _windows(generator, 1, LENGTH),
            lambda ops, tokens: _likelihoods(_lean(ops, 1, LENGTH), tokens),
            lambda tokens: _likelihoods(_reference(), tokens),
            0.1,
        ),
        case(
            f"log-probabilities of {SEQUENCES} x {LENGTH} held-out tokens",
            "perplexity",
            lambda generator: _windows(generator, SEQUENCES, LENGTH),
            lambda ops, tokens: _counted(attached(ops), lambda: _likelihoods(attached(ops), tokens)),
            lambda tokens: _likelihoods(_reference(), tokens),
            0.2,
        ),
    ]
