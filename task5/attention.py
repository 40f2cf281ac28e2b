"""Attention to some of the keys: plain PyTorch references, and a module that runs on this task's kernel. Given.

    ops = common.build.load("task5")                                    the student's kernel, compiled
    naive_strided_attention(query, key, value, stride=4, causal=True)   the references
    naive_sliding_window_attention(query, key, value, window=256)
    naive_block_sparse_attention(query, key, value, block_mask, block=64), naive_compress_block_mask(block_mask)
    CustomStridedAttention(hidden_dim=64, num_heads=4, stride=4, causal=True, ops=ops)(x)

Strided: query i attends to the keys at the positions offset, offset + stride, offset + 2 * stride, ... < S_k, and with
causal only to those at positions j <= i. Query 0 and key 0 are the same position, also where S_q != S_k (aligned to the
top left, as in PyTorch). Source of the pattern: Child et al., "Generating Long Sequences with Sparse Transformers",
2019, arXiv:1904.10509: the second head of their "fixed" pattern with c = 1 (there offset = stride - 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from common import attention_reference as reference
from common.attention_layer import AttentionLayer
from task4.tuned import flash_attention

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


def sliding_window_mask(seq_q: int, seq_k: int, window: int, causal: bool = True, device=None) -> Tensor:
    """bool [seq_q, seq_k], True where query i may see key j: |i - j| < window, and with causal only j <= i.

    Raises:
        ValueError: window is below 1.
    """
    if window < 1:
        raise ValueError(f"window is {window}; it must be at least 1")
    ahead = torch.arange(seq_k, device=device) - torch.arange(seq_q, device=device)[:, None]
    return (ahead > -window) & (ahead < (1 if causal else window))


def block_sparse_mask(block_mask: Tensor, block: int, causal: bool = False) -> Tensor:
    """bool [heads, S_q, S_k], True where query i may see key j: where block_mask[head, i // block, j // block] is.

    Args:
        block_mask: bool (or other numbers, 0 for False) [heads, S_q / block, S_k / block].
        block: rows and columns of a block.
        causal: of these only j <= i.

    Raises:
        ValueError: block_mask has not three dimensions, or block is below 1.
    """
    if block_mask.dim() != 3:
        raise ValueError(f"block_mask has shape {list(block_mask.shape)}; it must be [heads, S_q / block, S_k / block]")
    if block < 1:
        raise ValueError(f"block is {block}; it must be at least 1")
    mask = block_mask.bool().repeat_interleave(block, -2).repeat_interleave(block, -1)
    return mask.tril() if causal else mask


def masked_stages(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None = None
) -> dict[str, Tensor]:
    """{"S", "P", "O"} of dense attention under a bool mask that broadcasts to [..., S_q, S_k].

    Values that no query sees are left out, so that they may be infinite: 0 * infinity would be NaN.
    """
    read = mask.any(-2)[..., None]  # [..., S_k, 1]
    return reference.stages(query, key, value.masked_fill(~read, 0.0), scale=scale, mask=mask)


def naive_sliding_window_attention(
    query: Tensor, key: Tensor, value: Tensor, window: int, causal: bool = True, scale: float | None = None
) -> Tensor:
    """Attention to the keys with |i - j| < window, and with causal only j <= i, in plain PyTorch.

    Source of the pattern: Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer", 2020, arXiv:2004.05150.

    Args:
        query: [..., S_q, head_dim], any floating-point type and device.
        key, value: [..., S_k, head_dim], likewise. Query 0 and key 0 are the same position, also where S_q != S_k.
        window: at least 1; a causal query sees that many keys, its own position among them.
        causal: whether keys behind the query's position are hidden.
        scale: what the scores are multiplied by; 1 / sqrt(head_dim) when None.

    Returns:
        [..., S_q, head_dim]; zeros for a query that sees no key (far behind the last key).

    Raises:
        ValueError: window is below 1.
    """
    mask = sliding_window_mask(query.size(-2), key.size(-2), window, causal, query.device)
    return masked_stages(query, key, value, mask, scale)["O"]


def naive_block_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_mask: Tensor,
    block: int,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention to the blocks of keys that a mask names, in plain PyTorch.

    Args:
        query: [..., heads, S_q, head_dim], any floating-point type and device.
        key, value: [..., heads, S_k, head_dim], likewise.
        block_mask: bool [heads, S_q / block, S_k / block].
        block: rows and columns of a block.
        causal: of the keys in the blocks, query i sees only j <= i.
        scale: what the scores are multiplied by; 1 / sqrt(head_dim) when None.

    Returns:
        [..., heads, S_q, head_dim]; zeros for a query that sees no key.

    Raises:
        ValueError: block_mask's shape and block do not fit S_q and S_k.
    """
    mask = block_sparse_mask(block_mask, block, causal)
    if mask.shape != (query.size(-3), query.size(-2), key.size(-2)):
        raise ValueError(
            f"block_mask has shape {list(block_mask.shape)}; with block = {block} it must be [heads, S_q / block, "
            f"S_k / block], and heads = {query.size(-3)}, S_q = {query.size(-2)}, S_k = {key.size(-2)}"
        )
    return masked_stages(query, key, value, mask, scale)["O"]


def naive_compress_block_mask(block_mask: Tensor) -> tuple[Tensor, Tensor]:
    """bool [heads, q_blocks, k_blocks] -> (counts int32 [heads, q_blocks], columns int32 [heads, q_blocks, k_blocks]).

    counts is how many blocks a row has; columns holds their numbers in ascending order, then -1.
    """
    numbers = torch.arange(block_mask.size(-1), device=block_mask.device)
    columns = torch.where(block_mask.bool(), numbers, block_mask.size(-1)).sort(-1).values
    columns = columns.masked_fill(columns == block_mask.size(-1), -1)
    return (columns >= 0).sum(-1).int(), columns.int()


class CustomStridedAttention(AttentionLayer):
    """Multi-head self-attention that attends to every stride-th position, by this task's kernel.

    The output always comes from the kernel in `ops`. Its gradient comes from task 4's tuned kernels, if the module has
    them: strided attention is attention to a strided view of key and value, and so is its backward pass. That pass
    computes the forward once more, since it needs the logsumexp of every row, which strided_attention does not return.

    Args:
        hidden_dim: width of the input and the output; a multiple of num_heads.
        num_heads: number of heads; head_dim = hidden_dim / num_heads, at most 128.
        stride, causal: see the top of this file; stride is at most the seq_len of the inputs.
        ops: the operators of task 5; the module's weights are created on ops.device.
        offset: 0 .. stride - 1.
        gradient_ops: task4.tuned.load(backend), for training; None: for inference, and backward() raises a ValueError.

    Raises:
        ValueError: hidden_dim or num_heads below 1, hidden_dim no multiple of num_heads, stride below 1, offset out of
            range, or ops and gradient_ops on different devices.
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        stride: int,
        causal: bool,
        ops: Operators,
        offset: int = 0,
        gradient_ops: Operators | None = None,
    ) -> None:
        super().__init__(hidden_dim, num_heads, causal, ops.device)
        if stride < 1:
            raise ValueError(f"stride is {stride}; it must be at least 1")
        if not 0 <= offset < stride:
            raise ValueError(f"offset is {offset}; it must be 0 .. stride - 1 = {stride - 1}")
        if gradient_ops is not None and gradient_ops.device != ops.device:
            raise ValueError(
                f"gradient_ops is for {gradient_ops.device.type!r}; it must be for ops' {ops.device.type!r}: "
                f"task4.tuned.load({ops.backend!r})"
            )
        self.stride = stride
        self.offset = offset
        self.ops = ops
        self.gradient_ops = gradient_ops

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention over x.

        Args:
            x: [batch, seq_len, hidden_dim], float32 on the device of the weights; seq_len >= stride.

        Returns:
            [batch, seq_len, hidden_dim]. For inference call it under torch.no_grad(), which saves memory.

        Raises:
            ValueError: x has another shape, or the operator does not support it; by backward(): no gradient_ops.
            NotImplementedError: the kernel has an unfilled gap.
        """
        self.check_input(x)
        # [batch, seq_len, 3 * hidden_dim] -> [3, batch, num_heads, seq_len, head_dim]
        qkv = self.qkv_projection(x).view(x.size(0), x.size(1), 3, self.num_heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        heads = _StridedAttention.apply(
            query, key, value, self.stride, self.offset, self.causal, self.ops, self.gradient_ops
        )
        return self.out_projection(self.merge_heads(heads))


class _StridedAttention(torch.autograd.Function):
    """This task's kernel forward, task 4's backward; query, key and value [batch, heads, seq_len, head_dim]."""

    @staticmethod
    def forward(ctx, query, key, value, stride, offset, causal, ops, gradient_ops) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.options = stride, offset, causal, gradient_ops
        return ops.strided_attention(query, key, value, stride, offset, causal)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out: Tensor) -> tuple:
        stride, offset, causal, ops = ctx.options
        if ops is None:
            raise ValueError(
                "gradient_ops is None, so this CustomStridedAttention has no gradient; to train, give it "
                "gradient_ops=task4.tuned.load(backend)"
            )
        strided = slice(offset, None, stride)
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            query, key, value = inputs
            out = flash_attention(
                ops,
                query,
                key[:, :, strided],
                value[:, :, strided],
                causal,
                tensor_cores=ops.backend == "cuda",  # the simulator's are slow
                key_step=stride,
                key_offset=offset,
            )
        return *torch.autograd.grad(out, inputs, grad_out), None, None, None, None, None
