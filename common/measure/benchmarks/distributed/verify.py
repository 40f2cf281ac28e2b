"""Compares output and gradients, gathered from all ranks, with float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from common.console.words import first_line
from common.kernels.distributed.shards import shard, unshard
from common.measure.benchmarks.distributed.versions import Version
from common.measure.benchmarks.sdpa import sdpa
from common.reference.bounds import max_error_of


class Checked(NamedTuple):
    """The result of verify for one version.

    Attributes:
        what: "ring, causal".
        fine: whether everything is within its bound.
        errors: (error, bound) of out and the gradients of query, key and value; empty if it did not run.
        left_out: why it did not run.
    """

    what: str
    fine: bool
    errors: list[tuple[float, float]]
    left_out: str = ""


def verify(
    versions: Mapping[str, Version], device: torch.device, tokens: int, heads: int, kv_heads: int, head_dim: int, dtype
) -> list[Checked]:
    """Gathers output and gradients of every version that runs on all ranks and compares them with float64.

    A bound is twice PyTorch's error in the same precision, plus one rounding to dtype per merged part.
    """
    found: list[Checked] = []
    for causal in (True, False):
        generator = torch.Generator(device).manual_seed(5)
        shapes = [(1, h, tokens, head_dim) for h in (heads, kv_heads, kv_heads, heads)]
        given = [torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes]
        exact = _by_pytorch(*(x.double() for x in given), causal)
        peer = _by_pytorch(*given, causal)
        for name, version in versions.items():
            if version.whole:
                continue
            what = f"{name}, {'causal' if causal else 'full'}"
            leaves = [shard(x).requires_grad_() for x in given[:3]]
            try:
                with version.around(causal):
                    out = version.attend(*leaves, causal)
                    parts = [out.detach(), *torch.autograd.grad(out, leaves, shard(given[3]))]
            except (RuntimeError, ValueError) as error:  # the same on every rank
                found.append(Checked(what, False, [], first_line(error)))
                continue
            errors = []
            for part, right, same in zip(parts, exact, peer, strict=True):
                rounding = dist.get_world_size() * torch.finfo(dtype).eps / 2 * float(right.abs().max())
                bound = 2 * max_error_of(same, right) + 1e-5 + rounding
                errors.append((max_error_of(unshard(part), right), bound))
            fine = all(error <= bound for error, bound in errors)
            found.append(Checked(what, fine, errors))
    return found


def _by_pytorch(query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, causal: bool) -> list[Tensor]:
    """out and the three gradients over the whole sequence with PyTorch's math backend."""
    leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    out = sdpa("math", *leaves, is_causal=causal)()
    return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]
