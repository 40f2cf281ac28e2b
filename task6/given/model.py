"""A dummy language model around an attention layer with a cache: embedding, blocks, head. Given.

    model = DummyLLM(Sizes(...), lambda *sizes: customAttention(*sizes, ops, flash_ops), batch=1, max_seq_len=100)
    generation = generate(model, prompt, new_tokens=20)         greedy; timed token by token

The model is not trained: its weights are random (the same every time), and so are the tokens that it "writes".
But the work and time of a step are those of a real model of these sizes: GPT-2's architecture (Radford et al. 2019;
pre-norm), with grouped-query attention as in Ainslie et al. 2023, arXiv:2305.13245.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from common.reference.layer import Block
from task6.given.attention_layer import CachedAttentionLayer

# (hidden_dim, num_heads, num_kv_heads, batch, max_seq_len) -> the layer
MakeAttention = Callable[[int, int, int, int, int], CachedAttentionLayer]
SEED = 6


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model; hidden_dim is a multiple of num_heads, num_heads one of num_kv_heads."""

    layers: int
    hidden_dim: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, hidden {self.hidden_dim}, {self.num_heads} heads on {self.num_kv_heads}, "
            f"vocabulary {self.vocab_size:,}"
        )


class DummyLLM(nn.Module):
    """A causal language model with random weights.

    Args:
        sizes: see Sizes.
        make_attention: makes the attention layer of a block.
        batch: the number of sequences.
        max_seq_len: the number of tokens of each, prompt and new tokens together.
        device: of the weights.

    Raises:
        ValueError: a size is below 1, or the attention layer does not support the sizes.
    """

    def __init__(
        self,
        sizes: Sizes,
        make_attention: MakeAttention,
        batch: int,
        max_seq_len: int,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("layers", sizes.layers), ("vocab_size", sizes.vocab_size), ("max_seq_len", max_seq_len)):
            if size < 1:
                raise ValueError(f"{name} is {size}; it must be at least 1")
        self.max_seq_len = max_seq_len
        self.token_embedding = nn.Embedding(sizes.vocab_size, sizes.hidden_dim, device=device)
        self.position_embedding = nn.Embedding(max_seq_len, sizes.hidden_dim, device=device)
        self.blocks = nn.ModuleList(
            Block(make_attention(sizes.hidden_dim, sizes.num_heads, sizes.num_kv_heads, batch, max_seq_len), device)
            for _ in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.hidden_dim, device=device)
        self.head = nn.Linear(sizes.hidden_dim, sizes.vocab_size, bias=False, device=device)
        self._randomize()

    def _randomize(self) -> None:
        """Weights that preserve the activations' scale and give attention distinct peaks. The same every time."""
        generator = torch.Generator().manual_seed(SEED)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if "norm" in name:
                    continue
                spread = 1.0 if "embedding" in name else 1.5 * weight.size(-1) ** -0.5 if weight.dim() == 2 else 0.1
                weight.copy_(spread * torch.randn(weight.shape, generator=generator))

    @property
    def device(self) -> torch.device:
        """The device that the tokens must be on."""
        return self.head.weight.device

    @torch.no_grad()
    def forward(self, tokens: Tensor, position: int) -> Tensor:
        """The logits for the next token.

        Args:
            tokens: int64 [batch, new_tokens]; a prompt (position 0), or one token that follows the earlier ones.
            position: the number of tokens passed in before.

        Returns:
            logits [batch, vocab_size] after the last of the tokens.

        Raises:
            ValueError: tokens has the wrong shape, or does not fit; see CachedAttentionLayer.check_call.
        """
        if tokens.dim() != 2 or tokens.size(1) < 1:
            raise ValueError(f"tokens has shape {list(tokens.shape)}; it must be [batch, new_tokens]")
        if not 0 <= position <= self.max_seq_len - tokens.size(1):
            raise ValueError(
                f"position is {position} and there are {tokens.size(1)} tokens; all must be in 0 .. max_seq_len - 1 = "
                f"{self.max_seq_len - 1}"
            )
        positions = torch.arange(position, position + tokens.size(1), device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x, position)
        return self.head(self.norm(x[:, -1]))


@dataclass
class Generation:
    """What `generate` returns.

    Attributes:
        tokens: int64 [batch, new_tokens] on the CPU.
        ttft_ms: time to first token: from the prompt to the first new token on the host.
        tbt_ms: times between tokens, one per token after the first.
    """

    tokens: Tensor
    ttft_ms: float
    tbt_ms: list[float] = field(default_factory=list)


@torch.no_grad()
def generate(model: DummyLLM, prompt: Tensor, new_tokens: int) -> Generation:
    """Greedy generation: the prompt in one call, then one token at a time, each timed on the host.

    Args:
        model: see DummyLLM.
        prompt: int64 [batch, tokens] on model.device.
        new_tokens: the number of tokens to generate, at least 1.

    Raises:
        ValueError: new_tokens is below 1, or they do not fit after the prompt; raised before anything is computed.
    """
    length = prompt.size(-1)
    if new_tokens < 1 or length + new_tokens > model.max_seq_len:
        raise ValueError(
            f"new_tokens is {new_tokens} after a prompt of {length}; it must be 1 .. max_seq_len - {length} = "
            f"{model.max_seq_len - length}"
        )
    found, times, tokens, position = [], [], prompt, 0
    for _ in range(new_tokens):
        _synchronize(model.device)
        start = time.perf_counter()
        newest = model(tokens, position).argmax(-1, keepdim=True)
        found.append(newest.cpu())  # waits for the device
        times.append((time.perf_counter() - start) * 1e3)
        position += tokens.size(1)
        tokens = newest
    return Generation(torch.cat(found, 1), times[0], times[1:])


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
