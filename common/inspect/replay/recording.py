"""The simulator's recording of a case's launches: events in chronological order, no snapshots.

    launches = read_launches(blob, SourceLines(library))        the bytes of simulator_replay_report()

common/simulator/runtime/replay.cpp documents the format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.inspect.source_lines import Place, SourceLines, instance_of, place_of

READ, WRITE, ATOMIC, ASYNC_COPY, ARRIVAL, WARP_OPERATION = range(6)


@dataclass(frozen=True)
class Array:
    """An array that the launch accessed.

    Attributes:
        name: name of the tensor or variable; "" if unknown.
        space: "global" or "shared".
        element_bytes, shape: shape () if unknown.
        bytes: its size.
        initialized: whether it had contents before a kernel wrote to it.
        initial: its contents when the launch began; b"" for shared memory, which has none.
    """

    name: str
    space: str
    element_bytes: int
    shape: tuple[int, ...]
    bytes: int
    initialized: bool
    initial: bytes


@dataclass(frozen=True)
class Entry:
    """A kind of event: a place in the program, the action, and the array.

    Attributes:
        array: index of the array; -1 for a warp operation.
        kind: READ, ...
        bytes: bytes per event.
        place: the source line; for a warp operation, of its call, possibly in a header.
        label: the name of a warp operation.
    """

    array: int
    kind: int
    bytes: int
    place: Place | None
    label: str = ""


@dataclass(frozen=True)
class Segment:
    """The events of a block from one barrier to the next.

    Attributes:
        block: its index in the grid.
        first: index of its first event.
        end: "barrier", "grid barrier" or "end"; "" if the launch was aborted.
        at: location of that barrier.
    """

    block: int
    first: int
    end: str
    at: Place | None


@dataclass(frozen=True)
class Launch:
    """One launch.

    Attributes:
        kernel, launch: its name and launch site.
        grid, block: (x, y, z).
        accesses: total number; larger than the number of events if the recording was full.
        arrays, entries, segments: see these classes.
        runs: [n, 2], (thread, number of consecutive events).
        entry_of, offset_of: each event's entry, and its byte offset in the array (for a warp operation: the lane mask).
        values: the bytes written by each write, concatenated.
    """

    kernel: str
    launch: Place | None
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    accesses: int
    arrays: tuple[Array, ...]
    entries: tuple[Entry, ...]
    segments: tuple[Segment, ...]
    runs: np.ndarray
    entry_of: np.ndarray
    offset_of: np.ndarray
    values: bytes

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)

    @property
    def thread_of(self) -> np.ndarray:
        """The thread index within the block for each event."""
        return np.repeat(self.runs[:, 0], self.runs[:, 1])


def coordinates(number: int, size: tuple[int, int, int]) -> tuple[int, int, int]:
    """Of a block in its grid or a thread in its block, given its number, x fastest."""
    x, y, _ = size
    return number % x, number // x % y, number // (x * y)


def read_launches(blob: bytes, lines: SourceLines) -> tuple[list[Launch], bool]:
    """The launches, and whether all of their events were recorded."""
    length = int.from_bytes(blob[:8], "little")
    head, data = json.loads(blob[8 : 8 + length].decode(errors="replace")), blob[8 + length :]
    return [_launch(one, data, lines) for one in head["launches"]], not head["full"]


def _launch(one: dict, data: bytes, lines: SourceLines) -> Launch:
    def part(where: Sequence[int]) -> bytes:
        return data[where[0] : where[0] + where[1]]

    places = lines.places(pc for pc, array, *_ in one["entries"] if array >= 0)
    arrays = tuple(
        Array(
            a["name"],
            a["space"],
            a["element_bytes"],
            tuple(a["shape"]),
            a["bytes"],
            a["initialized"],
            part(a["initial"]),
        )
        for a in one["arrays"]
    )
    entries = []
    for pc, array, kind, bytes_, label in one["entries"]:
        name, _, at = label.partition("\n")
        entries.append(Entry(array, kind, bytes_, place_of(at) if at else places.get(pc), name))
    segments = []
    for block, first, text in one["segments"]:
        end, _, at = text.partition("\n")
        segments.append(Segment(block, first, end, place_of(at) if at else None))
    return Launch(
        instance_of(one["kernel"], places.values()),
        place_of(one["launch"]),
        tuple(one["grid"]),
        tuple(one["block"]),
        one["accesses"],
        arrays,
        tuple(entries),
        tuple(segments),
        np.frombuffer(part(one["runs"]), dtype="<u2").reshape(-1, 2),
        np.frombuffer(part(one["entry_of"]), dtype="<u2"),
        np.frombuffer(part(one["offset_of"]), dtype="<u4"),
        part(one["values"]),
    )
