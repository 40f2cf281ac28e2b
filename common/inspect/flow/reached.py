"""What the results of each thread may be made of: the elements of inputs that reach it, as bits of an integer.

More than the truth, never less: whatever a thread has read counts for all that it writes, and where lanes of a warp
exchange registers all of them get what one has. So what does not reach a thread cannot be in its results.
"""

from __future__ import annotations

import numpy as np

from common.inspect.flow.sources import Sources
from common.inspect.flow.trace import Trace
from common.inspect.replay.recording import WARP_OPERATION

MOST_PAIRS = 2_000_000  # of threads of which one reads what the other wrote
WARP = 32


def threads_of(trace: Trace) -> np.ndarray:
    """A number for the thread of a launch that each access belongs to; threads of earlier launches come first."""
    blocks, threads = int(trace.block.max(initial=0)) + 1, int(trace.thread.max(initial=0)) + 1
    every = (trace.launch.astype(np.int64) * blocks + trace.block) * threads + trace.thread
    return np.unique(every, return_inverse=True)[1]


def reached(trace: Trace, sources: Sources, threads: np.ndarray) -> list[int] | None:
    """For each thread the elements that reach it: bit i for element i of all inputs; None if it takes too long."""
    count = int(threads.max(initial=-1)) + 1
    found = _read_by(threads, sources, count)
    passes = np.flatnonzero(sources.made_by >= 0)
    launch_of = np.zeros(count, dtype=np.int64)
    launch_of[threads] = trace.launch
    readers, writers = threads[passes], threads[sources.made_by[passes]]
    pairs = np.unique(readers * count + writers)
    if pairs.size > MOST_PAIRS:
        return None
    pairs = np.stack([pairs // count, pairs % count], 1)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    warps = _warps(trace, threads, count)
    for launch in range(len(trace.launches)):
        mine = pairs[launch_of[pairs[:, 0]] == launch]
        within = [(int(a), int(b)) for a, b in mine if launch_of[b] == launch]
        for reader, writer in mine.tolist():
            found[reader] |= found[writer]
        groups = [group for group in warps if launch_of[group[0]] == launch]
        changed = bool(within or groups)
        while changed:
            changed = False
            for reader, writer in within:
                more = found[reader] | found[writer]
                changed |= more != found[reader]
                found[reader] = more
            for group in groups:
                every = 0
                for one in group:
                    every |= found[one]
                for one in group:
                    changed |= found[one] != every
                    found[one] = every
    return found


def bits_of(mask: np.ndarray) -> int:
    """bool [n] -> an integer with bit i for element i."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def mask_of(bits: int, count: int) -> np.ndarray:
    """The other way round."""
    data = np.frombuffer(bits.to_bytes((count + 7) // 8, "little"), np.uint8)
    return np.unpackbits(data, count=count, bitorder="little").astype(bool)


def _read_by(threads: np.ndarray, sources: Sources, count: int) -> list[int]:
    """What each thread reads itself."""
    reads = np.flatnonzero(sources.of_read >= 0)
    pairs = np.unique(threads[reads] * sources.count + sources.of_read[reads])
    owner, element = pairs // sources.count, pairs % sources.count
    begins = np.searchsorted(owner, np.arange(count + 1))
    found = []
    for thread in range(count):
        mask = np.zeros(sources.count, dtype=bool)
        mask[element[begins[thread] : begins[thread + 1]]] = True
        found.append(bits_of(mask))
    return found


def _warps(trace: Trace, threads: np.ndarray, count: int) -> list[list[int]]:
    """The threads of each warp in launches in which lanes exchange registers."""
    exchanging = [any(one.kind == WARP_OPERATION for one in launch.entries) for launch in trace.launches]
    first = np.unique(threads, return_index=True)[1]
    groups: dict[tuple, list[int]] = {}
    for thread, access in enumerate(first):
        if exchanging[trace.launch[access]]:
            who = int(trace.launch[access]), int(trace.block[access]), int(trace.thread[access]) // WARP
            groups.setdefault(who, []).append(thread)
    return [group for group in groups.values() if len(group) > 1]
