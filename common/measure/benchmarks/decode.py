"""One decode step of attention on a GPU, compared with PyTorch's backends: one query per sequence over a full cache.

A call takes a few microseconds, less than Python needs to issue it, so each version is captured in a CUDA graph and the
replays are timed. Contiguous and paged caches have the same contents, with the pages in random order. Work: the bytes
of the caches, query and out, each moved once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest
from common.kernels.cuda_graph import captured
from common.kernels.decode.paged_cache import PAGE
from common.measure.benchmark.goals import Goal
from common.measure.benchmark.problem import Benchmark, Call, Version
from common.measure.benchmark.runner import Record
from common.measure.benchmark.sample import Sample, attention_floor, heads
from common.measure.benchmarks.sdpa import DTYPES, LABELS, sdpa
from common.measure.limits import float32_precision
from common.reference import oracle as reference

BATCHES = (1, 16)
HEADS = ((32, 32, 128), (32, 8, 128), (12, 12, 64))  # query heads, K/V heads, head_dim
CONTEXTS = (1024, 8192, 65536)
LARGE = 256 * 10**6  # bytes of a cache from which its fraction of the copy bandwidth is reported
TUNED = {"tuned": "tuned", "paged": "tuned, paged"}
PEERS = {"flash": LABELS["flash"], "cudnn": LABELS["cudnn"], "torch": "SDPA"}


class Inputs(NamedTuple):
    """The tensors of one problem.

    Attributes:
        query: [batch, heads, 1, head_dim].
        k_cache, v_cache: [batch, kv_heads, context, head_dim].
        k_pages, v_pages: [batch * context / 16, kv_heads, 16, head_dim].
        block_table: int32 [batch, context / 16], the pages in random order.
        lengths: int32 [batch], all of them `context`.
    """

    query: Tensor
    k_cache: Tensor
    v_cache: Tensor
    k_pages: Tensor
    v_pages: Tensor
    block_table: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Problem:
    """One new token of every sequence over a full cache.

    Attributes:
        batch, heads, kv_heads, head_dim: the sizes of query [batch, heads, 1, head_dim] and of its caches.
        context: tokens in every sequence, a multiple of 16.
        dtype: dtype of query, caches and output: "bf16", "fp16" or "fp32".
    """

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    dtype: str = "bf16"

    unit, limit = "TB/s", "copy"
    scores_bytes = tensor_bytes = least_bytes = 0

    def __post_init__(self) -> None:
        if self.context < 1 or self.context % PAGE:
            raise ValueError(f"context is {self.context}; it must be a multiple of {PAGE}, the tokens of a page")
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}; it must be at least 1")

    @property
    def setting(self) -> str:
        heads = f"heads {self.heads}/{self.kv_heads}, head_dim {self.head_dim}"
        return f"batch {self.batch}, {heads}, {self.dtype}"

    @property
    def picture(self) -> str:
        return f"decode, {self.dtype}"

    @property
    def column(self) -> str:
        return f"{self.context:,}"

    @property
    def x(self) -> float:
        return self.context

    @property
    def cache_bytes(self) -> int:
        """Bytes of K and V, all of which must be read."""
        return 2 * self.batch * self.kv_heads * self.context * self.head_dim * DTYPES[self.dtype].itemsize

    @property
    def work(self) -> int:
        return self.cache_bytes + 2 * self.batch * self.heads * self.head_dim * DTYPES[self.dtype].itemsize

    def make_inputs(self, device: torch.device | str) -> Inputs:
        """Standard normal numbers."""

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, self.head_dim, dtype=DTYPES[self.dtype], device=device)

        caches = [normal(self.batch, self.kv_heads, self.context) for _ in range(2)]
        table = torch.randperm(self.batch * self.context // PAGE, device=device)
        lengths = torch.full((self.batch,), self.context, dtype=torch.int32, device=device)
        pages = [self._paged(cache, table) for cache in caches]
        return Inputs(normal(self.batch, self.heads, 1), *caches, *pages, table.int().view(self.batch, -1), lengths)

    def _paged(self, cache: Tensor, table: Tensor) -> Tensor:
        """The cache in pages: page table[i] contains the i-th group of 16 tokens, sequence by sequence."""
        in_order = cache.unflatten(2, (-1, PAGE)).transpose(1, 2).flatten(0, 1)
        pages = torch.empty_like(in_order, memory_format=torch.contiguous_format)
        pages[table] = in_order
        return pages

    def sample(self, inputs: Inputs) -> Sample:
        """A sample of two heads."""
        exact, same = [], []
        group = self.heads // self.kv_heads
        with float32_precision("highest"):
            for sequence, head in dict.fromkeys([(0, 0), (self.batch - 1, self.heads - 1)]):
                query = inputs.query[sequence, head]
                key, value = (x[sequence, head // group] for x in (inputs.k_cache, inputs.v_cache))
                exact.append(reference.attention(query.double(), key.double(), value.double()))
                weights = reference.softmax(reference.scores(query.float(), key.float())).to(value.dtype)
                same.append(weights @ value)
        return Sample.of(heads, exact, same, attention_floor(self.context, DTYPES[self.dtype]))


def grid(batches: Sequence[int] = BATCHES, contexts: Sequence[int] = CONTEXTS, dtype: str = "bf16") -> list[Problem]:
    """All combinations with HEADS, the contexts innermost. ValueError for an invalid size."""
    return [Problem(batch, *heads, context, dtype) for batch in batches for heads in HEADS for context in contexts]


# ---- versions


def contiguous_version(label: str, ops: Operators, prepared: Callable[[Call], Call]) -> Version:
    """A version for operators with decode_attention, on the contiguous caches."""

    def prepare(*given: Tensor) -> Call:
        one = Inputs(*given)
        return prepared(partial(ops.decode_attention, one.query, one.k_cache, one.v_cache, one.lengths))

    return Version(label, prepare, ours=True)


def tuned_versions(ops: Operators, prepared: Callable[[Call], Call]) -> dict[str, Version]:
    """The kernels of common/kernels/decode, contiguous and paged."""

    def paged(*given: Tensor) -> Call:
        one = Inputs(*given)
        pages = one.k_pages, one.v_pages, one.lengths, one.block_table
        return prepared(partial(ops.decode_attention_paged, one.query, *pages))

    return {
        "tuned": contiguous_version(TUNED["tuned"], ops, prepared),
        "paged": Version(TUNED["paged"], paged, ours=True),
    }


def torch_version(name: str, prepared: Callable[[Call], Call]) -> Version:
    """One of PyTorch's backends, or "torch": its own choice."""
    backend = None if name == "torch" else name
    return Version(PEERS[name], lambda query, key, value, *others: prepared(sdpa(backend, query, key, value)))


def _notes(records: Sequence[Record]) -> list[str]:
    """How close large caches come to copy bandwidth."""
    large = [one for one in records if one.ours and one.rate and one.problem.cache_bytes > LARGE]
    rates = {}
    for one in large:
        rates.setdefault(one.label, []).append(one.rate)
    return [
        f"{label}: {min(found) / 1e12:.2f} TB/s or more where the cache is over 256 MB (goal: 90% of copy)"
        for label, found in rates.items()
    ]


GOALS = tuple(
    Goal(name, ("flash", "cudnn"), "all", lambda one: one.dtype == "bf16", mean=1.0, least=0.85) for name in TUNED
)


def decode_benchmark(
    program: str,
    labels: Mapping[str, str] | None = None,
    others: Callable[[argparse.Namespace], dict[str, Operators]] | None = None,
) -> Benchmark:
    """The fast kernels and PyTorch's backends, with others in front of them.

    Args:
        program: the text after python -m.
        labels: labels of the others.
        others: others(options) -> name -> float32 operators with a decode_attention.
    """

    def versions(options: argparse.Namespace) -> Callable[[Problem], dict[str, Version]]:
        ours = load(BuildRequest("decode", backend="cuda"))
        captures = ours.device.type == "cuda" and not options.eager  # --predict runs in the simulator
        prepared = captured if captures else lambda call: call
        course = others(options) if others and options.dtype == "fp32" else {}
        made = {name: contiguous_version(labels[name], ops, prepared) for name, ops in course.items()}
        made |= tuned_versions(ours, prepared)
        backends = ("torch",) if options.dtype == "fp32" else ("flash", "cudnn")
        made |= {name: torch_version(name, prepared) for name in backends}
        return lambda problem: made

    def arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--dtype", choices=DTYPES, default="bf16", help="default: bf16")
        add("--batch", type=int, nargs="+", default=BATCHES, metavar="N", help="sequences (default 1 and 16)")
        add("--context", type=int, nargs="+", default=CONTEXTS, metavar="N", help="tokens (default 1024 8192 65536)")
        add("--eager", action="store_true", help="time the calls themselves, not the replays of a graph")

    return Benchmark(
        program,
        "How fast one decode step of attention is on a GPU, compared with PyTorch's backends and copying memory.",
        {**(labels or {}), **TUNED, **PEERS},
        lambda options: grid(options.batch, options.context, options.dtype),
        versions,
        Problem,
        arguments,
        GOALS,
        _notes,
    )
