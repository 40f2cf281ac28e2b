"""Predicts the time of a launch: predict(launch, machine) -> Prediction.

An analytical model, not a cycle-accurate simulation. Every resource gives a lower bound, as if the others were
infinitely fast; so does latency at the launch's occupancy. The longest is the bound; the prediction combines them all
(`combined`).

- DRAM, L2, L1 and shared memory, float32, ALU, special functions, tensor cores: work over rate, the roofline (Williams,
  Waterman and Patterson, Roofline: an insightful visual performance model, CACM 2009) once per level.
- issue slots: each of an SM's schedulers issues one instruction per cycle.
- latency: one warp's waits and instructions in sequence, equation 22 of Hong and Kim, An analytical model for a GPU
  architecture with memory-level and thread-level parallelism awareness, ISCA 2009. Their other two cases, memory or
  computation saturated, are the bounds above.
- waves and tail: an SM runs whole blocks, as many at a time as fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from common.inspect.profile.remarks import stride_of
from common.inspect.profile.roofline import Bound
from common.measure.gpus import SCHEDULERS, SPECIAL_PER_CLOCK
from common.predict.counters import SECTOR, Launch
from common.predict.machine import Machine
from common.predict.reuse import Traffic, dram_traffic, l1_hit_share, written_bytes

UNROLLED = 4  # loads that nvcc hoists above their first use if the loop allows it
GUARDED_UNDER_WAY = 2  # loads in flight whose use has its own condition: each takes one of ptxas's seven predicates
MERGED = 4  # one-word loads merged into one of 16 bytes
REGISTERS_OF_ALL, MOST_CHAINS = 32, 16  # baseline registers per thread; maximum independent chains of arithmetic
ALU_LANES = 64  # instructions per SM and cycle
SHARED_SHARE = 0.92  # achieved fraction of the peak wavefronts of shared memory and L1 under constant load
SHARPNESS = 4.0  # exponent of the norm in `combined`
BARRIER_WAVEFRONTS = 2  # per warp on the data path: ncu counts them for tree reductions in shared memory
PARTIAL_WRITE = 4 * SECTOR  # equivalent L2 read bytes: L2 must merge in the rest of the sector
CONTENDED = 32  # atomics per word from which contention determines the time
CLOSE = 0.85  # fraction of latency's time from which a resource is named instead

DRAM, L2, L1, SHARED = "DRAM", "L2", "L1", "shared memory"
FLOAT32, ALU, SPECIAL, TENSOR = "float32", "integer and comparisons", "special functions", "tensor cores"
ISSUE, LATENCY, BLOCKS = "issue slots", "latency at this occupancy", "starting blocks"
PARTIAL = "partial sector writes"
LAUNCH = "launch overhead"


@dataclass(frozen=True)
class Prediction:
    """The prediction for one launch on one GPU.

    Attributes:
        launch: see Launch.
        seconds: None if not modeled; `not_modeled` says why.
        bounds: the minimum seconds for each resource, tail included; longest first.
        traffic: DRAM traffic; l2_bytes: L2 traffic.
        not_modeled: what the model does not cover; "" if nothing.
    """

    launch: Launch
    seconds: float | None
    bounds: tuple[Bound, ...]
    traffic: Traffic
    l2_bytes: float
    not_modeled: str = ""

    @property
    def bound(self) -> Bound:
        return self.bounds[0]


def combined(bounds: Sequence[float]) -> float:
    """Combines bounds: the longest if it dominates, up to a fifth more if two are equal."""
    longest = max(bounds)
    return longest * sum((one / longest) ** SHARPNESS for one in bounds) ** (1 / SHARPNESS) if longest else 0.0


def predict(launch: Launch, machine: Machine) -> Prediction:
    """Predicts the time of one launch.

    Raises:
        ValueError: not even one block fits on an SM of this GPU.
    """
    kernel, gpu, mix = launch.kernel, machine.gpu, launch.mix
    occupied = kernel.occupancy(gpu)
    if not occupied.blocks:
        raise ValueError(f"{kernel.kernel}: a block does not fit on {gpu.name}: not enough {occupied.limiter}")
    resident = min(occupied.blocks, math.ceil(kernel.blocks / gpu.sms))
    on_sms = math.ceil(kernel.blocks / gpu.sms) * gpu.sms / kernel.blocks  # above 1: the tail

    # ---- work of all blocks, in cycles of one SM or in bytes
    lanes = launch.total("lanes", "global") + launch.total("lanes", "shared")
    all_requests = launch.total("requests", "global") + launch.total("requests", "shared")
    spared = 1 - _spared(launch)
    requests = launch.total("requests", "global") + spared * launch.total("requests", "shared")
    idle_lanes = max(1.0, 32 * all_requests / lanes) if lanes else 1.0  # idle threads in active warps
    float32, other, special = (idle_lanes * one / 32 for one in (mix.float32, mix.other, mix.special))  # per warp
    mma = kernel.tensor_flops / kernel.launches / (2 * 16 * 8 * 16)
    barriers = (kernel.barriers or 0) / kernel.launches * launch.warps
    issued = float32 + other + special + requests + mma + barriers
    reads, writes = launch.total("transactions", "global", "read"), launch.total("transactions", "global", "write")
    atomics = launch.total("transactions", "global", "atomic")
    wavefronts = spared * launch.total("transactions", "shared") + BARRIER_WAVEFRONTS * barriers
    hit = l1_hit_share(launch.sample, max(0.0, machine.l1_bytes / resident - kernel.shared_bytes))
    l2_bytes = SECTOR * (reads * (1 - hit) + writes + 2 * atomics)
    traffic = dram_traffic(launch, resident * gpu.sms, machine.l2_bytes, SECTOR * reads * (1 - hit))

    # ---- throughput
    limits = gpu.limits
    cycle = on_sms / (gpu.sms * machine.clock)  # one cycle of an SM's work spread over the GPU, tail included
    pipe = {
        SHARED: wavefronts / SHARED_SHARE,
        L1: max(launch.lines, (reads + writes) / 4) / SHARED_SHARE,
        FLOAT32: float32 * 32 / limits.float_lanes,
        ALU: other * 32 / ALU_LANES,
        SPECIAL: special * 32 / SPECIAL_PER_CLOCK,
        ISSUE: issued / SCHEDULERS,
    }
    seconds = {name: amount * cycle for name, amount in pipe.items()}
    seconds[SHARED if pipe[SHARED] >= pipe[L1] else L1] = (pipe[SHARED] + pipe[L1]) * cycle  # both share one data path
    seconds[DRAM] = traffic.total / machine.dram_bandwidth
    seconds[L2] = l2_bytes / machine.l2_bandwidth
    seconds[PARTIAL] = _partial_writes(launch) * PARTIAL_WRITE / machine.l2_bandwidth
    seconds[TENSOR] = kernel.tensor_flops / kernel.launches / machine.tensor * on_sms

    # ---- latency
    waits, gap, dependent = _way_of_a_warp(launch, float32, machine)
    l2_share = 1 - min(1.0, traffic.read / (SECTOR * reads)) if reads else 0.0
    below = l2_share * machine.l2 + (1 - l2_share) * machine.dram
    latency = hit * machine.l1 + (1 - hit) * below
    of_warp = issued / (kernel.blocks * launch.warps)  # instructions per warp
    of_warp += waits * latency + gap * machine.barrier + dependent
    waves = math.ceil(kernel.blocks / (gpu.sms * resident))
    seconds[LATENCY] = waves * (of_warp + machine.block) / machine.clock
    seconds[BLOCKS] = kernel.blocks / machine.block_rate
    seconds[LAUNCH] = machine.launch

    bounds = tuple(sorted((Bound(name, "", one) for name, one in seconds.items()), key=_rank))
    unknown = launch.sample.not_modeled
    if not unknown and launch.total("lanes", "global", "atomic") * 4 > CONTENDED * written_bytes(launch):
        unknown = "atomic operations of many threads on the same words"
    time = machine.launch + combined([one for name, one in seconds.items() if name != LAUNCH])
    return Prediction(launch, None if unknown else time, bounds, traffic, l2_bytes, unknown)


def _rank(bound: Bound) -> float:
    """Sort key, longest first; a resource almost as long as latency is named, since it would limit higher occupancy."""
    return -bound.seconds * (CLOSE if bound.resource in (LATENCY, BLOCKS) else 1)


def _partial_writes(launch: Launch) -> float:
    """Sectors that a request writes only partially; for contiguous writes, these are at both ends."""
    written = (one for one in launch.kernel.lines if (one.space, one.action) == ("global", "write"))
    parts = (min(one.transactions, 2 * (one.transactions - (one.lanes or 0) * one.bytes / SECTOR)) for one in written)
    return sum(max(0.0, one) for one in parts) / launch.kernel.launches


def _spared(launch: Launch) -> float:
    """The fraction of shared memory requests that nvcc eliminates.

    A row that all lanes read word by word, such as an operand of a tiled matmul, is loaded 16 bytes at a time.
    """
    reads = [one for one in launch.kernel.lines if (one.space, one.action, one.bytes) == ("shared", "read", 4)]
    broadcast = sum(one.requests for one in reads if one.requests == one.transactions and stride_of(one.offsets) == 0)
    requests = launch.total("requests", "shared") * launch.kernel.launches
    return (1 - 1 / MERGED) * broadcast / requests if requests else 0.0


_COMPUTED = r"(?:[*+]=? *[^;:]*\w\[|\w\[[^;:]*\] *[*+])"  # arithmetic with a load
_GUARDED = re.compile(rf"\?[^:]*{_COMPUTED}[^:]*:|\bif \(.*\).*{_COMPUTED}")


def _way_of_a_warp(launch: Launch, float32: float, machine: Machine) -> tuple[float, float, float]:
    """For a block's busiest warp: (waits for global memory, barriers, cycles of dependent arithmetic)."""
    kernel, sample = launch.kernel, launch.sample
    warps = kernel.blocks * launch.warps
    # registers beyond the baseline hold independent values, such as the tile of a GEMM
    chains = max(1, min(MOST_CHAINS, ((kernel.registers or 0) - REGISTERS_OF_ALL) / 2))
    dependent = float32 * machine.arithmetic / chains / warps
    places = len({one.place for one in kernel.lines if one.space == "global" and one.action == "read"})
    reads, waits = sample.global_reads / kernel.blocks, sample.waits / kernel.blocks
    under_way = UNROLLED * max(1, places)
    mean = launch.total("requests", "global", "read") / warps
    serial = max(1.0, reads / mean) if mean else 1.0  # one warp works while others wait at the barrier
    # a line that loads and stores, possibly to the same address, must finish its load before the next one's
    lines: dict = {}
    for one in kernel.lines:
        if one.space == "global" and one.action in ("read", "write"):
            lines.setdefault(one.place, {})[one.action] = one.requests / kernel.launches / warps
    serial_loads = sum(min(one.values()) for one in lines.values() if len(one) == 2) * serial
    waits = max(waits, serial_loads)
    guarded = [one for one in kernel.lines if one.space == "global" and one.action == "read" and one.place]
    guarded = sum(one.requests for one in guarded if _GUARDED.search(one.place.text)) / kernel.launches / warps * serial
    waits = max(waits, guarded / GUARDED_UNDER_WAY + (reads - guarded) / under_way)
    return waits, sample.barriers / kernel.blocks, dependent * serial
