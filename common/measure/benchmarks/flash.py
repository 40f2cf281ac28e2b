"""Dense attention on a GPU, forward and backward: the problems, and the fast kernels compared with PyTorch's backends.

Each problem has 16,384 tokens (batch = 16384 / seq, heads = hidden / head_dim), with and without a causal mask.
Operations are counted as 4 batch heads seq^2 head_dim forward and 2.5 times that backward, half of it under a mask,
regardless of what a version actually computes. Training is both in sequence through autograd, as a user calls it.

    flash_benchmark("common.benchmark flash")           the Benchmark
    flash_benchmark(..., labels, versions)              with other versions in front
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest
from common.kernels.attention import attention
from common.measure.benchmark.goals import Goal
from common.measure.benchmark.problem import Benchmark, Version
from common.measure.benchmark.sample import Sample, attention_floor, heads
from common.measure.benchmarks import flash3
from common.measure.benchmarks.sdpa import DTYPES, HALF, LABELS, AttentionProblem, sdpa, timed
from common.measure.limits import float32_precision
from common.reference import oracle as reference

TOKENS = 16384  # batch * seq_len of every problem, unless one sequence is longer
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (64, 128)
HIDDEN = 2048  # heads * head_dim
PRODUCTS = {"forward": 2, "backward": 5, "training": 7}  # matmuls, by pass
PASSES = tuple(PRODUCTS)
MIDDLE = (1024, 2048, 4096)
ROWS = 1024  # queries at a time, so that the scores of a long sequence fit


@dataclass(frozen=True)
class Problem(AttentionProblem):
    """Attention of one size: query, key, value and out are [batch, heads, seq_len, head_dim].

    Attributes:
        direction: "forward"; "backward": the gradients of query, key and value, excluding the forward pass; or
            "training": both.
        dtype: "fp32", "fp16" or "bf16".
        head_dim, causal, seq_len, batch, heads: the sizes; causal: key j is masked for query i if j > i.
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
        return f"{self.picture}, head_dim {self.head_dim}{', causal' if self.causal else ''}"

    @property
    def picture(self) -> str:
        return f"{self.direction}, {self.dtype}"

    @property
    def column(self) -> str:
        return str(self.seq_len)

    @property
    def x(self) -> float:
        return self.seq_len

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.seq_len, self.head_dim

    @property
    def work(self) -> float:
        """Operations of the pass's matmuls; half of them under a causal mask."""
        products = PRODUCTS[self.direction]
        each = 2 * self.batch * self.heads * self.seq_len**2 * self.head_dim
        return products * each * (0.5 if self.causal else 1.0)

    @property
    def scores_bytes(self) -> int:
        """Bytes of one float32 tensor [batch, heads, seq_len, seq_len]."""
        return 4 * self.batch * self.heads * self.seq_len**2

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one tensor [batch, heads, seq_len, head_dim]."""
        return self.batch * self.heads * self.seq_len * self.head_dim * DTYPES[self.dtype].itemsize

    @property
    def least_bytes(self) -> int:
        """The minimum bytes read and written: query, key, value, out; backward also grad_out and 3 gradients."""
        return self.tensor_bytes * (4 if self.direction == "forward" else 8)

    def make_inputs(self, device: torch.device | str) -> tuple[Tensor, ...]:
        """query, key, value, grad_out: standard normal."""
        return tuple(torch.randn(self.shape, device=device, dtype=DTYPES[self.dtype]) for _ in range(4))

    def sample(self, inputs: Sequence[Tensor]) -> Sample:
        """A sample of two heads of out, or of the three gradients."""
        exact, same = [], []
        with torch.no_grad(), float32_precision("highest"):
            picked = heads(inputs)  # the inputs of one head, then of the other
            for given in (picked[: len(inputs)], picked[len(inputs) :]):
                if given:
                    exact += reference_head(self, [x.double() for x in given])
                    same += reference_head(self, given)
        return Sample.of(heads, exact, same, attention_floor(self.seq_len, DTYPES[self.dtype]))


def reference_head(problem: Problem, head: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """One head in plain PyTorch, in the precision of its tensors, a block of queries at a time.

    Args:
        problem: only its direction and mask matter.
        head: query, key, value, grad_out, each [seq_len, head_dim].

    Returns:
        (out,) for a forward problem; the gradients of query, key and value for a backward one.
    """
    query, key, value, grad_out = head
    positions = torch.arange(problem.seq_len, device=query.device)
    rows_out, grad_key, grad_value = [], 0.0, 0.0
    for start in range(0, problem.seq_len, ROWS):
        rows = slice(start, start + ROWS)
        mask = positions <= positions[rows, None] if problem.causal else None
        if problem.direction == "forward":
            rows_out.append(reference.attention(query[rows], key, value, mask=mask))
            continue
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in (query[rows], key, value)]
            out = reference.attention(*leaves, mask=mask)
            grad_rows, more_key, more_value = torch.autograd.grad(out, leaves, grad_out[rows])
        rows_out.append(grad_rows)
        # sums over blocks are not rounded to 16 bits in between
        grad_key, grad_value = grad_key + more_key.double(), grad_value + more_value.double()
    if problem.direction == "forward":
        return (torch.cat(rows_out),)
    return torch.cat(rows_out), grad_key.to(key.dtype), grad_value.to(value.dtype)


def grid(
    passes: Iterable[str], dtypes: Iterable[str], head_dims: Iterable[int], lengths: Iterable[int], hidden: int = HIDDEN
) -> list[Problem]:
    """All combinations, with and without a causal mask, lengths innermost and ascending.

    Args:
        passes, dtypes: from PASSES and DTYPES.
        head_dims: 1 .. 256, divisors of hidden.
        lengths: tokens per sequence; the batch has 16,384 tokens, or at least one sequence.
        hidden: heads * head_dim.

    Raises:
        ValueError: an invalid head_dim or length.
    """
    head_dims, lengths = list(head_dims), sorted(set(lengths))
    for head_dim in head_dims:
        if not 1 <= head_dim <= 256 or hidden < 1 or hidden % head_dim:
            raise ValueError(f"head_dim is {head_dim} and hidden {hidden}; head_dim must be 1 .. 256 and divide hidden")
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


# ---- versions

OURS = {
    "ffma": "tuned, FFMA",
    "3xfp16": "tuned, 3xFP16",
    "3xfp16-mma": "tuned, 3xFP16 by mma",  # where "3xfp16" is wgmma
    "mma": "tuned, mma",
    "wgmma": "tuned, wgmma",
}
WITHOUT_WGMMA = "sm_90"  # a build for it excludes the Hopper-specific kernels but runs on Hopper
# PyTorch's math backend stores scores and their softmax in float32, regardless of dtype, and more buffers backward:
# multiples measured on an H200
MATH_BUFFERS = {"forward": 2.4, "backward": 4.2, "training": 4.2}


def forward_of(operator: Callable, causal: bool, **options) -> Callable[..., Callable[[], Tensor]]:
    """Version.prepare for the forward pass of one of the course's operators."""

    def prepare(query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor) -> Callable[[], Tensor]:
        return lambda: operator(query, key, value, causal, **options)

    return prepare


def _backward_of(ops: Operators, causal: bool) -> Callable[..., Callable[[], tuple]]:
    def prepare(query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor) -> Callable[[], tuple]:
        out, lse = ops.flash_attention_forward(query, key, value, causal)
        return lambda: ops.flash_attention_backward(grad_out, query, key, value, out, lse, causal)[:3]

    return prepare


def tuned_versions(problem: Problem, ops: Operators) -> dict[str, Version]:
    """The kernels of common/kernels/flash that support this pass and dtype."""
    if problem.dtype in HALF:
        names = ["wgmma" if _on_hopper(ops, problem.direction, problem.head_dim) else "mma"]
    else:
        names = {"forward": ["ffma", "3xfp16"], "backward": ["ffma"], "training": ["3xfp16"]}[problem.direction]
    found = {}
    for name in names:
        prepare = _backward_of(ops, problem.causal)
        if problem.direction == "training":
            prepare = partial(timed, "training", lambda *inputs: lambda: attention(*inputs, is_causal=problem.causal))
        if problem.direction == "forward":
            prepare = forward_of(ops.flash_attention, problem.causal, tensor_cores=name != "ffma")
        found[name] = Version(OURS[name], prepare, ours=True)
    return found


def mma_version(problem: Problem, ops: Operators) -> dict[str, Version]:
    """float32 with mma.sync on a GPU that has a faster kernel. ops: a build for WITHOUT_WGMMA."""
    if (problem.direction, problem.dtype) != ("forward", "fp32"):
        return {}
    prepare = forward_of(ops.flash_attention, problem.causal)
    return {"3xfp16-mma": Version(OURS["3xfp16-mma"], prepare, ours=True)}


def _on_hopper(ops: Operators, direction: str, head_dim: int) -> bool:
    """Whether this pass (for training: the backward pass) uses the Hopper kernel here, for a benchmark's problems."""
    x = torch.empty(1, 1, 1, head_dim, dtype=torch.bfloat16, device=ops.device)
    if direction == "forward":
        return ops.flash_attention_kernel(x, x, x, False) == "wgmma"
    return ops.flash_attention_backward_kernel(x, x, x, x, x, x[..., 0].float(), False) == "wgmma"


def torch_versions(problem: Problem) -> dict[str, Version]:
    """PyTorch's backends that support this dtype."""
    return {
        name: Version(
            label,
            partial(timed, problem.direction, partial(sdpa, name, is_causal=problem.causal)),
            stored_bytes=MATH_BUFFERS[problem.direction] * problem.scores_bytes if name == "math" else 0.0,
        )
        for name, label in LABELS.items()
        if problem.dtype in HALF or name in ("efficient", "math")
    }


def peers(problem: Problem) -> dict[str, Version]:
    """PyTorch's backends, and FlashAttention-3 if installed."""
    third = flash3.flash3_version(problem.direction, problem.causal) if problem.dtype in HALF else {}
    return {**torch_versions(problem), **third}


# ---- the command


def _of(direction: str, dtype: str, lengths: Sequence[int] = ()) -> dict:
    """The problems of a goal."""
    tokens = f", {min(lengths)} .. {max(lengths)} tokens" if lengths else ""
    return {
        "where": f"{direction}, {dtype}{tokens}",
        "of": lambda one: (one.direction, one.dtype) == (direction, dtype) and (not lengths or one.seq_len in lengths),
        "stated": lambda problems: all(one.heads * one.head_dim == HIDDEN for one in problems),
    }


GOALS = (
    Goal("ffma", ("efficient",), **_of("forward", "fp32", MIDDLE), mean=1.1),
    Goal("3xfp16", ("efficient",), **_of("forward", "fp32", MIDDLE), mean=2.0),
    Goal("3xfp16", ("efficient",), **_of("forward", "fp32", LENGTHS[1:]), mean=3.0),
    Goal("3xfp16", ("3xfp16-mma",), **_of("forward", "fp32", LENGTHS[1:])),
    Goal("mma", ("flash",), **_of("forward", "bf16"), mean=1.05, least=0.9),
    Goal("mma", ("flash",), **_of("backward", "bf16"), mean=0.8),
    Goal("mma", ("flash",), **_of("forward", "fp16")),
    Goal("mma", ("flash",), **_of("backward", "fp16")),
    Goal("ffma", ("efficient",), **_of("backward", "fp32")),
    *(Goal("mma", ("cudnn",), **_of(direction, dtype)) for direction in PASSES[:2] for dtype in HALF),
    Goal("wgmma", ("flash", "cudnn", "fa3"), **_of("forward", "bf16"), mean=1.05, least=0.95),
    Goal("wgmma", ("flash", "cudnn"), **_of("forward", "fp16")),
    Goal("wgmma", ("flash", "cudnn", "fa3"), **_of("backward", "bf16"), mean=1.05, least=0.95),
    Goal("wgmma", ("flash", "cudnn"), **_of("backward", "fp16")),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --dtype, --head-dim, --seq, --hidden, --pass."""
    add = parser.add_argument
    add("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES), help="default: all three")
    add("--head-dim", nargs="+", type=int, default=list(HEAD_DIMS), help="default: 64 128")
    add("--seq", nargs="+", type=int, default=list(LENGTHS), help="default: 512 1024 ... 16384")
    add("--hidden", type=int, default=HIDDEN, help="heads * head_dim (default 2048)")
    add("--pass", dest="passes", nargs="+", choices=PASSES, default=list(PASSES[:2]), help="default: forward backward")


def flash_benchmark(
    program: str,
    labels: Mapping[str, str] | None = None,
    others: Callable[[argparse.Namespace], Callable[[Problem], dict[str, Version]]] | None = None,
    goals: Sequence[Goal] = (),
) -> Benchmark:
    """The fast kernels and PyTorch's backends, with others in front of them.

    Args:
        program: the text after python -m.
        labels, others, goals: for the other versions; see Benchmark.
    """

    def versions(options: argparse.Namespace) -> Callable[[Problem], dict[str, Version]]:
        if flash3.NAME in (options.versions or ()):
            flash3.require()
        more = others(options) if others else lambda problem: {}
        tuned = load(BuildRequest("flash", backend="cuda"))
        if "3xfp16-mma" not in (options.versions or ()):  # it needs a separate build
            return lambda problem: {**more(problem), **tuned_versions(problem, tuned), **peers(problem)}
        places = BuildRequest("flash").places
        older = load(BuildRequest("flash", None, "cuda", WITHOUT_WGMMA, sources=places[0].kernels, label="mma"))
        return lambda problem: {
            **more(problem),
            **tuned_versions(problem, tuned),
            **mma_version(problem, older),
            **peers(problem),
        }

    return Benchmark(
        program,
        "How fast attention is on a GPU, forward and backward, compared with PyTorch's backends and FlashAttention-3.",
        {**(labels or {}), **OURS, **LABELS, flash3.NAME: flash3.LABEL},
        lambda options: grid(options.passes, options.dtype, options.head_dim, options.seq, options.hidden),
        versions,
        Problem,
        add_arguments,
        (*GOALS, *goals),
    )
