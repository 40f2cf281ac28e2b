"""Attention as a PyTorch module that runs on the kernels of this task. Given: nothing here has a gap.

    ops = common.build.load("task2")                        the student's kernels, compiled
    scaled_dot_product_attention(ops, query, key, value, causal=True)
    CustomAttention(hidden_dim=768, num_heads=12, causal=True, ops=ops)(x)

Source: "Attention Is All You Need" (Vaswani et al. 2017), equation 1 and section 3.2.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from common.build import Operators


def scaled_dot_product_attention(
    ops: Operators,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(query @ key^T * scale) @ value for each head, by the kernels of this task.

    Args:
        ops: the compiled operators of task 2.
        query: [batch, heads, S_q, head_dim], float32 on ops.device, contiguous or not.
        key, value: [batch, heads, S_k, head_dim], likewise; S_k <= 65,536.
        causal: query position i attends to key positions j <= i only; needs S_q == S_k.
        scale: what the scores are multiplied by, without unit; 1 / sqrt(head_dim) unless given.

    Returns:
        [batch, heads, S_q, head_dim]. Not differentiable. While it runs, the scores take
        batch * heads * S_q * S_k * 4 bytes.

    Raises:
        ValueError: a shape, dtype or device that the kernels do not take; the message names the argument.
        NotImplementedError: a kernel has an unfilled gap.
    """
    return ops.attention(query.contiguous(), key.contiguous(), value.contiguous(), causal, scale)


class CustomAttention(nn.Module):
    """Multi-head self-attention whose core runs on the kernels of this task.

    For inference only: there is no backward kernel.

    Args:
        hidden_dim: width of the input and the output; a multiple of num_heads.
        num_heads: number of heads; head_dim = hidden_dim / num_heads.
        causal: position i attends to positions j <= i only.
        ops: the compiled operators of task 2; the module's weights are created on ops.device.

    Raises:
        ValueError: hidden_dim or num_heads below 1, or hidden_dim no multiple of num_heads.
    """

    def __init__(self, hidden_dim: int, num_heads: int, causal: bool, ops: Operators) -> None:
        super().__init__()
        if num_heads < 1:
            raise ValueError(f"num_heads is {num_heads}; it must be at least 1")
        if hidden_dim < 1 or hidden_dim % num_heads:
            raise ValueError(f"hidden_dim is {hidden_dim}; it must be a positive multiple of num_heads = {num_heads}")
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.head_dim = hidden_dim // num_heads
        self.causal = causal
        self.ops = ops
        # one product in place of three: the first hidden_dim rows of the weight make the queries, the next
        # the keys, the last the values
        self.qkv_projection = nn.Linear(hidden_dim, 3 * hidden_dim, device=ops.device)
        self.out_projection = nn.Linear(hidden_dim, hidden_dim, device=ops.device)

    @classmethod
    def from_multihead_attention(cls, module: nn.MultiheadAttention, causal: bool, ops: Operators) -> CustomAttention:
        """A CustomAttention with a copy of the module's weights.

        Args:
            module: its batch_first does not matter here: forward() takes [batch, seq_len, hidden_dim] always.
                Its dropout is left out, as the module itself does after eval().
            causal: see the class; torch gives the mask to forward() instead.
            ops: the compiled operators of task 2.

        Raises:
            ValueError: module has kdim, vdim, bias_k/bias_v or add_zero_attn, which CustomAttention lacks.
        """
        if module.in_proj_weight is None:
            raise ValueError(
                f"module has kdim = {module.kdim}, vdim = {module.vdim}; both must equal {module.embed_dim}"
            )
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError("module has add_bias_kv or add_zero_attn; both must be False")
        attention = cls(module.embed_dim, module.num_heads, causal, ops)
        with torch.no_grad():
            for ours, weight, bias in (
                (attention.qkv_projection, module.in_proj_weight, module.in_proj_bias),
                (attention.out_projection, module.out_proj.weight, module.out_proj.bias),
            ):
                ours.weight.copy_(weight)
                if bias is None:
                    ours.bias.zero_()
                else:
                    ours.bias.copy_(bias)
        return attention

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Self-attention over x.

        Args:
            x: [batch, seq_len, hidden_dim], float32 on the device of the weights.

        Returns:
            [batch, seq_len, hidden_dim]; without a gradient.

        Raises:
            ValueError: x has another shape.
            NotImplementedError: a kernel has an unfilled gap.
        """
        if x.dim() != 3 or x.size(2) != self.hidden_dim:
            raise ValueError(
                f"x has shape {list(x.shape)}; it must be [batch, seq_len, hidden_dim = {self.hidden_dim}]"
            )
        batch, seq_len, _ = x.shape
        # [batch, seq_len, 3 * hidden_dim] -> three tensors [batch, num_heads, seq_len, head_dim]
        qkv = self.qkv_projection(x).view(batch, seq_len, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        heads = scaled_dot_product_attention(self.ops, query, key, value, self.causal)
        # the heads of a position side by side again: [batch, seq_len, hidden_dim]
        merged = heads.transpose(1, 2).reshape(batch, seq_len, self.hidden_dim)
        return self.out_projection(merged)
