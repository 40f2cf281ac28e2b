"""The versions that compute attention over all ranks or on one GPU: all_versions()."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from common.kernels.attention import attention
from common.kernels.distributed.attention import sequence_parallel_attention
from common.kernels.distributed.ulysses import dealt_out
from common.measure.benchmarks.sdpa import sdpa


@dataclass(frozen=True)
class Version:
    """One way to compute attention.

    Attributes:
        attend: attend(query, key, value, causal) -> the output.
        whole: it takes the whole sequence on every rank.
        alone: it takes the whole sequence and runs only on rank 0.
        around: around(causal): a context manager for the call, which is not timed.
    """

    attend: Callable[[Tensor, Tensor, Tensor, bool], Tensor]
    whole: bool = False
    alone: bool = False
    around: Callable[[bool], AbstractContextManager] = field(default=lambda causal: nullcontext())


def all_versions() -> dict[str, Version]:
    """All versions in LABELS, for the default process group."""

    def ours(method: str) -> Version:
        return Version(lambda q, k, v, causal: sequence_parallel_attention(q, k, v, None, causal, method, check=False))

    def cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return sdpa("cudnn", q, k, v, is_causal=causal)()

    def one(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return attention(q, k, v, is_causal=causal, enable_gqa=True)

    return {
        "ring": ours("ring"),
        "ulysses": ours("ulysses"),
        "context_parallel": Version(cudnn, around=partial(_context_parallel, "allgather")),
        "context_parallel_alltoall": Version(cudnn, around=partial(_context_parallel, "alltoall")),
        "ulysses_cudnn": Version(
            lambda q, k, v, causal: dealt_out(lambda *whole: cudnn(*whole, causal), q, k, v, None)
        ),
        "one": Version(one, whole=True, alone=True),
        "one_cudnn": Version(cudnn, whole=True, alone=True),
        "each": Version(one, whole=True),
    }


@contextlib.contextmanager
def _context_parallel(rotate: str, causal: bool):
    """PyTorch's context_parallel, for already sharded tensors. With a causal mask, its order is that of shards.py;
    without one, it does no load balancing, and the order does not matter."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import _cp_options, set_rotate_method

    ranks = dist.get_world_size()
    nothing = torch.zeros(2 * ranks, device="cuda")  # a dummy buffer: it requires something to shard
    set_rotate_method(rotate)
    _cp_options.enable_load_balance = causal
    mesh = init_device_mesh("cuda", (ranks,))
    with context_parallel(mesh, buffers=[nothing], buffer_seq_dims=[0], no_restore_buffers={nothing}):
        yield
