"""The same attention layer in pure PyTorch, the baseline for customAttention. Given."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from task6.given.attention_layer import CachedAttentionLayer


class TorchAttention(CachedAttentionLayer):
    """scaled_dot_product_attention over a plain cache: two buffers, filled from the left.

    Its arguments are those of CachedAttentionLayer.
    """

    def __init__(self, *sizes: int, device: torch.device | str | None = None) -> None:
        super().__init__(*sizes, device=device)
        shape = (2, self.batch, self.num_kv_heads, self.max_seq_len, self.head_dim)
        self.register_buffer("cached", torch.empty(shape, device=device), persistent=False)  # keys, then values
        self.seq_len = 0

    @torch.no_grad()
    def forward(self, x: Tensor, position: int) -> Tensor:
        """See customAttention.forward."""
        self.check_call(x, position, self.seq_len)
        query, *new = self.project(x)
        self.seq_len = position + x.size(1)
        for buffer, rows in zip(self.cached, new, strict=True):
            buffer[:, :, position : self.seq_len] = rows
        key, value = self.cached[:, :, :, : self.seq_len]
        grouped = self.num_heads != self.num_kv_heads
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=position == 0, enable_gqa=grouped)
        return self.merge(heads)
