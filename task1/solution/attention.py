"""Multi-head self-attention in PyTorch, and the first CUDA kernels as a PyTorch function.

    MultiHeadAttention(hidden_dim=768, num_heads=12, causal=True)(x)          yours: five gaps
    naive_attention(ops, query, key, value, causal=True)                      given: calls your kernels

Source: "Attention Is All You Need" (Vaswani et al. 2017), equation 1 and section 3.2.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from common.reference.layer import AttentionLayer

if TYPE_CHECKING:
    from common.compiling.operators import Operators


class MultiHeadAttention(AttentionLayer):
    """Multi-head self-attention, step by step.

    The base class holds the two linear layers, qkv_projection and out_projection, and the numbers hidden_dim,
    num_heads, head_dim = hidden_dim / num_heads and causal.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Self-attention over x.

        Args:
            x: [batch, seq_len, hidden_dim].

        Returns:
            [batch, seq_len, hidden_dim].

        Raises:
            ValueError: x has another shape.
        """
        self.check_input(x)
        # the input, projected three times: each [batch, seq_len, hidden_dim]
        query, key, value = self.qkv_projection(x).chunk(3, dim=-1)

        # Step 1, heads: three times [batch, seq_len, hidden_dim] -> [batch, num_heads, seq_len, head_dim]
        # BEGIN SOLUTION 1 (5 lines): a position's hidden_dim numbers are those of head 0, followed by those of head 1,
        #     and so on. First view() splits the last dimension into (num_heads, head_dim), then transpose() swaps the
        #     position and head dimensions. A reshape straight to the final shape would mix up positions.
        batch, seq_len, _ = x.shape
        split = (batch, seq_len, self.num_heads, self.head_dim)
        query = query.view(split).transpose(1, 2)
        key = key.view(split).transpose(1, 2)
        value = value.view(split).transpose(1, 2)
        # END SOLUTION
        self.check_heads(x, query=query, key=key, value=value)

        # Step 2, scores: [batch, num_heads, seq_len, seq_len], row = query, column = key
        # BEGIN SOLUTION 2 (1 line): the dot product of every query with every key of its head, divided by the square
        #     root of head_dim. The operator @ is a matmul over the last two dimensions, for all batches and heads at
        #     once. x ** 0.5 is the square root of x.
        scores = query @ key.transpose(-2, -1) / self.head_dim**0.5
        # END SOLUTION

        # Step 3, causal mask: a query must not see the keys that come after it
        if self.causal:
            # BEGIN SOLUTION 3 (2 lines): make a bool matrix [seq_len, seq_len] that is True in the future, where the
            #     column is larger than the row (torch.ones and triu; mind its argument `diagonal`, and the device of
            #     x). masked_fill returns the scores with -torch.inf there: exp(-inf) is 0.
            future = torch.ones(seq_len, seq_len, dtype=torch.bool, device=x.device).triu(diagonal=1)
            scores = scores.masked_fill(future, -torch.inf)
            # END SOLUTION

        # Step 4, weights: the scores of each query -> numbers above 0 whose sum is 1
        # BEGIN SOLUTION 4 (1 line): torch.softmax. Along which dimension?
        weights = torch.softmax(scores, dim=-1)
        # END SOLUTION

        # Step 5, output: [batch, seq_len, hidden_dim]
        # BEGIN SOLUTION 5 (2 lines): the weighted sums of the values, [batch, num_heads, seq_len, head_dim]. Then
        #     self.merge_heads (given) puts the heads of a position side by side again, and self.out_projection mixes
        #     them; return that.
        heads = weights @ value
        return self.out_projection(self.merge_heads(heads))
        # END SOLUTION


def naive_attention(
    ops: Operators,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(query @ key^T * scale + mask) @ value for each head, using the kernels of naive_attention.cu.

    Args:
        ops: what `common.compiling.load.load("task1")` returns.
        query: [batch, heads, S_q, head_dim], float32, float16 or bfloat16 on ops.device, contiguous or not.
        key, value: [batch, heads, S_k, head_dim], likewise.
        causal: query i attends to keys j <= i only, counted from the first key even if S_q != S_k, as in
            F.scaled_dot_product_attention.
        scale: factor applied to the scores; default 1 / sqrt(head_dim).
        mask: bool (True: attend) or float32 (added to the scaled scores), broadcastable to
            [batch, heads, S_q, S_k]. Combined with causal, both apply.

    Returns:
        [batch, heads, S_q, head_dim], query's dtype, accumulated in float32. Zeros for a query that attends to no
        key. Not differentiable. The scores need a workspace of batch * heads * S_q * S_k * 4 bytes.

    Raises:
        ValueError: an unsupported shape, dtype or device; the message names the argument.
        NotImplementedError: a kernel has an unfilled gap.
    """
    return ops.naive_attention(query.contiguous(), key.contiguous(), value.contiguous(), causal, scale, mask)
