"""Samples tokens where the logits are, with random numbers drawn in advance: a seed gives the same on every device.

    uniforms = uniform_numbers(seed, batch, steps)                 on the host, once per text
    tokens = draw(logits, uniforms[step], temperature, top_k, top_p)

Nothing here reads a device value on the host, and temperature, top_k and top_p are tensors: `draw` can be captured in a
CUDA graph and replayed with other values.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Far apart, so that neighboring seeds have no sequence in common (2^64 divided by the golden ratio)
SEQUENCE_STRIDE = 0x9E3779B97F4A7C15


def uniform_numbers(seed: int, batch: int, steps: int) -> Tensor:
    """float64 [steps, batch] in [0, 1), on the CPU. A column depends only on seed and its own index."""
    columns = []
    for sequence in range(batch):
        generator = torch.Generator("cpu").manual_seed((seed + sequence * SEQUENCE_STRIDE) % 2**63)
        columns.append(torch.rand(steps, generator=generator, dtype=torch.float64, device="cpu"))
    return torch.stack(columns, 1)


def draw(logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Samples one token per row from softmax(logits / temperature), truncated: int64 [rows].

    Tokens are sorted by logit, the largest first. top_k keeps the first top_k of them. Of their total weight, top_p
    keeps the first tokens that reach the share top_p, including the one that crosses it (nucleus sampling, Holtzman et
    al. 2020, arXiv:1904.09751). Equal logits are ordered by token id.

    Args:
        logits: float32 [rows, vocab].
        uniform: float64 [rows], in [0, 1): selects the token at this share of the kept tokens' total weight.
        temperature: float64 [1], over 0.
        top_k: int64 [1], 1 .. vocab; vocab keeps all.
        top_p: float64 [1], over 0; 1 keeps all.
    """
    values, tokens = logits.sort(dim=-1, descending=True, stable=True)
    weights = ((values.double() - values[:, :1]) / temperature).exp()
    rank = torch.arange(logits.size(1), device=logits.device)
    weights = torch.where(rank < top_k, weights, 0.0)
    up_to = weights.cumsum(-1)
    kept = torch.where(up_to - weights < top_p * up_to[:, -1:], up_to, 0.0).amax(-1, keepdim=True)
    drawn = torch.searchsorted(up_to, uniform[:, None] * kept, right=True)
    return tokens.gather(1, drawn.clamp(max=logits.size(1) - 1))[:, 0]
