"""flash_attention as torch.autograd.Functions: for torch.func, and for training that nothing compiles.

torch.library's autograd formula, which torch.compile and torch.export need, does not go with torch.func (grad, vmap),
and each of its calls goes through Python that takes longer than a small kernel. vmap adds the new dimension to the
batch, so one launch does all: no loop over the samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

NO_FORWARD_MODE = "flash_attention has no forward-mode derivative (torch.func.jvp, hessian): use reverse mode"


def transforming() -> bool:
    """Whether torch.func.grad, vmap or the like is at work."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def below_autograd(operator, *arguments):
    """Calls an operator without a look at its autograd formula, for whoever sees to gradients himself."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def without_transforms(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """The same for calls outside of torch.func: PyTorch inspects the signature of a Function with setup_context at each
    call, which takes longer than all else around a kernel."""

    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            output = function.forward(*inputs)
            function.setup_context(ctx, inputs, output)
            return output

        backward = staticmethod(function.backward)

    return Plain


def gradients_by(function: type[torch.autograd.Function], *arguments) -> tuple:
    """A backward pass's own Function, as one only where somebody may ask for its derivative."""
    once_more = torch.is_grad_enabled() or transforming()
    return function.apply(*arguments) if once_more else function.forward(*arguments)


class Forward(torch.autograd.Function):
    """(operators, deterministic, query, key, value, mask, *options) -> (out, lse).

    operators: torch.ops.<namespace>. options: causal, scale, lower_right, tensor_cores, key_step, key_offset.
    """

    @staticmethod
    def forward(operators, deterministic, query, key, value, mask, *options):
        causal, scale, lower_right, tensor_cores, *positions = options
        given = causal, scale, lower_right, mask, tensor_cores, *positions, deterministic
        return below_autograd(operators.flash_attention_forward, query, key, value, *given)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: tuple) -> None:
        ctx.operators, ctx.deterministic, query, key, value, mask, *ctx.options = inputs
        if mask is not None and ctx.needs_input_grad[5]:
            raise ValueError("mask requires a gradient; the kernels compute none for it: pass mask.detach()")
        ctx.save_for_backward(query, key, value, mask, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad_out: Tensor, _) -> tuple:
        query, key, value, mask, out, lse = ctx.saved_tensors
        grad_out = grad_out if grad_out.stride(-1) == 1 else grad_out.contiguous()
        tensors = grad_out, query, key, value, out, lse, mask
        deterministic = ctx.deterministic or torch.are_deterministic_algorithms_enabled()
        grads = gradients_by(Backward, ctx.operators, deterministic, *tensors, *ctx.options)
        if key.size(2) == 1:  # see flash.py
            grads = torch.zeros_like(query), torch.zeros_like(key), grads[2]
        return None, None, *grads, *[None] * (1 + len(ctx.options))

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(NO_FORWARD_MODE)

    @staticmethod
    def vmap(info, in_dims: tuple, operators, deterministic, query, key, value, mask, *options):
        count = info.batch_size
        rows = [folded(x, dim, count) for x, dim in zip((query, key, value), in_dims[2:5], strict=True)]
        mask = folded_mask(mask, in_dims[5], count, rows[0].size(0))
        results = Forward.apply(operators, deterministic, *rows, mask, *options)
        return tuple(x.unflatten(0, (count, -1)) for x in results), (0, 0)


Plain = without_transforms(Forward)


class Backward(torch.autograd.Function):
    """(operators, deterministic, grad_out, query, key, value, out, lse, mask, *options) -> the three gradients."""

    @staticmethod
    def forward(operators, deterministic, *rest):
        *tensors, mask, causal, scale, lower_right, _, key_step, key_offset = rest
        given = causal, scale, lower_right, mask, key_step, key_offset, deterministic
        return below_autograd(operators.flash_attention_backward, *tensors, *given)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError("flash_attention has no second derivative")

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(NO_FORWARD_MODE)

    @staticmethod
    def vmap(info, in_dims: tuple, operators, deterministic, *rest):
        count = info.batch_size
        tensors = [folded(x, dim, count) for x, dim in zip(rest[:6], in_dims[2:8], strict=True)]
        mask = folded_mask(rest[6], in_dims[8], count, tensors[0].size(0))
        grads = Backward.apply(operators, deterministic, *tensors, mask, *rest[7:])
        return tuple(x.unflatten(0, (count, -1)) for x in grads), (0, 0, 0)


def folded(x: Tensor, dim: int | None, count: int) -> Tensor:
    """[batch, ...], perhaps with a new dimension of `count` at `dim` -> [count * batch, ...], rows contiguous."""
    x = x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
    x = x.flatten(0, 1)
    return x if x.stride(-1) == 1 else x.contiguous()


def folded_mask(mask: Tensor | None, dim: int | None, count: int, batch: int) -> Tensor | None:
    """As folded for a mask of 2 to 4 dimensions that broadcasts; `batch` as the other tensors have it now."""
    if mask is None:
        return None
    mask = mask[None] if dim is None else mask.movedim(dim, 0)
    while mask.dim() < 5:
        mask = mask[:, None]
    if mask.size(0) == mask.size(1) == 1:
        return mask[0]
    return mask.expand(count, batch // count, *mask.shape[2:]).flatten(0, 1)
