"""The accesses of a case's launches, one element each, in chronological order: Trace.of(launches).

A recording (replay/recording.py) has accesses of any width, and no values for reads. Here an access to four floats is
split into four, arrays are identified across launches, and every read is linked to the write that it sees.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from common.inspect.replay.recording import ASYNC_COPY, ATOMIC, READ, WARP_OPERATION, Array, Entry, Launch
from common.inspect.source_lines import Place

WIDEST = 4  # bytes per element of shared memory, whatever its declared type


@dataclass
class Memory:
    """An array across all launches.

    Attributes:
        array: as described by the first launch that accessed it.
        unit: bytes per element.
        initial: initial contents of the elements, as bits; None for shared memory.
    """

    array: Array
    unit: int
    initial: np.ndarray | None

    @property
    def is_shared(self) -> bool:
        """Whether each block has its own copy."""
        return self.array.space == "shared"


@dataclass
class Trace:
    """Columns of equal length: one access to one element each.

    Attributes:
        launches: the recordings.
        memories: the arrays.
        launch, block, thread: the accessing thread.
        entry: index of its Entry in its launch.
        memory, element: what is accessed.
        is_write: whether it writes; atomic operations count as writes.
        value: the bits written or read; 0 if unknown.
        seen: for a read, the index of the write that it sees, -1 if none; for a write, its own index.
        atomic: the memories modified by atomic operations.
    """

    launches: Sequence[Launch]
    memories: list[Memory]
    launch: np.ndarray
    block: np.ndarray
    thread: np.ndarray
    entry: np.ndarray
    memory: np.ndarray
    element: np.ndarray
    is_write: np.ndarray
    value: np.ndarray
    seen: np.ndarray
    atomic: set[int]

    @classmethod
    def of(cls, launches: Sequence[Launch]) -> Trace:
        """Reads the recordings of all launches."""
        memories: list[Memory] = []
        numbers: dict[tuple, int] = {}
        columns: list[dict[str, np.ndarray]] = []
        atomic: set[int] = set()
        for number, launch in enumerate(launches):
            of_array = _memories_of(launch, number, numbers, memories)
            columns.append(_accesses(launch, number, of_array, memories))
            atomic |= {of_array[entry.array] for entry in launch.entries if entry.kind == ATOMIC}
        joined = {name: np.concatenate([one[name] for one in columns]) for name in columns[0]} if columns else {}
        found = cls(launches, memories, **joined, seen=np.empty(0), atomic=atomic)
        found.seen = _last_writes(found)
        found.value = np.where(found.is_write, found.value, _read_values(found))
        return found

    def up_to(self, launch: int) -> Trace:
        """The accesses of the launches up to and including this one."""
        count = int(np.searchsorted(self.launch, launch, side="right"))
        columns = ("launch", "block", "thread", "entry", "memory", "element", "is_write", "value", "seen")
        return replace(self, **{name: getattr(self, name)[:count] for name in columns})

    def entry_of(self, access: int) -> Entry:
        """An access's kind of event, with its source line."""
        return self.launches[self.launch[access]].entries[self.entry[access]]

    def place_of(self, access: int) -> Place | None:
        """The source line of an access."""
        return self.entry_of(access).place

    @functools.cached_property
    def shared(self) -> np.ndarray:
        """Mask of the accesses to shared memory."""
        return np.array([one.is_shared for one in self.memories], dtype=bool)[self.memory]

    @functools.cached_property
    def blocks(self) -> np.ndarray:
        """For each access, an index of its block over all launches."""
        return self.launch.astype(np.int64) * (int(self.block.max(initial=0)) + 1) + self.block

    @functools.cached_property
    def lines(self) -> np.ndarray:
        """For each access, an index of its entry over all launches."""
        return self.launch.astype(np.int64) * (int(self.entry.max(initial=0)) + 1) + self.entry

    def actors(self, lanes: np.ndarray | int = 1) -> np.ndarray:
        """For each access, an index of its thread over all launches, or of its group of `lanes` threads."""
        return self.blocks * (int(self.thread.max(initial=0)) + 1) + self.thread // lanes * lanes

    def exchanging(self) -> np.ndarray:
        """Mask of the launches in which lanes exchange registers."""
        return np.array([any(one.kind == WARP_OPERATION for one in launch.entries) for launch in self.launches])


def _memories_of(launch: Launch, number: int, numbers: dict[tuple, int], memories: list[Memory]) -> list[int]:
    """The memory for each array of a launch; global arrays are identified across launches by name and size."""
    counts: Counter = Counter()
    found = []
    for i, array in enumerate(launch.arrays):
        key = (array.name, array.bytes, array.shape) if array.space == "global" else (number, i)
        key = (*key, counts[key])
        counts[key[:-1]] += 1
        if key not in numbers:
            numbers[key] = len(memories)
            unit = _unit_of(launch, i)
            known = array.space == "global" and len(array.initial) >= unit
            initial = _bits(np.frombuffer(array.initial, np.uint8), unit) if known else None
            memories.append(Memory(array, unit, initial))
        found.append(numbers[key])
    return found


def _unit_of(launch: Launch, number: int) -> int:
    """Bytes per element of an array: as declared for a tensor, as accessed for shared memory."""
    array = launch.arrays[number]
    if array.space == "global":
        return array.element_bytes
    mine = [i for i, entry in enumerate(launch.entries) if entry.array == number]
    offsets = launch.offset_of[np.isin(launch.entry_of, mine)]
    step = math.gcd(*(launch.entries[i].bytes for i in mine), int(np.gcd.reduce(offsets)) if offsets.size else 0)
    return math.gcd(step, WIDEST)


def _bits(data: np.ndarray, unit: int) -> np.ndarray:
    """Bytes -> elements of `unit` bytes, as uint64."""
    whole = data[: data.size // unit * unit].reshape(-1, unit).astype(np.uint64)
    return (whole << (8 * np.arange(unit, dtype=np.uint64))).sum(1, dtype=np.uint64)


def _accesses(launch: Launch, number: int, of_array: list[int], memories: list[Memory]) -> dict[str, np.ndarray]:
    """The columns of one launch, except `seen`."""
    entry_of = launch.entry_of.astype(np.int64)
    bytes_ = np.array([entry.bytes for entry in launch.entries] or [0], dtype=np.int64)[entry_of]
    kinds = np.array([entry.kind for entry in launch.entries] or [READ])[entry_of]
    writes = (kinds != READ) & (kinds != WARP_OPERATION)
    value_at = np.cumsum(np.where(writes, bytes_, 0)) - np.where(writes, bytes_, 0)
    segments = np.array([one.first for one in launch.segments] or [0])
    block_of = np.array([one.block for one in launch.segments] or [0])
    block = block_of[np.searchsorted(segments, np.arange(entry_of.size), side="right") - 1]
    memory = np.array([of_array[entry.array] if entry.array >= 0 else -1 for entry in launch.entries] or [-1])[entry_of]
    units = np.array([one.unit for one in memories] or [1])
    used = np.flatnonzero((memory >= 0) & (kinds != ASYNC_COPY))  # an async copy's data counts when it arrives
    unit = units[memory[used]]
    count = np.maximum(1, bytes_[used] // unit)
    access = np.repeat(used, count)
    within = np.arange(access.size) - np.repeat(np.cumsum(count) - count, count)
    unit = units[memory[access]]
    element = launch.offset_of[access].astype(np.int64) // unit + within
    data = np.frombuffer(launch.values, np.uint8)
    value = np.zeros(access.size, dtype=np.uint64)
    for size in np.unique(unit):
        mine = np.flatnonzero(writes[access] & (unit == size) & (bytes_[access] >= size))
        at = (value_at[access[mine]] + within[mine] * size)[:, None] + np.arange(size)
        inside = at[:, -1] < data.size
        value[mine[inside]] = _bits(data[at[inside]].reshape(-1), int(size))
    return {
        "launch": np.full(access.size, number),
        "block": block[access],
        "thread": launch.thread_of[access].astype(np.int64),
        "entry": entry_of[access],
        "memory": memory[access],
        "element": element,
        "is_write": writes[access],
        "value": value,
    }


def _last_writes(trace: Trace) -> np.ndarray:
    """For each access, the last write to its element so far; -1 if there is none."""
    owner = np.where(trace.shared, 1 + trace.blocks, 0)  # each block has its own shared memory elements
    most = trace.element.max(initial=0) + 1
    at = (owner * len(trace.memories) + trace.memory) * most + trace.element  # a unique number for each element
    order = np.argsort(at, kind="stable")
    last = np.maximum.accumulate(np.where(trace.is_write[order], np.arange(order.size), -1))
    known = (last >= 0) & (at[order[last]] == at[order])
    found = np.empty(order.size, dtype=np.int64)
    found[order] = np.where(known, order[last], -1)
    return found


def _read_values(trace: Trace) -> np.ndarray:
    """The contents of each access's element: the last write's value, or the initial contents."""
    found = np.where(trace.seen >= 0, trace.value[trace.seen], np.uint64(0))
    for number, memory in enumerate(trace.memories):
        if memory.initial is None:
            continue
        mine = np.flatnonzero((trace.memory == number) & (trace.seen < 0) & (trace.element < memory.initial.size))
        found[mine] = memory.initial[trace.element[mine]]
    return found
