"""The longest forward pass that fits on the GPUs: estimated from the bytes per token of two short runs, then run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from rich.console import Console

from common.console.terminal import say
from common.kernels.attention import attention
from common.kernels.distributed.attention import sequence_parallel_attention
from common.measure.benchmarks.distributed.timing import largest

MARGIN = 6 * 2**30  # bytes per GPU kept free for fragmentation and NCCL
PROBES = (2**18, 2**19)  # tokens of the runs that determine the bytes per token
STEP = 2**16  # step of the downward search, in tokens


@dataclass(frozen=True)
class Longest:
    """The longest forward pass found.

    Attributes:
        tokens, seconds, peak_bytes: of the run on all GPUs; peak_bytes is the maximum over GPUs.
        one_gpu: tokens that fit on one GPU, from the bytes per token of our kernel there.
        method: ring or ulysses.
    """

    tokens: int
    seconds: float
    peak_bytes: int
    one_gpu: int
    method: str


def most_tokens(peaks: Sequence[tuple[int, int]], room: int, step: int = STEP) -> int:
    """The number of tokens that fit into `room` bytes, a multiple of step, by linear extrapolation from two (tokens,
    peak bytes)."""
    (few, small), (many, large) = peaks
    per_token = (large - small) / (many - few)
    return int((room - (small - per_token * few)) / per_token) // step * step


def longest(method: str, heads: int, head_dim: int, dtype: torch.dtype, console: Console) -> Longest:
    """Finds the longest causal forward pass that fits, and runs it."""
    ranks, rank = dist.get_world_size(), dist.get_rank()

    def run(tokens: int, share: int) -> tuple[float, int]:
        """(seconds, peak bytes) of 1 / share of the tokens on this rank."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        shape = (1, heads, tokens // share, head_dim)
        inputs = [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(3)]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        if share == 1:
            attention(*inputs, is_causal=True)
        else:
            sequence_parallel_attention(*inputs, causal=True, method=method)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3, torch.cuda.max_memory_allocated()

    def fits(size: int) -> bool:
        """Whether every rank can allocate that many bytes; checked before any rank waits for another."""
        torch.cuda.empty_cache()
        refused = 0.0
        try:
            torch.empty(size, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            refused = 1.0
        torch.cuda.empty_cache()
        return not largest(refused)

    torch.cuda.empty_cache()
    room = -int(largest(-(torch.cuda.mem_get_info()[0] - MARGIN)))
    with torch.no_grad():
        run(PROBES[0], ranks)  # warm-up: sets up connections and workspaces
        peaks = [(tokens, int(largest(run(tokens, ranks)[1]))) for tokens in PROBES]
        alone = [(tokens, run(tokens, 1)[1] if rank == 0 else 0) for tokens in PROBES]
        alone = [(tokens, int(largest(peak))) for tokens, peak in alone]
        tokens, slope = most_tokens(peaks, room), (peaks[1][1] - peaks[0][1]) / (PROBES[1] - PROBES[0])
        while tokens > STEP and not fits(int(peaks[0][1] + slope * (tokens - PROBES[0]))):
            tokens -= STEP
        one_gpu = most_tokens(alone, room)
        say(console, f"{tokens:,} tokens by {method}: about {slope * tokens / 1e9:.0f} GB on each GPU; running ...")
        dist.barrier()
        seconds, peak = run(tokens, ranks)
    return Longest(tokens, largest(seconds), int(largest(peak)), one_gpu, method)
