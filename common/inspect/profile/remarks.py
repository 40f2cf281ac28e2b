"""Interprets the transactions of a source line and suggests changes.

remark(line)                a few words and, if there is room for improvement, a sentence
worst_first(lines, gpu)     sorted by potential gain
line_passes(offsets, 4)     which pass over the banks of shared memory serves which lane
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.inspect.profile.model import BANKS, LANES, WORD, LineTraffic
from common.measure.gpus import GpuSpec

FINE = 1.25  # ratio of transactions to ideal up to which there is no remark
FEW_LANES = 16  # of 32 on average; below, a remark


@dataclass(frozen=True)
class Remark:
    """A few words for the table and, if there is room for improvement, a sentence on what to change."""

    note: str
    advice: str = ""


def stride_of(offsets: Sequence[int]) -> int | None:
    """The stride in bytes between lanes if most neighboring lanes agree (0: same address), otherwise None."""
    steps = Counter(b - a for a, b in itertools.pairwise(offsets) if a >= 0 and b >= 0)
    if not steps:
        return None
    step, times = steps.most_common(1)[0]
    return step if 2 * times >= steps.total() else None


def remark(line: LineTraffic) -> Remark:
    """The remark on this line's transactions."""
    found = _shared_remark(line) if line.space == "shared" else _global_remark(line)
    if line.lanes is not None and line.lanes < FEW_LANES * line.requests:
        active = line.lanes / line.requests
        return Remark(f"{found.note}, {active:.2g} of {LANES} lanes active", found.advice)
    return found


def _global_remark(line: LineTraffic) -> Remark:
    stride = stride_of(line.offsets)
    if stride == 0:
        return Remark("one address")
    if stride is not None and abs(stride) == line.bytes:
        if line.ratio <= FINE:
            return Remark("coalesced")
        return Remark(
            "not aligned",
            "The lanes use neighbors, but begin in the middle of a 32-byte sector, which costs one extra sector. Only  "
            "rows whose length is a multiple of 32 bytes avoid that; if the sizes are given, leave it.",
        )
    if line.ratio <= FINE:
        return Remark("coalesced")
    share = f"{100 / line.ratio:.0f}% of sectors used"
    each, least = line.transactions / line.requests, line.ideal / line.requests
    apart = f"Neighboring lanes are {abs(stride):,} bytes apart" if stride else "The lanes' addresses are scattered"
    return Remark(
        share,
        f"{apart}: a request takes {each:.1f} sectors of 32 bytes where {least:.1f} would do. Let neighboring "
        "threadIdx.x use neighboring addresses; if the algorithm needs another order, rearrange in shared memory.",
    )


def _shared_remark(line: LineTraffic) -> Remark:
    stride = stride_of(line.offsets)
    # accesses of 8 or 16 bytes per lane take several passes even without bank conflicts
    if line.ratio <= FINE or (line.bytes > WORD and line.transactions <= line.requests * line.bytes // WORD):
        passes = line.transactions / line.requests if line.requests else 1.0
        least = f", {passes:.2g} passes at least" if line.ratio > FINE else ""
        return Remark(("broadcast" if stride == 0 else "no conflicts") + least)
    per_request = line.transactions / line.requests
    ways = f"{per_request:.0f} passes" if per_request >= 10 else f"{per_request:.1f} passes".replace(".0 ", " ")
    if stride and stride % WORD == 0 and line.bytes <= WORD:
        words = abs(stride) // WORD
        lanes = math.gcd(words, BANKS)
        change = (
            f"Neighboring lanes are {words} words apart, so {lanes} lanes meet in each bank they use. Rows of an odd "
            f"number of words ({words + 1 - words % 2}, not {words}) spread a column over all banks; so does "
            "swizzling: the column xor the row."
        )
    else:
        change = (
            "Lanes that want different words of one bank take turns. Pad the rows so that the lanes' words fall into "
            "different banks, or swizzle: the column xor the row."
        )
    return Remark(f"conflicts: {ways}", change)


def worst_first(lines: Iterable[LineTraffic], gpu: GpuSpec) -> list[LineTraffic]:
    """Sorted by the time lost to avoidable transactions on this GPU, then by the time of all transactions."""
    return sorted(lines, key=lambda x: (x.seconds(gpu, avoidable(x)), x.seconds(gpu, x.transactions)), reverse=True)


def avoidable(line: LineTraffic) -> int:
    """Transactions beyond the ideal, if they can be avoided."""
    return line.excess if remark(line).advice else 0


def line_passes(offsets: Sequence[int], bytes_per_lane: int) -> list[tuple[int, int, int]]:
    """Which pass over the banks serves which word: [(lane, bank, pass), ...], passes from 0.

    In one pass, a bank serves one 4-byte word to all lanes that request it. Accesses of 8 and 16 bytes are processed in
    groups of 16 and 8 lanes, one group after the other; two neighboring groups are combined if pairs of lanes request
    the same address (runtime/profile.cpp counts the same way).
    """
    result, done = [], 0
    for group in _groups(offsets, bytes_per_lane):
        words: dict[int, list[int]] = {}  # bank -> its words in order of service
        for lane in group:
            if offsets[lane] < 0:
                continue
            for word in range(offsets[lane] // WORD, (offsets[lane] + bytes_per_lane - 1) // WORD + 1):
                queue = words.setdefault(word % BANKS, [])
                if word not in queue:
                    queue.append(word)
                result.append((lane, word % BANKS, done + queue.index(word)))
        done += max(map(len, words.values()), default=0)
    return result


def _groups(offsets: Sequence[int], bytes_per_lane: int) -> list[range]:
    """The lanes that are served together."""
    if bytes_per_lane <= WORD:
        return [range(LANES)]
    size = LANES // 2 if bytes_per_lane <= 2 * WORD else LANES // 4
    groups = []
    for first in range(0, LANES, 2 * size):
        both = range(first, first + 2 * size)
        together = any(
            all(offsets[lane] < 0 or offsets[lane ^ apart] in (-1, offsets[lane]) for lane in both) for apart in (1, 2)
        )
        groups += [both] if together else [range(first, first + size), range(first + size, first + 2 * size)]
    return groups
