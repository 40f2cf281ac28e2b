"""python docs/pictures/hopper.py: draws hopper_forward.svg next to this file, for common/kernels/flash/README.md.

The schedule of flash_attention_wgmma.cuh, in the order in which its code issues operations and waits for them. The
lengths are schematic, not measured.
"""

from __future__ import annotations

from handouts import BLUE, GRAY, GREEN, MINT, ORANGE, PALE, SAND, SKY, Drawing

LEFT, UNIT, HEIGHT = 130, 62, 30  # in pixels: where time 0 is, a GEMM's length, a row's height
COLORS = {"A": (SKY, BLUE), "B": (MINT, GREEN), "": (SKY, BLUE)}


class TimeLine:
    """Rows of boxes on a common time axis, in units of one GEMM."""

    def __init__(self, drawing: Drawing, top: int, rows: tuple[str, ...]) -> None:
        self._drawing = drawing
        self._y = {name: top + 44 * i for i, name in enumerate(rows)}
        for name, y in self._y.items():
            drawing.text(LEFT - 12, y + 20, name, "end", GRAY)

    def box(self, row: str, begin: float, end: float, words: str, fill: str, line: str = GRAY) -> None:
        self._drawing.box(LEFT + UNIT * begin, self._y[row], UNIT * (end - begin), HEIGHT, fill, words, line)

    def product(self, begin: float, group: str, words: str) -> None:
        fill, line = COLORS[group]
        self.box("tensor cores", begin, begin + 1, f"{group} {words}".strip(), fill, line)

    def arrow(self, of: str, begin: float, to: str, end: float) -> None:
        """An arrow from a time in one row to a time in another."""
        down = self._y[of] < self._y[to]
        self._drawing.arrow(
            LEFT + UNIT * begin,
            self._y[of] + (HEIGHT if down else 0),
            LEFT + UNIT * end,
            self._y[to] + (-1 if down else HEIGHT + 1),
        )


def hopper_forward() -> Drawing:
    d = Drawing(780, 586, "Producer, tensor cores and softmax of the forward kernel for Hopper GPUs, over time")
    d.text(30, 28, "In the middle of a work tile: two groups of consumers, A and B, and three stages each for K and V")
    line = TimeLine(d, 42, ("producer", "TMA", "tensor cores", "warps of A", "warps of B"))
    for i, tile in enumerate((3, 4, 5)):
        begin = 4 * i
        line.box("producer", begin, begin + 1.1, f"V{tile} K{tile + 1}", SAND, ORANGE)
        if i < 2:
            line.box("producer", begin + 1.1, begin + 4, "waits for an empty stage", PALE)
        line.box("TMA", begin + 0.2, begin + 1.1, f"V{tile}", SAND, ORANGE)
        line.box("TMA", begin + 1.1, begin + 2, f"K{tile + 1}", SAND, ORANGE)
        line.product(begin, "A", f"S{tile - 1}")
        line.product(begin + 1, "A", f"P{tile - 2} V{tile - 2}")
        if i < 2:
            line.product(begin + 2, "B", f"S{tile - 1}")
            line.product(begin + 3, "B", f"P{tile - 2} V{tile - 2}")
            line.box("warps of A", begin + 1, begin + 3.7, f"softmax {tile - 1}", *COLORS["A"])
            line.box("warps of B", begin + 3, begin + 5.7, f"softmax {tile - 1}", *COLORS["B"])
            line.arrow("tensor cores", begin + 1, "warps of A", begin + 1)
            line.arrow("tensor cores", begin + 3, "warps of B", begin + 3)
            line.arrow("tensor cores", begin + 4, "producer", begin + 4)
            line.arrow("TMA", begin + 2, "tensor cores", begin + 4)
    line.box("warps of A", 9, 10, "softmax", *COLORS["A"])
    line.box("warps of B", 0, 1.7, "softmax 1", *COLORS["B"])
    line.arrow("tensor cores", 9, "warps of A", 9)
    d.arrow(LEFT, 268, LEFT + 10 * UNIT, 268)
    d.text(LEFT + 10 * UNIT, 286, "time", "end", GRAY)

    d.text(30, 316, "From one work tile to the next (marked '), one group alone; others fill the gaps")
    line = TimeLine(d, 330, ("tensor cores", "warps"))
    for begin, words in ((0, "S7"), (1, "P6 V6"), (3.7, "P7 V7"), (4.7, "S0'"), (8.2, "S1'"), (9.2, "P0' V0'")):
        line.product(begin, "", words)
    line.box("warps", 1, 3.7, "softmax 7", *COLORS["A"])
    line.box("warps", 4.7, 5.9, "write O", SAND, ORANGE)
    line.box("warps", 5.9, 8.2, "softmax 0'", *COLORS["A"])
    line.arrow("tensor cores", 1, "warps", 1)
    line.arrow("tensor cores", 4.7, "warps", 4.7)
    d.arrow(LEFT, 424, LEFT + 10 * UNIT, 424)
    d.text(LEFT + 10 * UNIT, 442, "time", "end", GRAY)
    d.notes(
        470,
        "Schematic: the order is that of the code, the lengths are not measured.",
        "S2 is Q K2^T; softmax 2 makes P2 of it. A group starts the scores of a tile and the output of the last one",
        "together; the softmax begins as soon as the scores are there, while the output is still being worked on.",
        "Arrows down: what is waited for. Arrows up: B is done with V1, or V2, so its stage is empty.",
        "Where a work tile ends, the next one's first scores start before its output is done: the epilogue overlaps.",
    )
    return d


if __name__ == "__main__":
    hopper_forward().write("hopper_forward")
