"""What `python -m task6.benchmark` measures: one decode step of attention, its inputs, who computes it, and whether
that is right.

    problem = Problem(batch=1, heads=32, kv_heads=8, head_dim=128, context=8192, dtype=torch.bfloat16)
    inputs = Inputs.of(problem, "cuda")
    calls = versions(inputs, tuned=load(BuildRequest("decode")))         name -> a call without arguments
    check(problem, inputs, name, calls[name])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from common.measure.limits import float32_precision
from common.reference import attention as reference
from common.reference.bounds import max_error_of, running_sum_floor

if TYPE_CHECKING:
    from common.compiling.operators import Operators

BATCHES = (1, 16)
HEADS = ((32, 32, 128), (32, 8, 128), (12, 12, 64))  # query heads, K/V heads, head_dim
CONTEXTS = (1024, 8192, 65536)
PAGE = 16
PEERS = {"SDPA flash": SDPBackend.FLASH_ATTENTION, "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION}


@dataclass(frozen=True)
class Problem:
    """One new token of every sequence over a full cache.

    Attributes:
        batch, heads, kv_heads, head_dim: the sizes of query [batch, heads, 1, head_dim] and of its caches.
        context: tokens of every sequence, a multiple of 16.
        dtype: of query, caches and output.
    """

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    dtype: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        if self.context < 1 or self.context % PAGE:
            raise ValueError(f"context is {self.context}; it must be a multiple of {PAGE}, the tokens of a page")

    @property
    def setting(self) -> str:
        """All but the context: "batch 16, heads 32/8, head_dim 128"."""
        return f"batch {self.batch}, heads {self.heads}/{self.kv_heads}, head_dim {self.head_dim}"

    @property
    def title(self) -> str:
        """With the context: "batch 16, heads 32/8, head_dim 128, 8192 tokens"."""
        return f"{self.setting}, {self.context} tokens"

    @property
    def cache_bytes(self) -> int:
        """Of K and V, every byte of which must be read."""
        return 2 * self.batch * self.kv_heads * self.context * self.head_dim * self.dtype.itemsize

    @property
    def work(self) -> int:
        """Bytes to read and write, at least: the caches, query and out."""
        return self.cache_bytes + 2 * self.batch * self.heads * self.head_dim * self.dtype.itemsize


def grid(batches=BATCHES, contexts=CONTEXTS, dtype: torch.dtype = torch.bfloat16) -> list[Problem]:
    """All combinations with HEADS, the contexts innermost."""
    return [Problem(batch, *heads, context, dtype) for batch in batches for heads in HEADS for context in contexts]


@dataclass(frozen=True)
class Inputs:
    """The tensors of one problem. Contiguous caches and pages hold different numbers.

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

    @classmethod
    def of(cls, problem: Problem, device: torch.device | str) -> Inputs:
        """Of these sizes, filled with random numbers."""

        def empty(*shape: int) -> Tensor:
            return torch.empty(*shape, problem.head_dim, dtype=problem.dtype, device=device)

        pages = problem.batch * problem.context // PAGE
        inputs = cls(
            empty(problem.batch, problem.heads, 1),
            *(empty(problem.batch, problem.kv_heads, problem.context) for _ in range(2)),
            *(empty(pages, problem.kv_heads, PAGE) for _ in range(2)),
            torch.randperm(pages, device=device).int().view(problem.batch, -1),
            torch.full((problem.batch,), problem.context, dtype=torch.int32, device=device),
        )
        inputs.refill()
        return inputs

    def refill(self) -> None:
        """New normally distributed numbers, in place: a captured graph reads them where they are."""
        for x in (self.query, self.k_cache, self.v_cache, self.k_pages, self.v_pages):
            x.normal_()

    def head(self, sequence: int, head: int, paged: bool) -> tuple[Tensor, Tensor, Tensor]:
        """query [1, head_dim], key and value [context, head_dim] of one query head."""
        kv_head = head // (self.query.size(1) // self.k_cache.size(1))
        if paged:
            pages = self.block_table[sequence]
            key, value = (x[pages, kv_head].flatten(0, 1) for x in (self.k_pages, self.v_pages))
        else:
            key, value = self.k_cache[sequence, kv_head], self.v_cache[sequence, kv_head]
        return self.query[sequence, head], key, value


def versions(inputs: Inputs, tuned: Operators, taught: Operators | None = None) -> dict[str, Callable[[], Tensor]]:
    """Who takes part: calls without arguments, each of which returns out [batch, heads, 1, head_dim].

    Args:
        inputs: what they read.
        tuned: task 6's tuned operators.
        taught: those of the taught solution, float32 only; then PyTorch's own choice is the only peer.
    """
    contiguous = (inputs.query, inputs.k_cache, inputs.v_cache)
    calls: dict[str, Callable[[], Tensor]] = {}
    if taught:
        calls["SDPA"] = partial(_sdpa, None, *contiguous)
        calls["taught"] = partial(taught.decode_attention, *contiguous, inputs.lengths)
    else:
        calls |= {name: partial(_sdpa, backend, *contiguous) for name, backend in PEERS.items()}
    calls["tuned"] = partial(tuned.decode_attention, *contiguous, inputs.lengths)
    calls["tuned, paged"] = partial(
        tuned.decode_attention_paged, inputs.query, inputs.k_pages, inputs.v_pages, inputs.lengths, inputs.block_table
    )
    return calls


def _sdpa(backend: SDPBackend | None, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    grouped = query.size(1) != key.size(1)
    if backend is None:
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=grouped)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=grouped)


def check(problem: Problem, inputs: Inputs, name: str, call: Callable[[], Tensor]) -> None:
    """Refuses to time what is wrong: the first and the last head against float64, by the bound of a test.

    Raises:
        RuntimeError: the output is wrong.
    """
    out = call()
    for sequence, head in {(0, 0), (problem.batch - 1, problem.heads - 1)}:
        query, key, value = inputs.head(sequence, head, paged="paged" in name)
        with float32_precision("highest"):
            ref = reference.attention(query.double(), key.double(), value.double())
            weights = reference.softmax(reference.scores(query.float(), key.float())).to(problem.dtype)
        size = max(1.0, float(ref.abs().max()))
        floor = 1e-5 * size + running_sum_floor(problem.context, size)
        if problem.dtype != torch.float32:
            floor += torch.finfo(problem.dtype).eps / 2 * size
        bound = 2 * max_error_of(weights @ value, ref) + floor
        error = max_error_of(out[sequence, head], ref)
        if not error <= bound:
            raise RuntimeError(f"{name} is wrong on {problem.title}: max error {error:.2e}, bound {bound:.2e}")
