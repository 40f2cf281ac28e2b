"""Sparse attention on a GPU compared with FlexAttention and SDPA: strides, causal windows, blocks; 2 x 16 heads of 128.

kernel                ours, on the whole K and V
flash, cuDNN, ...     SDPA's backends on strided K and V gathered beforehand (strided only)
gather + SDPA         the same with PyTorch's choice of backend, including the gather
FlexAttention         compiled, with a precomputed block mask
dense + mask          SDPA on the whole K and V with a bool mask
dense                 SDPA without a mask: the cost of a score. The ideal is its time times the density of the pattern

Work is that of the pattern: 4 operations per head_dim and unmasked score, so a rate relative to that of `dense` shows
how close a version comes to the ideal. The second row of a block mask is empty.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from common.compiling.operators import Operators
from common.measure.benchmark.goals import Goal
from common.measure.benchmark.problem import Benchmark, Version
from common.measure.benchmark.sample import Sample, attention_floor, heads
from common.measure.benchmarks.sdpa import DTYPES, LABELS, AttentionProblem, sdpa
from common.measure.limits import float32_precision
from common.reference import oracle as reference

PATTERNS = ("strided", "window", "blocks")
STRIDES, WINDOWS = (1, 2, 4, 8), (256, 1024)  # stride 1 is dense attention
BLOCK, EVERY = 128, 8  # block-sparse: about one block in EVERY is kept
ROWS = 1024  # queries at a time, so that float64 scores fit
LENGTHS = (4096, 16384)
GATHERED = ("flash", "efficient", "cudnn")
PEERS = {
    **{name: f"{LABELS[name]}, gathered" for name in GATHERED},
    "gather": "gather + SDPA",
    "flex": "FlexAttention",
    "masked": "dense + mask",
    "dense": "dense",
}


@dataclass(frozen=True)
class Problem(AttentionProblem):
    """One call of attention under one pattern.

    Attributes:
        pattern: one of PATTERNS.
        parameter: the stride (keys 0, stride, 2 * stride, ...), the causal window in keys, or for blocks n: one block
            of BLOCK x BLOCK in n is kept, at random, and those on the diagonal.
        dtype: "fp32", "fp16" or "bf16".
        batch, heads, seq_len, head_dim: sizes of query, key and value [batch, heads, seq_len, head_dim].

    Raises:
        ValueError: an unknown pattern or dtype, parameter outside 1 .. seq_len, a size below 1, or with blocks a
            seq_len that BLOCK does not divide.
    """

    pattern: str
    parameter: int
    dtype: str
    seq_len: int
    batch: int = 2
    heads: int = 16
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
            raise ValueError(f"{self.column} is out of range; it must be 1 .. seq_len = {self.seq_len}")
        if self.pattern == "blocks" and self.seq_len % BLOCK:
            raise ValueError(f"seq_len is {self.seq_len}; with blocks it must be a multiple of {BLOCK}")

    @property
    def setting(self) -> str:
        return f"{self.pattern}, {self.dtype}, {self.seq_len} tokens"

    @property
    def picture(self) -> str:
        return f"{self.pattern}, {self.dtype}"

    @property
    def column(self) -> str:
        """ "stride 8", "window 256", "one block in 8"."""
        words = {"strided": "stride", "window": "window", "blocks": "one block in"}[self.pattern]
        return f"{words} {self.parameter}"

    @property
    def x(self) -> float:
        return self.parameter

    @cached_property
    def work(self) -> float:
        """Operations of the two matmuls, for unmasked scores."""
        return 4 * self.batch * self.heads * self.seq_len**2 * self.head_dim * self.density

    @cached_property
    def block_mask(self) -> Tensor:
        """bool [heads, seq_len / BLOCK, seq_len / BLOCK] on the CPU, the same in every run; the second row is empty."""
        blocks = self.seq_len // BLOCK
        draws = torch.rand(self.heads, blocks, blocks, generator=torch.Generator().manual_seed(0))
        kept = (draws < 1 / self.parameter) | torch.eye(blocks, dtype=torch.bool)
        kept[:, 1:2] = False
        return kept

    def sees(self, rows: Tensor) -> Tensor:
        """Which keys are visible to these queries, bool [len(rows), seq_len] (blocks: [heads, len(rows), seq_len])."""
        keys = torch.arange(self.seq_len, device=rows.device)
        if self.pattern == "strided":
            return (keys % self.parameter == 0).expand(len(rows), -1)
        if self.pattern == "window":
            return (keys <= rows[:, None]) & (keys > rows[:, None] - self.parameter)
        return self.block_mask.to(rows.device)[:, rows // BLOCK].repeat_interleave(BLOCK, dim=-1)

    @cached_property
    def density(self) -> float:
        """The unmasked fraction of the score matrix."""
        seq, n = self.seq_len, self.parameter
        if self.pattern == "strided":
            return -(-seq // n) / seq
        if self.pattern == "window":
            return (n * (n + 1) / 2 + (seq - n) * n) / seq**2
        return float(self.block_mask.double().mean())

    def make_inputs(self, device: torch.device | str) -> list[Tensor]:
        """query, key, value: standard normal."""
        shape = (self.batch, self.heads, self.seq_len, self.head_dim)
        return [torch.randn(shape, dtype=DTYPES[self.dtype], device=device) for _ in range(3)]

    def sample(self, inputs: Sequence[Tensor]) -> Sample:
        """A sample of two heads."""
        exact, same = [], []
        picked = heads(inputs)
        with float32_precision("highest"):
            for head, given in ((0, picked[:3]), (self.heads - 1, picked[3:])):
                if not given:
                    continue
                query, key, value = given
                of_rows: tuple[list, list] = ([], [])
                for rows in torch.arange(self.seq_len, device=query.device).split(ROWS):
                    seen = self.sees(rows)
                    seen = seen[head] if seen.dim() == 3 else seen
                    of_rows[0].append(
                        reference.attention(query[rows].double(), key.double(), value.double(), mask=seen)
                    )
                    of_rows[1].append(reference.attention(query[rows], key, value, mask=seen))
                exact.append(torch.cat(of_rows[0]))
                same.append(torch.cat(of_rows[1]))
        return Sample.of(heads, exact, same, attention_floor(self.seq_len, DTYPES[self.dtype]))


def grid(dtype: str, patterns: Sequence[str], lengths: Sequence[int]) -> list[Problem]:
    """All patterns with their parameters, for every length; parameters above the length are skipped.

    Raises:
        ValueError: a length below 1 or, with blocks, not divisible by BLOCK.
    """
    for length in lengths:
        if length < 1:
            raise ValueError(f"seq is {length}; it must be at least 1")
    parameters = {"strided": STRIDES, "window": WINDOWS, "blocks": (EVERY,)}
    return [
        Problem(pattern, parameter, dtype, length)
        for pattern in patterns
        for length in lengths
        for parameter in parameters[pattern]
        if parameter <= length
    ]


# ---- versions


def kernel_version(problem: Problem, ops: Operators, label: str) -> Version:
    """A version for the operators of task 5 or of common/kernels/sparse."""
    n = problem.parameter
    if problem.pattern == "strided":
        return Version(label, lambda q, k, v: lambda: ops.strided_attention(q, k, v, n), ours=True)
    if problem.pattern == "window":
        return Version(label, lambda q, k, v: lambda: ops.sliding_window_attention(q, k, v, n), ours=True)
    lists = ops.compress_block_mask(problem.block_mask.to(ops.device))
    return Version(label, lambda q, k, v: lambda: ops.block_sparse_attention(q, k, v, *lists, BLOCK), ours=True)


def torch_versions(problem: Problem, names: Sequence[str], device: torch.device | str = "cuda") -> dict[str, Version]:
    """The PEERS among `names` that support the pattern."""
    found = {}
    if problem.pattern == "strided":

        def gather(*tensors: Tensor) -> list[Tensor]:
            return [x[:, :, :: problem.parameter].contiguous() for x in tensors]

        for name in GATHERED:
            found[name] = Version(PEERS[name], lambda q, k, v, name=name: sdpa(name, q, *gather(k, v)))
        found["gather"] = Version(PEERS["gather"], lambda q, k, v: lambda: sdpa(None, q, *gather(k, v))())
    if "flex" in names:
        found["flex"] = Version(PEERS["flex"], _flex(problem, device))
    if "masked" in names:
        mask = problem.sees(torch.arange(problem.seq_len, device=device))
        found["masked"] = Version(PEERS["masked"], lambda q, k, v: sdpa(None, q, k, v, attn_mask=mask))
    found["dense"] = Version(PEERS["dense"], lambda q, k, v: sdpa(None, q, k, v), compared=False)
    return found


def _flex(problem: Problem, device: torch.device | str) -> Callable[..., Callable[[], Tensor]]:
    """FlexAttention, compiled separately for every problem: torch.compile caches a few versions of a function and then
    falls back to running it uncompiled, which is far slower. fullgraph makes that an error."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n, kept = problem.parameter, problem.block_mask.to(device) if problem.pattern == "blocks" else None
    mask_mod = {
        "strided": lambda b, h, i, j: j % n == 0,
        "window": lambda b, h, i, j: (j <= i) & (j > i - n),
        "blocks": lambda b, h, i, j: kept[h, i // BLOCK, j // BLOCK],
    }[problem.pattern]
    number = problem.heads if kept is not None else None
    block_mask = create_block_mask(mask_mod, None, number, problem.seq_len, problem.seq_len, device=device)
    flex = flex_attention
    if torch.cuda.is_available():
        torch.compiler.reset()
        flex = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return lambda q, k, v: lambda: flex(q, k, v, block_mask=block_mask)


# ---- the command


def _of(pattern: str, parameter: int | None = None) -> dict:
    words = f"{pattern}, bf16" + (f", {parameter}" if parameter else "")
    return {
        "where": words,
        "of": lambda one: one.pattern == pattern and one.dtype == "bf16" and parameter in (None, one.parameter),
    }


GOALS = (
    Goal("tuned", ("flash", "efficient"), **_of("strided"), least=1.0),
    Goal("tuned", ("cudnn",), **_of("strided"), least=1 / 1.3),
    Goal("tuned", ("flex",), **_of("strided", 8), least=5.0),
    Goal("tuned", ("flex",), **_of("window"), least=1.0),
)


def sparse_benchmark(
    program: str,
    operators: Callable[[argparse.Namespace], Operators],
    labels: Mapping[str, str],
    dtype_of: Callable[[argparse.Namespace], str],
    more_arguments: Callable[[argparse.ArgumentParser], None],
    block: str = "",
) -> Benchmark:
    """One set of operators compared with PyTorch.

    Args:
        program: the text after python -m.
        operators: operators(options) -> the operators of a variant, whose name is the version's.
        labels: name -> label of the variants that it may return.
        dtype_of: dtype_of(options) -> the dtype that they compute in.
        more_arguments: adds --dtype and the options that select the operators.
        block: see Benchmark.
    """

    def versions(options: argparse.Namespace) -> Callable[[Problem], dict[str, Version]]:
        ops = operators(options)
        name, wanted = str(ops.variant), options.versions or list(PEERS)
        return lambda problem: {
            name: kernel_version(problem, ops, labels[name]),
            **torch_versions(problem, wanted),
        }

    def arguments(parser: argparse.ArgumentParser) -> None:
        more_arguments(parser)
        add = parser.add_argument
        add("--pattern", nargs="+", choices=PATTERNS, default=list(PATTERNS), help="default: all three")
        add("--seq", nargs="+", type=int, default=list(LENGTHS), metavar="N", help="tokens (default: 4096 16384)")

    return Benchmark(
        program,
        "How fast sparse attention is on a GPU, compared with FlexAttention and SDPA.",
        {**labels, **PEERS},
        lambda options: grid(dtype_of(options), options.pattern, options.seq),
        versions,
        Problem,
        arguments,
        GOALS,
        block=block,
    )
