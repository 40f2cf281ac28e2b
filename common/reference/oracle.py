"""The course's mathematics in plain PyTorch, in the precision of the inputs: the oracle for the checks.

    softmax(x)                        [..., cols] -> [..., cols], over the last axis
    gemm_nt(a, b), gemm_nn(a, b)      A @ B^T and A @ B, batched
    masked(s, causal, mask, ...)      scores, masked
    stages(query, key, value, ...)    S, P and O of "Attention Is All You Need" (Vaswani et al. 2017), equation 1
    attention(query, key, value, ...) O alone

One convention is the course's own: a fully masked row (all scores -inf) has softmax 0, not NaN.

Causal: query i attends to keys j <= i + diagonal. The mask is aligned to a corner of S [S_q, S_k]: the top left,
diagonal = 0 (PyTorch's is_causal), or with lower_right the bottom right, diagonal = S_k - S_q (FlashAttention,
torch.nn.attention.bias.causal_lower_right). For S_q = S_k they coincide.
"""

import math

import torch
from torch import Tensor

from common.reference.scale import scale_or_default


def softmax(x: Tensor) -> Tensor:
    """exp(x - max) / sum over the last axis; a row of -inf gives zeros."""
    largest = x.amax(-1, keepdim=True)
    e = torch.exp(x - torch.where(largest == -math.inf, 0.0, largest))
    total = e.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, e / total)


def gemm_nt(a: Tensor, b: Tensor) -> Tensor:
    """a [batch, M, K], b [batch, N, K] -> [batch, M, N]."""
    return a @ b.transpose(-2, -1)


def gemm_nn(a: Tensor, b: Tensor) -> Tensor:
    """a [batch, M, K], b [batch, K, N] -> [batch, M, N]."""
    return a @ b


def causal_mask(seq_q: int, seq_k: int, device=None, lower_right: bool = False) -> Tensor:
    """[seq_q, seq_k], True where query i attends to key j: j <= i, or with lower_right j <= i + seq_k - seq_q."""
    return torch.ones(seq_q, seq_k, dtype=torch.bool, device=device).tril(seq_k - seq_q if lower_right else 0)


def masked(s: Tensor, causal: bool = False, mask: Tensor | None = None, lower_right: bool = False) -> Tensor:
    """Masks s [..., S_q, S_k] for the softmax.

    Args:
        s: scaled scores.
        causal: -inf where key j comes after query i (j > i + diagonal).
        mask: broadcasts to s. bool: -inf where False; float: added.
        lower_right: selects the diagonal, see the module docstring.
    """
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else s + mask
    return s.masked_fill(~causal_mask(*s.shape[-2:], s.device, lower_right), -math.inf) if causal else s


def scores(
    query: Tensor,
    key: Tensor,
    causal: bool = False,
    scale: float | None = None,
    mask: Tensor | None = None,
    lower_right: bool = False,
) -> Tensor:
    """S [..., S_q, S_k]: query @ key^T * scale, masked; scale is 1 / sqrt(head_dim) unless given."""
    return masked(gemm_nt(query, key) * scale_or_default(scale, query.size(-1)), causal, mask, lower_right)


def stages(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
    mask: Tensor | None = None,
    lower_right: bool = False,
) -> dict[str, Tensor]:
    """{"S": scores, "P": softmax(S), "O": P @ V} for query [..., S_q, head_dim], key and value [..., S_k, head_dim]."""
    s = scores(query, key, causal, scale, mask, lower_right)
    p = softmax(s)
    return {"S": s, "P": p, "O": p @ value}


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
    mask: Tensor | None = None,
    lower_right: bool = False,
) -> Tensor:
    """O [..., S_q, head_dim]."""
    return stages(query, key, value, causal, scale, mask, lower_right)["O"]
