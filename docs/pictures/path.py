"""The path from task 1 to GPT-2, path.png: python docs/pictures/path.py"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from common.console.drawing import pyplot, save

INK, PALE, MARK, LINE = "#1f2937", "#dbe4f3", "#2a6fdb", "#b6c2d6"
WIDTH, GAP, HEIGHT = 2.0, 0.42, 2.9  # of a card, in inches

TASKS = (
    ("attention", "one thread\nfor each element"),
    ("softmax,\nmatrix product", "threads of a block\nwork on one tile"),
    ("online softmax", "a row in pieces,\nmerged at the end"),
    ("FlashAttention-2", "one kernel; the scores\nare never stored"),
    ("sparse attention", "strides, windows,\nblocks of a mask"),
    ("KV cache,\ndecode", "one new token\nagainst all before"),
    ("GPT-2", "a story through\nyour own kernels"),
)


def cells(axes: Axes, colours: np.ndarray, x: float, y: float, size: float) -> None:
    """A grid whose cells are PALE (0) or MARK (1); shades between are allowed. Row 0 is at the top."""
    rows, columns = colours.shape
    step = size / max(rows, columns)
    for row in range(rows):
        for column in range(columns):
            share = float(colours[row, column])
            place = (x + column * step, y + (rows - 1 - row) * step)
            axes.add_patch(Rectangle(place, step * 0.86, step * 0.86, color=PALE, lw=0))
            if share:
                axes.add_patch(Rectangle(place, step * 0.86, step * 0.86, color=MARK, alpha=share, lw=0))


def drawing(axes: Axes, number: int, x: float, y: float, size: float) -> None:
    """The small picture of one task."""
    i, j = np.indices((8, 8))
    if number == 1:
        cells(axes, (i == 3) & (j == 5), x, y, size)
    elif number == 2:
        cells(axes, np.where((i // 4 == 0) & (j // 4 == 1), 1.0, 0.25 * ((i // 4 == 0) | (j // 4 == 1))), x, y, size)
    elif number == 3:
        heights = np.array([3, 5, 2, 4, 7, 3, 6, 1])
        largest = np.maximum.accumulate(heights)
        step = size / 8
        for k, (height, most) in enumerate(zip(heights, largest, strict=True)):
            axes.add_patch(Rectangle((x + k * step, y), step * 0.8, size * height / 8, color=PALE, lw=0))
            level = y + size * most / 8
            axes.plot([x + k * step, x + k * step + step * 0.8], [level, level], color=MARK, lw=3)
    elif number == 4:
        cells(axes, np.where(j > i, 0.0, np.where(i // 2 == 2, 0.35 + 0.65 * (j // 2 == 1), 0.12)), x, y, size)
    elif number == 5:
        cells(axes, np.where(j > i, 0.0, (j % 3 == 0) | (i - j < 2)), x, y, size)
    elif number == 6:
        for row in range(4):
            cells(axes, np.where(np.arange(8)[None] <= 4 + row, 0.35 + 0.65 * (np.arange(8)[None] == 4 + row), 0.0), x,
                  y + size * (0.78 - 0.24 * row), size)  # fmt: skip
    else:
        words = ("Once upon a time,", "there was a little", "girl named Lily. She", "loved to play ...")
        for row, line in enumerate(words):
            axes.text(x - 0.1, y + size * (0.86 - 0.25 * row), line, family="serif", style="italic", fontsize=11.5,
                      color=MARK)  # fmt: skip


def card(axes: Axes, number: int, title: str, says: str, x: float) -> None:
    """One task."""
    box = "round,pad=0,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch((x, 0), WIDTH, HEIGHT, boxstyle=box, fc="white", ec=LINE, lw=1.6))
    axes.text(x + 0.14, HEIGHT - 0.2, str(number), fontsize=17, weight="bold", color=MARK, va="top")
    axes.text(x + 0.44, HEIGHT - 0.22, title, fontsize=11, weight="bold", color=INK, va="top", linespacing=1.15)
    drawing(axes, number, x + (WIDTH - 1.15) / 2, 0.83, 1.15)
    axes.text(x + WIDTH / 2, 0.42, says, fontsize=11, color=INK, ha="center", va="center", linespacing=1.25)


def main() -> None:
    total = len(TASKS) * (WIDTH + GAP) - GAP
    figure, axes = pyplot().subplots(figsize=(total + 0.3, HEIGHT + 1.1))
    for number, (title, says) in enumerate(TASKS, 1):
        x = (number - 1) * (WIDTH + GAP)
        card(axes, number, title, says, x)
        if number < len(TASKS):
            start, end = (x + WIDTH + 0.03, HEIGHT / 2), (x + WIDTH + GAP - 0.03, HEIGHT / 2)
            arrow = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=18, color=MARK, lw=2)
            axes.add_patch(arrow)
    axes.plot([0, total], [-0.3, -0.3], color=LINE, lw=1.6)
    for share, words in ((0.25, "nvcc, on an NVIDIA GPU"), (0.75, "the CUDA simulator, on the CPU")):
        axes.text(total * share, -0.66, words, fontsize=16, color=INK, ha="center", va="center")
    axes.text(total / 2, -0.66, "the same .cu", fontsize=16, weight="bold", color=MARK, ha="center", va="center")
    axes.set_xlim(-0.15, total + 0.15)
    axes.set_ylim(-1.0, HEIGHT + 0.1)
    axes.set_aspect("equal")
    axes.axis("off")
    figure.subplots_adjust(0, 0, 1, 1)
    print(save(figure, Path(__file__).with_suffix(".png")))


if __name__ == "__main__":
    main()
