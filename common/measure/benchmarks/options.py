"""Attention with options on a GPU compared with FlexAttention and SDPA: softcap, windows, sinks, dropout, packed
sequences, and head_dim 256 (wide).

options      ours, common/kernels/flash
plain        the same without the option, to show its cost; not for wide heads, which are not an option
flex         FlexAttention, compiled, with a precomputed block mask; it has no dropout
sdpa         SDPA flash, for dropout (with other random numbers, so not compared) and wide heads

All with a causal mask, 16,384 tokens, hidden 2048. Operations are counted as 4 per head_dim and unmasked score
forward, and 2.5 times that backward, regardless of what a version actually computes.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.kernels.attention import attention, attention_varlen, dropout_mask, quantized_dropout
from common.measure.benchmark.problem import Benchmark, Version
from common.measure.benchmark.sample import Sample, attention_floor
from common.measure.benchmarks.sdpa import DTYPES, AttentionProblem, sdpa, timed
from common.measure.limits import float32_precision
from common.reference.bounds import max_error_of

OPTIONS = ("softcap", "window", "sinks", "dropout", "packed", "wide")
PASSES = {"forward": 1.0, "backward": 2.5, "training": 3.5}  # operations relative to the forward pass
TOKENS, HIDDEN, HEAD_DIM, WIDE = 16384, 2048, 128, 256
SOFTCAP, WINDOW, DROPOUT_P, SEED = 50.0, 1024, 0.1, 7
SHARES = (1, 2, 4, 4)  # packed sequences have lengths seq_len / these numbers, cyclically
LABELS = {
    "options": "tuned, with the option",
    "plain": "tuned, without it",
    "flex": "FlexAttention",
    "sdpa": "SDPA flash",
}


@dataclass(frozen=True)
class Problem(AttentionProblem):
    """Causal attention with one option.

    Attributes:
        option: one of OPTIONS.
        direction: "forward", "backward" (excluding the forward pass) or "training" (both).
        dtype: "fp32", "fp16" or "bf16".
        seq_len: tokens per sequence; for packed sequences, of the longest.
        tokens, hidden: tokens of all sequences together; heads * head_dim.

    Raises:
        ValueError: an unknown option, seq_len below 8, or tokens not a multiple of it.
    """

    option: str
    direction: str
    dtype: str
    seq_len: int
    tokens: int = TOKENS
    hidden: int = HIDDEN

    def __post_init__(self) -> None:
        if self.option not in OPTIONS:
            raise ValueError(f"option is {self.option!r}; it must be one of {', '.join(OPTIONS)}")
        if self.seq_len < 8 or self.tokens % self.seq_len:
            raise ValueError(f"seq is {self.seq_len}; it must be at least 8 and divide {self.tokens}")

    @property
    def setting(self) -> str:
        return f"{self.direction}, {self.dtype}, {self.seq_len} tokens"

    @property
    def picture(self) -> str:
        return f"{self.direction}, {self.dtype}"

    @property
    def column(self) -> str:
        return f"head_dim {WIDE}" if self.option == "wide" else self.option

    @property
    def x(self) -> float:
        return OPTIONS.index(self.option) + 1

    @property
    def head_dim(self) -> int:
        return WIDE if self.option == "wide" else HEAD_DIM

    @property
    def heads(self) -> int:
        return self.hidden // self.head_dim

    @property
    def lengths(self) -> list[int]:
        """Lengths of the sequences."""
        if self.option != "packed":
            return [self.seq_len] * (self.tokens // self.seq_len)
        lengths: list[int] = []
        while (left := self.tokens - sum(lengths)) > 0:
            lengths.append(min(left, self.seq_len // SHARES[len(lengths) % len(SHARES)]))
        return lengths

    @property
    def work(self) -> float:
        seen = (min(n, WINDOW) if self.option == "window" else n for n in self.lengths)
        pairs = sum(w * (w + 1) / 2 + (n - w) * w for n, w in zip(self.lengths, seen, strict=True))
        return 4 * self.heads * self.head_dim * pairs * PASSES[self.direction]

    def make_inputs(self, device: torch.device | str) -> tuple[Tensor, ...]:
        """query, key, value, grad_out: standard normal, [batch, heads, seq_len, head_dim]; packed [tokens, heads,
        head_dim]."""
        shape = (self.tokens // self.seq_len, self.heads, self.seq_len, self.head_dim)
        shape = (self.tokens, self.heads, self.head_dim) if self.option == "packed" else shape
        return tuple(torch.randn(shape, device=device, dtype=DTYPES[self.dtype]) for _ in range(4))

    def cu_seqlens(self, device: torch.device | str) -> Tensor:
        return torch.tensor([0, *self.lengths]).cumsum(0).to(device, torch.int32)

    def sinks(self, device: torch.device | str) -> Tensor | None:
        return torch.linspace(-1, 4, self.heads, device=device) if self.option == "sinks" else None

    def options(self, device: torch.device | str) -> dict:
        """The keyword arguments of attention."""
        own = {
            "softcap": {"softcap": SOFTCAP},
            "window": {"window_size": (WINDOW - 1, 0)},
            "sinks": {"sinks": self.sinks(device)},
            "dropout": {"dropout_p": DROPOUT_P, "seed": torch.tensor([SEED], device=device)},
        }
        return {"is_causal": True, "kernel": "flash"} | own.get(self.option, {})

    def sample(self, inputs: Sequence[Tensor]) -> Sample:
        """The first head of the first sequence and the last of the last."""
        exact, bounds = [], []
        floor = attention_floor(self.seq_len, DTYPES[self.dtype])
        with float32_precision("highest"):
            for first in (True, False):
                given = self._part(inputs, first)
                rounded: list[float] = []
                right = self._head([x.double() for x in given], first, rounded)
                for ref, same, once in zip(right, self._head(given, first), rounded, strict=True):
                    bounds.append(2 * max_error_of(same, ref) + floor(ref) + once)
                exact += right
        pick = lambda outputs: [x for first in (True, False) for x in self._part(outputs, first)]  # noqa: E731
        return Sample(pick, exact, bounds)

    def _part(self, tensors: Sequence[Tensor], first: bool) -> list[Tensor]:
        at = 0 if first else -1
        if self.option != "packed":
            return [x[at, at] for x in tensors]
        rows = slice(0, self.lengths[0]) if first else slice(self.tokens - self.lengths[-1], None)
        return [x[rows, at] for x in tensors]

    def _head(self, given: Sequence[Tensor], first: bool, rounded: list[float] | None = None) -> tuple[Tensor, ...]:
        """One head of one sequence in plain PyTorch: (out,), or the gradients of query, key and value.

        rounded: receives, for each of them, the error due to rounding the weights, dS, and the output used for delta to
            dtype once.
        """
        *tensors, grad_out = given
        dtype, device = grad_out.dtype, grad_out.device
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in tensors]
            work = [x.to(torch.promote_types(dtype, torch.float32)) for x in leaves]
            scores = work[0] @ work[1].mT / math.sqrt(self.head_dim)
            if self.option == "softcap":
                scores = SOFTCAP * torch.tanh(scores / SOFTCAP)
            seen = torch.ones(scores.shape, dtype=torch.bool, device=device).tril()
            seen = seen.triu(1 - WINDOW) if self.option == "window" else seen
            scores = scores.masked_fill(~seen, -math.inf)
            if (sinks := self.sinks(device)) is not None:
                scores = torch.cat([scores, sinks[0 if first else -1].to(scores.dtype).expand(len(scores), 1)], -1)
            weights = scores.softmax(-1)[:, : len(tensors[1])]
            taken = weights
            if self.option == "dropout":
                taken = weights * self._kept(device)[0 if first else -1] / (1 - quantized_dropout(DROPOUT_P))
            out = taken.to(dtype) @ leaves[2]
            grads = () if self.direction == "forward" else torch.autograd.grad(out, leaves, grad_out)
        if rounded is not None:
            weights, taken, out = weights.detach(), taken.detach(), out.detach()
            query, key, value, grad = (x.abs() for x in given)
            unit = torch.finfo(DTYPES[self.dtype]).eps
            ds = unit * (taken * (grad @ value.mT) + 2 * weights * (grad * out.abs()).sum(-1, keepdim=True))
            ds /= math.sqrt(self.head_dim)
            of = (ds @ key, ds.mT @ query, unit * taken.mT @ grad) if grads else (unit * taken @ value,)
            rounded += [float(x.max()) for x in of]
        return grads or (out.detach(),)

    def _kept(self, device: torch.device) -> list[Tensor]:
        """The dropout masks of the first head of the first sequence and the last of the last: [seq_len, seq_len]."""
        sizes = self.tokens // self.seq_len, self.heads, self.seq_len, self.seq_len
        kept = dropout_mask(torch.tensor([SEED], device=device), DROPOUT_P, *sizes)
        return [kept[0, 0].clone(), kept[-1, -1].clone()]


# ---- versions


def versions_of(problem: Problem, names: Sequence[str]) -> dict[str, Version]:
    """The versions among `names` that support the option."""

    def version(name: str, forward: Callable[..., Callable[[], Tensor]], **about: bool) -> Version:
        return Version(LABELS[name], functools.partial(timed, problem.direction, forward), **about)

    found = {"options": version("options", _ours(problem), ours=True)}
    if problem.head_dim <= HEAD_DIM:
        forward = _dense(problem, lambda q, k, v: attention(q, k, v, is_causal=True))
        found["plain"] = version("plain", forward, compared=False)
    if problem.option in ("softcap", "window", "packed", "wide") and "flex" in names:
        found["flex"] = version("flex", _flex(problem))
    if problem.option in ("dropout", "wide"):
        dropout_p = DROPOUT_P if problem.option == "dropout" else 0.0
        forward = functools.partial(sdpa, "flash", is_causal=True, dropout_p=dropout_p)
        found["sdpa"] = version("sdpa", forward, compared=not dropout_p)
    return {name: one for name, one in found.items() if name in names}


def _ours(problem: Problem) -> Callable[..., Callable[[], Tensor]]:
    def forward(query: Tensor, key: Tensor, value: Tensor) -> Callable[[], Tensor]:
        if problem.option == "packed":
            cu_seqlens = problem.cu_seqlens(query.device)
            return lambda: attention_varlen(query, key, value, cu_seqlens, is_causal=True)
        options = problem.options(query.device)
        return lambda: attention(query, key, value, **options)

    return forward


def _dense(problem: Problem, attend: Callable[..., Tensor]) -> Callable[..., Callable[[], Tensor]]:
    """Packed tensors viewed as sequences of seq_len tokens each: the same tokens, more scores."""

    def as_dense(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, problem.seq_len)).transpose(1, 2) if problem.option == "packed" else x

    def forward(*inputs: Tensor) -> Callable[[], Tensor]:
        def call() -> Tensor:
            out = attend(*(as_dense(x) for x in inputs))
            return out.transpose(1, 2).flatten(0, 1) if problem.option == "packed" else out

        return call

    return forward


def _flex(problem: Problem) -> Callable[..., Callable[[], Tensor]]:
    """FlexAttention, compiled separately for every problem, see sparse.py."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    packed = problem.option == "packed"

    @functools.cache
    def compiled(device: torch.device) -> Callable[..., Tensor]:
        number = torch.repeat_interleave(torch.arange(len(problem.lengths)), torch.tensor(problem.lengths)).to(device)
        mask_mod = {
            "window": lambda b, h, i, j: (j <= i) & (j > i - WINDOW),
            "packed": lambda b, h, i, j: (j <= i) & (number[i] == number[j]),
        }.get(problem.option, lambda b, h, i, j: j <= i)
        score_mod = lambda s, b, h, i, j: SOFTCAP * torch.tanh(s / SOFTCAP)  # noqa: E731
        rows = problem.tokens if packed else problem.seq_len
        options = {"block_mask": create_block_mask(mask_mod, None, None, rows, rows, device=device)}
        options |= {"score_mod": score_mod} if problem.option == "softcap" else {}
        flex = flex_attention
        if device.type == "cuda":
            torch.compiler.reset()
            flex = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        return functools.partial(flex, **options)

    def forward(query: Tensor, key: Tensor, value: Tensor) -> Callable[[], Tensor]:
        flex = compiled(query.device)
        if not packed:
            return lambda: flex(query, key, value)
        return lambda: flex(*(x.transpose(0, 1)[None] for x in (query, key, value)))[0].transpose(0, 1)

    return forward


# ---- the command


def options_benchmark(program: str) -> Benchmark:
    """The kernels with options compared with those without, and with PyTorch's."""

    def versions(options: argparse.Namespace) -> Callable[[Problem], dict[str, Version]]:
        return lambda problem: versions_of(problem, options.versions or list(LABELS))

    def arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--dtype", choices=DTYPES, default="bf16", help="default: bf16")
        add("--option", nargs="+", choices=OPTIONS, default=list(OPTIONS), help="default: all")
        add("--seq", nargs="+", type=int, default=[2048], metavar="N", help="tokens of a sequence (default: 2048)")
        add("--pass", dest="passes", nargs="+", choices=PASSES, default=list(PASSES)[:2], help="forward backward")

    return Benchmark(
        program,
        "How fast attention with options is on a GPU, compared with FlexAttention and SDPA.",
        LABELS,
        lambda options: [
            Problem(option, direction, options.dtype, length)
            for direction in options.passes
            for length in options.seq
            for option in options.option
        ],
        versions,
        Problem,
        arguments,
    )
