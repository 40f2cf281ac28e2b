"""What the pages of --replay, --profile and --check look like, how large they are, and how long they take to open:
python docs/pictures/inside.py [NAME ...]

Each picture is a real page of a real command, in a copy of the checkout whose gaps are filled; in two a mistake
is planted. Needs chromium and chromium-driver (apt-get install) and `pip install -e '.[browser]'`.
"""

from __future__ import annotations

import io
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

ROOT, HERE = Path(__file__).resolve().parents[2], Path(__file__).parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs"), str(ROOT / "tests" / "helpers")]

import browser
from solved_copy import Edit, copy_with_gaps_filled, planted, printed

WIDTH, SCALE, COLOURS = 1400, 0.75, 80  # CSS pixels, their size in the picture, colours of the picture
OPENED = 3  # times; the median is told
KERNEL = "task2/attention_kernel.cu"


@dataclass(frozen=True)
class Page:
    """A page and its picture.

    Attributes:
        command: what writes it, behind python -m, without --html.
        case: what --replay, or --case, is given.
        at: where in the page: what stands behind # in its address.
        height: of the picture, in CSS pixels.
        mistakes: what is planted.
        click: a CSS selector of what is clicked before the picture is made.
        dark: with the colours for the dark.
    """

    command: str
    case: str
    at: str = ""
    height: int = 860
    mistakes: tuple[Edit, ...] = ()
    click: str = ""
    dark: bool = False


PAGES = {
    "replay-softmax": Page("task2.test --replay", "softmax: large offsets", "block=1&step=4", 700),
    "replay-gemm": Page("task2.test --replay", "gemm: A B, 64 x 64 x 64", "block=1&step=2&thread=70"),
    "replay-flash": Page("task4.test --replay", "full: 64 tokens", "block=1&step=4", 1020),
    "replay-split": Page("task6.test --replay", "split: merged: 3 parts", "block=5&step=2", 860, dark=True),
    "replay-race": Page(
        "task2.test --replay",
        "softmax: 7 x 31",
        "race=0",
        880,
        (Edit(KERNEL, "row_max = partial[0];\n    __syncthreads();\n", "row_max = partial[0];\n"),),
    ),
    "look-profile": Page(
        "task2.test --gemm --profile --case",
        "A B^T, 64 x 64 x 64",
        height=860,
        mistakes=(
            Edit(KERNEL, "__shared__ float b_tile[TILE][TILE + 1];", "__shared__ float b_tile[TILE][TILE];"),
            Edit(KERNEL, "static_assert(WIDTH % 2 == 1,", "static_assert(WIDTH,"),
        ),
        click=".counters .wasteful",
    ),
}


def write_page(name: str, one: Page, folder: Path) -> Path:
    """Runs the command; the page's file."""
    file = folder / f"{name}.html"
    command = f"{one.command} {shlex.quote(one.case)} --html {file.name} --backend simulator"
    with planted(folder, one.mistakes):
        said = printed(folder, command, 120)
    if not file.is_file():
        raise RuntimeError(f"{name}: no page was written:\n{said}")
    return file


def shoot(window, file: Path, one: Page, target: Path) -> float:
    """Draws the page, and returns the seconds that it took to open: the median of several times."""
    size = {"width": WIDTH, "height": one.height, "deviceScaleFactor": 1, "mobile": False}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if one.dark else "light"}
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    times = sorted(browser.opened(window, f"{file.as_uri()}#{one.at}") for _ in range(OPENED))
    if one.click:
        window.execute_script("document.querySelector(arguments[0]).click()", one.click)
        window.execute_script("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", one.click)
    window.execute_script("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    picture = Image.open(io.BytesIO(window.get_screenshot_as_png())).convert("RGB")
    smaller = picture.resize((round(WIDTH * SCALE), round(one.height * SCALE)), Image.Resampling.LANCZOS)
    smaller.quantize(COLOURS).save(target, optimize=True)
    return times[OPENED // 2] / 1000


def main() -> None:
    window = browser.pages(WIDTH, 1000)
    if window is None:
        raise SystemExit(browser.WHY_NOT)
    print(f"{'page':<16}{'bytes':>12}{'opens in':>12}   made by python -m")
    with tempfile.TemporaryDirectory() as scratch:
        folder = copy_with_gaps_filled(Path(scratch, "course"))
        for name in sys.argv[1:] or PAGES:
            one = PAGES[name]
            file = write_page(name, one, folder)
            seconds = shoot(window, file, one, HERE / f"{name}.png")
            print(f"{name:<16}{file.stat().st_size:>12,}{seconds:>10.2f} s   {one.command} {one.case!r}")
    window.quit()


if __name__ == "__main__":
    main()
