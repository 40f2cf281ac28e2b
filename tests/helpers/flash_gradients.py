"""Gradients of attention compared with float64 and with PyTorch in the same precision."""

from __future__ import annotations

import math
from functools import partial

import flash_room as tuned
import torch
from flash_inputs import assert_as_exact, position_mask
from torch import Tensor

from common.reference import oracle as reference


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
    lower_right: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Differentiable attention with every intermediate result in the precision of the inputs.

    A query with no visible key gives zeros and no gradient: its softmax row is replaced.
    """
    group, seq_q, seq_k = query.size(1) // key.size(1), query.size(2), key.size(2)
    nothing = torch.zeros(seq_q, seq_k, dtype=torch.float64, device=query.device)
    bias = reference.masked(nothing, causal, mask, lower_right)
    sees = (bias > -math.inf).any(-1, keepdim=True)
    scores = query @ key.repeat_interleave(group, 1).mT * (query.size(-1) ** -0.5 if scale is None else scale)
    weights = torch.softmax(scores + bias.where(sees, 0).to(scores.dtype), -1).where(sees, 0)
    return weights @ value.repeat_interleave(group, 1)


def gradients(function, query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, dtype=None) -> list[Tensor]:
    """The gradients of sum(grad_out * function(...)) for query, key and value, computed in dtype."""
    inputs = [x.detach().to(dtype or x.dtype).requires_grad_() for x in (query, key, value)]
    return list(torch.autograd.grad(function(*inputs), inputs, grad_out.to(dtype or grad_out.dtype)))


# Two runs of a backward kernel may differ in the last bits, since blocks add to the query gradient in any order:
# use assert_close to compare two runs of the same kernel.


def assert_gradients(
    ops,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad_out: Tensor,
    positions: tuple[int, int] | None = None,
    deterministic: bool = False,
    **options,
) -> None:
    """Error against float64: at most twice that of PyTorch with every tensor in dtype, plus a floor for the float32
    sums and the rounding of the result.

    FlashAttention computes each row's sum of weights times their gradients from the output, which is rounded to dtype.
    PyTorch's error has no such term, which grows with the size of the output: hence values with mean 0.
    `positions` are key_step and key_offset under a causal mask: the kernel gets the two numbers, PyTorch the mask.
    """
    dtype = query.dtype
    kernel = partial(tuned.flash_attention, ops, deterministic=deterministic, **options)
    plain = partial(attention, **options)
    if positions is not None:
        kernel = partial(kernel, causal=True, key_step=positions[0], key_offset=positions[1])
        plain = partial(plain, mask=position_mask(query.size(2), key.size(2), *positions, query.device))
    got = torch.autograd.grad(kernel(query, key, value), (query, key, value), grad_out)
    wanted = gradients(plain, query, key, value, grad_out, torch.float64)
    same = gradients(plain, query, key, value, grad_out)
    for name, x, x64, x_same, given in zip(
        ("query", "key", "value"), got, wanted, same, (query, key, value), strict=True
    ):
        assert x.dtype == dtype and x.shape == given.shape
        assert_as_exact(x, x64, x_same, dtype, 1e-5, name=name)
