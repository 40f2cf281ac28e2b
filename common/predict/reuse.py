"""Models L2 and DRAM traffic: the L1 by stack distance, the L2 by the order in which blocks run.

l1_hit_share(sample, bytes)                     hit rate of the sectors read
dram_traffic(launch, resident, l2_bytes)        -> bytes read and written

Resident blocks run in waves, in order of block index. Within a wave, blocks progress in step, so data read by several
of them is read once; between waves, an LRU cache keeps whole tiles. A tile is the part of an array that a block
accesses; blocks that differ only along a grid axis on which the array's tile does not depend share it. The sampled
blocks show which axes those are.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from dataclasses import dataclass

from common.inspect.replay.recording import coordinates
from common.predict.counters import SECTOR, Launch, Sample

BURST = 64  # minimum bytes per DRAM access
L2_SHARE = 0.75  # usable fraction: it has two partitions on large GPUs, and other data
MOST_SIMULATED = 40_000  # blocks; for a larger grid, the first ones are extrapolated


@dataclass(frozen=True)
class Traffic:
    """DRAM traffic of one launch in bytes."""

    read: float
    written: float

    @property
    def total(self) -> float:
        return self.read + self.written


def l1_hit_share(sample: Sample, available: float) -> float:
    """The hit rate of sectors read in a block's part of the L1; interpolated linearly between the recorded sizes."""
    before, share = 0, 0.0
    for size, hits in sample.hits:
        if available <= size:
            return share + (hits - share) * (available - before) / (size - before)
        before, share = size, hits
    return share


def axes_that_matter(sample: Sample, grid: tuple[int, int, int], array: int) -> tuple[bool, bool, bool]:
    """The axes of the grid along which the tile of this array changes."""
    tiles = {coordinates(block.number, grid): block.touched.get(array) for block in sample.blocks}
    matter = [False, False, False]
    for axis in range(3):
        rows: dict[tuple, set] = {}
        for at, touched in tiles.items():
            rows.setdefault(at[:axis] + at[axis + 1 :], set()).add(touched and touched[:2])
        matter[axis] = any(len(row) > 1 for row in rows.values())
    return tuple(matter)


def _tiles(sample: Sample, grid: tuple[int, int, int], array: int) -> tuple[tuple[bool, ...], int, float, float]:
    """(axes that matter, number of tiles, total sectors read, written) of the tiles of an array."""
    axes = axes_that_matter(sample, grid, array)
    tiles = math.prod(extent for extent, matters in zip(grid, axes, strict=True) if matters)
    each = tiles / sum(block.weight for block in sample.blocks)
    touched = [(one.weight * each, one.touched[array]) for one in sample.blocks if array in one.touched]
    return axes, tiles, sum(times * one[2] for times, one in touched), sum(times * one[3] for times, one in touched)


def written_bytes(launch: Launch) -> float:
    """Distinct bytes written, in whole sectors; tiles overlap if together they are larger than the array."""
    sample, grid = launch.sample, launch.kernel.grid
    return sum(SECTOR * min(_tiles(sample, grid, n)[3], size / SECTOR + 1) for n, size in enumerate(sample.arrays))


def dram_traffic(launch: Launch, resident: int, l2_bytes: float, l2_reads: float) -> Traffic:
    """The bytes that a launch moves, starting with a cold L2 (as in the benchmarks).

    Args:
        resident: blocks on the whole GPU at a time.
        l2_bytes: size of the L2 cache.
        l2_reads: bytes that all blocks read beyond their L1.
    """
    kernel, sample, capacity = launch.kernel, launch.sample, L2_SHARE * l2_bytes
    tile, different, one_pass, all_read, all_written = {}, 0.0, 0.0, 0.0, 0.0
    for array, size in enumerate(sample.arrays):
        axes, tiles, read, written = _tiles(sample, kernel.grid, array)
        if read:
            tile[array] = axes, SECTOR * min(read, size / SECTOR + 1) / tiles
            different += tile[array][1] * kernel.blocks
        # blocks that fill gaps left by an earlier pass over the array: L2 may have evicted the lines
        ranges = [one.touched[array][:2] for one in sample.blocks if array in one.touched]
        if tiles == kernel.blocks and SECTOR * max(read, written) > 2 * size and ranges != sorted(ranges):
            span = sum(last - first + 1 for first, last in ranges) / len(ranges)
            one_pass += size / SECTOR / span * max(read, written) / tiles * BURST
            all_read, all_written = all_read + read * BURST, all_written + written * BURST
    lost = one_pass > capacity
    passes = l2_reads / different if different else 1.0  # how often a block reads its data
    read = _read(kernel.grid, tile, resident, capacity, passes)
    written = written_bytes(launch) - capacity / 2  # a write stays in L2 until evicted
    return Traffic(max(read, lost * all_read), max(0.0, written, lost * all_written))


def _read(grid: tuple[int, int, int], tile: dict, resident: int, capacity: float, passes: float) -> float:
    count = math.prod(grid)
    shared = {
        array: one for array, one in tile.items() if not all(m or n == 1 for m, n in zip(one[0], grid, strict=True))
    }
    own = sum(bytes_ for array, (_, bytes_) in tile.items() if array not in shared)  # private to each block
    if passes > 1 and resident * own > capacity:  # reread after L2 has evicted part of it
        own *= 1 + (passes - 1) * (1 - capacity / (resident * own))
    simulated = min(count, max(MOST_SIMULATED, resident))
    kept: OrderedDict[tuple, float] = OrderedDict()
    held, read = 0.0, 0.0
    for begin in range(0, simulated if shared else 0, resident):
        blocks = [coordinates(number, grid) for number in range(begin, min(begin + resident, simulated))]
        for array, (axes, bytes_) in shared.items():
            wave = dict.fromkeys(tuple(itertools.compress(at, axes)) for at in blocks)
            for at in wave:
                key = (array, at)
                if key in kept:
                    kept.move_to_end(key)
                    continue
                read += bytes_
                kept[key] = bytes_
                held += bytes_
        held += own * len(blocks)  # streams through and evicts the oldest
        while held > capacity and kept:
            held -= kept.popitem(last=False)[1]
        held = min(held, capacity)
    return read * count / max(simulated, 1) + own * count if shared else own * count
