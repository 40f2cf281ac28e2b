"""Class statistics: the table, the histogram, the most failed cases."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from common.console.terminal import say, wide
from common.console.words import counted
from common.course.grading.outcome import Outcome
from common.testing.case import NOT_RUN, PASS

BINS, WIDEST = 10, 40  # histogram: number of bins, and characters in the longest bar
MOST_CASES = 10  # listed cases


def print_class(console: Console, outcomes: Sequence[Outcome], tasks: Sequence[str]) -> None:
    """Prints all statistics."""
    console = wide(console)
    table = Table(title=counted(len(outcomes), "submission"), title_justify="left")
    table.add_column("submission", overflow="fold")
    for name in (*tasks, "points", "of", "look", "CPU s", "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in sorted(outcomes, key=lambda outcome: (-outcome.earned, outcome.name)):
        earned = {task.task: f"{task.earned:g}" for task in one.tasks}
        table.add_row(
            one.name,
            *(earned.get(task, "") for task in tasks),
            *(f"{one.earned:g}", f"{one.possible:g}", str(len(one.flags) or "")),
            *(f"{one.cpu_seconds:.0f}", f"{one.peak_bytes / 2**20:.0f}"),
        )
    console.print(table)
    for one in outcomes:
        if one.problem:
            say(console, f"{one.name}: {one.problem}", "red")
    for line in histogram([one.earned for one in outcomes], max((one.possible for one in outcomes), default=0)):
        say(console, line)
    for line in costs(outcomes):
        say(console, line)
    if failed := failed_most(outcomes):
        say(console, "\nfailed most often")
        for (task, part, title), number in failed:
            say(console, f"  {number:>4} of {len(outcomes)}  {task} {part}: {title}")
    missing = {name: points for one in outcomes for name, (points, _) in one.not_graded.items()}
    if missing:
        what = ", ".join(f"{name} ({points:g})" for name, points in missing.items())
        say(console, f"\nnot graded here, and not counted in these points: {what} (needs a GPU: grade --speed)")


def costs(outcomes: Sequence[Outcome]) -> list[str]:
    """The resources that grading used; [] if nothing was graded."""
    seconds = [one.cpu_seconds for one in outcomes if one.tasks]
    if not seconds:
        return []
    most = max(one.peak_bytes for one in outcomes) / 2**20
    return [
        f"\nseconds of CPU for a submission: median {statistics.median(seconds):.0f}, at most {max(seconds):.0f}; "
        f"memory of its processes: at most {most:,.0f} MiB"
    ]


def histogram(points: Sequence[float], most: float) -> list[str]:
    """One line with a bar per bin."""
    if not points or most <= 0:
        return []
    bins = Counter(min(BINS - 1, int(BINS * one / most)) for one in points)
    widest = max(bins.values())
    lines = ["", "points"]
    for number in range(BINS - 1, -1, -1):
        low, high = most * number / BINS, most * (number + 1) / BINS
        bar = "#" * round(WIDEST * bins[number] / widest)
        lines.append(f"  {low:5.1f} - {high:5.1f}  {bins[number]:>4}  {bar}".rstrip())
    return lines


def failed_most(outcomes: Sequence[Outcome]) -> list[tuple[tuple[str, str, str], int]]:
    """((task, part, case), number of submissions that fail it), most frequent first."""
    found = Counter(
        (task.task, part.part, case.title)
        for one in outcomes
        for task in one.tasks
        for part in task.parts
        for case in part.cases
        if case.status not in (PASS, NOT_RUN)
    )
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))[:MOST_CASES]
