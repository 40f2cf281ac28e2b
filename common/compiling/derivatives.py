"""What is not differentiable says so, instead of dropping gradients in silence.

    guarded(name, function, operator)    the operator, as Operators hands it out
    refuse_forward_mode(name, tensors)   for a door that calls operators of torch.ops itself

PyTorch takes an operator without a derivative as a constant: backward() would leave `.grad` None with a warning, and
torch.func.jvp would return zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.autograd import forward_ad


class _NoBackward(torch.autograd.Function):
    """Runs an operator; whoever asks for its gradient gets an error."""

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
    """The operator, refusing forward-mode derivatives at once, and a gradient that it has not when it is asked for.

    Args:
        name: what errors call it: "task2 softmax".
        function: what calls the operator; it returns a tensor, a tuple of tensors, or none of them.
        operator: the operator itself. One that writes into its arguments refuses at once those that require a gradient.

    Raises:
        NotImplementedError: (calling the result) as said above; (its result's backward()) always.
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


# torch.compile asks once, when it traces: torch.compiler.assume_constant_result, without its import of torch._dynamo
has_gradient._dynamo_marked_constant = True


def refuse_forward_mode(name: str, tensors: Iterable[Tensor]) -> None:
    """Raises NotImplementedError if a tensor carries a tangent (torch.func.jvp, torch.autograd.forward_ad)."""
    if forward_ad._current_level < 0:
        return
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(
            f"{name} has no forward-mode derivative (torch.func.jvp, torch.autograd.forward_ad): use reverse mode"
        )
