"""Gradients of the attention operators: for torch.compile and torch.export, for torch.func, and for plain training.

    operators = operators_of("flash", device)               torch.ops.<namespace>, with gradients registered
    out, lse = run(operators, "flash_attention_forward", arguments, gradients=True)

Scores are recomputed from the saved logsumexp (FlashAttention-2, algorithm 2). torch.library's autograd formula, which
torch.compile and torch.export need, does not support torch.func (grad, vmap), and its overhead per call exceeds the
time of a small kernel: hence also a torch.autograd.Function. vmap folds the new dimension into the batch, so that one
launch does everything. Where samples share state it loops over them: sinks have one gradient per sample, a sample's
dropout must not depend on its index, and packed sequences have no batch dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.compiling.operators import Operators
from common.kernels.loaded import loaded

NO_FORWARD_MODE = "attention has no forward-mode derivative (torch.func.jvp, hessian): use reverse mode"
NO_SECOND_DERIVATIVE = "attention has no second derivative"
NO_MASK_GRADIENT = "mask requires a gradient; the kernels compute none for it: pass mask.detach()"


@dataclass(frozen=True)
class Rule:
    """How an operator (query, key, value, *others) -> (out, lse) is differentiated.

    Attributes:
        backward: the operator (grad_out, query, key, value, out, lse, *others) -> the gradients of query, key, value
            and, if it has them, sinks.
        mask, sinks, seed, deterministic: indices of these arguments; None: there is no such argument.
        forward_only: the index of an argument that the backward operator does not have.
    """

    backward: str
    mask: int | None = None
    sinks: int | None = None
    seed: int | None = None
    deterministic: int | None = None
    forward_only: int | None = None

    def gradients(self, function, operators, grad_out: Tensor, arguments: list, out: Tensor, lse: Tensor) -> tuple:
        """The gradients of all arguments.   function(operators, *arguments of the backward operator)"""
        query, key, value, *others = arguments
        given = list(others)
        if self.deterministic is not None:
            given[self.deterministic - 3] |= torch.are_deterministic_algorithms_enabled()
        if self.forward_only is not None:
            del given[self.forward_only - 3]
        grad_out = grad_out if grad_out.stride(-1) == 1 else grad_out.contiguous()  # an expanded scalar, perhaps
        grads = function(operators, grad_out, query, key, value, out, lse, *given)
        of_others = [None] * len(others)
        sinks = self.sinks is not None and self.sinks < len(arguments) and others[self.sinks - 3] is not None
        if sinks:
            of_others[self.sinks - 3] = grads[3]
        elif query.dim() == 4 and key.size(2) == 1:  # a single weight is 1, so dS is 0
            grads = torch.zeros_like(query), torch.zeros_like(key), *grads[2:]
        return *grads[:3], *of_others


_FLASH = {"backward": "flash_attention_backward", "mask": 6, "deterministic": 10, "forward_only": 7}
RULES = {
    "flash_attention_forward": Rule(**_FLASH, sinks=12, seed=14),
    "flash_attention": Rule(**_FLASH),  # without options, and without lse, so its gradient reruns the forward pass
    "packed_attention": Rule("packed_attention_backward", deterministic=8, sinks=10, seed=12),
    "block_attention": Rule("block_attention_backward"),
}
_registered: set[str] = set()  # namespaces of torch.ops
_operators: dict[tuple[str, str], object] = {}  # a plain dict: torch.compile can trace through it


def operators_of(room: str, device: torch.device):
    """torch.ops.<namespace> of a kernel folder for the device, with gradients; built on first use, see loaded."""
    if (room, device.type) not in _operators:
        ops = loaded(room, device)
        register(ops)
        _operators[room, device.type] = getattr(torch.ops, ops.libraries[0].name)
    return _operators[room, device.type]


def loaded_operators(room: str) -> list:
    """The operators that operators_of has loaded from a folder so far."""
    return [operators for (name, _), operators in _operators.items() if name == room]


def run(operators, name: str, arguments: Sequence, gradients: bool) -> tuple[Tensor, Tensor]:
    """Runs one of RULES; returns (out, lse).

    Args:
        operators: from operators_of, or anything with functions of the same names.
        gradients: whether gradients may be requested.
    """
    if torch.compiler.is_compiling():
        return getattr(operators, name)(*arguments)
    if transforming():
        return Forward.apply(operators, name, *arguments)
    return Plain.apply(operators, name, *arguments) if gradients else below_autograd(operators, name, *arguments)


def transforming() -> bool:
    """Whether a transform of torch.func (grad, vmap, ...) is active."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def below_autograd(operators, name: str, *arguments):
    """Calls an operator without its autograd formula, for callers that handle gradients themselves."""
    with torch._C._AutoDispatchBelowAutograd():
        return getattr(operators, name)(*arguments)


class Forward(torch.autograd.Function):
    """(operators, name, *arguments of the operator) -> (out, lse)."""

    @staticmethod
    def forward(operators, name: str, *arguments):
        return below_autograd(operators, name, *arguments)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: tuple) -> None:
        ctx.operators, ctx.name, *arguments = inputs
        _save(ctx, RULES[ctx.name], arguments, output, ctx.needs_input_grad[2:])

    @staticmethod
    def backward(ctx, grad_out: Tensor, _) -> tuple:
        arguments, out, lse = _saved(ctx)
        rule = RULES[ctx.name]

        def function(operators, *given) -> tuple:
            # as a separate Function only if its derivative may be requested
            again = torch.is_grad_enabled() or transforming()
            return (Backward.apply if again else Backward.forward)(operators, ctx.name, *given)

        return None, None, *rule.gradients(function, ctx.operators, grad_out, arguments, out, lse)

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(NO_FORWARD_MODE)

    @staticmethod
    def vmap(info, in_dims: tuple, operators, name: str, *arguments):
        return _mapped(Forward, RULES[name].mask, 3, info.batch_size, in_dims[2:], operators, name, arguments)


class Plain(torch.autograd.Function):
    """Forward outside of torch.func: for a Function with setup_context PyTorch inspects the signature at each call,
    which takes longer than everything else around a kernel."""

    @staticmethod
    def forward(ctx, *inputs):
        output = Forward.forward(*inputs)
        Forward.setup_context(ctx, inputs, output)
        return output

    backward = staticmethod(Forward.backward)


class Backward(torch.autograd.Function):
    """(operators, name of the forward operator, *arguments of the backward operator) -> the gradients."""

    @staticmethod
    def forward(operators, name: str, *arguments):
        return below_autograd(operators, RULES[name].backward, *arguments)

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
        return _mapped(Backward, RULES[name].mask, 6, info.batch_size, in_dims[2:], operators, name, arguments)


def register(ops: Operators) -> None:
    """Registers the gradients of a build's operators with PyTorch; repeated calls are harmless."""
    library = ops.libraries[0]
    if library.name in _registered:
        return
    operators = getattr(torch.ops, library.name)

    def formula(name: str, rule: Rule) -> None:
        def remember(ctx, inputs: tuple, output) -> None:
            _save(ctx, rule, inputs, output if isinstance(output, tuple) else (), ctx.needs_input_grad)

        def backward(ctx, grad_out: Tensor, *_) -> tuple:
            arguments, out, lse = _saved(ctx)
            if lse is None:
                out, lse = getattr(operators, f"{name}_forward")(*arguments)
            function = lambda operators, *given: getattr(operators, rule.backward)(*given)  # noqa: E731
            return rule.gradients(function, operators, grad_out, arguments, out, lse)

        torch.library.register_autograd(f"{library.name}::{name}", backward, setup_context=remember)

    def no_second_derivative(ctx, *_) -> None:
        raise NotImplementedError(NO_SECOND_DERIVATIVE)

    known = {name: rule for name, rule in RULES.items() if name in library.operators}
    for name, rule in known.items():
        formula(name, rule)
    for backward in {rule.backward for rule in known.values()}:
        torch.library.register_autograd(f"{library.name}::{backward}", no_second_derivative)
    _registered.add(library.name)


def _save(ctx, rule: Rule, arguments: Sequence, output: tuple, needed: Sequence[bool]) -> None:
    if rule.mask is not None and arguments[rule.mask] is not None and needed[rule.mask]:
        raise ValueError(NO_MASK_GRADIENT)
    ctx.at = [i for i, x in enumerate(arguments) if isinstance(x, Tensor)]
    ctx.others = [None if isinstance(x, Tensor) else x for x in arguments]
    ctx.outputs = len(output)
    ctx.save_for_backward(*output, *(arguments[i] for i in ctx.at))
    if output:
        ctx.mark_non_differentiable(output[1])


def _saved(ctx) -> tuple[list, Tensor | None, Tensor | None]:
    """The arguments, out and lse."""
    saved, arguments = ctx.saved_tensors, list(ctx.others)
    for i, x in zip(ctx.at, saved[ctx.outputs :], strict=True):
        arguments[i] = x
    return arguments, *(saved[:2] if ctx.outputs else (None, None))


def _mapped(function, mask: int | None, rows: int, count: int, dims: tuple, operators, name: str, arguments: tuple):
    """vmap of Forward or Backward. rows: the number of leading tensors that have the batch in front."""
    rule, moved = RULES[name], rows - 3
    moved -= rows == 6 and rule.forward_only is not None  # Backward: sinks and seed come after it
    places = [at + moved for at in (rule.sinks, rule.seed) if at is not None]
    of_one = [arguments[at] for at in places if at < len(arguments)]
    if mask is None or any(x is not None for x in of_one):
        samples = ([_sample(x, dim, i) for x, dim in zip(arguments, dims, strict=True)] for i in range(count))
        results = [function.apply(operators, name, *sample) for sample in samples]
        return tuple(torch.stack(x) for x in zip(*results, strict=True)), (0,) * len(results[0])
    tensors = [_folded(x, dim, count) for x, dim in zip(arguments[:rows], dims[:rows], strict=True)]
    others, at = list(arguments[rows:]), mask - 3
    others[at] = _folded_mask(others[at], dims[rows + at], count, tensors[0].size(0))
    results = function.apply(operators, name, *tensors, *others)
    # without sinks their gradient is zeros, with no sample dimension
    alone = [function is Backward and i == 3 for i in range(len(results))]
    unfolded = (x if one else x.unflatten(0, (count, -1)) for x, one in zip(results, alone, strict=True))
    return tuple(unfolded), tuple(None if one else 0 for one in alone)


def _sample(x, dim: int | None, number: int):
    """One sample along dim, with contiguous rows; x itself if all samples share it."""
    if dim is None:
        return x
    x = x.select(dim, number)
    return x if x.stride(-1) == 1 else x.contiguous()


def _folded(x: Tensor, dim: int | None, count: int) -> Tensor:
    """[batch, ...], possibly with a new dimension of `count` at `dim` -> [count * batch, ...], rows contiguous."""
    x = x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
    x = x.flatten(0, 1)
    return x if x.stride(-1) == 1 else x.contiguous()


def _folded_mask(mask: Tensor | None, dim: int | None, count: int, batch: int) -> Tensor | None:
    """_folded for a mask of 2 to 4 dimensions that broadcasts; `batch` is the other tensors' new batch size."""
    if mask is None:
        return None
    mask = mask[None] if dim is None else mask.movedim(dim, 0)
    while mask.dim() < 5:
        mask = mask[:, None]
    if mask.size(0) == mask.size(1) == 1:
        return mask[0]
    return mask.expand(count, batch // count, *mask.shape[2:]).flatten(0, 1)
