"""Runs commands of the course and draws their output: python docs/pictures/terminal.py [NAME ...]

Each picture is the real output of a real command, in a copy of the checkout with all gaps filled and in some cases a
planted mistake. The only change is that runs of empty lines, left by spinners, are cut to one. Where a report quotes a
line of a gap, the planted code is written differently from the solution.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from solved_copy import Edit, copy_with_gaps_filled, planted, printed

# rich's own template, without the fonts that it would load from the network
FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; white-space: pre; }}
.{unique_id}-title {{ font-size: 18px; font-family: system-ui, sans-serif; fill: #ccc }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


@dataclass(frozen=True)
class Shot:
    """A picture.

    Attributes:
        command: the command, after python -m.
        width: of the terminal, in columns.
        mistake: the planted mistake.
        before: commands that must run first.
        begins: the picture begins at the first line that contains this.
    """

    command: str
    width: int = 100
    mistake: tuple[Edit, ...] = ()
    before: tuple[str, ...] = ()
    begins: str = ""


MOST_LINES = 60  # of a picture
KERNEL = "task2/attention_kernel.cu"
SHOTS = {
    "story": Shot("task7.inference --solution", begins="Once upon"),
    "race": Shot(
        "task2.test --gemm --first",
        mistake=(
            Edit(
                KERNEL,
                "load_tile(b_tile, b_matrix, K, N, k0, first_col);\n            __syncthreads();\n",
                "load_tile(b_tile, b_matrix, K, N, k0, first_col);\n",
            ),
            Edit(
                KERNEL,
                "++i) sums[i] += a_tile[threadIdx.y + i * TILE_ROWS][k] * b;",
                "++i) {\n            const int row = threadIdx.y + i * TILE_ROWS;\n"
                "            sums[i] += a_tile[row][k] * b;\n        }",
            ),
        ),
    ),
    "mistake": Shot(
        "task2.test --gemm",
        mistake=(
            Edit(
                KERNEL,
                "for (int k0 = 0; k0 < K; k0 += TILE) {\n"
                "            load_tile(a_tile, a_matrix, M, K, first_row, k0);\n            load_tile(b_tile,",
                "for (int k0 = 0; k0 + TILE <= K; k0 += TILE) {\n"
                "            load_tile(a_tile, a_matrix, M, K, first_row, k0);\n            load_tile(b_tile,",
            ),
        ),
    ),
    "hint": Shot(
        "common.course hint task2",
        mistake=(Edit(KERNEL, "? 0.0f : 1.0f / row_sum;", "? 0.0f : 1.0f;"),),
        before=("task2.test --softmax --first",),
        width=90,
    ),
    "progress": Shot(
        "common.course progress",
        before=("task7.test --kernels", "task3.test"),
        width=90,
    ),
}


def draw(name: str, shot: Shot, folder: Path) -> Path:
    """Runs one command and writes NAME.svg next to this file."""
    with planted(folder, shot.mistake):
        for command in shot.before:
            printed(folder, command, shot.width)
        lines = Text.from_ansi(printed(folder, shot.command, shot.width, colors=True)).split("\n")
    while lines and not lines[-1].plain.strip():
        lines.pop()
    empty = [not line.plain.strip() for line in lines]
    lines = [line for number, line in enumerate(lines) if not (empty[number] and (number == 0 or empty[number - 1]))]
    first = next((number for number, line in enumerate(lines) if shot.begins in line.plain), 0)
    shown = lines[first : first + MOST_LINES]
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=shot.width, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text(f"$ python -m {shot.command}\n", style="bold"))
        for line in shown:
            console.print(line, soft_wrap=False)
        if len(shown) < len(lines) - first:
            console.print(Text("..."))
        svg = console.export_svg(
            title=f"python -m {shot.command}", theme=MONOKAI, code_format=FRAME, unique_id=f"t-{name}"
        )
    target = Path(__file__).with_name(f"{name}.svg")
    target.write_text(svg)
    return target


def main() -> None:
    names = sys.argv[1:] or list(SHOTS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = copy_with_gaps_filled(Path(scratch, "course"))
        for name in names:
            print(draw(name, SHOTS[name], folder))


if __name__ == "__main__":
    main()
