"""Runs commands of the course and draws what they print: python docs/pictures/terminal.py [NAME ...]

Each picture is the real output of a real command, in a copy of the checkout whose gaps are filled and into which one
mistake was planted. Nothing is retouched, but that spinners leave empty lines, of which one is kept at a time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from common.compiling.manifest import read_manifest, tasks

# rich's own frame, without the fonts that it would fetch from the network
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
        command: what is run, behind python -m.
        width: of the terminal, in columns.
        mistake: (file, right, wrong): what is planted; None: nothing.
        before: commands that must have run for this one to make sense.
        begins: the picture begins at the line that holds this.
        most: lines at the most.
    """

    command: str
    width: int = 100
    mistake: tuple[str, str, str] | None = None
    before: tuple[str, ...] = ()
    begins: str = ""
    most: int = 60


KERNEL = "task2/attention_kernel.cu"
SHOTS = {
    "story": Shot("task7.inference --solution", begins="Once upon"),
    "race": Shot(
        "task2.test --gemm --first",
        mistake=(
            KERNEL,
            "load_tile(b_tile, b_matrix, K, N, k0, first_col);\n            __syncthreads();\n",
            "load_tile(b_tile, b_matrix, K, N, k0, first_col);\n",
        ),
    ),
    "mistake": Shot(
        "task2.test --gemm",
        mistake=(
            KERNEL,
            "for (int k0 = 0; k0 < K; k0 += TILE) {\n            load_tile(a_tile, a_matrix, M, K, first_row, k0);\n"
            "            load_tile(b_tile,",
            "for (int k0 = 0; k0 + TILE <= K; k0 += TILE) {\n"
            "            load_tile(a_tile, a_matrix, M, K, first_row, k0);\n            load_tile(b_tile,",
        ),
    ),
    "hint": Shot(
        "common.course hint task2",
        mistake=(KERNEL, "? 0.0f : 1.0f / row_sum;", "? 0.0f : 1.0f;"),
        before=("task2.test --softmax --first",),
        width=90,
    ),
    "progress": Shot(
        "common.course progress",
        before=("task7.test --kernels", "task3.test"),
        width=90,
    ),
}


def copy_with_gaps_filled(folder: Path) -> Path:
    """The checkout, solved; builds are not copied."""
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.bak*", ".git", ".venv", "venv", "docs", "tests")
    shutil.copytree(ROOT, folder, ignore=ignored, dirs_exist_ok=True)
    for task in tasks():
        for name in read_manifest(task).with_gaps:
            shutil.copy(folder / task / "solution" / name, folder / task / name)
    return folder


def printed(folder: Path, command: str | list[str], width: int) -> str:
    """What the command prints there, colours included."""
    command = command.split() if isinstance(command, str) else command
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "COLUMNS": str(width),
        "FORCE_COLOR": "1",
        "TTY_INTERACTIVE": "0",
        "ATTENTION_BUILD_DIR": str(folder / "build"),
    }
    words = [sys.executable, "-m", *command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment, timeout=900)
    if "Traceback" in done.stderr:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def draw(name: str, shot: Shot, folder: Path) -> Path:
    """Runs one command and writes NAME.svg beside this file."""
    if shot.mistake:
        file, right, wrong = shot.mistake
        text = (folder / file).read_text()
        if text.count(right) != 1:
            raise RuntimeError(f"{name}: {file} holds the lines {text.count(right)} times; it must hold them once")
        (folder / file).write_text(text.replace(right, wrong))
    for command in shot.before:
        printed(folder, command, shot.width)
    lines = Text.from_ansi(printed(folder, shot.command, shot.width)).split("\n")
    while lines and not lines[-1].plain.strip():
        lines.pop()
    empty = [not line.plain.strip() for line in lines]
    lines = [line for number, line in enumerate(lines) if not (empty[number] and (number == 0 or empty[number - 1]))]
    first = next((number for number, line in enumerate(lines) if shot.begins in line.plain), 0)
    shown = lines[first : first + shot.most]
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
    if shot.mistake:
        (folder / shot.mistake[0]).write_text(text)
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
