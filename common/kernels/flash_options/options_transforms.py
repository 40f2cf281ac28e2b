"""Attention with options as torch.autograd.Functions: for torch.func, and for training that nothing compiles.

As common/kernels/flash/transforms.py. vmap adds the new dimension to the batch, so one launch does all, where samples
share nothing: sinks have a gradient for each sample, the dropout of a sample must not depend on its place, and packed
sequences have no batch. There it goes from sample to sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.kernels.flash.transforms import below_autograd, folded, folded_mask, gradients_by, without_transforms

WHAT = "attention with options"
NO_FORWARD_MODE = f"{WHAT} has no forward-mode derivative (torch.func.jvp, hessian): use reverse mode"
NO_SECOND_DERIVATIVE = f"{WHAT} has no second derivative"
NO_MASK_GRADIENT = "mask requires a gradient; the kernels compute none for it: pass mask.detach()"


@dataclass(frozen=True)
class Places:
    """Where an operator has which argument.

    leading: tensors that come first: query, key, value, and where packed sequences begin, or lists of blocks. mask,
    sinks, seed: among all arguments; None: it has no such argument.
    """

    leading: int
    mask: int | None = None
    sinks: int | None = None
    seed: int | None = None

    def with_sinks(self, gradients: tuple, others: list) -> tuple:
        """The gradients of all arguments, from those of query, key, value and sinks.   others: those behind value"""
        of_others = [None] * len(others)
        if self.sinks is not None and others[self.sinks - 3] is not None:
            of_others[self.sinks - 3] = gradients[3]
        return *gradients[:3], *of_others


PLACES = {
    "options_attention": Places(leading=3, mask=6, sinks=8, seed=10),
    "packed_attention": Places(leading=5, sinks=9, seed=11),
    "block_attention": Places(leading=5),
}


def fixed_order(name: str, arguments: Sequence) -> Sequence:
    """The arguments of {name}_backward, the last of them, deterministic, also True where PyTorch asks for it. Those of
    listed blocks, which have no such argument, stay as they are."""
    if name == "block_attention":
        return arguments
    *others, deterministic = arguments
    return *others, deterministic or torch.are_deterministic_algorithms_enabled()


class Forward(torch.autograd.Function):
    """(operators, name, *arguments of the operator) -> (out, lse).

    operators: torch.ops.<namespace>, or what has functions of the same names.
    """

    @staticmethod
    def forward(operators, name: str, *arguments):
        return below_autograd(getattr(operators, name), *arguments)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: tuple) -> None:
        ctx.operators, ctx.name, *arguments = inputs
        places = PLACES[ctx.name]
        if places.mask is not None and arguments[places.mask] is not None and ctx.needs_input_grad[2 + places.mask]:
            raise ValueError(NO_MASK_GRADIENT)
        ctx.saved = [i for i, x in enumerate(arguments) if isinstance(x, Tensor)]
        ctx.others = [None if i in ctx.saved else x for i, x in enumerate(arguments)]
        ctx.save_for_backward(*output, *(arguments[i] for i in ctx.saved))
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad_out: Tensor, _) -> tuple:
        out, lse, *saved = ctx.saved_tensors
        arguments, places = list(ctx.others), PLACES[ctx.name]
        for i, x in zip(ctx.saved, saved, strict=True):
            arguments[i] = x
        grad_out = grad_out if grad_out.stride(-1) == 1 else grad_out.contiguous()
        rows, others = arguments[:3], arguments[3:]
        grads = gradients_by(Backward, ctx.operators, ctx.name, grad_out, *rows, out, lse, *others)
        return None, None, *places.with_sinks(grads, others)

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(NO_FORWARD_MODE)

    @staticmethod
    def vmap(info, in_dims: tuple, operators, name: str, *arguments):
        return _mapped(Forward, info.batch_size, in_dims[2:], operators, name, arguments, rows=3)


Plain = without_transforms(Forward)


class Backward(torch.autograd.Function):
    """(operators, name, grad_out, query, key, value, out, lse, *the other arguments) -> the gradients."""

    @staticmethod
    def forward(operators, name: str, *arguments):
        return below_autograd(getattr(operators, f"{name}_backward"), *fixed_order(name, arguments))

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(NO_SECOND_DERIVATIVE)

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(NO_FORWARD_MODE)

    @staticmethod
    def vmap(info, in_dims: tuple, operators, name: str, *arguments):
        return _mapped(Backward, info.batch_size, in_dims[2:], operators, name, arguments, rows=6)


def _mapped(function, count: int, dims: tuple, operators, name: str, arguments: tuple, rows: int) -> tuple:
    """vmap of one of the two above; the first `rows` arguments are tensors that have the batch in front."""
    places, moved = PLACES[name], rows - 3
    together = places.mask is not None and arguments[moved + places.sinks] is arguments[moved + places.seed] is None
    if not together:
        samples = ([_sample(x, dim, i) for x, dim in zip(arguments, dims, strict=True)] for i in range(count))
        results = [function.apply(operators, name, *sample) for sample in samples]
        return tuple(torch.stack(x) for x in zip(*results, strict=True)), (0,) * len(results[0])
    tensors = [folded(x, dim, count) for x, dim in zip(arguments[:rows], dims[:rows], strict=True)]
    others, at = list(arguments[rows:]), places.mask + moved - rows
    others[at] = folded_mask(others[at], dims[rows + at], count, tensors[0].size(0))
    results = function.apply(operators, name, *tensors, *others)
    # without sinks their gradient is zeros, and belongs to no sample
    alone = [function is Backward and i == 3 for i in range(len(results))]
    unfolded = (x if one else x.unflatten(0, (count, -1)) for x, one in zip(results, alone, strict=True))
    return tuple(unfolded), tuple(None if one else 0 for one in alone)


def _sample(x, dim: int | None, number: int):
    """One of those along dim, its rows contiguous; x itself where all have the same."""
    if dim is None:
        return x
    x = x.select(dim, number)
    return x if x.stride(-1) == 1 else x.contiguous()
