"""Finds out which scores a kernel computes and which of them count, from its output alone.

    probe(attend, seq_len, ops.device)      -> Probe(attended, computed), bool [seq_len, seq_len] both

With `value` = the identity matrix, the output is the matrix of weights. With NaN in place of the ones, the output is
NaN wherever the kernel multiplied a query's weight by that key's value, even if the weight is 0, since 0 * NaN is NaN.
The kernel needs no instrumentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

WIDTH = 128  # head_dim: the number of keys that one head can distinguish
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Probe:
    """The scores that a kernel computes.

    Attributes:
        attended: bool [seq_len, seq_len], True where a query gave a key a weight above 0.
        computed: bool [seq_len, seq_len], True where a weight, even one of 0, was multiplied by a value.
    """

    attended: Tensor
    computed: Tensor

    @property
    def attended_share(self) -> float:
        """Of the score matrix, 0 .. 1."""
        return float(self.attended.double().mean())

    @property
    def computed_share(self) -> float:
        """Of the score matrix, 0 .. 1."""
        return float(self.computed.double().mean())


def probe(attend: Attend, seq_len: int, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Probe:
    """Calls a kernel twice and analyzes its outputs.

    Args:
        attend: query, key, value [batch, 1, seq_len, 128] -> out of the same shape; one head per batch entry.
        seq_len: how many queries and keys, at least 1.
        device, dtype: those of the kernel's inputs.
    """
    parts = math.ceil(seq_len / WIDTH)  # batch entry p distinguishes the keys 128 p ... 128 p + 127
    generator = torch.Generator().manual_seed(0)
    query, key = (
        torch.randn(1, 1, seq_len, WIDTH, generator=generator).to(device, dtype).repeat(parts, 1, 1, 1)
        for _ in range(2)
    )
    keys = torch.arange(seq_len, device=device)

    def output(mark: float) -> Tensor:
        value = torch.zeros(parts, 1, seq_len, WIDTH, dtype=dtype, device=device)
        value[keys // WIDTH, 0, keys, keys % WIDTH] = mark
        out = attend(query, key, value)[:, 0]  # [parts, seq_len, 128]
        return out.permute(1, 0, 2).reshape(seq_len, parts * WIDTH)[:, :seq_len].cpu()

    return Probe(output(1.0) > 0, output(math.nan).isnan())
