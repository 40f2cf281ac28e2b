"""How long a launch takes: predict(launch, machine) -> Prediction.

A model of a few formulas, not a simulation of cycles. Every resource gives a time that the launch needs at least, as if
the others were infinitely fast; so does latency at the launch's occupancy. The longest is the bound, and the prediction
is what they give together (`combined`).

- DRAM, L2, L1 and shared memory, float32, ALU, special functions, tensor cores: work over rate, the roofline (Williams,
  Waterman and Patterson, Roofline: an insightful visual performance model, CACM 2009) once per level.
- issue slots: each of an SM's schedulers issues one instruction per cycle.
- latency: one warp's way, its waits and its instructions, equation 22 of Hong and Kim, An analytical model for a GPU
  architecture with memory-level and thread-level parallelism awareness, ISCA 2009. Their other two cases, memory or
  computation saturated, are the bounds above.
- waves and tail: blocks are dealt to SMs in order; see makespan.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from common.inspect.profile.remarks import stride_of
from common.measure.gpus import SCHEDULERS, SPECIAL_PER_CLOCK
from common.predict.counters import SECTOR, Launch, axes_of
from common.predict.machine import Machine
from common.predict.reuse import Traffic, dram_traffic, l1_hit_share, written_bytes

UNROLLED = 4  # loads that nvcc puts before their first use where a loop allows it
MOST_UNDER_WAY = 16  # of one warp: as many as there are scoreboards and registers for, about
GUARDED_UNDER_WAY = 2  # loads that are computed with behind their own condition: ptxas gives each a predicate of seven
MERGED = 4  # loads of one word each that become one of 16 bytes
SHARED_UNDER_WAY = 4  # loads of shared memory that a warp has under way
CHAINS, REGISTERS_OF_ALL = 2, 32  # independent chains of arithmetic in a warp whose threads have these registers
MOST_CHAINS = 16
ALU_LANES, L2_PORT = 64, 64  # per SM and cycle: instructions, bytes
ISSUE_SHARE = 0.9  # of the issue slots that schedulers fill where there is always a warp ready
SHARED_SHARE = 0.92  # of the wavefronts that shared memory and L1 serve where there is always a request
SHARPNESS = 4.0  # of `combined`
BARRIER_WAVEFRONTS = 2  # of the data path, per warp: ncu counts them for trees in shared memory
PARTIAL_WRITE = 4 * SECTOR  # bytes that L2 could have read meanwhile: it merges the rest of the sector in
CONTENDED = 32  # atomic operations per word from which their order decides the time
CLOSE = 0.85  # of latency's time: from there on the resource is named
MOST_DEALT = 100_000  # blocks that makespan deals one by one

DRAM, L2, L1, SHARED = "DRAM", "L2", "L1", "shared memory"
FLOAT32, ALU, SPECIAL, TENSOR = "float32", "integer and comparisons", "special functions", "tensor cores"
ISSUE, LATENCY, BLOCKS = "issue slots", "latency at this occupancy", "starting blocks"
PARTIAL = "writes of parts of sectors"
LAUNCH = "launch overhead"


@dataclass(frozen=True)
class Bound:
    """A resource and the seconds that the launch needs of it at least, tail included."""

    resource: str
    seconds: float


@dataclass(frozen=True)
class Prediction:
    """One launch on one GPU.

    Attributes:
        launch: see Launch.
        seconds: None where the model does not know; `not_modeled` says what.
        bounds: the longest first.
        traffic: of DRAM; l2_bytes: of L2.
        resident: blocks per SM at a time.
        not_modeled: "" if the model knows everything that it needs.
    """

    launch: Launch
    seconds: float | None
    bounds: tuple[Bound, ...]
    traffic: Traffic
    l2_bytes: float
    resident: int
    not_modeled: str = ""

    @property
    def bound(self) -> Bound:
        return self.bounds[0]

    @property
    def next_bound(self) -> Bound:
        return self.bounds[1]


def makespan(blocks: int, servers: int, work: Sequence[float] = ()) -> float:
    """The time that `servers` take for the blocks, each 1 in the mean, dealt in order to who is free first.

    Args:
        blocks: how many.
        servers: SMs, or places for blocks on them.
        work: of evenly spread blocks of the grid, in order; () if all are alike.
    """
    if not work or min(work) == max(work) or blocks > MOST_DEALT:
        whole, rest = divmod(blocks, servers)
        if blocks > MOST_DEALT:
            return blocks / servers
        return whole + (rest > 0)
    mean = sum(work) / len(work)
    free = [0.0] * min(servers, blocks)
    for number in range(blocks):
        heapq.heapreplace(free, free[0] + work[number * len(work) // blocks] / mean)
    return max(free)


def combined(bounds: Sequence[float]) -> float:
    """What several bounds give together: the longest where it stands alone, up to a fifth more where two are equal."""
    longest = max(bounds)
    return longest * sum((one / longest) ** SHARPNESS for one in bounds) ** (1 / SHARPNESS) if longest else 0.0


def _work_of_blocks(launch: Launch) -> list[float]:
    """Work of blocks evenly spread over the grid, where it differs along the grid; () if it hardly does."""
    sample = launch.sample
    if not sample.blocks:
        return []
    steps = [block.steps for block in sample.blocks]
    if max(steps) <= 1.05 * min(steps):
        return []
    of_axis: dict[int, dict[int, list[int]]] = {axis: {} for axis in range(3)}
    for block in sample.blocks:
        for axis, at in enumerate(axes_of(launch.kernel.grid, block.number)):
            of_axis[axis].setdefault(at, []).append(block.steps)
    means = {axis: {at: sum(s) / len(s) for at, s in found.items()} for axis, found in of_axis.items()}
    axis = max(means, key=lambda one: max(means[one].values()) - min(means[one].values()))
    extent = launch.kernel.grid[axis]
    inner = math.prod(launch.kernel.grid[:axis])
    line = [_between(means[axis], at) for at in range(extent)]
    outer = launch.kernel.blocks // (extent * inner)
    if launch.kernel.blocks > MOST_DEALT:
        return line
    return [value for _ in range(outer) for value in line for _ in range(inner)]


def _between(known: dict[int, float], at: int) -> float:
    """Linear between the places that are known."""
    below = max((one for one in known if one <= at), default=min(known))
    above = min((one for one in known if one >= at), default=max(known))
    if below == above or not below <= at <= above:
        return known[below if at >= below else above]
    return known[below] + (known[above] - known[below]) * (at - below) / (above - below)


def predict(launch: Launch, machine: Machine) -> Prediction:
    """The time of one launch.

    Raises:
        ValueError: not even one block fits on an SM of this GPU.
    """
    kernel, gpu, mix = launch.kernel, machine.gpu, launch.mix
    occupied = kernel.occupancy(gpu)
    if not occupied.blocks:
        raise ValueError(f"{kernel.kernel}: a block does not fit on {gpu.name}: not enough {occupied.limiter}")
    resident = min(occupied.blocks, math.ceil(kernel.blocks / gpu.sms))
    work = _work_of_blocks(launch)
    on_sms = makespan(kernel.blocks, gpu.sms, work) * gpu.sms / kernel.blocks

    # ---- what all blocks need, in cycles of one SM or in bytes
    lanes = launch.total("lanes", "global") + launch.total("lanes", "shared")
    all_requests = launch.total("requests", "global") + launch.total("requests", "shared")
    spared = 1 - _spared(launch)
    requests = launch.total("requests", "global") + spared * launch.total("requests", "shared")
    idle_lanes = max(1.0, 32 * all_requests / lanes) if lanes else 1.0  # threads without work in warps that have some
    float32, other, special = (idle_lanes * one / 32 for one in (mix.float32, mix.other, mix.special))  # warps'
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
    cycle = on_sms / (gpu.sms * machine.clock)  # of the whole GPU, tail included
    pipe = {
        SHARED: wavefronts / SHARED_SHARE,
        L1: max(launch.lines, (reads + writes) / 4) / SHARED_SHARE,
        FLOAT32: float32 * 32 / limits.float_lanes,
        ALU: other * 32 / ALU_LANES,
        SPECIAL: special * 32 / SPECIAL_PER_CLOCK,
        ISSUE: issued / SCHEDULERS / ISSUE_SHARE,
    }
    seconds = {name: amount * cycle for name, amount in pipe.items()}
    seconds[SHARED if pipe[SHARED] >= pipe[L1] else L1] = (pipe[SHARED] + pipe[L1]) * cycle  # one data path for both
    seconds[DRAM] = traffic.total / machine.dram_bandwidth
    seconds[L2] = max(l2_bytes / machine.l2_bandwidth, l2_bytes / L2_PORT * cycle)
    seconds[PARTIAL] = _partial_writes(launch) * PARTIAL_WRITE / machine.l2_bandwidth
    seconds[TENSOR] = kernel.tensor_flops / kernel.launches / machine.tensor * on_sms

    # ---- latency
    waits, gap, shared, dependent = _way_of_a_warp(launch, float32, special, machine)
    l2_share = 1 - min(1.0, traffic.read / (SECTOR * reads)) if reads else 0.0
    below = l2_share * machine.l2 + (1 - l2_share) * machine.dram
    latency = hit * machine.l1 + (1 - hit) * below if not reads or hit < 1 else machine.l1
    stalled = spared * shared * machine.shared + gap * machine.barrier + dependent
    of_warp = issued / (kernel.blocks * launch.warps)  # instructions
    waves = makespan(kernel.blocks, gpu.sms * resident, work)
    seconds[LATENCY] = waves * (waits * latency + of_warp + stalled + machine.block) / machine.clock
    seconds[BLOCKS] = kernel.blocks / machine.block_rate
    seconds[LAUNCH] = machine.launch

    bounds = tuple(sorted((Bound(*one) for one in seconds.items()), key=_rank))
    known = not_modeled(launch)
    time = machine.launch + combined([one for name, one in seconds.items() if name != LAUNCH])
    return Prediction(launch, None if known else time, bounds, traffic, l2_bytes, resident, known)


def _rank(bound: Bound) -> float:
    """The longest first; a resource that is nearly as long as latency is what more occupancy would run into."""
    return -bound.seconds * (CLOSE if bound.resource in (LATENCY, BLOCKS) else 1)


def _partial_writes(launch: Launch) -> float:
    """Sectors that a request writes in part; where it writes neighbors, these are at both ends."""
    written = (one for one in launch.kernel.lines if (one.space, one.action) == ("global", "write"))
    parts = (min(one.transactions, 2 * (one.transactions - (one.lanes or 0) * one.bytes / SECTOR)) for one in written)
    return sum(parts) / launch.kernel.launches


def _spared(launch: Launch) -> float:
    """The share of the requests to shared memory that nvcc saves.

    A row that all lanes read word by word, as an operand of a tiled product, comes 16 bytes at a time.
    """
    reads = [one for one in launch.kernel.lines if (one.space, one.action, one.bytes) == ("shared", "read", 4)]
    broadcast = sum(one.requests for one in reads if one.requests == one.transactions and stride_of(one.offsets) == 0)
    requests = launch.total("requests", "shared") * launch.kernel.launches
    return (1 - 1 / MERGED) * broadcast / requests if requests else 0.0


_COMPUTED = r"(?:[*+]=? *[^;:]*\w\[|\w\[[^;:]*\] *[*+])"  # with a load
_GUARDED = re.compile(rf"\?[^:]*{_COMPUTED}[^:]*:|\bif \(.*\).*{_COMPUTED}")


def _way_of_a_warp(
    launch: Launch, float32: float, special: float, machine: Machine
) -> tuple[float, float, float, float]:
    """Of a block's busiest warp: waits for global memory, barriers, waits for shared memory, cycles of arithmetic."""
    kernel, sample = launch.kernel, launch.sample
    warps = kernel.blocks * launch.warps
    # registers beyond what every kernel needs hold values that don't depend on each other: the tile of a GEMM, say
    chains = max(CHAINS, min(MOST_CHAINS, ((kernel.registers or 0) - REGISTERS_OF_ALL) / 2))
    dependent = (float32 * machine.arithmetic + special * machine.special / 2) / chains / warps
    places = len({one.place for one in kernel.lines if one.space == "global" and one.action == "read"})
    reads, waits = sample.global_reads / kernel.blocks, sample.waits / kernel.blocks
    under_way = min(MOST_UNDER_WAY, UNROLLED * max(1, places))
    mean = launch.total("requests", "global", "read") / warps
    serial = max(1.0, reads / mean) if mean else 1.0  # one warp works while others wait at the barrier
    # a line that loads and stores, for all nvcc knows to the same place, ends its load before the next one's
    lines: dict = {}
    for one in kernel.lines:
        if one.space == "global" and one.action in ("read", "write"):
            lines.setdefault(one.place, {})[one.action] = one.requests / kernel.launches / warps
    serial_loads = sum(min(one.values()) for one in lines.values() if len(one) == 2) * serial
    waits = max(waits, serial_loads)
    barriers, shared = sample.barriers / kernel.blocks, sample.shared / kernel.blocks
    shared_waits = max(shared / max(SHARED_UNDER_WAY, chains), min(barriers, shared))  # none overlaps a barrier
    guarded = [one for one in kernel.lines if one.space == "global" and one.action == "read" and one.place]
    guarded = sum(one.requests for one in guarded if _GUARDED.search(one.place.text)) / kernel.launches / warps * serial
    waits = max(waits, guarded / GUARDED_UNDER_WAY + (reads - guarded) / under_way)
    return waits, barriers, shared_waits, dependent * serial


def not_modeled(launch: Launch) -> str:
    """Why there is no number for this launch; "" if there is one."""
    if launch.sample.not_modeled:
        return launch.sample.not_modeled
    if launch.total("lanes", "global", "atomic") * 4 > CONTENDED * written_bytes(launch):
        return "atomic operations of many threads on the same words"
    return ""
