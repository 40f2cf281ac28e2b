"""A layer whose attention is strided: CustomStridedAttention. Given.

ops = load(BuildRequest("task5"))                                   the student's kernels, compiled
CustomStridedAttention(hidden_dim=64, num_heads=4, stride=4, causal=True, ops=ops)(x)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from common.compiling.operators import Operators
from common.kernels.attention import attention
from common.reference.layer import AttentionLayer


class CustomStridedAttention(AttentionLayer):
    """Multi-head self-attention that attends to every stride-th position, using this task's kernel.

    The output always comes from the kernel in `ops`. The gradient comes from the fast kernels (common/kernels), run on
    a strided view of key and value. The backward pass recomputes the forward, since it needs the logsumexp of every
    row, which strided_attention does not return.

    Args:
        hidden_dim: width of the input and the output; a multiple of num_heads.
        num_heads: number of heads; head_dim = hidden_dim / num_heads, at most 128.
        stride: query i sees the keys offset, offset + stride, ...; at most the seq_len of the inputs.
        causal: query i sees only those of these keys with j <= i.
        ops: the operators of task 5; the module's weights are created on ops.device.
        offset: 0 .. stride - 1.

    Raises:
        ValueError: hidden_dim, num_heads or stride is below 1, hidden_dim is not a multiple of num_heads, or offset is
            out of range.
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        stride: int,
        causal: bool,
        ops: Operators,
        offset: int = 0,
    ) -> None:
        super().__init__(hidden_dim, num_heads, causal, ops.device)
        if stride < 1:
            raise ValueError(f"stride is {stride}; it must be at least 1")
        if not 0 <= offset < stride:
            raise ValueError(f"offset is {offset}; it must be 0 .. stride - 1 = {stride - 1}")
        self.stride = stride
        self.offset = offset
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention over x.

        Args:
            x: [batch, seq_len, hidden_dim], float32 on the device of the weights; seq_len >= stride.

        Returns:
            [batch, seq_len, hidden_dim]. For inference, call it under torch.no_grad() to save memory.

        Raises:
            ValueError: x has another shape, or the operator does not support it.
            NotImplementedError: the kernel has an unfilled gap.
        """
        qkv = self.split_heads(x).contiguous()
        heads = _StridedAttention.apply(*qkv, self.stride, self.offset, self.causal, self.ops)
        return self.out_projection(self.merge_heads(heads))


class _StridedAttention(torch.autograd.Function):
    """Forward: this task's kernel; backward: the fast ones. query, key, value [batch, heads, seq_len, head_dim]."""

    @staticmethod
    def forward(ctx, query, key, value, stride, offset, causal, ops) -> Tensor:
        ctx.save_for_backward(query, key, value)
        # the simulator's tensor cores are slow
        kernel = "flash" if ops.backend == "cuda" else "flash_fp32"
        ctx.options = {"key_stride": stride, "key_offset": offset, "is_causal": causal, "kernel": kernel}
        return ops.strided_attention(query, key, value, stride, offset, causal)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out: Tensor) -> tuple:
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            out = attention(*inputs, **ctx.options)
        return *torch.autograd.grad(out, inputs, grad_out), None, None, None, None
