"""Reads and writes tiles.h: the tile sizes that flash_attention.cu uses for each head_dim.

read_tiles()                 {32: TileSizes(64, 32, 4), 64: ..., 96: ..., 128: ...}
tiles_for(80)                the tiles of head_dim 80: those of 96
written(text, tiles, ...)    the text of tiles.h with other tiles
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.console.paths import shown_path

FILE = Path(__file__).resolve().parents[1] / "tiles.h"
HEAD_DIMS = (32, 64, 96, 128)  # a head_dim is padded to one of these
_LINE = r"^(constexpr TileSizes TILES_{} = )\{{(\s*\d+\s*,\s*\d+\s*,\s*\d+\s*)\}}; *(//.*)$"
_SHARED = re.compile(r"^(constexpr int SHARED_KB = )(\d+)(;.*)$", re.MULTILINE)


@dataclass(frozen=True)
class TileSizes:
    """B_r rows of Q and B_c keys per tile, and the warps that share the rows."""

    B_r: int
    B_c: int
    warps: int

    def __str__(self) -> str:
        return f"{self.B_r} x {self.B_c}, {self.warps} warp{'s' if self.warps > 1 else ''}"


def padded_head_dim(head_dim: int) -> int:
    """The D that the kernel is compiled for. ValueError outside 1 .. 128."""
    if not 1 <= head_dim <= HEAD_DIMS[-1]:
        raise ValueError(f"head_dim is {head_dim}; it must be 1 .. {HEAD_DIMS[-1]}")
    return next(D for D in HEAD_DIMS if head_dim <= D)


def read_tiles(file: Path = FILE) -> dict[int, TileSizes]:
    """The tiles of every padded head_dim. Raises ValueError if the file does not contain them."""
    text = file.read_text()
    return {D: TileSizes(*map(int, _line(text, D, file)[2].split(","))) for D in HEAD_DIMS}


def tiles_for(head_dim: int) -> TileSizes:
    """The tiles that the kernel uses for this head_dim."""
    return read_tiles()[padded_head_dim(head_dim)]


def written(text: str, tiles: Mapping[int, TileSizes], kb: int, note: str, file: Path = FILE) -> str:
    """The text of tiles.h with these tiles in place of its own; other head_dims keep their tiles.

    Args:
        text: of tiles.h.
        tiles: padded head_dim -> tiles.
        kb: SHARED_KB.
        note: how they were chosen: command and GPU.
        file: named in errors.
    """
    if not _SHARED.search(text):
        raise ValueError(f"{shown_path(file)} has no line 'constexpr int SHARED_KB = 64;'")
    text = _SHARED.sub(rf"\g<1>{kb}\g<3>", text)
    text = re.sub(r"^// Chosen by.*\n", "", text, flags=re.MULTILINE)
    text = text.replace("constexpr TileSizes TILES_32", f"// Chosen by {note}\nconstexpr TileSizes TILES_32")
    for D, one in tiles.items():
        line = _line(text, D, file)
        text = text.replace(line[0], f"{line[1]}{{{one.B_r}, {one.B_c}, {one.warps}}};  {line[3]}")
    return _aligned(text)


def _aligned(text: str) -> str:
    """Aligns the comments after the four lines."""
    lines = text.split("\n")
    split = {i: line.split("//") for i, line in enumerate(lines) if line.startswith("constexpr TileSizes")}
    column = max(len(code.rstrip()) for code, _ in split.values()) + 2
    for i, (code, comment) in split.items():
        lines[i] = f"{code.rstrip():<{column}}//{comment}"
    return "\n".join(lines)


def _line(text: str, D: int, file: Path) -> re.Match:
    found = re.search(_LINE.format(D), text, re.MULTILINE)
    if not found:
        raise ValueError(
            f"{shown_path(file)} has no line 'constexpr TileSizes TILES_{D} = {{B_r, B_c, warps}};  // head_dim ...'; "
            "git checkout task4/tiles.h brings the file back"
        )
    return found
