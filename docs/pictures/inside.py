"""Takes pictures of the pages of --replay, --profile and report, prints each page's size and loading time, and makes
replay.gif, ten seconds of two replays: python docs/pictures/inside.py [NAME ...]

Each picture is a real page written by a real command, in a copy of the checkout with all gaps filled and in some cases
a planted mistake. Code in a gap is blurred, since handouts show these pictures. All are in dark mode, which also looks
good on a light page. Needs chromium and chromium-driver (apt-get install) and `pip install -e ".[browser]"`.
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
sys.path[:0] = [str(HERE.parent), str(ROOT / "tests" / "helpers")]

import browser
from solved_copy import Edit, copy_with_gaps_filled, planted, printed

WIDTH, SCALE, COLORS = 1400, 0.75, 80  # page width in CSS pixels, picture scale, number of colors
GIF_SIZE, GIF_SCALE, GIF_COLORS, GIF_BYTES = (1340, 800), 0.7, 128, 2_000_000
OPENED = 3  # how often each page is loaded; the median time is reported
BLUR_GAPS = """
let inside = false;
const hidden = new Set();
for (const text of document.querySelectorAll(".source .text, .counters .text")) {
    if (text.textContent.includes("END SOLUTION")) inside = false;
    if (inside && !text.textContent.trim().startsWith("//")) {
        text.style.filter = "blur(4px)";
        hidden.add(text.textContent.trim());
    }
    if (text.textContent.includes("BEGIN SOLUTION")) inside = true;
}
for (const code of document.querySelectorAll(".sentence code"))
    if (hidden.has(code.textContent.trim())) code.textContent = "(your line)";
"""
SETTLED = "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
KERNEL = "task2/attention_kernel.cu"


@dataclass(frozen=True)
class Page:
    """A page and its picture.

    Attributes:
        command: the command that writes it, after python -m, up to the case.
        case: the argument of --replay or --case; "" for the report.
        before: commands to run first.
        at: the fragment of the page's address, after #.
        height: of the picture, in CSS pixels.
        mistake: the planted mistake.
        click: CSS selector of an element to click before taking the picture.
    """

    command: str
    case: str
    at: str = ""
    height: int = 860
    mistake: tuple[Edit, ...] = ()
    click: str = ""
    before: tuple[str, ...] = ()


NO_BARRIER = (Edit(KERNEL, "row_max = partial[0];\n    __syncthreads();\n", "row_max = partial[0];\n"),)
PAGES = {
    "replay-softmax": Page("task2.test --replay", "softmax: large offsets", "block=1&step=4", 700),
    "replay-gemm": Page("task2.test --replay", "gemm: A B, 64 x 64 x 64", "block=1&step=2&thread=70"),
    "replay-flash": Page("task4.test --replay", "full: 64 tokens", "block=1&step=4", 1020),
    "replay-split": Page("task6.test --replay", "split: merged: 3 parts", "block=5&step=2", 860),
    "replay-race": Page("task2.test --replay", "softmax: 7 x 31", "race=0", 980, NO_BARRIER),
    "look-profile": Page(
        "task2.test --gemm --backend simulator --profile --case",
        "A B^T, 64 x 64 x 64",
        height=1240,
        mistake=(
            Edit(KERNEL, "__shared__ float b_tile[TILE][TILE + 1];", "__shared__ float b_tile[TILE][TILE];"),
            Edit(KERNEL, "static_assert(WIDTH % 2 == 1", "static_assert(WIDTH"),
        ),
        click=".counters .wasteful",
    ),
    "report": Page(
        "common.course report",
        "",
        height=760,
        mistake=(Edit(KERNEL, "? 0.0f : 1.0f / row_sum;", "? 0.0f : 1.0f;"),),
        before=("task2.test --backend simulator", "task3.test", "task7.test --kernels --backend simulator"),
    ),
}
TREE = Page("task2.test --replay", "softmax: large offsets", "block=1&values=1")
RACE = Page("task2.test --replay", "softmax: 7 x 31", mistake=NO_BARRIER)
# The GIF's scenes: the page, the script to run, and how many milliseconds to show the result
SCENES = (
    *((TREE, f"toStep({step})", 520) for step in range(11)),
    (RACE, "scrollTo(0, 0)", 1900),
    (RACE, "showRace(0)", 2400),
)


def write_page(name: str, one: Page, folder: Path) -> Path:
    """Runs the command and returns the page's file."""
    file = folder / f"{name}.html"
    writes = [one.case, "--html", file.name] if one.case else ["--page", file.name]
    with planted(folder, one.mistake):
        for command in one.before:
            printed(folder, command, 120)
        said = printed(folder, shlex.join([*one.command.split(), *writes]), 120)
    if not file.is_file():
        raise RuntimeError(f"{name}: no page was written:\n{said}")
    return file


def shoot(window, file: Path, one: Page, target: Path) -> float:
    """Takes the picture and returns the page's loading time in seconds, the median of several loads."""
    resize(window, WIDTH, one.height)
    times = [0.0]
    if one.case:
        times = sorted(browser.opened(window, f"{file.as_uri()}#{one.at}") for _ in range(OPENED))
    else:  # the report has no scripts: it is complete once loaded
        window.get(file.as_uri())
    if one.click:
        window.execute_script("document.querySelector(arguments[0]).click()", one.click)
    seen(window, SCALE).quantize(COLORS).save(target, optimize=True)
    return times[len(times) // 2] / 1000


def resize(window, width: int, height: int) -> None:
    """Sets the window to this many CSS pixels and dark mode."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def seen(window, scale: float) -> Image.Image:
    """A screenshot of the window, with gaps blurred."""
    window.execute_script(BLUR_GAPS)
    window.execute_script(SETTLED)
    picture = Image.open(io.BytesIO(window.get_screenshot_as_png())).convert("RGB")
    return picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS)


def film(window, folder: Path, target: Path) -> None:
    """Writes the GIF.

    Raises:
        RuntimeError: the GIF is larger than GIF_BYTES.
    """
    resize(window, *GIF_SIZE)
    frames, shown = [], None
    for page, action, _ in SCENES:
        if page is not shown:
            browser.opened(window, f"{write_page('replay', page, folder).as_uri()}#{page.at}")
            shown = page
        window.execute_script(action)
        frames.append(seen(window, GIF_SCALE))
    times = [milliseconds for _, _, milliseconds in SCENES]
    every = Image.new("RGB", (frames[0].width, frames[0].height * len(frames)))
    for number, frame in enumerate(frames):
        every.paste(frame, (0, frame.height * number))
    palette = every.quantize(GIF_COLORS)  # shared: colors must not change between frames
    first, *rest = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    first.save(target, save_all=True, append_images=rest, duration=times, loop=0, optimize=True)
    if target.stat().st_size > GIF_BYTES:
        raise RuntimeError(f"{target.name} has {target.stat().st_size:,} bytes; {GIF_BYTES:,} are the limit")
    print(f"{target.name}: {target.stat().st_size:,} bytes, {sum(times) / 1000:g} seconds")


def main() -> None:
    window = browser.pages(WIDTH, 1000)
    if window is None:
        raise SystemExit(browser.WHY_NOT)
    print(f"{'page':<16}{'bytes':>12}{'opens in':>12}   made by python -m")
    with tempfile.TemporaryDirectory() as scratch:
        folder = copy_with_gaps_filled(Path(scratch, "course"))
        for name in sys.argv[1:] or (*PAGES, "replay.gif"):
            if name == "replay.gif":
                film(window, folder, HERE / name)
                continue
            one = PAGES[name]
            file = write_page(name, one, folder)
            seconds = shoot(window, file, one, HERE / f"{name}.png")
            print(f"{name:<16}{file.stat().st_size:>12,}{seconds:>10.2f} s   {one.command} {one.case!r}")
    window.quit()


if __name__ == "__main__":
    main()
