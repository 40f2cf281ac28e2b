"""Operators without a derivative raise an error instead of silently dropping gradients.

    guarded(name, function, operator)    the operator, as exposed by Operators
    refuse_forward_mode(name, tensors)   for code that calls torch.ops directly

PyTorch treats an operator without a derivative as a constant: backward() would leave `.grad` None with a warning, and
torch.func.jvp would return zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd import forward_ad


class _NoBackward(torch.autograd.Function):
    """Runs an operator; its backward raises an error."""

    @staticmethod
    def forward(name: str, function: Callable, *args):
        return function(*args)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output) -> None:
        ctx.name = inputs[0]
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.mark_non_differentiable(*(x for x in outputs if isinstance(x, Tensor) and not x.is_floating_point()))

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(
            f"{ctx.name} has no backward pass, so no gradient reaches its inputs: call it under torch.no_grad(), or "
            "use an attention that has one (attention of common/kernels/attention.py)"
        )


def guarded(name: str, function: Callable, operator: torch._ops.OpOverload) -> Callable:
    """Wraps an operator: forward-mode AD fails when it is called; a missing gradient fails in backward().

    Args:
        name: its name in errors: "task2 softmax".
        function: calls the operator; returns a tensor, a tuple of tensors, or None.
        operator: the operator itself. If it mutates its arguments, calls fail when one of them requires a gradient.

    Raises:
        NotImplementedError: calling the result, as above; backward() of what it returns, always.
    """
    mutates, qualified = operator._schema.is_mutable, operator.name()

    def call(*args, **kwargs):
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        refuse_forward_mode(name, tensors)
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors) or has_gradient(qualified):
            return function(*args, **kwargs)
        if mutates:
            raise NotImplementedError(
                f"{name} writes into its arguments and has no backward pass, and one of them requires a gradient: call "
                "it under torch.no_grad()"
            )
        names, by_name = tuple(kwargs), len(args)

        def positional(*x):
            return function(*x[:by_name], **dict(zip(names, x[by_name:], strict=True)))

        return _NoBackward.apply(name, positional, *args, *kwargs.values())

    return call


def has_gradient(operator: str) -> bool:
    """Whether PyTorch knows this operator's gradient (torch.library.register_autograd).   "task2::softmax" """
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, "Autograd")


# Like torch.compiler.assume_constant_result (torch.compile calls this once, while tracing), but does not import
# torch._dynamo
has_gradient._dynamo_marked_constant = True


def refuse_forward_mode(name: str, tensors: Iterable[Tensor]) -> None:
    """Raises NotImplementedError if a tensor carries a tangent (torch.func.jvp, torch.autograd.forward_ad)."""
    if forward_ad._current_level < 0:
        return
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(
            f"{name} has no forward-mode derivative (torch.func.jvp, torch.autograd.forward_ad): use reverse mode"
        )
