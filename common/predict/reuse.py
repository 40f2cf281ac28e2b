"""Which bytes reach L2 and DRAM: an L1 by stack distance, an L2 by the order in which blocks run.

l1_hit_share(sample, bytes)                     of the sectors read
dram_traffic(launch, resident, l2_bytes)        -> bytes read and written

Blocks run in waves of as many as are resident, in the order of their numbers. Within a wave blocks go in step, so what
several of them read is read once; between waves an LRU cache keeps whole tiles. A tile is what a block touches of an
array; blocks that differ only along an axis of the grid on which the array's tile does not depend share it. The sampled
blocks show which axes those are.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from dataclasses import dataclass

from common.predict.counters import SECTOR, Launch, Sample, axes_of

BURST = 64  # bytes that DRAM moves at least
L2_SHARE = 0.75  # of its size: it has two partitions on large GPUs, and other data
MOST_SIMULATED = 40_000  # blocks; of a larger grid the first ones, and the rest is like them


@dataclass(frozen=True)
class Traffic:
    """Bytes of one launch that DRAM moves."""

    read: float
    written: float

    @property
    def total(self) -> float:
        return self.read + self.written


def l1_hit_share(sample: Sample, available: float) -> float:
    """The share of the sectors read that a block's part of the L1 has; linear between the sizes that were counted."""
    before, share = 0, 0.0
    for size, hits in sample.hits:
        if available <= size:
            return share + (hits - share) * (available - before) / (size - before)
        before, share = size, hits
    return share


def axes_that_matter(sample: Sample, grid: tuple[int, int, int], array: int) -> tuple[bool, bool, bool]:
    """Along which axes of the grid the tile of this array changes."""
    tiles = {axes_of(grid, block.number): block.touched.get(array) for block in sample.blocks}
    matter = [False, False, False]
    for axis in range(3):
        rows: dict[tuple, set] = {}
        for at, touched in tiles.items():
            rows.setdefault(at[:axis] + at[axis + 1 :], set()).add(touched and touched[:2])
        matter[axis] = any(len(row) > 1 for row in rows.values())
    return tuple(matter)


def _tiles(sample: Sample, grid: tuple[int, int, int], array: int) -> tuple[tuple[bool, ...], int, float, float]:
    """(axes that matter, number of tiles, sectors read by all of them, written), of what blocks touch of an array."""
    axes = axes_that_matter(sample, grid, array)
    tiles = math.prod(extent for extent, matters in zip(grid, axes, strict=True) if matters)
    each = tiles / sum(block.weight for block in sample.blocks)
    touched = [(one.weight * each, one.touched[array]) for one in sample.blocks if array in one.touched]
    return axes, tiles, sum(times * one[2] for times, one in touched), sum(times * one[3] for times, one in touched)


def written_bytes(launch: Launch) -> float:
    """Different ones, in whole sectors; neighbors overlap where all tiles together are larger than the array."""
    sample, grid = launch.sample, launch.kernel.grid
    return sum(SECTOR * min(_tiles(sample, grid, n)[3], size / SECTOR + 1) for n, size in enumerate(sample.arrays))


def dram_traffic(launch: Launch, resident: int, l2_bytes: float, l2_reads: float) -> Traffic:
    """The bytes that a launch moves, with an L2 that holds nothing of its data at first (as the benchmarks time it).

    Args:
        resident: blocks on the whole GPU at a time.
        l2_bytes: of the second-level cache.
        l2_reads: bytes that all blocks read past their L1.
    """
    kernel, sample, capacity = launch.kernel, launch.sample, L2_SHARE * l2_bytes
    tile, different, one_pass, all_read, all_written = {}, 0.0, 0.0, 0.0, 0.0
    for array, size in enumerate(sample.arrays):
        axes, tiles, read, written = _tiles(sample, kernel.grid, array)
        if read:
            tile[array] = axes, SECTOR * min(read, size / SECTOR + 1) / tiles
            different += tile[array][1] * kernel.blocks
        # blocks that fill gaps which others left a pass over the array ago: L2 may have lost the lines
        ranges = [one.touched[array][:2] for one in sample.blocks if array in one.touched]
        if tiles == kernel.blocks and SECTOR * max(read, written) > 2 * size and ranges != sorted(ranges):
            span = sum(last - first + 1 for first, last in ranges) / len(ranges)
            one_pass += size / SECTOR / span * max(read, written) / tiles * BURST
            all_read, all_written = all_read + read * BURST, all_written + written * BURST
    lost = one_pass > capacity
    passes = l2_reads / different if different else 1.0  # how often a block reads what it reads
    read = _read(kernel.grid, tile, resident, capacity, passes)
    written = written_bytes(launch) - capacity / 2  # a write stays in L2 until its place is needed
    return Traffic(max(read, lost * all_read), max(0.0, written, lost * all_written))


def _read(grid: tuple[int, int, int], tile: dict, resident: int, capacity: float, passes: float) -> float:
    count = math.prod(grid)
    shared = {
        array: one for array, one in tile.items() if not all(m or n == 1 for m, n in zip(one[0], grid, strict=True))
    }
    own = sum(bytes_ for array, (_, bytes_) in tile.items() if array not in shared)  # each block's alone
    if passes > 1 and resident * own > capacity:  # read again when L2 has lost a part of it
        own *= 1 + (passes - 1) * (1 - capacity / (resident * own))
    simulated = min(count, max(MOST_SIMULATED, resident))
    kept: OrderedDict[tuple, float] = OrderedDict()
    held, read = 0.0, 0.0
    for begin in range(0, simulated if shared else 0, resident):
        blocks = [axes_of(grid, number) for number in range(begin, min(begin + resident, simulated))]
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
        held += own * len(blocks)  # it passes through, and takes what is oldest with it
        while held > capacity and kept:
            held -= kept.popitem(last=False)[1]
        held = min(held, capacity)
    return read * count / max(simulated, 1) + own * count if shared else own * count
