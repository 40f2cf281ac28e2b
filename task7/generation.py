"""The generation loop: prefill, then one token at a time, timed. The same for any attention and cache."""

import time
from dataclasses import dataclass, field

import torch

from task7.request import check_request


@dataclass
class Generation:
    """What `generate` returns.

    tokens: the new token ids, without end-of-text. stopped_by: "max_new_tokens" or "end of text".
    ttft_ms: time to first token, from the prompt's arrival to the first token on the host.
    tbt_ms: times between tokens, one for each token after the first (end-of-text included).
    """

    tokens: list = field(default_factory=list)
    stopped_by: str = "max_new_tokens"
    ttft_ms: float = float("nan")
    tbt_ms: list = field(default_factory=list)

    @property
    def tokens_per_s(self):
        """Tokens produced (end-of-text included) over the time from the prompt to the last of them."""
        return (1 + len(self.tbt_ms)) / (self.ttft_ms + sum(self.tbt_ms)) * 1e3


def sample(logits, temperature, top_k, generator):
    """The next token from logits [vocab], an int.

    temperature: 0 takes the argmax, anything else draws from softmax(logits / temperature).
    top_k: draw only from the k largest (None: from all). generator: a CPU torch.Generator.
    The draw happens on the CPU, so that a seed means the same on every device.
    """
    if temperature == 0:
        return int(logits.argmax())
    logits = logits.cpu().double()
    tokens = None
    if top_k is not None and top_k < logits.numel():
        logits, tokens = logits.topk(top_k)
    # The maximum is subtracted before the division: a tiny temperature then gives -inf, never inf - inf.
    probabilities = torch.softmax((logits - logits.max()) / temperature, dim=-1)
    drawn = int(torch.multinomial(probabilities, 1, generator=generator))
    return drawn if tokens is None else int(tokens[drawn])


@torch.no_grad()
def generate(
    model,
    prompt,
    cache,
    *,
    max_new_tokens,
    temperature=0.0,
    top_k=None,
    seed=0,
    stop_token=None,
    on_token=None,
):
    """Generates up to max_new_tokens tokens after `prompt` and times each.

    model: a causal language model of transformers. prompt: list of token ids. cache: an empty transformers
    Cache. stop_token: generation ends when the model produces it (None: never). on_token: called with each
    new token id, outside the timed sections. Returns a Generation. Raises ValueError as `check_request` does.
    """
    check_request(len(prompt), max_new_tokens, temperature, top_k, model.config.max_position_embeddings)
    generator = torch.Generator().manual_seed(seed)
    result = Generation()
    new = torch.tensor([prompt], device=model.device)
    for step in range(max_new_tokens):
        _synchronize(model.device)
        start = time.perf_counter()
        logits = model(new, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1]
        token = sample(logits, temperature, top_k, generator)
        _synchronize(model.device)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        if step == 0:
            result.ttft_ms = elapsed_ms
        else:
            result.tbt_ms.append(elapsed_ms)
        if token == stop_token:
            result.stopped_by = "end of text"
            break
        result.tokens.append(token)
        if on_token is not None:
            on_token(token)
        new = torch.tensor([[token]], device=model.device)
    return result


def warm_up(model, new_cache):
    """On a GPU one unmeasured prefill and decode: the first call there also loads libraries.

    new_cache: function from max_seq_len to an empty cache.
    """
    if model.device.type == "cuda":
        generate(model, [0] * 8, new_cache(16), max_new_tokens=3)


def _synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)
