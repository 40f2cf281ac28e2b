"""What is known of a launch: the profile's counters, and what its sampled blocks touched.

read_launches(report, lines, library)     the JSON of a profile with simulator_sample_begin(N), N > 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.inspect.profile.model import KernelProfile, read_kernels
from common.inspect.source_lines import SourceLines
from common.predict.instructions import Mix, block_mixes, total_mix

SAMPLE = 12  # blocks of a grid that run
SECTOR = 32


@dataclass(frozen=True)
class Block:
    """One block that ran.

    Attributes:
        number: in the grid, x fastest.
        weight: how many blocks it stands for.
        touched: array -> (first sector, last sector, sectors read, sectors written).
    """

    number: int
    weight: int
    touched: dict[int, tuple[int, int, int, int]]


@dataclass(frozen=True)
class Sample:
    """What runtime/sample.cpp recorded of the last launch; sums are scaled to the whole grid.

    Attributes:
        arrays: bytes of each.
        blocks: those that ran.
        hits: (bytes of a cache, share of the reads that it would have had), ascending.
        global_reads: requests of the busiest warp between two barriers, summed over barriers and blocks.
        waits: how often that warp met another lane or a barrier with reads under way: they cannot overlap.
        barriers: likewise.
        not_modeled: what the model does not know; "" if nothing.
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
    """One kernel at one launch place, one of its launches: all counters are divided by their number.

    Attributes:
        kernel: its profile.
        mix: instructions of all threads.
        lines: cache lines of 128 bytes that its global requests touched.
        sample: see Sample.
        registers_from: "nvcc" or "estimate".
    """

    kernel: KernelProfile
    mix: Mix
    lines: float
    sample: Sample
    registers_from: str = "estimate"

    def total(self, what: str, space: str, *actions: str) -> float:
        """Sum of an attribute of the lines of one memory space, of one launch."""
        lines = (one for one in self.kernel.lines if one.space == space and (not actions or one.action in actions))
        return sum(getattr(one, what) or 0 for one in lines) / self.kernel.launches

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-self.kernel.threads // 32)


def read_launches(report: dict, lines: SourceLines, library: Path) -> list[Launch]:
    """The launches of a report, see common/simulator/README.md."""
    kernels = read_kernels(report, lines, library)
    mixes = block_mixes(library) if kernels else {}
    found = []
    for kernel, raw in zip(kernels, report["kernels"], strict=True):
        touched = sum(site["lines"] for site in raw["sites"]) / kernel.launches
        mix = Mix(*(part / kernel.launches for part in total_mix(mixes, raw["blocks"]).parts))
        found.append(Launch(kernel, mix, touched, _sample(raw["sample"])))
    return found


def _sample(raw: dict) -> Sample:
    blocks = [Block(*block, {array: tuple(rest) for array, *rest in touched}) for *block, touched in raw["blocks"]]
    hits = tuple((size, hits / max(1, raw["logged"])) for size, hits in raw["hits"])
    return Sample(tuple(raw["arrays"]), tuple(blocks), hits, *raw["path"], raw["not_modeled"])


def axes_of(grid: Sequence[int], number: int) -> tuple[int, int, int]:
    """A block's place in its grid."""
    x, y, _ = grid
    return number % x, number // x % y, number // (x * y)
