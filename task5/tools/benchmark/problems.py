"""What `python -m task5.benchmark` measures: a pattern, its sizes, and which query sees which key.

problem = Problem("strided", 8, "bf16", seq_len=16384)
problem.density                             the share of the score matrix that is seen, 0 .. 1
problem.sees(torch.arange(100))             bool [100, seq_len], or [heads, 100, seq_len] for blocks
problem.make_inputs("cuda")                 query, key, value [batch, heads, seq_len, head_dim]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
PATTERNS = ("strided", "window", "blocks")
STRIDES, WINDOWS = (1, 2, 4, 8), (256, 1024)  # stride 1 is dense attention
BLOCK, EVERY = 128, 8  # block-sparse: about one block in EVERY is kept
ROWS = 1024  # queries at a time, so that scores in float64 fit


@dataclass(frozen=True)
class Problem:
    """One call of attention under one pattern.

    Attributes:
        pattern: one of PATTERNS.
        parameter: the stride (keys 0, stride, 2 * stride, ...), the causal window in keys, or for blocks n: one block
            of BLOCK x BLOCK in n is kept, at random, and those on the diagonal.
        dtype: one of DTYPES.
        batch, heads, seq_len, head_dim: sizes of query, key and value [batch, heads, seq_len, head_dim].

    Raises:
        ValueError: an unknown pattern or dtype, parameter outside 1 .. seq_len, a size below 1, or with blocks a
            seq_len that BLOCK does not divide.
    """

    pattern: str
    parameter: int
    dtype: str
    batch: int = 2
    heads: int = 16
    seq_len: int = 16384
    head_dim: int = 128

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise ValueError(f"pattern is {self.pattern!r}; it must be one of {', '.join(PATTERNS)}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        for name in ("batch", "heads", "seq_len", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 1 <= self.parameter <= self.seq_len:
            raise ValueError(f"{self.parameter_name} is {self.parameter}; it must be 1 .. seq_len = {self.seq_len}")
        if self.pattern == "blocks" and self.seq_len % BLOCK:
            raise ValueError(f"seq_len is {self.seq_len}; with blocks it must be a multiple of {BLOCK}")

    @property
    def parameter_name(self) -> str:
        return {"strided": "stride", "window": "window", "blocks": "one block in"}[self.pattern]

    @property
    def name(self) -> str:
        """ "stride 8", "window 256, causal", "one block in 8"."""
        return f"{self.parameter_name} {self.parameter}" + (", causal" if self.pattern == "window" else "")

    @property
    def sizes(self) -> str:
        """ "2 x 16 x 4096 x 128": batch, heads, seq_len, head_dim."""
        return f"{self.batch} x {self.heads} x {self.seq_len} x {self.head_dim}"

    @cached_property
    def block_mask(self) -> Tensor:
        """bool [heads, seq_len / BLOCK, seq_len / BLOCK] on the CPU, the same in every run; the second row is empty."""
        blocks = self.seq_len // BLOCK
        draws = torch.rand(self.heads, blocks, blocks, generator=torch.Generator().manual_seed(0))
        kept = (draws < 1 / self.parameter) | torch.eye(blocks, dtype=torch.bool)
        kept[:, 1:2] = False
        return kept

    def sees(self, rows: Tensor) -> Tensor:
        """Which keys these queries see, bool [len(rows), seq_len] ([heads, len(rows), seq_len] for blocks)."""
        keys = torch.arange(self.seq_len, device=rows.device)
        if self.pattern == "strided":
            return (keys % self.parameter == 0).expand(len(rows), -1)
        if self.pattern == "window":
            return (keys <= rows[:, None]) & (keys > rows[:, None] - self.parameter)
        return self.block_mask.to(rows.device)[:, rows // BLOCK].repeat_interleave(BLOCK, dim=-1)

    def row_blocks(self, device: torch.device | str) -> Iterator[Tensor]:
        """The numbers of all queries, ROWS at a time."""
        yield from torch.arange(self.seq_len, device=device).split(ROWS)

    @cached_property
    def density(self) -> float:
        """The share of the score matrix that is seen."""
        seq, n = self.seq_len, self.parameter
        if self.pattern == "strided":
            return -(-seq // n) / seq
        if self.pattern == "window":
            return (n * (n + 1) / 2 + (seq - n) * n) / seq**2
        return float(self.block_mask.double().mean())

    def make_inputs(self, device: torch.device | str) -> list[Tensor]:
        """query, key, value: normally distributed."""
        shape = (self.batch, self.heads, self.seq_len, self.head_dim)
        return [torch.randn(shape, dtype=DTYPES[self.dtype], device=device) for _ in range(3)]


def grid(dtype: str, patterns: Sequence[str], lengths: Sequence[int]) -> list[Problem]:
    """All patterns with their parameters, for every length; a parameter above the length is left out.

    Raises:
        ValueError: a length below 1, or with blocks one that BLOCK does not divide.
    """
    for length in lengths:
        if length < 1:
            raise ValueError(f"seq_len is {length}; it must be at least 1")
    parameters = {"strided": STRIDES, "window": WINDOWS, "blocks": (EVERY,)}
    return [
        Problem(pattern, parameter, dtype, seq_len=length)
        for length in lengths
        for pattern in patterns
        for parameter in parameters[pattern]
        if parameter <= length
    ]
