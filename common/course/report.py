"""Everything that tests and benchmarks have said, on one page: python -m common.course report FOLDER ...

Tests leave what they found in build/course; a benchmark leaves its numbers and pictures where `--output FOLDER` says.
The page is one HTML file with the pictures inside; it needs no network.
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
from common.course.page import STYLE
from common.course.progress import points_of
from common.course.standing import Standing, standing_of

NUMBERS = "results.json"  # what a benchmark writes into its folder


@dataclass(frozen=True)
class Measured:
    """A benchmark's file.

    Attributes:
        folder: where it lies.
        command, date, machine: as it says them.
        settings: setting -> rows of (size, version, median in seconds or None, work per second or None, unit, is ours).
        pictures: beside it.
    """

    folder: Path
    command: str
    date: str
    machine: dict[str, str]
    settings: dict[str, list[tuple[str, str, float | None, float | None, str, bool]]]
    pictures: Sequence[Path]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the benchmarks wrote, and where the page goes."""
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="of --output; default: build/")
    parser.add_argument("--page", type=Path, metavar="FILE", help="default: build/course/report.html")


def run(options: argparse.Namespace) -> int:
    """Writes the page; the exit status."""
    console = Console()
    folders, page = options.folders or [build_root()], options.page or build_root() / "course" / "report.html"
    if missing := [folder for folder in options.folders if not folder.is_dir()]:
        say(console, f"{missing[0]}: there is no such folder; name the one that `--output` was given", "red")
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
    """Every results.json at or below the folders, and those that no benchmark wrote, each with the reason."""
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
    """The page."""
    earned = sum(points_of(one) for one in standings)
    possible = sum(read_manifest(one.task).points for one in standings)
    parts = ["<h1>Tests and benchmarks</h1>", f"<p class=sum>{earned:g} of {possible:g} points</p>"]
    parts += ["<h2>Tests</h2>", _tests(standings), "<h2>Benchmarks</h2>"]
    parts += [_benchmark(one) for one in measured] or [
        "<p>None yet. <code>python -m taskN.benchmark --output FOLDER</code> on a GPU writes one.</p>"
    ]
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><style>{STYLE}</style>"
    return (
        f"<!doctype html><html lang=en><head>{head}<title>Report</title></head><body>{''.join(parts)}</body></html>\n"
    )


def _tests(standings: Sequence[Standing]) -> str:
    rows = []
    for standing in standings:
        most = read_manifest(standing.task).points
        filled = sum(gap.filled for gap in standing.needed)
        about = f"{points_of(standing):g} of {most:g} points, {filled} of {len(standing.needed)} gaps filled"
        rows.append(f"<tr class=task><th>{standing.task}</th><td colspan=4>{about}</td></tr>")
        for name, part in standing.parts.items():
            wrong = [one for one in part.failures if not one.is_unfilled]
            says = ": ".join([wrong[0].case, *wrong[0].says[:1]]) if wrong else part.why
            stale = "" if standing.holds(part) else " <b>(files have changed since)</b>"
            share = "" if part.earned is None else f"{part.earned:g} of {part.possible:g}"
            cases = f"{part.passed} of {part.cases}" if part.cases else ""
            when = f"{html.escape(part.date)}, {html.escape(part.backend)}{stale}"
            cells = (html.escape(name), share, cases, html.escape(says), when)
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("part", "points", "cases", "first wrong case", "tested"))
    return f"<div class=wide><table class=tests><tr>{head}</tr>{''.join(rows)}</table></div>"


def _benchmark(one: Measured) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in one.machine.items())
    parts = [f"<h3><code>{html.escape(one.command)}</code></h3>", f"<p>{html.escape(f'{one.date}; {machine}')}</p>"]
    for setting, rows in one.settings.items():
        parts.append(f"<h4>{html.escape(setting)}</h4>{_bars(rows)}")
    for picture in one.pictures:
        data = base64.b64encode(picture.read_bytes()).decode()
        parts.append(f"<img alt='{html.escape(picture.stem)}' src='data:image/png;base64,{data}'>")
    return f"<section>{''.join(parts)}</section>"


def _bars(rows: Sequence[tuple]) -> str:
    """A row for each version, its bar as long as its rate is of the best one of the same problem."""
    best: dict[str, float] = {}
    for size, _, _, rate, _, _ in rows:
        best[size] = max(best.get(size, 0.0), rate or 0.0)
    lines, last = [], None
    for size, label, seconds, rate, unit, ours in rows:
        share = 100 * (rate or 0.0) / best[size] if best[size] else 0.0
        bar = f"<div class='bar{' ours' * ours}' style='width:{share:.0f}%'></div>"
        time = "-" if seconds is None else f"{seconds * 1e3:.3g} ms"
        speed = "" if rate is None else html.escape(f"{rate / 1e12:.3g} {unit}")
        first = html.escape(size) if size != last else ""
        cells = (first, html.escape(label), time, speed, f"<div class=track>{bar}</div>")
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        last = size
    return f"<div class=wide><table class=bars>{''.join(lines)}</table></div>"
