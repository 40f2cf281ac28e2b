"""Who takes part in `python -m task4.benchmark`: the course's kernels, one per chapter, and PyTorch's backends.

    PEERS["mma"].prepare["forward"](kernels, query, key, value, grad_out, causal)     -> a call that can be timed
    Kernels("cuda")                                                                   the operators, built when needed

Calls take no arguments; what only prepares them (the forward pass before a backward one) is not part of the time. All
of them give query, key and value as [batch, heads, seq_len, head_dim], contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from common.compiling.load import load
from common.compiling.request import BuildRequest
from task4.tools.benchmark.grid import DTYPES

if TYPE_CHECKING:
    from common.compiling.operators import Operators

Call = Callable[[], "Tensor | tuple[Tensor, ...]"]
HALF = ("fp16", "bf16")


class Kernels:
    """The operators of the course, compiled when they are first asked for.

    Args:
        backend: "cuda" or "simulator".
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    @cached_property
    def naive(self) -> Operators:
        """Task 1: one thread per score, all scores in memory."""
        return load(BuildRequest("task1", "solution", self.backend))

    @cached_property
    def tiled(self) -> Operators:
        """Task 2: tiled matrix products and a softmax, all scores in memory."""
        return load(BuildRequest("task2", "solution", self.backend))

    @cached_property
    def taught(self) -> Operators:
        """Task 4 as the handout teaches it."""
        return load(BuildRequest("task4", "solution", self.backend))

    @cached_property
    def yours(self) -> Operators:
        """Task 4, the student's file."""
        return load(BuildRequest("task4", backend=self.backend))

    @cached_property
    def tuned(self) -> Operators:
        """Task 4's tuned kernels."""
        return load(BuildRequest("task4", "tuned", self.backend))


@dataclass(frozen=True)
class Peer:
    """One version of attention.

    Attributes:
        label: in tables and pictures.
        prepare: "forward" or "backward" -> prepare(kernels, query, key, value, grad_out, causal) -> the call to time.
            A forward call returns out; a backward call the gradients of query, key and value.
        dtypes: those it takes.
        kernels: the attribute of Kernels that it needs; "" for PyTorch's own versions.
        score_buffers: how many [batch, heads, seq_len, seq_len] of float32 it needs at the same time, by the same
            keys as `prepare`; empty if its memory grows with seq_len only.
    """

    label: str
    prepare: Mapping[str, Callable[..., Call]]
    dtypes: tuple[str, ...]
    kernels: str = ""
    score_buffers: Mapping[str, float] = field(default_factory=dict)


def _ours(version: str, operator: str, **options) -> Callable[..., Call]:
    """The forward pass of one of the course's operators."""

    def prepare(kernels: Kernels, query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, causal: bool) -> Call:
        call = getattr(getattr(kernels, version), operator)
        return lambda: call(query, key, value, causal, **options)

    return prepare


def _tuned_backward(
    kernels: Kernels, query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, causal: bool
) -> Call:
    out, lse = kernels.tuned.flash_attention_forward(query, key, value, causal)
    backward = kernels.tuned.flash_attention_backward
    return lambda: backward(grad_out, query, key, value, out, lse, causal)


def _sdpa(label: str, backend: SDPBackend, dtypes: tuple[str, ...], **buffers: float) -> Peer:
    """PyTorch's scaled_dot_product_attention on one of its backends; buffers: as Peer.score_buffers."""

    def forward(kernels, query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, causal: bool) -> Call:
        def call() -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(query, key, value, is_causal=causal)

        return call

    def backward(kernels, query: Tensor, key: Tensor, value: Tensor, grad_out: Tensor, causal: bool) -> Call:
        leaves = [x.detach().requires_grad_() for x in (query, key, value)]
        with torch.enable_grad():
            out = forward(kernels, *leaves, grad_out, causal)()
        return lambda: torch.autograd.grad(out, leaves, grad_out, retain_graph=True)

    return Peer(label, {"forward": forward, "backward": backward}, dtypes, score_buffers=buffers)


ALL = tuple(DTYPES)
PEERS: dict[str, Peer] = {
    "naive": Peer(
        "naive (task 1)", {"forward": _ours("naive", "naive_attention")}, ALL, "naive", score_buffers={"forward": 1.0}
    ),
    "tiled": Peer(
        "tiled (task 2)", {"forward": _ours("tiled", "attention")}, ("fp32",), "tiled", score_buffers={"forward": 1.0}
    ),
    "yours": Peer("yours", {"forward": _ours("yours", "flash_attention")}, ("fp32",), "yours"),
    "taught": Peer("taught", {"forward": _ours("taught", "flash_attention")}, ("fp32",), "taught"),
    "ffma": Peer(
        "tuned, FFMA",
        {"forward": _ours("tuned", "flash_attention", tensor_cores=False), "backward": _tuned_backward},
        ("fp32",),
        "tuned",
    ),
    "3xfp16": Peer(
        "tuned, 3xFP16", {"forward": _ours("tuned", "flash_attention", tensor_cores=True)}, ("fp32",), "tuned"
    ),
    "mma": Peer(
        "tuned, mma", {"forward": _ours("tuned", "flash_attention"), "backward": _tuned_backward}, HALF, "tuned"
    ),
    "flash": _sdpa("SDPA flash", SDPBackend.FLASH_ATTENTION, HALF),
    "cudnn": _sdpa("SDPA cuDNN", SDPBackend.CUDNN_ATTENTION, HALF),
    "efficient": _sdpa("SDPA efficient", SDPBackend.EFFICIENT_ATTENTION, ALL),
    # scores and their softmax in float32, whatever the dtype, and more of them backward: what was seen on an H200
    "math": _sdpa("SDPA math", SDPBackend.MATH, ALL, forward=2.4, backward=4.2),
}
DEFAULT_PEERS = tuple(name for name in PEERS if name != "yours")


def peers_for(names: tuple[str, ...], direction: str, dtype: str) -> dict[str, Peer]:
    """Those of `names` that know this pass and dtype."""
    return {
        name: peer
        for name, peer in PEERS.items()
        if name in names and direction in peer.prepare and dtype in peer.dtypes
    }
