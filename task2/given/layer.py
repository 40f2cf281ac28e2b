"""Attention as a PyTorch module that runs on the kernels of this task. Given: nothing here has a gap.

    ops = common.compiling.load.load("task2")                        the student's kernels, compiled
    scaled_dot_product_attention(ops, query, key, value, causal=True)
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


def scaled_dot_product_attention(
    ops: Operators,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """softmax(query @ key^T * scale + mask) @ value for each head, using the kernels of this task.

    Args:
        ops: the compiled operators of task 2.
        query: [batch, heads, S_q, head_dim], float32 on ops.device, contiguous or not.
        key, value: [batch, heads, S_k, head_dim], likewise; S_k <= 65,536.
        causal: query i attends to keys j <= i only, counted from the first key even if S_q != S_k, as in
            F.scaled_dot_product_attention.
        scale: factor applied to the scores; default 1 / sqrt(head_dim).
        mask: bool (True: attend) or float32 (added to the scaled scores), broadcastable to
            [batch, heads, S_q, S_k]. Combined with causal, both apply.

    Returns:
        [batch, heads, S_q, head_dim]; zeros for a query that attends to no key. Not differentiable. The scores need a
        workspace of batch * heads * S_q * S_k * 4 bytes.

    Raises:
        ValueError: an unsupported shape, dtype or device; the message names the argument.
        NotImplementedError: a kernel has an unfilled gap.
    """
    return ops.attention(query.contiguous(), key.contiguous(), value.contiguous(), causal, scale, mask)


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
            mask: see scaled_dot_product_attention; broadcasts to [batch, num_heads, seq_len, seq_len].

        Returns:
            [batch, seq_len, hidden_dim]; no gradient.

        Raises:
            ValueError: x or mask has another shape.
            NotImplementedError: a kernel has an unfilled gap.
        """
        heads = scaled_dot_product_attention(self.ops, *self.split_heads(x), self.causal, mask=mask)
        return self.out_projection(self.merge_heads(heads))
