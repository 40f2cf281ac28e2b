"""Times all versions in turn with CUDA events around the call, after a barrier; the slowest rank's time counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from common.console.words import first_line
from common.kernels.distributed.shards import shard
from common.measure.benchmarks.distributed.records import Record, Setting
from common.measure.benchmarks.distributed.versions import Version
from common.measure.benchmarks.sdpa import timed
from common.measure.timing import CudaStopwatch

WARM_UP = 3


def measure_setting(
    setting: Setting, passes: str, versions: Mapping[str, Version], rounds: int, dtype: torch.dtype, tick: Callable
) -> list[Record]:
    """Times all versions in turn; the same on all ranks."""
    rank, generator = dist.get_rank(), torch.Generator("cuda").manual_seed(0)
    shape = (1, setting.heads, setting.tokens, setting.head_dim)
    whole = [torch.randn(shape, generator=generator, device="cuda", dtype=dtype) for _ in range(4)]
    mine = [shard(x) for x in whole]
    stopwatch, left_out, runs = CudaStopwatch(), {}, {name: [] for name in versions}

    def call_of(version: Version) -> Callable[[], object]:
        if version.alone and rank:
            return lambda: None

        def forward(*x: Tensor) -> Callable[[], Tensor]:
            return lambda: version.attend(*x, setting.causal)

        return timed(passes, forward, *(whole if version.whole else mine))

    calls = {name: call_of(version) for name, version in versions.items()}
    for number in range(WARM_UP + rounds):
        names = list(versions)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if name in left_out:
                continue
            why, seconds = "", 0.0
            with versions[name].around(setting.causal) if not versions[name].whole else nullcontext():
                dist.barrier()
                try:
                    seconds = stopwatch.seconds(calls[name])
                except (RuntimeError, ValueError) as error:
                    why = first_line(error)
            if why := _first_said(why):
                left_out[name] = why
            elif number >= WARM_UP:
                runs[name].append(largest(seconds))
            else:
                largest(seconds)
        tick()
    return [Record(setting, passes, name, tuple(runs[name]), left_out.get(name, "")) for name in versions]


def largest(number: float) -> float:
    """The maximum over all ranks."""
    held = torch.tensor(number, device="cuda", dtype=torch.float64)
    dist.all_reduce(held, dist.ReduceOp.MAX)
    return float(held)


def _first_said(words: str) -> str:
    """The message of the first rank that has one, the same on all ranks; "" if none has."""
    if not largest(bool(words)):
        return ""
    everyones: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, words)
    return next(filter(None, everyones))
