"""Multi-head self-attention whose core is this task's kernel: FlashSelfAttention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.reference.layer import AttentionLayer

if TYPE_CHECKING:
    from common.compiling.operators import Operators


class FlashSelfAttention(AttentionLayer):
    """The layer that is compared with torch.nn.MultiheadAttention. For inference: forward() makes no gradient.

    Args:
        hidden_dim: width of the input and the output; a multiple of num_heads.
        num_heads: number of heads; head_dim = hidden_dim / num_heads, at most 128.
        causal: position i attends to positions j <= i only.
        ops: the operators of task 4: the student's, the solution's or the tuned ones; the weights are on ops.device.

    Raises:
        ValueError: hidden_dim or num_heads below 1, or hidden_dim no multiple of num_heads.
    """

    def __init__(self, hidden_dim: int, num_heads: int, causal: bool, ops: Operators) -> None:
        super().__init__(hidden_dim, num_heads, causal, ops.device)
        self.ops = ops

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Self-attention over x.

        Args:
            x: [batch, seq_len, hidden_dim], float32 on the device of the weights.

        Returns:
            [batch, seq_len, hidden_dim]; without a gradient.

        Raises:
            ValueError: x has another shape, or the operator does not support head_dim.
            NotImplementedError: the kernel has an unfilled gap.
        """
        self.check_input(x)
        # [batch, seq_len, 3 * hidden_dim] -> [3, batch, num_heads, seq_len, head_dim]
        qkv = self.qkv_projection(x).view(x.size(0), x.size(1), 3, self.num_heads, self.head_dim)
        qkv = qkv.permute(2, 0, 3, 1, 4)
        if self.ops.variant != "tuned":  # the tuned kernels read the heads where they lie
            qkv = qkv.contiguous()
        query, key, value = qkv.unbind(0)
        return self.out_projection(self.merge_heads(self.ops.flash_attention(query, key, value, self.causal)))
