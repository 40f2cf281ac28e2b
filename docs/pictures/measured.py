"""What the tables of common/kernels say, drawn: measured.png. python docs/pictures/measured.py

The numbers are read from the READMEs, where the command and the machine stand beside them; none is typed here.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from matplotlib.axes import Axes

from common.console.drawing import pyplot, save

ROOMS = ROOT / "common" / "kernels"
OURS, OTHERS, TAUGHT, INK = "#2a6fdb", "#98a2b3", "#93b9f0", "#1f2937"


def table(room: str, *header: str) -> list[list[str]]:
    """The rows of the first table of a room's README whose header holds these words, without marks around words.

    Raises:
        LookupError: there is none.
    """
    lines = (ROOMS / room / "README.md").read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines):
        if line.startswith("|") and all(word in line for word in header) and lines[number + 1].startswith("|---"):
            rows = []
            for row in lines[number + 2 :]:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip().strip("`") for cell in row.strip().strip("|").split("|")])
            return rows
    raise LookupError(f"common/kernels/{room}/README.md has no table with {', '.join(header)}")


def number(cell: str) -> float:
    """ "5,082" -> 5082.0"""
    return float(re.sub(r"[^\d.]", "", cell))


def bars(axes: Axes, title: str, unit: str, rows: list[tuple[str, float, str]]) -> None:
    """Horizontal bars, the first at the top: (name, value, colour)."""
    names, values, colours = zip(*rows, strict=True)
    axes.barh(range(len(rows)), values, color=colours, height=0.72)
    for place, value in enumerate(values):
        axes.text(value + max(values) * 0.02, place, f"{value:,.4g}", va="center", fontsize=10, color=INK)
    axes.set_yticks(range(len(rows)), names, fontsize=10)
    axes.invert_yaxis()
    axes.set_xlim(0, max(values) * 1.2)
    _finish(axes, title, unit)
    axes.tick_params(axis="x", labelsize=9)


def _finish(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=12, weight="bold", color=INK, loc="left")
    axes.set_xlabel(unit, fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)


def attention(axes: Axes) -> None:
    """Dense attention, bf16, head_dim 128, against the length of the sequence."""
    header = [512, 1024, 2048, 4096, 8192, 16384]
    rows = table("flash", "S =", "1024", "4096")
    first = next(place for place, row in enumerate(rows) if row[0] == "D = 128")
    for row, colour in zip(rows[first : first + 3], (OURS, "#475467", OTHERS), strict=True):
        name = "this repository" if row[1].endswith(".cu") else row[1]
        axes.plot(range(6), [number(cell) for cell in row[2:]], "o-", color=colour, lw=2.4, label=name)
    axes.set_xticks(range(6), [f"{one:,}" for one in header], fontsize=9)
    axes.set_ylim(0)
    axes.legend(frameon=False, fontsize=10, loc="lower right")
    _finish(axes, "attention forward, bf16, head_dim 128", "tokens")
    axes.set_ylabel("TFLOP/s", fontsize=10, color=INK)


def ladder(room: str, column: int, peer: str) -> list[tuple[str, float, str]]:
    """From the taught kernel to the library, step by step."""
    found = []
    for row in table(room, "version", "median"):
        colour = TAUGHT if row[0] == "taught" else OTHERS if row[0].startswith(peer) else OURS
        found.append((row[0].split(",")[0], number(row[column]), colour))
    return found


def generation(axes: Axes) -> None:
    """Tokens per second of GPT-2 124M."""
    rows = []
    for row in table("gpt2", "TTFT, ms", "tokens/s"):
        name = row[0].replace("transformers, ", "transformers\n").replace("static cache, torch.compile", "compiled")
        name, colour = ("this repository", OURS) if row[0].startswith("engine") else (name, OTHERS)
        rows.append((name, number(row[3]), colour))
    bars(axes, "GPT-2 124M, fp16, one sequence", "tokens / s", rows)


def main() -> None:
    figure, ((a, b), (c, d)) = pyplot().subplots(2, 2, figsize=(10.5, 6.6))
    attention(a)
    generation(b)
    bars(c, "matrix product, fp32, step by step", "TFLOP/s", ladder("gemm", 2, "cuBLAS"))
    bars(d, "softmax, fp32, step by step", "TB/s", ladder("softmax", 2, "torch"))
    figure.tight_layout(h_pad=2.0, w_pad=2.0)
    print(save(figure, Path(__file__).with_suffix(".png")))


if __name__ == "__main__":
    main()
