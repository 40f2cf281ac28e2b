"""Everything that tests and benchmarks have reported so far, on one page: python -m common.course report FOLDER ...

Tests write their results to build/course; a benchmark writes its numbers and plots to `--output FOLDER`. The page is
one HTML file with the images embedded; it works offline.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from common.compiling.manifest import read_manifest, tasks
from common.console.files import write_whole
from common.console.paths import build_root, shown_path
from common.console.terminal import say
from common.console.words import counted
from common.course.arguments import BAD_INPUT, EXPECTED, refused
from common.course.progress import points_of
from common.course.standing import Standing, standing_of
from common.inspect.page.document import asset

NUMBERS = "results.json"  # written by a benchmark into its folder
# the style of the other pages (common/inspect/page), plus bars
STYLE = (
    asset("page.css")
    + """
main { max-width: 74rem; }
.card { margin: .9rem 0; overflow-x: auto; }
.card > table { width: 100%; }
.card h2 { display: flex; gap: .3rem 1rem; flex-wrap: wrap; align-items: baseline; }
.card h2 span { font-weight: 400; font-size: .88rem; color: var(--soft); }
h3 code { overflow-wrap: anywhere; }
.tests td, .bars td { white-space: nowrap; width: 8rem; }
.tests td:nth-child(5) { white-space: normal; width: auto; }
.track { background: var(--cell); border-radius: 3px; min-width: 5rem; width: 100%; margin-top: .3rem; }
.sum .track { max-width: 30rem; }
.bar { height: .8rem; background: var(--soft); border-radius: 3px; }
.bar.ours { background: var(--read); }
.bar.full { background: var(--good); }
.bars td:last-child, .tests td:nth-child(2) { width: 13rem; }
.bars td:last-child { width: 45%; }
img { max-width: 100%; margin: .5rem 0; }
@media (max-width: 640px) {
  .tests tr { display: block; padding: .3rem 0; border-top: 1px solid var(--line); }
  .tests td { display: inline-block; padding-right: .8rem; width: auto; }
  .tests td:nth-child(2) { width: 45%; }
  .bars td:nth-child(3) { display: none; }
}
"""
)


@dataclass(frozen=True)
class Measured:
    """A benchmark's results file.

    Attributes:
        folder: where it is.
        command, date, machine: as recorded in it.
        settings: setting -> rows of (size, version, median in seconds or None, work per second or None, unit, is ours).
        pictures: the image files next to it.
    """

    folder: Path
    command: str
    date: str
    machine: dict[str, str]
    settings: dict[str, list[tuple[str, str, float | None, float | None, str, bool]]]
    pictures: Sequence[Path]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the benchmark folders and the page's path."""
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="FOLDER", help="as passed to --output; default: build/"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="default: build/course/report.html")


def run(options: argparse.Namespace) -> int:
    """Writes the page and returns the exit status."""
    console = Console()
    folders, page = options.folders or [build_root()], options.page or build_root() / "course" / "report.html"
    if missing := [folder for folder in options.folders if not folder.is_dir()]:
        say(console, f"{missing[0]}: no such folder; give the one that a benchmark's `--output` named", "red")
        return BAD_INPUT
    try:
        standings = [standing_of(task) for task in tasks()]
        measured, strange = benchmarks_in(folders)
        write_whole(page, page_of(standings, measured))
    except EXPECTED as error:
        return refused(error)
    for file, why in strange:
        say(console, f"{shown_path(file)} is left out: {why}", "yellow")
    tested = sum(bool(one.parts) for one in standings)
    say(console, f"{shown_path(page)}: tests of {counted(tested, 'task')}, {counted(len(measured), 'benchmark')}")
    return 0


def benchmarks_in(folders: Sequence[Path]) -> tuple[list[Measured], list[tuple[Path, str]]]:
    """Every results.json at or below the folders, and the files that are not a benchmark's, each with the reason."""
    found, strange = [], []
    files = {file.resolve(): None for folder in folders for file in sorted(folder.rglob(NUMBERS))}
    for file in files:
        try:
            found.append(_read(file))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            strange.append((file, f"no benchmark's file ({error!r})"))
    return found, strange


def _read(file: Path) -> Measured:
    content = json.loads(file.read_text(encoding="utf-8"))
    settings: dict[str, list] = {}
    for one in content["results"]:
        row = (one["size"], one["label"], one["median_seconds"], one["work_per_second"], one["unit"], one["ours"])
        settings.setdefault(one["setting"], []).append(row)
    pictures = sorted(file.parent.glob("*.png"))
    return Measured(file.parent, content["command"], content["date"], content["machine"], settings, pictures)


def page_of(standings: Sequence[Standing], measured: Sequence[Measured]) -> str:
    """The page as HTML."""
    earned = sum(points_of(one) for one in standings)
    possible = sum(read_manifest(one.task).points for one in standings)
    parts = [f"<h1>{earned:g} of {possible:g} points</h1><div class=sum>{_bar(earned, possible)}</div>"]
    parts += [_tests(one) for one in standings]
    parts += [_benchmark(one) for one in measured] or [
        "<section class=card><h2>Benchmarks</h2><p>None yet. On a machine with a GPU, "
        "<code>python -m taskN.benchmark --output FOLDER</code> writes one.</p></section>"
    ]
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><style>{STYLE}</style>"
    body = f"<body><main>{''.join(parts)}</main></body>"
    return f"<!doctype html><html lang=en><head>{head}<title>Course report</title></head>{body}</html>\n"


def _bar(value: float, most: float, kind: str = "") -> str:
    """A bar whose length is value / most; green when full and no `kind` is given."""
    share = 100 * value / most if most else 0.0
    kind = kind or ("full" if value >= most else "ours")
    return f"<div class=track><div class='bar {kind}' style='width:{share:.0f}%'></div></div>"


def _tests(standing: Standing) -> str:
    """A task's parts, each with a bar for its points, or for its cases if it has no points."""
    rows = []
    for name, part in standing.parts.items():
        wrong = [one for one in part.failures if not one.is_unfilled]
        says = ": ".join([wrong[0].case, *wrong[0].says[:1]]) if wrong else part.why
        stale = "" if standing.holds(part) else " <b>(files have changed since)</b>"
        share = "" if part.earned is None else f"{part.earned:g} of {part.possible:g} points"
        bar = _bar(part.passed, part.cases) if part.earned is None else _bar(part.earned, part.possible)
        cases = f"{part.passed} of {counted(part.cases, 'case')}" if part.cases else ""
        when = f"<span class=soft>{html.escape(part.date)}, {html.escape(part.backend)}</span>{stale}"
        cells = (html.escape(name), bar, share, cases, html.escape(says), when)
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    most, filled = read_manifest(standing.task).points, sum(gap.filled for gap in standing.needed)
    about = f"{points_of(standing):g} of {most:g} points, {filled} of {len(standing.needed)} gaps filled"
    table = f"<table class='tests small'>{''.join(rows)}</table>" if rows else ""
    return f"<section class=card><h2>{standing.task} <span>{about}</span></h2>{table}</section>"


def _benchmark(one: Measured) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in one.machine.items())
    parts = [
        f"<h3><code>{html.escape(one.command)}</code></h3>",
        f"<p class='soft small'>{html.escape(f'{one.date}; {machine}')}</p>",
    ]
    for setting, rows in one.settings.items():
        parts.append(f"<h3>{html.escape(setting)}</h3>{_bars(rows)}")
    for picture in one.pictures:
        data = base64.b64encode(picture.read_bytes()).decode()
        parts.append(f"<img alt='{html.escape(picture.stem)}' src='data:image/png;base64,{data}'>")
    return f"<section class='card'>{''.join(parts)}</section>"


def _bars(rows: Sequence[tuple]) -> str:
    """A row per version, with a bar for its rate relative to the best one on the same problem."""
    best: dict[str, float] = {}
    for size, _, _, rate, _, _ in rows:
        best[size] = max(best.get(size, 0.0), rate or 0.0)
    lines, last = [], None
    for size, label, seconds, rate, unit, ours in rows:
        bar = _bar(rate or 0.0, best[size], "ours" if ours else "peer")
        time = "-" if seconds is None else f"{seconds * 1e3:.3g} ms"
        speed = "" if rate is None else html.escape(f"{rate / 1e12:.3g} {unit}")
        first = html.escape(size) if size != last else ""
        cells = (first, html.escape(label), time, speed, bar)
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        last = size
    return f"<table class='bars small'>{''.join(lines)}</table>"
