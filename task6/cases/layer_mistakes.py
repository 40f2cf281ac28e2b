"""Wrong outputs of customAttention: prefill and decode confused, heads, order. See common.diagnosis.mistakes.known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from common.diagnosis.mistakes.attention import known as of_attention
from common.diagnosis.mistakes.known import Mistake, Words
from common.reference import oracle as reference
from task6.cases.mistakes import GROUPS, Attend, block_mistakes

known = Words(__file__, GROUPS=GROUPS)


def layer_mistakes(
    query: Tensor, key: Tensor, value: Tensor, prompts: Sequence[tuple[int, int]], project: Callable[[Tensor], Tensor]
) -> list[Mistake]:
    """Wrong outputs of customAttention.

    Args:
        query: [batch, heads, tokens, head_dim], of several prompts one after another.
        key, value: [batch, kv_heads, tokens, head_dim].
        prompts: (prompt tokens, single tokens after it) of each prompt; `tokens` is the sum of all.
        project: [batch, heads, tokens, head_dim] -> the layer's output.
    """
    heads, kv_heads = query.size(1), key.size(1)
    group = heads // kv_heads
    sizes = [prompt + new for prompt, new in prompts]

    def spread(x: Tensor) -> Tensor:
        return x.repeat_interleave(group, 1)

    def layer(attend: Callable[..., Tensor], key: Tensor = key, value: Tensor = value, spread=spread) -> Tensor:
        """attend(query, key, value, prompt) for each prompt and the tokens that follow it."""
        pieces = zip(*(x.split(sizes, 2) for x in (query, spread(key), spread(value))), prompts, strict=True)
        return project(torch.cat([attend(q, k, v, prompt) for q, k, v, (prompt, _) in pieces], 2))

    def right(q: Tensor, k: Tensor, v: Tensor, prompt: int) -> Tensor:
        return reference.attention(q, k, v, causal=True)

    def not_causal(q: Tensor, k: Tensor, v: Tensor, prompt: int) -> Tensor:
        first = reference.attention(q[:, :, :prompt], k[:, :, :prompt], v[:, :, :prompt])
        return torch.cat((first, right(q, k, v, prompt)[:, :, prompt:]), 2)

    def alone(q: Tensor, k: Tensor, v: Tensor, prompt: int) -> Tensor:
        return torch.cat((right(q, k, v, prompt)[:, :, :prompt], v[:, :, prompt:]), 2)

    def before_it_is_appended(q: Tensor, k: Tensor, v: Tensor, prompt: int) -> Tensor:
        s = reference.scores(q, k, causal=True)
        itself = torch.eye(s.size(-1), dtype=torch.bool, device=s.device)
        itself[:prompt] = False
        return reference.softmax(s.masked_fill(itself, -math.inf)) @ v

    def decoding(attend_to: Attend) -> Tensor:
        """The layer, with attend_to as the attention of the tokens after the prompt."""

        def attend(q: Tensor, k: Tensor, v: Tensor, prompt: int) -> Tensor:
            s = reference.scores(q, k, causal=True)[:, :, prompt:]
            return torch.cat((right(q, k, v, prompt)[:, :, :prompt], attend_to(s, v)), 2)

        return layer(attend)

    found = [
        known("prefill not causal", lambda: layer(not_causal)),
        known("a token attends to itself only", lambda: layer(alone)),
        known("attends before it is appended", lambda: layer(before_it_is_appended)),
        of_attention("K and V swapped", lambda: layer(right, value, key)),
        *block_mistakes(decoding),
    ]
    if 1 < kv_heads < heads:
        is_prompt = torch.cat([torch.tensor([True] * prompt + [False] * new) for prompt, new in prompts])
        interleaved = lambda: torch.where(  # noqa: E731
            is_prompt.to(query.device)[:, None], layer(right, spread=lambda x: x.repeat(1, group, 1, 1)), layer(right)
        )
        found.append(known("K/V heads interleaved", interleaved))
    return found
