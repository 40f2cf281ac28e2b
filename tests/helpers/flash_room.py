"""The dense kernels of any build as differentiable functions that take the operators: what attention does with the
build it loads. Arguments are those of the operators in common/kernels/flash."""

from __future__ import annotations

import torch
from flash_inputs import operators_of
from torch import Tensor

from common.compiling import load as compiled
from common.compiling.request import BuildRequest
from common.kernels.attention_gradients import register, run


def load(backend: str = "auto", checked: bool = False):
    """The operators, including gradients."""
    ops = compiled.load(BuildRequest("flash", backend=backend, checked=checked))
    register(ops)
    return ops


def flash_attention(
    ops, query: Tensor, key: Tensor, value: Tensor, causal: bool = False, scale: float | None = None,
    lower_right: bool = False, mask: Tensor | None = None, tensor_cores: bool = True, key_step: int = 1,
    key_offset: int = 0, deterministic: bool = False,
) -> Tensor:  # fmt: skip
    register(ops)
    arguments = query, key, value, causal, scale, lower_right, mask, tensor_cores, key_step, key_offset, deterministic
    gradients = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (query, key, value, mask))
    return run(operators_of(ops), "flash_attention_forward", arguments, gradients)[0]


def kernel_of(ops, query: Tensor, key: Tensor, value: Tensor, causal: bool = False, **options) -> str:
    """Which forward kernel the call runs."""
    return operators_of(ops).flash_attention_kernel(query, key, value, causal, **options)


def backward_kernel_of(
    ops, grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, causal=False, **options
) -> str:
    """Which kernel computes the call's gradients."""
    out, lse = torch.empty_like(query), query.new_empty(query.shape[:-1], dtype=torch.float32)
    given = grad_out, query, key, value, out.contiguous(), lse, causal
    return operators_of(ops).flash_attention_backward_kernel(*given, **options)
