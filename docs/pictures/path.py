"""Draws path.svg, the path from task 1 to GPT-2: python docs/pictures/path.py"""

from __future__ import annotations

from handouts import BLUE, GRAY, PALE, SKY, Drawing

WIDTH, HEIGHT, GAP, SIZE = 184, 206, 20, 88  # card width and height, gap between cards, size of a card's picture
TASKS = (
    ("attention", "one thread|for each element"),
    ("softmax, matmul", "a block's threads|share one tile"),
    ("online softmax", "a row in pieces,|merged at the end"),
    ("FlashAttention-2", "one kernel; scores|are never stored"),
    ("sparse attention", "strides, windows,|blocks of a mask"),
    ("KV cache, decode", "one new token|against all before"),
    ("GPT-2", "a story through|your own kernels"),
)
ITALIC = ' font-style="italic" font-family="serif"'
STORY = ("Once upon a time, there was a little", "girl named Lily. She loved to play ...")


def picture(d: Drawing, number: int, x: float, y: float) -> None:
    """The small picture of one of the tasks 1 to 6."""
    cell = SIZE / 8
    if number == 1:
        d.cells(x, y, 8, 8, cell, lambda r, c: BLUE if (r, c) == (3, 5) else PALE)
    elif number == 2:
        d.cells(x, y, 8, 8, cell, lambda r, c: (PALE, SKY, BLUE)[(r < 4) + (c > 3)])
    elif number == 3:
        largest = 0
        for i, height in enumerate((3, 5, 2, 4, 7, 3, 6, 1)):
            largest = max(largest, height)
            d.box(x + i * cell, y + SIZE - height * cell, cell - 1, height * cell, SKY, line="none")
            d.box(x + i * cell, y + SIZE - largest * cell - 2, cell - 1, 4, BLUE, line="none")
    elif number == 4:
        d.cells(x, y, 8, 8, cell, lambda r, c: PALE if c > r or r // 2 != 2 else BLUE if c // 2 == 1 else SKY)
    elif number == 5:
        d.cells(x, y, 8, 8, cell, lambda r, c: BLUE if c <= r and (c % 3 == 0 or r - c < 2) else PALE)
    else:
        for row in range(4):
            at = y + 8 + 22 * row
            d.cells(x, at, 1, 8, cell, lambda _, c, new=4 + row: BLUE if c == new else SKY if c < new else PALE)


def card(d: Drawing, number: int, title: str, says: str, x: float, y: float, width: float, height: float) -> None:
    """One task's frame and text."""
    d.box(x, y, width, height, "none", rx=10)
    d.text(x + 14, y + 32, str(number), color=BLUE, size=22, more=' font-weight="bold"')
    d.text(x + 34, y + 31, title, more=' font-weight="bold"')
    middle = x + WIDTH / 2
    for i, line in enumerate(says.split("|")):
        d.text(middle, y + height - 28 + 18 * i, line, "middle", size=15)


def path() -> Drawing:
    across = 3 * WIDTH + 2 * GAP
    d = Drawing(across + 4, 2 * (HEIGHT + GAP) + 166, "Seven tasks, from one thread per element to GPT-2")
    for number, (title, says) in enumerate(TASKS[:6], 1):
        x, y = 2 + (number - 1) % 3 * (WIDTH + GAP), 2 + (number - 1) // 3 * (HEIGHT + GAP)
        card(d, number, title, says, x, y, WIDTH, HEIGHT)
        picture(d, number, x + (WIDTH - SIZE) / 2, y + 56)
        if number % 3:
            d.arrow(x + WIDTH + 1, y + HEIGHT / 2, x + WIDTH + GAP - 1, y + HEIGHT / 2)
    y = 2 + 2 * (HEIGHT + GAP)
    below, third, first = 2 + HEIGHT, 2 + across - WIDTH / 2, 2 + WIDTH / 2
    d.line((third, below), (third, below + GAP / 2), (first, below + GAP / 2), width=1.5)
    d.arrow(first, below + GAP / 2, first, below + GAP - 1)
    d.arrow(third, y - GAP + 1, third, y - 1)
    card(d, 7, *TASKS[6], 2, y, across, 92)
    for row, line in enumerate(STORY):
        d.text(WIDTH + 50, y + 42 + 24 * row, line, color=BLUE, size=17, more=ITALIC)
    d.text(2 + across / 2, y + 124, "The same .cu file runs on an NVIDIA GPU (nvcc)", "middle", size=17)
    d.text(2 + across / 2, y + 148, "and, unchanged, in the CUDA simulator on a CPU.", "middle", GRAY, size=17)
    return d


if __name__ == "__main__":
    path().write("path")
