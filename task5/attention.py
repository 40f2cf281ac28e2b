"""Attention to every stride-th key: the plain PyTorch reference, and a module that runs on this task's kernel. Given.

    ops = common.build.load("task5")                                    the student's kernel, compiled
    naive_strided_attention(query, key, value, stride=4, causal=True)   the reference
    CustomStridedAttention(hidden_dim=64, num_heads=4, stride=4, causal=True, ops=ops)(x)

Query i attends to the keys at the positions offset, offset + stride, offset + 2 * stride, ... < S_k, and with causal
only to those at positions j <= i. Query 0 and key 0 are the same position, also where S_q != S_k (aligned to the top
left, as in PyTorch). Source of the pattern: Child et al., "Generating Long Sequences with Sparse Transformers",
2019, arXiv:1904.10509: the second head of their "fixed" pattern with c = 1 (there offset = stride - 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common import attention_reference as reference
from common.attention_layer import AttentionLayer

if TYPE_CHECKING:
    from common.build import Operators


def strided_positions(seq_k: int, stride: int, offset: int = 0, device=None) -> Tensor:
    """The positions that are attended to: offset, offset + stride, ... < seq_k, int64 [strided keys].

    Raises:
        ValueError: stride outside 1 .. seq_k or offset outside 0 .. stride - 1.
    """
    if not 1 <= stride <= seq_k:
        raise ValueError(f"stride is {stride}; it must be 1 .. S_k = {seq_k}")
    if not 0 <= offset < stride:
        raise ValueError(f"offset is {offset}; it must be 0 .. stride - 1 = {stride - 1}")
    return torch.arange(offset, seq_k, stride, device=device)


def strided_mask(seq_q: int, seq_k: int, stride: int, offset: int = 0, causal: bool = False, device=None) -> Tensor:
    """bool [seq_q, strided keys], True where query i may see the strided key: all of them, or those at or before i.

    Raises:
        ValueError: see strided_positions.
    """
    positions = strided_positions(seq_k, stride, offset, device)
    queries = torch.arange(seq_q, device=device)[:, None]
    return positions <= (queries if causal else seq_k)


def strided_stages(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    stride: int,
    offset: int = 0,
    causal: bool = False,
    scale: float | None = None,
) -> dict[str, Tensor]:
    """{"S", "P", "O"}: S and P [..., S_q, strided keys] over the strided keys alone; see naive_strided_attention."""
    seq_q, seq_k = query.size(-2), key.size(-2)
    mask = strided_mask(seq_q, seq_k, stride, offset, causal, query.device).expand(seq_q, -1)
    strided = slice(offset, None, stride)
    return reference.stages(query, key[..., strided, :], value[..., strided, :], scale=scale, mask=mask)


def naive_strided_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    stride: int,
    offset: int = 0,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale * query @ K^T) @ V with K and V = every stride-th row of key and value, in plain PyTorch.

    Args:
        query: [..., S_q, head_dim], any floating-point type and device.
        key, value: [..., S_k, head_dim], likewise.
        stride: 1 .. S_k.
        offset: the first key that is attended to, 0 .. stride - 1.
        causal: query i sees only the keys at positions j <= i, counted from the first key also where S_q != S_k.
        scale: what the scores are multiplied by; 1 / sqrt(head_dim) when None.

    Returns:
        [..., S_q, head_dim]; zeros for a query that sees no key (i < offset under a causal mask).

    Raises:
        ValueError: stride or offset out of range.
    """
    return strided_stages(query, key, value, stride, offset, causal, scale)["O"]


class CustomStridedAttention(AttentionLayer):
    """Multi-head self-attention that attends to every stride-th position, by this task's kernel. For inference only.

    Args:
        hidden_dim: width of the input and the output; a multiple of num_heads.
        num_heads: number of heads; head_dim = hidden_dim / num_heads, at most 128.
        stride, causal: see the top of this file; stride is at most the seq_len of the inputs.
        ops: the operators of task 5; the module's weights are created on ops.device.
        offset: 0 .. stride - 1.

    Raises:
        ValueError: hidden_dim or num_heads below 1, hidden_dim no multiple of num_heads, stride below 1, or offset
            out of range.
    """

    def __init__(
        self, hidden_dim: int, num_heads: int, stride: int, causal: bool, ops: Operators, offset: int = 0
    ) -> None:
        super().__init__(hidden_dim, num_heads, causal, ops.device)
        if stride < 1:
            raise ValueError(f"stride is {stride}; it must be at least 1")
        if not 0 <= offset < stride:
            raise ValueError(f"offset is {offset}; it must be 0 .. stride - 1 = {stride - 1}")
        self.stride = stride
        self.offset = offset
        self.ops = ops

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Self-attention over x.

        Args:
            x: [batch, seq_len, hidden_dim], float32 on the device of the weights; seq_len >= stride.

        Returns:
            [batch, seq_len, hidden_dim]; without a gradient.

        Raises:
            ValueError: x has another shape, or the operator does not support it.
            NotImplementedError: the kernel has an unfilled gap.
        """
        self.check_input(x)
        # [batch, seq_len, 3 * hidden_dim] -> [3, batch, num_heads, seq_len, head_dim]
        qkv = self.qkv_projection(x).view(x.size(0), x.size(1), 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        heads = self.ops.strided_attention(query, key, value, self.stride, self.offset, self.causal)
        return self.out_projection(self.merge_heads(heads))
