"""What `python -m task4.benchmark` measures: one Problem per pass, dtype, head_dim, mask and length.

grid(["forward"], ["bf16"], [64, 128], [512, 1024], hidden=2048)        16,384 tokens each, with and without a mask
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

TOKENS = 16384  # batch * seq_len of every problem, unless one sequence is longer
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (64, 128)
HIDDEN = 2048  # heads * head_dim
PASSES = ("forward", "backward")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Problem:
    """Attention of one size: query, key, value and out are [batch, heads, seq_len, head_dim].

    Attributes:
        direction: "forward", or "backward": the gradients of query, key and value, the forward pass not counted.
        dtype: "fp32", "fp16" or "bf16".
        head_dim, causal, seq_len, batch, heads: the sizes; causal: key j is hidden from query i where j > i.
    """

    direction: str
    dtype: str
    head_dim: int
    causal: bool
    seq_len: int
    batch: int
    heads: int

    @property
    def setting(self) -> str:
        """All but the length: "forward, bf16, head_dim 64, causal"."""
        return f"{self.direction}, {self.dtype}, head_dim {self.head_dim}{', causal' if self.causal else ''}"

    @property
    def title(self) -> str:
        return f"{self.setting}, {self.seq_len} tokens"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.seq_len, self.head_dim

    @property
    def flops(self) -> float:
        """The two products of the forward pass, the five of the backward pass; half of it under a causal mask."""
        products = 2 if self.direction == "forward" else 5
        each = 2 * self.batch * self.heads * self.seq_len**2 * self.head_dim
        return products * each * (0.5 if self.causal else 1.0)

    @property
    def scores_bytes(self) -> int:
        """Of one [batch, heads, seq_len, seq_len] in float32."""
        return 4 * self.batch * self.heads * self.seq_len**2

    @property
    def tensor_bytes(self) -> int:
        """Of one [batch, heads, seq_len, head_dim]."""
        return self.batch * self.heads * self.seq_len * self.head_dim * DTYPES[self.dtype].itemsize

    @property
    def least_bytes(self) -> int:
        """What has to be read and written at least: query, key, value, out; backward also grad_out and 3 gradients."""
        return self.tensor_bytes * (4 if self.direction == "forward" else 8)

    def make_inputs(self, device: torch.device | str) -> tuple[Tensor, ...]:
        """query, key, value, grad_out: standard normal."""
        return tuple(torch.randn(self.shape, device=device, dtype=DTYPES[self.dtype]) for _ in range(4))


def grid(
    passes: Iterable[str], dtypes: Iterable[str], head_dims: Iterable[int], lengths: Iterable[int], hidden: int = HIDDEN
) -> list[Problem]:
    """All combinations, with and without a causal mask, the lengths innermost and rising.

    Args:
        passes, dtypes: of PASSES and DTYPES.
        head_dims: 1 .. 128, divisors of hidden.
        lengths: tokens per sequence; the batch is as large as 16,384 tokens allow, at least 1.
        hidden: heads * head_dim.

    Raises:
        ValueError: a head_dim or a length that cannot be.
    """
    head_dims, lengths = list(head_dims), sorted(set(lengths))
    for head_dim in head_dims:
        if not 1 <= head_dim <= 128 or hidden < 1 or hidden % head_dim:
            raise ValueError(f"head_dim is {head_dim} and hidden {hidden}; head_dim must be 1 .. 128 and divide hidden")
    for length in lengths:
        if length < 1:
            raise ValueError(f"seq is {length}; it must be at least 1")
    return [
        Problem(direction, dtype, head_dim, causal, length, max(1, TOKENS // length), hidden // head_dim)
        for direction in passes
        for dtype in dtypes
        for head_dim in head_dims
        for causal in (False, True)
        for length in lengths
    ]
