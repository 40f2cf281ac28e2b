"""Who takes part in `python -m task5.benchmark`: our kernel, PyTorch's FlexAttention and scaled_dot_product_attention.

calls = versions(problem, ops, masks, flex=True)    name -> function of (query, key, value, extra)
extra = prepare(problem, key, value)                the gathered K and V, made beforehand and not timed

kernel               ours, on the whole K and V
flash, cuDNN, ...    SDPA's backends on strided K and V that were copied together beforehand (strided only)
gather + SDPA        the same on PyTorch's choice of backend, the copy counted
FlexAttention        compiled, with a block mask made beforehand
dense + mask         SDPA on the whole K and V with a bool mask
dense                SDPA on the whole K and V without a mask: the ideal is its time times the density
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from task5.tools.benchmark.problems import BLOCK, Problem

if TYPE_CHECKING:
    from common.compiling.operators import Operators

OURS, FLEX, DENSE, DENSE_MASK = "kernel", "FlexAttention", "dense", "dense + mask"
CUDNN = "cuDNN, gathered"
BACKENDS = {
    "flash, gathered": SDPBackend.FLASH_ATTENTION,
    "efficient, gathered": SDPBackend.EFFICIENT_ATTENTION,
    CUDNN: SDPBackend.CUDNN_ATTENTION,
}
GATHER = "gather + SDPA"
Call = Callable[..., Tensor]


@dataclass
class Extra:
    """What is made of the inputs beforehand.

    Attributes:
        key, value: every stride-th row, contiguous; None for other patterns.
    """

    key: Tensor | None = None
    value: Tensor | None = None


class Masks:
    """What a pattern needs on the device, once per problem.

    Args:
        problem: the pattern.
        device: of the inputs.
        ops: task 5's operators.
    """

    def __init__(self, problem: Problem, device: torch.device | str, ops: Operators) -> None:
        rows = torch.arange(problem.seq_len, device=device)
        self.dense = problem.sees(rows)  # bool [(heads,) seq_len, seq_len]
        self.counts = self.columns = None
        if problem.pattern == "blocks":
            self.block_mask = problem.block_mask.to(device)
            self.counts, self.columns = ops.compress_block_mask(self.block_mask)


def versions(problem: Problem, ops: Operators, masks: Masks, flex: bool = True) -> dict[str, Call]:
    """Functions of (query, key, value, extra) by name; see the top of this file.

    Args:
        problem: what they compute.
        ops: the operators of task 5 for its dtype.
        masks: of that problem.
        flex: with FlexAttention.
    """
    calls: dict[str, Call] = {OURS: _ours(problem, ops, masks)}
    if problem.pattern == "strided":
        for name, backend in BACKENDS.items():
            calls[name] = _gathered(backend)
        calls[GATHER] = lambda q, k, v, extra: F.scaled_dot_product_attention(q, *_gather(problem, k, v))
    if flex:
        calls[FLEX] = _flex(problem, masks)
    calls[DENSE_MASK] = lambda q, k, v, extra: F.scaled_dot_product_attention(q, k, v, attn_mask=masks.dense)
    calls[DENSE] = lambda q, k, v, extra: F.scaled_dot_product_attention(q, k, v)
    return calls


def prepare(problem: Problem, key: Tensor, value: Tensor) -> Extra:
    """The gathered K and V of these inputs."""
    return Extra(*_gather(problem, key, value)) if problem.pattern == "strided" else Extra()


def _gather(problem: Problem, *tensors: Tensor) -> list[Tensor]:
    return [x[:, :, :: problem.parameter].contiguous() for x in tensors]


def _ours(problem: Problem, ops: Operators, masks: Masks) -> Call:
    if problem.pattern == "strided":
        return lambda q, k, v, extra: ops.strided_attention(q, k, v, problem.parameter)
    if problem.pattern == "window":
        return lambda q, k, v, extra: ops.sliding_window_attention(q, k, v, problem.parameter)
    return lambda q, k, v, extra: ops.block_sparse_attention(q, k, v, masks.counts, masks.columns, BLOCK)


def _gathered(backend: SDPBackend) -> Call:
    def call(query: Tensor, key: Tensor, value: Tensor, extra: Extra) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, extra.key, extra.value)

    return call


def _compiled_flex() -> Call:
    """FlexAttention, compiled anew for every problem: torch.compile keeps a few versions of a function and then runs it
    uncompiled, which is far slower. fullgraph makes that an error."""
    from torch.nn.attention.flex_attention import flex_attention

    if not torch.cuda.is_available():
        return flex_attention
    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def _flex(problem: Problem, masks: Masks) -> Call:
    from torch.nn.attention.flex_attention import create_block_mask

    n, device = problem.parameter, masks.dense.device
    if problem.pattern == "strided":

        def mask_mod(b, h, i, j):
            return j % n == 0
    elif problem.pattern == "window":

        def mask_mod(b, h, i, j):
            return (j <= i) & (j > i - n)
    else:
        kept = masks.block_mask

        def mask_mod(b, h, i, j):
            return kept[h, i // BLOCK, j // BLOCK]

    heads = problem.heads if problem.pattern == "blocks" else None
    block_mask = create_block_mask(mask_mod, None, heads, problem.seq_len, problem.seq_len, device=device)
    flex = _compiled_flex()
    return lambda q, k, v, extra: flex(q, k, v, block_mask=block_mask)
