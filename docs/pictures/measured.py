"""Draws the tables of common/kernels as measured.svg: python docs/pictures/measured.py

The numbers are read from the READMEs, which also give the command and the machine; none is hard-coded here.
"""

from __future__ import annotations

import re

from handouts import BLUE, FOLDER, GRAY, GREEN, ORANGE, PALE, SKY, Drawing

ROOMS = FOLDER.parents[1] / "common" / "kernels"
WIDTH, ROW = 252, 26  # width of a panel's plot and height of a bar, in pixels
BOLD = ' font-weight="bold"'


def table(room: str, *header: str) -> list[list[str]]:
    """The header and rows of the first table in a folder's README whose header contains these words, without backticks.

    Raises:
        LookupError: there is no such table.
    """
    lines = (ROOMS / room / "README.md").read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines):
        if line.startswith("|") and all(word in line for word in header) and lines[number + 1].startswith("|---"):
            rows = []
            for row in [line, *lines[number + 2 :]]:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip().strip("`") for cell in row.strip().strip("|").split("|")])
            return rows
    raise LookupError(f"common/kernels/{room}/README.md has no table with {', '.join(header)}")


def number(cell: str) -> float:
    """ "5,082" -> 5082.0"""
    return float(re.sub(r"[^\d.]", "", cell))


def bars(d: Drawing, x: float, y: float, title: str, rows: list[tuple[str, float, str]]) -> None:
    """Horizontal bars, the first at the top: (name, value, color); names end at x."""
    d.text(x - 128, y, title, more=BOLD)
    most = max(value for _, value, _ in rows)
    for place, (name, value, color) in enumerate(rows):
        at, length = y + 12 + ROW * place, 0.8 * WIDTH * value / most
        d.text(x - 8, at + 16, name, "end", size=13)
        d.box(x, at, length, ROW - 6, color, line="none")
        d.text(x + length + 6, at + 16, f"{value:,.4g}", size=13)


def forward_rates() -> tuple[list[str], list[tuple[str, list[float]]]]:
    """Dense attention, bf16, head_dim 128: the sequence lengths, and each version's name and TFLOP/s."""
    header, *rows = table("flash", "S =", "1024", "4096")
    first = next(place for place, row in enumerate(rows) if row[0] == "D = 128")
    last = next((place for place, row in enumerate(rows) if place > first and row[0]), len(rows))
    name_of = {row[1]: "this repository" if row[1].endswith((".cu", ".cuh")) else row[1] for row in rows}
    return header[2:], [(name_of[row[1]], [number(cell) for cell in row[2:]]) for row in rows[first:last]]


def attention(d: Drawing, x: float, y: float) -> None:
    """One line per version over the sequence length."""
    lengths, versions = forward_rates()
    height, most = 150, 100 * (1 + max(max(values) for _, values in versions) // 100)
    right = [x + WIDTH * i / (len(lengths) - 1) for i in range(len(lengths))]
    d.text(x - 28, y, "Attention forward, bf16, d = 128, TFLOP/s", more=BOLD)
    for level in range(0, int(most) + 1, 200):
        at = y + 14 + height * (1 - level / most)
        d.line((x, at), (x + WIDTH, at), color=PALE)
        d.text(x - 8, at + 5, str(level), "end", GRAY, 12)
    for at, length in zip(right, lengths, strict=True):
        d.text(at, y + 14 + height + 18, f"{int(length):,}", "middle", GRAY, 12)
    for i, ((name, values), color) in enumerate(zip(versions, (BLUE, ORANGE, GREEN, GRAY), strict=True)):
        d.line(*((at, y + 14 + height * (1 - value / most)) for at, value in zip(right, values, strict=True)),
               color=color, width=2.5)  # fmt: skip
        d.box(x + 4 + 126 * (i % 2), y + height + 46 + 20 * (i // 2), 14, 4, color, line="none")
        d.text(x + 24 + 126 * (i % 2), y + height + 52 + 20 * (i // 2), name, size=13)
    d.text(x + WIDTH, y + 14 + height - 6, "tokens", "end", GRAY, 12)


def ladder(room: str, column: int, peer: str) -> list[tuple[str, float, str]]:
    """The steps from the taught kernel to the library."""
    found = []
    for row in table(room, "version", "median")[1:]:
        color = SKY if row[0] == "taught" else GRAY if row[0].startswith(peer) else BLUE
        found.append((row[0].split(",")[0], number(row[column]), color))
    return found


def generation() -> list[tuple[str, float, str]]:
    """Tokens per second of GPT-2 124M."""
    rows = []
    for row in table("gpt2", "TTFT, ms", "tokens/s")[1:]:
        if not row[0].startswith(("engine", "transformers")):
            continue
        name = row[0].replace("static cache, torch.compile", "compiled").replace(",", "")
        name, color = ("this repository", BLUE) if row[0].startswith("engine") else (name, GRAY)
        rows.append((name, number(row[3]), color))
    return rows


def measured() -> Drawing:
    d = Drawing(790, 460, "The kernels compared with FlashAttention-3, cuDNN, cuBLAS and transformers, on one H200")
    attention(d, 42, 22)
    bars(d, 530, 22, "GPT-2 124M, fp16, tokens/s", generation())
    bars(d, 530, 178, "Softmax, fp32, step by step, TB/s", ladder("softmax", 2, "torch"))
    bars(d, 142, 282, "Matrix product, fp32, step by step, TFLOP/s", ladder("gemm", 2, "cuBLAS"))
    return d


if __name__ == "__main__":
    measured().write("measured")
