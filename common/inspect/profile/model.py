"""A kernel's profile: memory traffic line by line, arithmetic, barriers.

    kernels = read_kernels(report, SourceLines(library), library)     the JSON of the simulator's checked build

ncu.py makes the same objects from Nsight Compute's measurements. The counts do not depend on the GPU: sectors
of 32 bytes in global memory, passes over the 32 banks of 4 bytes in shared memory ("wavefronts").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.compiling.report import KernelResources
from common.inspect.profile.instruction_counts import Operations, block_operations, total
from common.inspect.source_lines import Place, SourceLines, instance_of, place_of
from common.measure.gpus import GpuSpec, Occupancy, occupancy

SECTOR = 32  # bytes
BANKS, WORD = 32, 4  # banks of shared memory; bytes per bank and pass
LANES = 32


@dataclass(frozen=True)
class LineTraffic:
    """The warp-level loads or stores of one source line.

    Attributes:
        place: the line; None if unknown.
        space, action: "global" or "shared"; "read", "write", "atomic" or "async copy".
        bytes: bytes per lane.
        requests: warp-level instructions.
        lanes: active lanes, summed over the requests; None if unknown.
        transactions: sectors of global memory, wavefronts in shared memory.
        ideal: the minimum number of transactions for the same bytes.
        worst: transactions of the worst request.
        offsets: the worst request's byte offset per lane, -1 for an inactive one; relative to the start of the block's
            shared memory, or to the lowest address in global memory. () if unknown.
        array: the tensor or __shared__ array accessed; "" if unknown or several.
    """

    place: Place | None
    space: str
    action: str
    bytes: int
    requests: int
    lanes: int | None
    transactions: int
    ideal: int
    worst: int = 0
    offsets: tuple[int, ...] = ()
    array: str = ""

    @property
    def what(self) -> str:
        """ "global read of key"."""
        return f"{self.space} {self.action}" + (f" of {self.array}" if self.array else "")

    @property
    def excess(self) -> int:
        return max(0, self.transactions - self.ideal)

    @property
    def ratio(self) -> float:
        return self.transactions / self.ideal if self.ideal else 1.0

    def seconds(self, gpu: GpuSpec, transactions: int) -> float:
        """The minimum time for `transactions` on the whole GPU."""
        return transactions * (SECTOR / gpu.bandwidth if self.space == "global" else 1 / gpu.wavefronts)


@dataclass(frozen=True)
class KernelProfile:
    """One kernel at one launch site with one grid and block; sums over its launches.

    Attributes:
        kernel, launch: its name and launch site.
        launches: number of launches.
        grid, block: (x, y, z).
        shared_bytes: static and dynamic shared memory of a block.
        barriers: barriers passed, summed over the blocks; None if unknown.
        compulsory_bytes: compulsory traffic: each sector touched by a launch counted once (read, written); None if
            unknown.
        operations: float arithmetic outside the tensor cores; None if not counted.
        tensor_flops: tensor core operations.
        lines: see LineTraffic.
        registers: per thread, from ptxas; None if unknown. If `registers_vary`, the maximum over several template
            instances that the name does not distinguish.
        measured_seconds, dram_bytes: only from a GPU.
    """

    kernel: str
    launch: Place | None
    launches: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    lines: tuple[LineTraffic, ...]
    barriers: int | None = None
    compulsory_bytes: int | None = None
    operations: Operations | None = None
    tensor_flops: int = 0
    registers: int | None = None
    registers_vary: bool = False
    measured_seconds: float | None = None
    dram_bytes: float | None = None

    @property
    def threads(self) -> int:
        return math.prod(self.block)

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)

    @property
    def moved_bytes(self) -> int:
        """All sectors requested by the warps, including repeats: the global memory traffic without caches."""
        return SECTOR * sum(line.transactions for line in self.lines if line.space == "global")

    @property
    def wavefronts(self) -> int:
        return sum(line.transactions for line in self.lines if line.space == "shared")

    @property
    def flops(self) -> int | None:
        return None if self.operations is None else self.operations.flops + self.tensor_flops

    @property
    def dram(self) -> float | None:
        """DRAM traffic in bytes: measured, or the compulsory minimum."""
        return self.compulsory_bytes if self.dram_bytes is None else self.dram_bytes

    @property
    def intensity(self) -> float | None:
        """Operations per byte of DRAM traffic; None if either is unknown."""
        return self.flops / self.dram if self.flops is not None and self.dram else None

    def occupancy(self, gpu: GpuSpec) -> Occupancy:
        return occupancy(gpu, self.threads, self.shared_bytes, self.registers)


# ---- from the simulator's report


def read_kernels(report: dict, lines: SourceLines, library: Path) -> list[KernelProfile]:
    """The kernels of simulator_check_report(), see common/simulator/README.md."""
    kernels = report["kernels"]
    places = lines.places(site["pc"] for kernel in kernels for site in kernel["sites"])
    operations = block_operations(library) if kernels else None
    return [
        KernelProfile(
            instance_of(one["kernel"], (places[site["pc"]] for site in one["sites"])),
            place_of(one["launch"]),
            one["launches"],
            tuple(one["grid"]),
            tuple(one["block"]),
            one["static_shared"] + one["dynamic_shared"],
            merged(_traffic(site, places) for site in one["sites"]),
            one["barriers"],
            SECTOR * (one["sectors_read"] + one["sectors_written"]),
            None if operations is None else total(operations, one["blocks"]),
            one.get("tensor_flops", 0),
        )
        for one in kernels
    ]


def _traffic(site: dict, places: dict[int, Place | None]) -> LineTraffic:
    return LineTraffic(
        places[site["pc"]],
        site["space"],
        site["action"],
        site["bytes"],
        site["requests"],
        site["lanes"],
        site["transactions"],
        site["ideal"],
        site["worst"]["transactions"],
        tuple(site["worst"]["offsets"]),
        site["array"],
    )


def merged(traffic: Iterable[LineTraffic]) -> tuple[LineTraffic, ...]:
    """Merges the copies of a line due to unrolling; different arrays and call sites stay separate."""
    found: dict[tuple, LineTraffic] = {}
    for one in traffic:
        key = one.place, one.space, one.action, one.bytes, one.array
        old = found.get(key)
        if old is None:
            found[key] = one
            continue
        worse = one if one.worst > old.worst else old
        found[key] = replace(
            old,
            requests=old.requests + one.requests,
            lanes=None if old.lanes is None or one.lanes is None else old.lanes + one.lanes,
            transactions=old.transactions + one.transactions,
            ideal=old.ideal + one.ideal,
            worst=worse.worst,
            offsets=worse.offsets,
        )
    return tuple(found.values())


def with_registers(kernel: KernelProfile, resources: Sequence[KernelResources]) -> KernelProfile:
    """The profile with ptxas's registers for this kernel, matched by full name or else without template arguments."""
    exact = [one.registers for one in resources if one.name.replace(" ", "") == kernel.kernel.replace(" ", "")]
    bare = kernel.kernel.split("<")[0]
    found = exact or [one.registers for one in resources if one.name.split("<")[0] == bare]
    if not found:
        return kernel
    return replace(kernel, registers=max(found), registers_vary=len(set(found)) > 1)
