"""Splits a dynamic shared memory array into the kernel's tiles, each as a separate array.

    launch = with_tiles(launch)

`extern __shared__ float shared[]` is one array to the program; `float* k_tile = shared + K_AT;  // [B_c][K_STRIDE]`
defines tiles in it. A tile's location is inferred from which places in the program access what; its name from the
kernel's pointer declarations and the lines that use them; its shape from the comment after the declaration, or from the
gaps left by padding. If the shape is unknown, the tile is one row of numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from common.inspect.replay.recording import Array, Launch
from common.inspect.source_lines import Place, text_of

_DECLARED = (
    r"[\w:]+\s*\*\s*(?:const\s+|__restrict__\s+)*(\w+)\s*=\s*[^;]*\b{name}\b[^;]*;[ \t]*(?://[ \t]*((?:\[\w+\])+))?"
)
_CONSTANT = re.compile(r"constexpr\s+(?:unsigned\s+|size_t\s+)?(?:int)?\s*(\w+)\s*=\s*(\d+)\s*;")
MOST_TILES = 12  # more are not plausible as tiles


@dataclass(frozen=True)
class Tile:
    """A piece of an array: its first byte, the byte after its last, its name ("" if unknown) and shape."""

    start: int
    end: int
    name: str
    shape: tuple[int, ...]


def with_tiles(launch: Launch) -> Launch:
    """The launch with dynamic shared arrays split into tiles; an array with a single tile only gets its shape."""
    for number, array in enumerate(launch.arrays):
        if array.space == "shared" and len(array.shape) == 1:
            tiles = tiles_of(launch, number)
            if 1 < len(tiles) <= MOST_TILES or (len(tiles) == 1 and len(tiles[0].shape) > 1):
                launch = _cut(launch, number, tiles)
    return launch


def tiles_of(launch: Launch, number: int) -> list[Tile]:
    """The tiles of array `number`, by address."""
    array = launch.arrays[number]
    is_here = np.array([entry.array == number for entry in launch.entries], dtype=bool)
    here = np.flatnonzero(is_here[launch.entry_of])
    if not here.size:
        return []
    entry, offset = launch.entry_of[here].astype(np.int64), launch.offset_of[here].astype(np.int64)
    size = np.array([one.bytes for one in launch.entries], dtype=np.int64)[entry]
    first = np.array([segment.first for segment in launch.segments])
    segment = np.searchsorted(first, here, side="right")
    key = entry * (len(first) + 1) + segment
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    spans = np.stack(
        [np.minimum.reduceat(offset[order], starts), np.maximum.reduceat((offset + size)[order], starts)], axis=1
    )
    pieces: list[list[int]] = []
    for start, end in spans[np.argsort(spans[:, 0], kind="stable")].tolist():
        if pieces and start < pieces[-1][1]:
            pieces[-1][1] = max(pieces[-1][1], end)
        else:
            pieces.append([start, end])
    declared = declared_in(launch, array.name)
    names = [_name_of(launch, entry[(offset >= start) & (offset < end)], declared) for start, end in pieces]
    for i in range(len(pieces) - 1, 0, -1):  # a single tile if no place in the program accesses both halves
        if names[i] and names[i] == names[i - 1]:
            pieces[i - 1][1] = pieces[i][1]
            del pieces[i], names[i]
    once = Counter(names)
    values, tiles = constants_of(launch), []
    for (start, end), name in zip(pieces, names, strict=True):
        name = name if once[name] == 1 else ""
        touched = np.zeros((end - start) // array.element_bytes, dtype=bool)
        inside = (offset >= start) & (offset < end)
        for bytes_ in np.unique(size[inside]):
            at = (offset[inside & (size == bytes_)] - start) // array.element_bytes
            for more in range(max(1, int(bytes_) // array.element_bytes)):
                touched[at + more] = True
        tiles.append(Tile(start, end, name, shape_of(touched, declared.get(name, ()), values)))
    return tiles


def shape_of(touched: np.ndarray, said: tuple[str, ...], values: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tile.

    Args:
        touched: mask of the accessed elements, from the first to the last of them.
        said: the shape in the comment, ("B_r", "D").
        values: values of such names.

    Returns:
        The comment's shape if it has the tile's size; otherwise rows and columns if rows are padded; else one row.
    """
    count = touched.size
    padded = _row_of(touched)
    sizes = [int(one) if one.isdigit() else values.get(one) for one in said]
    if len(sizes) == 2:
        rows, cols = sizes
        cols = cols or padded or (count // rows if rows and count % rows == 0 else None)
        rows = rows or (-(-count // cols) if cols else None)
        if rows and cols and (rows - 1) * cols < count <= rows * cols:
            return rows, cols
    return (-(-count // padded), padded) if padded else (count,)


def _row_of(touched: np.ndarray) -> int:
    """The length of a padded row: the distance between starts of runs of accessed elements; 0 if there are none."""
    begins = np.flatnonzero(np.diff(touched.astype(np.int8), prepend=0) == 1)
    apart = np.unique(np.diff(begins))
    return int(apart[0]) if len(begins) > 1 and len(apart) == 1 else 0


def declared_in(launch: Launch, name: str) -> dict[str, tuple[str, ...]]:
    """The pointers into the array that the kernel's file declares, each with the shape in its comment."""
    pattern = re.compile(_DECLARED.format(name=re.escape(name)))
    return {
        match[1]: tuple(re.findall(r"\w+", match[2] or ""))
        for file in files_of(launch)
        for match in pattern.finditer(text_of(file))
    }


def files_of(launch: Launch) -> list[str]:
    """The source files of the launch's places."""
    return list(dict.fromkeys(entry.place.file for entry in launch.entries if entry.place))


def constants_of(launch: Launch) -> dict[str, int]:
    """Named values: the file's integer constants and the kernel's template parameters."""
    found = {}
    for file in files_of(launch):
        text = text_of(file)
        found |= {match[1]: int(match[2]) for match in _CONSTANT.finditer(text)}
        name, _, arguments = launch.kernel.partition("<")
        head = re.search(rf"template\s*<([^>]*)>\s*__global__[^;{{}}]*?\b{re.escape(name)}\s*\(", text)
        if head and arguments:
            parameters = [one.split("=")[0].split()[-1] for one in head[1].split(",") if one.split()]
            given = arguments.rstrip(">").split(",")
            found |= {
                parameter: int(value)
                for parameter, value in zip(parameters, given, strict=False)
                if value.strip().isdigit()
            }
    return found


def _name_of(launch: Launch, entries: np.ndarray, declared: Mapping[str, object]) -> str:
    """The declared pointer mentioned by most of the lines that access a tile, including the lines of their callers."""
    votes: Counter[str] = Counter()
    for number in np.unique(entries):
        place = launch.entries[number].place
        chain = (place, *place.callers) if place else ()
        words = {word for one in chain for word in re.findall(r"\w+", _statement(one))}
        votes.update(name for name in declared if name in words)
    best = votes.most_common(2)
    return best[0][0] if best and (len(best) == 1 or best[0][1] > best[1][1]) else ""


def _statement(place: Place) -> str:
    """The line, joined with the next one if the statement continues."""
    text = place.text
    return text if text.rstrip().endswith((";", "{")) else f"{text} {replace(place, line=place.line + 1).text}"


def _cut(launch: Launch, number: int, tiles: list[Tile]) -> Launch:
    """The launch with one array, and its entries, split."""
    whole = launch.arrays[number]
    arrays, entries, made = list(launch.arrays), list(launch.entries), []
    entry_of, offset_of = launch.entry_of.copy(), launch.offset_of.copy()
    for tile in tiles:
        first = tile.start // whole.element_bytes
        name = tile.name or (f"{whole.name} + {first}" if len(tiles) > 1 else whole.name)
        made.append(Array(name, "shared", whole.element_bytes, tile.shape, tile.end - tile.start, False, b""))
    places = [number, *range(len(arrays), len(arrays) + len(tiles) - 1)]  # tile -> array
    arrays[number] = made[0]
    arrays += made[1:]
    starts = np.array([tile.start for tile in tiles])
    for old, entry in enumerate(launch.entries):
        if entry.array != number:
            continue
        events = np.flatnonzero(launch.entry_of == old)
        of = np.searchsorted(starts, launch.offset_of[events].astype(np.int64), side="right") - 1
        for n, tile in enumerate(np.unique(of)):
            own, of_tile = events[of == tile], replace(entry, array=places[int(tile)])
            if n == 0:
                entries[old] = of_tile
            else:
                entries.append(of_tile)
                entry_of[own] = len(entries) - 1
            offset_of[own] -= np.uint32(tiles[int(tile)].start)
    return replace(launch, arrays=tuple(arrays), entries=tuple(entries), entry_of=entry_of, offset_of=offset_of)
