"""A launch encoded for the page: compact columns, and the dtypes of its arrays.

    columns_of(launch), types_of(launch)

The columns are delta-encoded for deflate: a thread's successive accesses at one place in the program mostly have a
constant stride.
"""

from __future__ import annotations

import numpy as np

from common.inspect.replay.recording import Launch


def offset_steps(launch: Launch) -> np.ndarray:
    """For each event, the difference of its offset from the previous one of its entry (the first: from 0), as int32."""
    order = np.argsort(launch.entry_of, kind="stable")
    offsets, entries = launch.offset_of[order].astype(np.int64), launch.entry_of[order]
    steps = np.diff(offsets, prepend=0)
    begins = np.flatnonzero(np.diff(entries.astype(np.int32), prepend=-1))
    steps[begins] = offsets[begins]
    result = np.empty(len(order), dtype="<i4")
    result[order] = steps.astype(np.uint32).view(np.int32)
    return result


def columns_of(launch: Launch) -> dict[str, bytes]:
    """The columns by name as little-endian numbers; decode.js reads them."""
    wide = len(launch.entries) > 256
    return {
        "runThread": launch.runs[:, 0].astype("<u2").tobytes(),
        "runEvents": launch.runs[:, 1].astype("<u2").tobytes(),
        "entry": launch.entry_of.astype("<u2" if wide else "u1").tobytes(),
        "step": offset_steps(launch).tobytes(),
        "values": launch.values,
    }


# ---- guessing an array's dtype: the simulator knows only the element size

SAMPLED = 4096  # elements sampled per array
SMALLEST, LARGEST = 1e-12, 1e12  # range of common magnitudes; bits of another type rarely fall inside
NAMES = {1: ("u1",), 2: ("f2", "bf16", "i2"), 4: ("f4", "i4"), 8: ("i8", "f8")}


def types_of(launch: Launch) -> list[str]:
    """The most likely dtype of each array, judging by its values: "f4", "i4", "f2", "bf16", ..."""
    sizes = np.array([0 if entry.kind in (0, 5) else entry.bytes for entry in launch.entries], dtype=np.int64)
    written = sizes[launch.entry_of]
    begins = np.cumsum(written) - written
    array_of = np.array([entry.array for entry in launch.entries])[launch.entry_of]
    found = []
    for number, array in enumerate(launch.arrays):
        size = array.element_bytes
        events = np.flatnonzero((array_of == number) & (written > 0) & (written % size == 0))[:SAMPLED]
        sample = b"".join(launch.values[begins[i] : begins[i] + written[i]] for i in events)
        if array.initialized:
            sample += array.initial[: SAMPLED * size]
        found.append(_type(sample, size))
    return found


def _type(sample: bytes, size: int) -> str:
    names = NAMES.get(size, ("u1",))
    return max(names, key=lambda name: _usual(sample, name)) if sample else names[0]


def _usual(sample: bytes, name: str) -> float:
    """The fraction of values of a common magnitude among those that are not 0, infinite or all ones."""
    if name == "bf16":
        values = (np.frombuffer(sample, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    else:
        values = np.frombuffer(sample, "<" + name).astype(np.float64)
    if name[0] in "iu":
        return float(np.mean(np.abs(values) < 1 << 24)) - 0.01 if values.size else 0.0
    with np.errstate(invalid="ignore"):
        kept = np.abs(values[np.isfinite(values) & (values != 0)])
    if not kept.size:
        return 1.0
    low, high = (SMALLEST, LARGEST) if name not in ("f2", "bf16") else (1e-5, 1e4)
    return float(np.mean((kept > low) & (kept < high)))
