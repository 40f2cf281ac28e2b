"""The data on a launch: the profile's counters, and the memory accessed by its sampled blocks.

read_launches(report, lines, library)     the JSON of a profile with simulator_sample_begin(N), N > 0
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.inspect.profile.instruction_counts import total
from common.inspect.profile.model import KernelProfile, read_kernels
from common.inspect.source_lines import SourceLines
from common.predict.instructions import NOTHING, Mix, block_mixes

SAMPLE = 12  # simulated blocks per grid
SECTOR = 32


@dataclass(frozen=True)
class Block:
    """A simulated block.

    Attributes:
        number: index in the grid, x fastest.
        weight: number of blocks that it represents.
        touched: array -> (first sector, last sector, sectors read, sectors written).
    """

    number: int
    weight: int
    touched: dict[int, tuple[int, int, int, int]]


@dataclass(frozen=True)
class Sample:
    """The recording of the last launch by runtime/sample.cpp; sums are scaled to the whole grid.

    Attributes:
        arrays: bytes of each array.
        blocks: the simulated blocks.
        hits: (cache bytes, hit rate of reads), ascending.
        global_reads: requests of the busiest warp between two barriers, summed over barriers and blocks.
        waits: how often that warp synchronized with other lanes or at a barrier with reads in flight, which then cannot
            overlap; summed likewise.
        barriers: barriers, summed likewise.
        not_modeled: what the model does not cover; "" if nothing.
    """

    arrays: tuple[int, ...]
    blocks: tuple[Block, ...]
    hits: tuple[tuple[int, float], ...]
    global_reads: int
    waits: int
    barriers: int
    not_modeled: str


@dataclass(frozen=True)
class Launch:
    """The average launch of one kernel at one launch site: counters are divided by the number of launches.

    Attributes:
        kernel: its profile, which sums over the launches.
        mix: instructions of all threads.
        lines: 128-byte cache lines accessed by its global requests.
        sample: see Sample.
        registers_from: "nvcc" or "estimate".
    """

    kernel: KernelProfile
    mix: Mix
    lines: float
    sample: Sample
    registers_from: str = "estimate"

    def total(self, what: str, space: str, *actions: str) -> float:
        """Sum of an attribute over the lines of one memory space, per launch."""
        lines = (one for one in self.kernel.lines if one.space == space and (not actions or one.action in actions))
        return sum(getattr(one, what) or 0 for one in lines) / self.kernel.launches

    @property
    def warps(self) -> int:
        """Warps per block."""
        return -(-self.kernel.threads // 32)


def read_launches(report: dict, lines: SourceLines, library: Path) -> list[Launch]:
    """The launches of a report, see common/simulator/README.md."""
    kernels = read_kernels(report, lines, library)
    mixes = block_mixes(library) if kernels else {}
    found = []
    for kernel, raw in zip(kernels, report["kernels"], strict=True):
        touched = sum(site["lines"] for site in raw["sites"]) / kernel.launches
        mix = Mix(*(part / kernel.launches for part in total(mixes, raw["blocks"], NOTHING).parts))
        found.append(Launch(kernel, mix, touched, _sample(raw["sample"])))
    return found


def _sample(raw: dict) -> Sample:
    blocks = [Block(*block, {array: tuple(rest) for array, *rest in touched}) for *block, touched in raw["blocks"]]
    hits = tuple((size, hits / max(1, raw["logged"])) for size, hits in raw["hits"])
    return Sample(tuple(raw["arrays"]), tuple(blocks), hits, *raw["path"], raw["not_modeled"])
