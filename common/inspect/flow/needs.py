"""Which elements of the inputs an element of the right answer depends on: where its derivative is not 0 in fp32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

SMALLEST = torch.finfo(torch.float32).tiny  # a kernel in fp32 may leave out what has a smaller weight: it is 0 there


class Needs:
    """What the elements of a right answer depend on.

    Args:
        reference: reference(**inputs) computes it.
        inputs: on the CPU.

    Raises:
        RuntimeError: the reference cannot be differentiated.
    """

    def __init__(self, reference: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> None:
        self.leaves = {  # what must not be read is NaN, which would spoil every derivative
            name: x.double().nan_to_num(nan=0.5, posinf=torch.inf, neginf=-torch.inf).requires_grad_()
            for name, x in inputs.items()
            if x.is_floating_point()
        }
        with torch.enable_grad():
            self._ref = reference(**{**inputs, **self.leaves}).reshape(-1)
        if not self._ref.requires_grad:
            raise RuntimeError("the reference has no derivative")
        generator = torch.Generator().manual_seed(0)
        self._factors = 1 + torch.rand(self._ref.numel(), generator=generator, dtype=torch.float64)  # nothing cancels

    def of(self, elements: Sequence[int]) -> dict[str, Tensor]:
        """For each input which of its elements these depend on, bool [numel]; without inputs where that is unknown.

        Elements that are 0 are left out: there is no telling where a 0 comes from.
        """
        at = torch.as_tensor(elements)
        weighed = (self._ref[at] * self._factors[at]).sum()
        grads = torch.autograd.grad(weighed, list(self.leaves.values()), retain_graph=True, allow_unused=True)
        found = {}
        for name, grad in zip(self.leaves, grads, strict=True):
            if grad is None:
                found[name] = torch.zeros(self.leaves[name].numel(), dtype=torch.bool)
            elif not bool(torch.isnan(grad).any()):
                found[name] = (grad.reshape(-1).abs() >= SMALLEST) & (self.leaves[name].detach().reshape(-1) != 0)
        return found
