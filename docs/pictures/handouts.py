"""python docs/pictures/handouts.py: draws the handouts' pictures next to this file.

task1.svg to task7.svg are at the top of their handouts. Standard library only; the pictures are byte-for-byte the same
on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
INK, GRAY, PALE, BLUE, SKY, ORANGE, SAND, GREEN, MINT = (
    "#1a202c", "#718096", "#edf2f7", "#2b6cb0", "#bee3f8", "#c05621", "#fbd38d", "#276749", "#9ae6b4",
)  # fmt: skip
IN_THE_DARK = {  # the replacement for each color on a dark page
    INK: "#e2e8f0", GRAY: "#94a1b2", PALE: "#2d3643", BLUE: "#63a4e8", SKY: "#1e4a72", ORANGE: "#ed8b4c",
    SAND: "#75501a", GREEN: "#3f8f66", MINT: "#1f5a3c",
}  # fmt: skip


class Drawing:
    """An SVG under construction; sizes in pixels, y downward."""

    def __init__(self, width: int, height: int, title: str) -> None:
        pairs = [(part, *colors) for colors in IN_THE_DARK.items() for part in ("fill", "stroke")]
        dark = "".join(f'[{part}="{color}"]{{{part}:{other}}}' for part, color, other in pairs)
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" font-family="system-ui, sans-serif" font-size="14" fill="{INK}">\n<title>{title}</title>\n'
            f"<style>@media (prefers-color-scheme: dark) {{ {dark} }}</style>\n"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0 8 4 0 8z" fill="{GRAY}"/></marker></defs>\n'
        )
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, w: float, h: float, fill: str = PALE, words: str = "", line: str = GRAY, rx: int = 0
    ) -> None:
        """A rectangle with corner radius rx and centered text; | separates lines."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{rx}" fill="{fill}" stroke="{line}"/>'
        )
        lines = words.split("|") if words else []
        for i, text in enumerate(lines):
            self.text(x + w / 2, y + h / 2 + 5 + 18 * (i - (len(lines) - 1) / 2), text, "middle")

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", color: str = INK, size: int = 14, more: str = ""
    ) -> None:
        """A line of text; `more`: additional attributes."""
        safe = words.replace("&", "&amp;").replace("<", "&lt;")
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}" font-size="{size}"{more}>{safe}</text>'
        )

    def line(self, *points: tuple[float, float], color: str = GRAY, width: float = 1) -> None:
        """A line through the points."""
        at = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{at}" fill="none" stroke="{color}" stroke-width="{width:g}"/>')

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        self._parts.append(
            f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{GRAY}" stroke-width="1.5" '
            'marker-end="url(#tip)"/>'
        )

    def cells(self, x: float, y: float, rows: int, cols: int, size: float, fill: Callable[[int, int], str]) -> None:
        """A matrix of small squares; fill(row, col) is the color of each."""
        squares: dict[str, list[str]] = {}
        side = size - 1
        for row in range(rows):
            for col in range(cols):
                at = f"M{x + col * size:g} {y + row * size:g}h{side:g}v{side:g}h-{side:g}z"
                squares.setdefault(fill(row, col), []).append(at)
        for color, paths in squares.items():
            self._parts.append(f'<path d="{"".join(paths)}" fill="{color}"/>')

    def notes(self, y: float, *lines: str) -> None:
        """Gray lines below one another."""
        for i, words in enumerate(lines):
            self.text(30, y + 22 * i, words, color=GRAY)

    def svg(self) -> str:
        return self._head + "\n".join(self._parts) + "\n</svg>\n"

    def write(self, name: str) -> None:
        """Writes NAME.svg next to this file."""
        (FOLDER / f"{name}.svg").write_text(self.svg(), encoding="utf-8")


def task1() -> Drawing:
    d = Drawing(760, 250, "Attention in three kernels, one thread per element")
    chosen = (3, 4)

    def row_of(r, c):
        return SAND if r == chosen[0] else PALE

    d.text(60, 30, "Q", "middle")
    d.cells(30, 40, 6, 4, 16, row_of)
    d.text(190, 30, "K", "middle")
    d.cells(158, 40, 8, 4, 16, lambda r, c: SAND if r == chosen[1] else PALE)
    d.arrow(228, 90, 270, 90)
    d.text(344, 30, "S = Q K^T / sqrt(head_dim)", "middle")
    d.cells(280, 40, 6, 8, 16, lambda r, c: ORANGE if (r, c) == chosen else SKY)
    d.text(344, 158, "one thread: one score", "middle", ORANGE)
    d.arrow(414, 90, 450, 90)
    d.text(524, 30, "P = softmax(S)", "middle")
    d.cells(460, 40, 6, 8, 16, lambda r, c: ORANGE if r == chosen[0] else SKY)
    d.text(524, 158, "one thread: one row", "middle", ORANGE)
    d.arrow(594, 90, 630, 90)
    d.text(672, 30, "O = P V", "middle")
    d.cells(640, 40, 6, 4, 16, lambda r, c: ORANGE if (r, c) == (3, 1) else SKY)
    d.text(672, 158, "one thread:", "middle", ORANGE)
    d.text(672, 176, "one element", "middle", ORANGE)
    d.notes(
        215,
        "First the same three lines in PyTorch, for all heads at once; then a kernel for each of them.",
        "Nothing is shared and nothing is fast: every thread reads everything it needs.",
    )
    return d


def task2() -> Drawing:
    d = Drawing(760, 300, "A tree in shared memory, and a GEMM tile by tile")
    d.text(30, 28, "Row sums and softmax: a tree in shared memory")
    for level, active in enumerate((8, 4, 2, 1)):
        y = 50 + 52 * level
        for i in range(8):
            d.box(30 + 38 * i, y, 32, 24, (GREEN if active == 1 else MINT) if i < active else PALE)
        if level < 3:
            half = active // 2
            for i in range(half):
                d.arrow(46 + 38 * (i + half), y + 25, 50 + 38 * i, y + 50)
                d.arrow(46 + 38 * i, y + 25, 46 + 38 * i, y + 50)
            d.text(340, y + 43, "barrier", "end", ORANGE)
    d.text(30, 270, "256 partial results, 8 steps;", color=GRAY)
    d.text(30, 290, "a barrier before each of them.", color=GRAY)
    d.text(400, 28, "GEMM: tiles walk along K")
    d.cells(400, 150, 4, 6, 24, lambda r, c: SAND if r == 2 else PALE)
    d.cells(570, 42, 4, 4, 24, lambda r, c: SAND if c == 1 else PALE)
    d.cells(570, 150, 4, 4, 24, lambda r, c: ORANGE if (r, c) == (2, 1) else SKY)
    d.text(470, 140, "A", "middle")
    d.text(680, 90, "B")
    d.text(680, 200, "C")
    d.arrow(404, 210, 540, 210)
    d.arrow(606, 46, 606, 134)
    d.text(400, 270, "A block loads a tile of A and one of B into shared", color=GRAY)
    d.text(400, 290, "memory: a number fetched once serves 32 times.", color=GRAY)
    return d


def task3() -> Drawing:
    d = Drawing(760, 270, "The online softmax carries a maximum, a sum and an output from tile to tile")
    d.text(30, 28, "The scores of a row arrive tile by tile; the whole row never exists:")
    for i in range(3):
        x = 130 + 190 * i
        d.box(x, 50, 150, 34, SKY, f"tile {i + 1} of the scores")
        d.arrow(x + 75, 86, x + 75, 118)
        d.box(x, 120, 150, 62, SAND, "larger maximum m?|scale l and O down", rx=6)
        d.arrow(x + 152, 151, x + 187, 151)
    d.box(20, 130, 74, 42, PALE, "m = -inf|l = O = 0")
    d.arrow(96, 151, 126, 151)
    d.box(700, 130, 50, 42, GREEN, "", line=GREEN)
    d.text(725, 156, "O / l", "middle", "white")
    d.notes(
        220,
        "Of a row: m, the largest score so far; l, the sum of exp(score - m); O, the sum of exp(score - m) V.",
        "Whatever was added relative to a smaller maximum is scaled down when a larger one turns up.",
    )
    return d


def task4() -> Drawing:
    d = Drawing(760, 300, "One block of FlashAttention-2: the stages of a tile of keys")
    d.text(30, 28, "One block: a tile of Q stays, the tiles of K and V pass by, the scores never leave the chip.")
    d.box(20, 44, 720, 150, "none", rx=8)
    stages = (
        ("load", "K, V to shared|memory", "gap 1"),
        ("scores", "S = Q K^T", "gap 2"),
        ("mask", "-inf where|nothing is seen", "gap 3"),
        ("softmax", "S to P; l and O|to the new m", "gap 4"),
        ("output", "O += P V", "gap 5"),
    )
    for i, (name, words, gap) in enumerate(stages):
        x = 34 + 141 * i
        d.text(x + 62, 70, name, "middle", BLUE, 16)
        d.box(x, 80, 124, 58, SKY, words, rx=6)
        d.text(x + 62, 158, gap, "middle", ORANGE)
        if i < 4:
            d.arrow(x + 125, 109, x + 140, 109)
    d.text(380, 184, "again for the next tile of keys (gap 7)", "middle", GRAY)
    d.arrow(684, 196, 684, 220)
    d.box(628, 222, 112, 36, GREEN, "", line=GREEN, rx=6)
    d.text(684, 245, "O / l (gap 6)", "middle", "white")
    d.notes(
        232,
        "Each stage has a test of its own: --load, --scores, --mask, --softmax, --output, --store.",
        "With the loop and the launch (gap 8) they are the kernel: --full, --causal, --speed.",
    )
    return d


def task5() -> Drawing:
    d = Drawing(760, 260, "Which keys each query sees: strided, sliding window, block-sparse")
    n, size = 16, 11
    blocks = {(0, 0), (1, 1), (2, 0), (2, 2), (3, 1), (3, 3)}
    patterns = (
        ("strided", "every stride-th key", lambda q, k: k <= q and k % 4 == 1),
        ("sliding window", "the last keys", lambda q, k: q - 5 < k <= q),
        ("block-sparse", "the blocks of a mask", lambda q, k: (q // 4, k // 4) in blocks),
        ("dense (task 4)", "all of them", lambda q, k: k <= q),
    )
    for i, (name, words, sees) in enumerate(patterns):
        x = 30 + 182 * i
        d.text(x + n * size / 2, 28, name, "middle", GRAY if i == 3 else INK, 15)
        d.cells(x, 40, n, n, size, lambda q, k, sees=sees, i=i: (BLUE if i < 3 else GRAY) if sees(q, k) else PALE)
        d.text(x + n * size / 2, 236, words, "middle", GRAY)
    d.text(24, 130, "q", "end", GRAY)
    return d


def task6() -> Drawing:
    d = Drawing(760, 270, "Prefill fills the cache, each decoding step adds one slot and reads them all")
    d.text(30, 28, "The cache of one head: a slot for each token.")
    for step, (filled, name) in enumerate(((5, "prefill"), (6, "token 6"), (7, "token 7"), (8, "token 8"))):
        y = 48 + 44 * step
        d.text(96, y + 20, name, "end")
        for slot in range(12):
            new = slot < filled and (step == 0 or slot == filled - 1)
            d.box(110 + 34 * slot, y, 30, 28, ORANGE if new else SKY if slot < filled else PALE)
        words = "5 queries: task 4's kernel" if step == 0 else f"1 query reads {filled} keys and values"
        d.text(530, y + 20, words, color=GRAY)
    d.box(110, 230, 16, 16, ORANGE)
    d.text(132, 243, "written now", color=GRAY)
    d.box(240, 230, 16, 16, SKY)
    d.text(262, 243, "there already, not computed again", color=GRAY)
    d.text(530, 243, "TTFT: prefill; TBT: a step", color=GRAY)
    return d


def task6_ring() -> Drawing:
    d = Drawing(760, 372, "A ring of four ranks: the keys travel, the queries stay")
    of_rank = (SKY, SAND, MINT, PALE)
    d.text(30, 28, "The sequence in eight pieces, and who holds which:")
    for piece in range(8):
        rank = min(piece, 7 - piece)
        d.box(30 + 60 * piece, 40, 56, 28, of_rank[rank], f"rank {rank}")
    d.text(524, 59, "early and late: the same work", color=GRAY)
    for step in range(4):
        x = 110 + 164 * step
        d.text(x + 55, 100, f"step {step}", "middle")
        for rank in range(4):
            y = 112 + 56 * rank
            owner = (rank - step) % 4
            d.box(x, y, 110, 34, of_rank[owner], f"keys of rank {owner}", rx=4)
            if step < 3:
                d.arrow(x + 111, y + 17, x + 163, 112 + 56 * ((rank + 1) % 4) + 17)
    for rank in range(4):
        d.text(96, 112 + 56 * rank + 22, f"rank {rank}", "end")
    d.notes(344, "In every step a rank computes with the keys it has while sending them on (arrows).")
    return d


def task7() -> Drawing:
    d = Drawing(760, 250, "A block of GPT-2 and the task that each kernel comes from")
    d.text(30, 28, "One of GPT-2's blocks. Your kernels, and the task they come from:")
    parts = (
        ("LayerNorm", "task 7", MINT),
        ("Q, K, V", "GEMM", PALE),
        ("attention", "tasks 4 and 6", SKY),
        ("projection", "GEMM", PALE),
        ("LayerNorm", "task 7", MINT),
        ("GELU in|the MLP", "task 7", MINT),
    )
    for i, (name, source, fill) in enumerate(parts):
        x = 30 + 120 * i
        d.box(x, 70, 104, 56, fill, name, rx=6)
        d.text(x + 52, 146, source, "middle", GRAY if fill == PALE else ORANGE)
        if i < 5:
            d.arrow(x + 105, 98, x + 119, 98)
    d.arrow(16, 98, 29, 98)
    d.notes(
        188,
        "The input is added back after the projection and after the MLP (the residual stream).",
        "Tokens in, all blocks, then the most likely next token: once per token, until the story ends.",
    )
    return d


def task7_step() -> Drawing:
    d = Drawing(760, 372, "A decode step as a graph of kernels, and as a part of one kernel")
    left, right = 130, 730
    kernels = ("q, k, v", "attention", "project", "expand", "contract")

    def rows(y: float, title: str) -> None:
        d.text(30, y, title)
        d.text(left - 10, y + 34, "memory", "end", GRAY)
        d.text(left - 10, y + 78, "blocks", "end", GRAY)

    rows(30, "A graph of kernels: each reads its weights when the one before it has ended")
    for i, name in enumerate(kernels):
        x = left + 120 * i
        d.box(x + 18, 44, 56, 32, SKY, "read", line=BLUE)
        d.box(x, 88, 16, 32, PALE)
        d.box(x + 16, 88, 92, 32, SAND, name, line=ORANGE)
    rows(164, "One kernel for all steps: weights depend on no token, so they are prefetched")
    for i in range(6):
        d.box(left + 100 * i, 178, 100, 32, SKY if i < 3 else MINT, kernels[(i + 2) % 5], line=BLUE)
    for i in range(6):
        x = left + 100 * i
        d.box(x, 222, 14, 32, PALE)
        d.box(x + 14, 222, 86, 32, SAND if i < 5 else MINT, kernels[i % 5], line=ORANGE)
    d.arrow(left, 274, right, 274)
    d.text(right, 292, "time (not to scale)", "end", GRAY)
    d.notes(
        318,
        "Pale: a kernel starts, or a block waits for the others' numbers. Green: the next layer.",
        "Below, one warp of each block does nothing but prefetch, so memory stays busy.",
    )
    return d


if __name__ == "__main__":
    for draw in (task1, task2, task3, task4, task5, task6, task6_ring, task7, task7_step):
        draw().write(draw.__name__)
