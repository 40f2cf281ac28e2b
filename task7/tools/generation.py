"""The generation loop: prefill, then one token at a time, timed. The same for any attention and cache."""

from __future__ import annotations

import time

import torch

from common.kernels.gpt2.generations import Generations
from common.kernels.gpt2.request import check_request
from common.kernels.gpt2.sampling import draw, uniform_numbers


@torch.no_grad()
def generate(
    model,
    prompts,
    cache,
    *,
    max_new_tokens,
    temperature=0.0,
    top_k=None,
    top_p=None,
    seed=0,
    stop_token=None,
    on_token=None,
):
    """Generates up to max_new_tokens tokens after every prompt and times each step.

    Args:
        model: a causal language model of transformers.
        prompts: list of lists of token ids. Prompts of different lengths are padded on the left.
        cache: an empty transformers Cache.
        temperature, top_k, top_p, seed: as Engine.generate's, and with the same draws.
        stop_token: a sequence ends when the model produces it (None: never); the loop ends with the last sequence.
        on_token: called as on_token(sequence, token) with each new token, outside the timed sections.

    Returns:
        Generations.

    Raises:
        ValueError: there is no prompt, or see `check_request`.
    """
    if not prompts:
        raise ValueError("prompts is []; allowed: one prompt or more")
    for prompt in prompts:
        context = model.config.max_position_embeddings
        check_request(len(prompt), max_new_tokens, temperature, top_k, context, top_p)
    choose = _chooser(len(prompts), max_new_tokens, temperature, top_k, top_p, seed, model.device)
    result = Generations(len(prompts), stop_token, on_token)
    new, where = _padded(prompts, model.device)
    for step in range(max_new_tokens):
        _synchronize(model.device)
        start = time.perf_counter()
        logits = model(new, past_key_values=cache, use_cache=True, logits_to_keep=1, **where).logits[:, -1]
        tokens = choose(logits, step).tolist()
        _synchronize(model.device)
        if not result.add_step(tokens, (time.perf_counter() - start) * 1e3):
            break
        new, where = torch.tensor(tokens, device=model.device)[:, None], _next(where)
    return result


def _chooser(batch, steps, temperature, top_k, top_p, seed, device):
    """Returns a function from logits [batch, vocab] and the step's number to tokens, int64 [batch]."""
    if temperature == 0:
        return lambda logits, step: logits.argmax(-1)
    uniforms = uniform_numbers(seed, batch, steps).to(device)
    warmth, share = (torch.tensor([x], dtype=torch.float64, device=device) for x in (temperature, top_p or 1.0))

    def choose(logits, step):
        most = torch.tensor([min(top_k or logits.size(-1), logits.size(-1))], device=device)
        return draw(logits.float(), uniforms[step], warmth, most, share)

    return choose


def _padded(prompts, device):
    """(token ids [batch, longest], the model's arguments that say where the tokens are: none without padding)."""
    longest = max(map(len, prompts))
    if all(len(prompt) == longest for prompt in prompts):
        return torch.tensor(prompts, device=device), {}
    tokens = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    return tokens, {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}


def _next(where):
    """The same arguments for one more token."""
    if not where:
        return {}
    mask = where["attention_mask"]
    return {
        "attention_mask": torch.cat([mask, torch.ones_like(mask[:, :1])], -1),
        "position_ids": where["position_ids"][:, -1:] + 1,
    }


def _synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)
