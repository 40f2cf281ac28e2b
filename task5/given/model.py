"""A simplified causal Transformer whose attention is strided: embedding, blocks, head. Given.

    ops = common.compiling.load.load("task5")
    model = StridedTransformer(ops, vocab_size=100, max_seq_len=64, hidden_dim=64, num_heads=4, strides=(1, 4))
    logits = model(tokens)                      [batch, seq_len] -> [batch, seq_len, vocab_size]

One block per entry of `strides`: x + attention(norm(x)), then x + mlp(norm(x)), as in GPT-2 (Radford et al. 2019;
pre-norm). A block of stride 1 is dense and mixes neighbors; one of stride s sees only every s-th position, at 1/s of
the work. After a dense block little is lost: each position it reads has already attended to all earlier ones.

The backward pass of the attention uses the fast kernels (common/kernels). If you need no gradient, call the model under
torch.no_grad().
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from common.compiling.operators import Operators
from common.reference.layer import Block
from task5.given.layer import CustomStridedAttention

# Below 1, so that the blocks' contributions matter relative to the embeddings from the start: it trains faster
EMBEDDING_STD = 0.3


class StridedTransformer(nn.Module):
    """A causal language model with random weights on ops.device.

    Args:
        ops: the operators of task 5.
        vocab_size: number of tokens.
        max_seq_len: the number of positions that have an embedding.
        hidden_dim, num_heads: hidden_dim is a multiple of num_heads; head_dim is at most 128.
        strides: the stride of each block, in order; each 1 .. the seq_len of the inputs.

    Raises:
        ValueError: vocab_size or max_seq_len is below 1, strides is empty, or see CustomStridedAttention.
    """

    def __init__(
        self,
        ops: Operators,
        vocab_size: int,
        max_seq_len: int,
        hidden_dim: int,
        num_heads: int,
        strides: Sequence[int],
    ) -> None:
        super().__init__()
        for name, size in (("vocab_size", vocab_size), ("max_seq_len", max_seq_len)):
            if size < 1:
                raise ValueError(f"{name} is {size}; it must be at least 1")
        if not strides:
            raise ValueError("strides is empty; there must be one for each block")
        self.max_seq_len = max_seq_len
        self.token_embedding = nn.Embedding(vocab_size, hidden_dim, device=ops.device)
        self.position_embedding = nn.Embedding(max_seq_len, hidden_dim, device=ops.device)
        for embedding in (self.token_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=EMBEDDING_STD)
        self.blocks = nn.ModuleList(
            Block(CustomStridedAttention(hidden_dim, num_heads, stride, causal=True, ops=ops), ops.device)
            for stride in strides
        )
        self.norm = nn.LayerNorm(hidden_dim, device=ops.device)
        self.head = nn.Linear(hidden_dim, vocab_size, bias=False, device=ops.device)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits for the token that follows each position.

        Args:
            tokens: int64 [batch, seq_len] on ops.device, 0 .. vocab_size - 1; max(strides) <= seq_len <= max_seq_len.

        Returns:
            logits, float32 [batch, seq_len, vocab_size].

        Raises:
            ValueError: tokens has another shape, or a stride is larger than seq_len.
            NotImplementedError: the kernel has an unfilled gap.
        """
        if tokens.dim() != 2 or not 1 <= tokens.size(1) <= self.max_seq_len:
            raise ValueError(
                f"tokens has shape {list(tokens.shape)}; it must be [batch, seq_len] with seq_len 1 .. "
                f"max_seq_len = {self.max_seq_len}"
            )
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
