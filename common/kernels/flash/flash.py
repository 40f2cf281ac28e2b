"""FlashAttention as one differentiable PyTorch function.

    ops = load()                                            builds them, tells PyTorch what it must know of them
    flash_attention(ops, query, key, value, causal=True)    [batch, heads, S_q, head_dim]
    kernel_of(ops, query, key, value, causal=True)          which kernel that runs: "wgmma", "mma", ...
    backward_kernel_of(ops, grad_out, query, key, value)    which kernel computes its gradients

register(ops) tells PyTorch the gradients of the operators, once for every build.

Source: FlashAttention-2 (Dao 2023, arXiv:2307.08691), algorithms 1 and 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.compiling import load as compiled
from common.compiling.derivatives import refuse_forward_mode
from common.compiling.request import BuildRequest
from common.kernels.flash import transforms

if TYPE_CHECKING:
    from common.compiling.operators import Operators

_registered: set[str] = set()  # namespaces of torch.ops


def load(backend: str = "auto", checked: bool = False) -> Operators:
    """Builds and loads the kernels of this room, gradients included. Arguments and errors: see BuildRequest and
    common.compiling.load.build."""
    ops = compiled.load(BuildRequest("flash", backend=backend, checked=checked))
    register(ops)
    return ops


def flash_attention(
    ops: Operators,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
    lower_right: bool = False,
    mask: Tensor | None = None,
    tensor_cores: bool = True,
    key_step: int = 1,
    key_offset: int = 0,
    deterministic: bool = False,
) -> Tensor:
    """softmax(scale * query @ key^T, hidden keys left out) @ value, without storing the scores. Differentiable.

    Memory grows with S_q + S_k; scores, softmax and sums are float32. The gradients of query, key and value are those
    of algorithm 2 of the paper: the scores are computed again from the saved logsumexp. Second derivatives are not
    available. Nothing is copied, but a 16-bit mask, which is converted to float32. Works under torch.compile without
    a graph break, under torch.func.grad and vmap, in CUDA graphs and on the current stream; under torch.autocast
    nothing is cast: the kernels compute in the dtype that the inputs have.

    Args:
        ops: what load() returns.
        query: [batch, heads, S_q, head_dim], float32, float16 or bfloat16, on ops.device; head_dim is 1 .. 128.
            Any strides, if those along head_dim are 1: slices of a packed [batch, S, 3, heads, head_dim] will do.
        key, value: [batch, kv_heads, S_k, head_dim], of query's dtype; heads is a multiple of kv_heads, and query head
            h uses key head h // (heads // kv_heads).
        causal: query i sees the keys j <= i, or j <= i + S_k - S_q with lower_right; for other places of the keys
            see key_step.
        scale: what the scores are multiplied by, without unit; 1 / sqrt(head_dim) when None.
        lower_right: aligns the causal mask to the bottom right (FlashAttention; torch's causal_lower_right) instead
            of the top left (torch's is_causal). Makes a difference where causal is true and S_q != S_k.
        mask: bool (True: attend) or floating-point (added to the scaled scores), of a shape that broadcasts to
            [batch, heads, S_q, S_k]. With causal both hold. It gets no gradient. A row whose largest bias is below
            -2^126 (finfo.min, say) gets the mean of the values that have it, and passes no gradient on.
        tensor_cores: for float32: on tensor cores by 3xFP16, or by fused multiply-adds. Other dtypes ignore it.
        key_step, key_offset: with causal, key j stands at the position key_offset + j * key_step, and query i sees it
            when that is at most i. So strided attention is flash_attention(ops, query, key[:, :, offset::stride],
            value[:, :, offset::stride], causal, key_step=stride, key_offset=offset). key_step is 1 or more,
            key_offset of either sign; positions stay below 2^31 - 256. Without causal the two change nothing; with
            lower_right they must be 1 and 0.
        deterministic: the gradient of query has the same bits every time. Without it, and unless
            torch.use_deterministic_algorithms(True) holds in the backward pass, its last bits may differ from one run
            to the next, since blocks add to it in any order. All else has the same bits anyway.

    Returns:
        [batch, heads, S_q, head_dim] of query's dtype, contiguous; zeros for a query that may see no key.

    Raises:
        ValueError: a shape, dtype, layout or device that the kernels do not take, or a mask that requires a gradient;
            the message names the argument, its value and what is allowed.
    """
    register(ops)
    refuse_forward_mode("flash_attention", (query, key, value))
    for name, x in (("query", query), ("key", key), ("value", value), ("mask", mask)):
        if x is not None and x.device.type != ops.device.type:
            raise ValueError(f"{name} is on {x.device.type!r}; it must be on {ops.device.type!r}")
    if mask is not None and mask.dtype in (torch.float16, torch.bfloat16):
        mask = mask.float()
    arguments = (query, key, value, causal, scale, lower_right, mask, tensor_cores, key_step, key_offset, deterministic)
    operators = getattr(torch.ops, ops.libraries[0].name)
    gradients = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (query, key, value, mask))
    if torch.compiler.is_compiling():
        return operators.flash_attention_forward(*arguments)[0] if gradients else operators.flash_attention(*arguments)
    if gradients or transforms.transforming():
        function = transforms.Forward if transforms.transforming() else transforms.Plain
        options = causal, scale, lower_right, tensor_cores, key_step, key_offset
        return function.apply(operators, deterministic, query, key, value, mask, *options)[0]
    return transforms.below_autograd(operators.flash_attention, *arguments)


def kernel_of(
    ops: Operators,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
    lower_right: bool = False,
    mask: Tensor | None = None,
    tensor_cores: bool = True,
    key_step: int = 1,
    key_offset: int = 0,
) -> str:
    """Which forward kernel flash_attention runs for these arguments: "wgmma" (float16 and bfloat16 on compute
    capability 9.0), "mma" (the same types elsewhere, and what wgmma does not take), "wgmma 3xfp16", "3xfp16" or "fp32"
    (float32, likewise). Runs none.

    Arguments and errors: see flash_attention.
    """
    arguments = (query, key, value, causal, scale, lower_right, mask, tensor_cores, key_step, key_offset)
    return getattr(torch.ops, ops.libraries[0].name).flash_attention_kernel(*arguments)


def backward_kernel_of(
    ops: Operators,
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
    lower_right: bool = False,
    mask: Tensor | None = None,
    key_step: int = 1,
    key_offset: int = 0,
) -> str:
    """Which kernel computes the gradients: "wgmma", "mma" or "fp32", see kernel_of. Runs none.

    Args:
        grad_out: the gradient of the output, of query's shape and dtype.
        ops and the others: see flash_attention.
    """
    operators = getattr(torch.ops, ops.libraries[0].name)
    out, lse = query.new_empty(query.shape), query.new_empty(query.shape[:-1], dtype=torch.float32)
    return operators.flash_attention_backward_kernel(
        grad_out, query, key, value, out, lse, causal, scale, lower_right, mask, key_step, key_offset
    )


def register(ops: Operators) -> None:
    """Tells PyTorch the gradients of these operators; once is enough, more does no harm."""
    namespace = ops.libraries[0].name
    if namespace in _registered:
        return
    operators = getattr(torch.ops, namespace)

    def remember(ctx, inputs: tuple, output: Tensor | tuple[Tensor, Tensor]) -> None:
        query, key, value, *ctx.options, mask, ctx.tensor_cores = inputs[:-3]
        *ctx.positions, ctx.deterministic = inputs[-3:]
        if mask is not None and ctx.needs_input_grad[6]:
            raise ValueError("mask requires a gradient; the kernels compute none for it: pass mask.detach()")
        out, lse = output if isinstance(output, tuple) else (None, None)
        if lse is not None:
            ctx.mark_non_differentiable(lse)
        ctx.save_for_backward(query, key, value, mask, out, lse)

    def backward(ctx, grad_out: Tensor, *_) -> tuple:
        query, key, value, mask, out, lse = ctx.saved_tensors
        if lse is None:  # flash_attention gave no logsumexp
            out, lse = operators.flash_attention_forward(
                query, key, value, *ctx.options, mask, ctx.tensor_cores, *ctx.positions
            )
        if grad_out.stride(-1) != 1:  # the gradient of a sum is one number, expanded
            grad_out = grad_out.contiguous()
        deterministic = ctx.deterministic or torch.are_deterministic_algorithms_enabled()
        grads = operators.flash_attention_backward(
            grad_out, query, key, value, out, lse, *ctx.options, mask, *ctx.positions, deterministic
        )
        if key.size(2) == 1:  # its weight is 1 whatever the score: no difference that rounding leaves something of
            grads = torch.zeros_like(query), torch.zeros_like(key), grads[2]
        return *grads, *[None] * 8

    def no_second_derivative(ctx, *_) -> None:
        raise NotImplementedError("flash_attention has no second derivative")

    for name in ("flash_attention", "flash_attention_forward"):
        torch.library.register_autograd(f"{namespace}::{name}", backward, setup_context=remember)
    torch.library.register_autograd(f"{namespace}::flash_attention_backward", no_second_derivative)
    _registered.add(namespace)
