"""Attention as a PyTorch module that runs on the kernels of this task. Given: nothing here has a gap.

    ops = load(BuildRequest("task2"))                        the student's kernels, compiled
    CustomAttention(hidden_dim=768, num_heads=12, causal=True, ops=ops)(x)

Source: "Attention Is All You Need" (Vaswani et al. 2017), equation 1 and section 3.2.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.reference.layer import AttentionLayer

if TYPE_CHECKING:
    from common.compiling.operators import Operators


class CustomAttention(AttentionLayer):
    """Multi-head self-attention whose core runs on the kernels of this task.

    For inference only: there is no backward kernel.

    Args:
        hidden_dim: width of the input and the output; a multiple of num_heads.
        num_heads: number of heads; head_dim = hidden_dim / num_heads.
        causal: position i attends to positions j <= i only.
        ops: the compiled operators of task 2; the module's weights are created on ops.device.

    Raises:
        ValueError: hidden_dim or num_heads is below 1, or hidden_dim is not a multiple of num_heads.
    """

    def __init__(self, hidden_dim: int, num_heads: int, causal: bool, ops: Operators) -> None:
        super().__init__(hidden_dim, num_heads, causal, ops.device)
        self.ops = ops

    @torch.no_grad()
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Self-attention over x.

        Args:
            x: [batch, seq_len, hidden_dim], float32 on the device of the weights.
            mask: bool (True: attend) or float32 (added to the scaled scores), broadcastable to
                [batch, num_heads, seq_len, seq_len]. Combined with causal, both apply.

        Returns:
            [batch, seq_len, hidden_dim]; no gradient. The kernels give zeros for a position that attends to no key. The
            scores need a workspace of batch * num_heads * seq_len^2 * 4 bytes.

        Raises:
            ValueError: x or mask has an unsupported shape, dtype or device; seq_len is over 65,536.
            NotImplementedError: a kernel has an unfilled gap.
        """
        heads = self.ops.attention(*self.split_heads(x).contiguous(), self.causal, None, mask)
        return self.out_projection(self.merge_heads(heads))
