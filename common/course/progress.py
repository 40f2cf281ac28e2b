"""Where you are: gaps filled, points, and the next step. Nothing is compiled or run.

Points are those of the last `python -m taskN.test`. A note says if your files have changed
since. With a task, its gaps and parts are listed.
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from common.compiling.manifest import read_manifest, tasks
from common.console.terminal import say, wide
from common.course.arguments import EXPECTED, add_task, refused
from common.course.standing import Standing, standing_of
from common.testing.kept import KeptPart


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the optional task argument, which shows one task in full."""
    add_task(parser, nargs="?", help="list its gaps and parts")


def run(options: argparse.Namespace) -> int:
    """Prints the table and returns the exit status."""
    console = wide(Console())
    try:
        if options.task:
            standing = standing_of(options.task)
            _print_gaps(console, standing)
            _print_parts(console, standing)
            say(console, f"next: {next_step([standing])}", "bold")
            return 0
        standings = [standing_of(task) for task in tasks()]
    except EXPECTED as error:
        return refused(error)
    console.print(_table(standings))
    earned = sum(points_of(one) for one in standings)
    possible = sum(read_manifest(one.task).points for one in standings)
    say(console, f"{earned:g} of {possible:g} points")
    say(console, f"next: {next_step(standings)}", "bold")
    return 0


def points_of(standing: Standing) -> float:
    """Points of the last tests, stale or not."""
    return round(sum(part.earned or 0.0 for part in standing.parts.values()), 2)


def state_of(standing: Standing) -> str:
    """The last test in a few words: "passes", "not tested", "fails: softmax", "changed since the last test"."""
    parts = standing.parts
    if not parts:
        return "not tested yet" if any(gap.filled for gap in standing.gaps) else "not started"
    words = []
    if failing := list(standing.failing):
        words.append(f"[red]fails: {', '.join(failing)}[/]")
    stale = [name for name, part in parts.items() if not standing.holds(part)]
    if stale:
        latest = max(parts[name].date for name in stale)
        words.append(f"[yellow]changed since the test of {latest}: {', '.join(stale)}[/]")
    if not words and points_of(standing) >= read_manifest(standing.task).points:
        words.append("[green]done[/]")
    elif not words:
        words.append("what was tested passes" if not standing.unfilled else "begun")
    return "; ".join(words)


def next_step(standings: list[Standing]) -> str:
    """One sentence: what to do next, with the command."""
    for one in standings:
        if one.failing:
            part, result = next(iter(one.failing.items()))
            wrong = next(failure for failure in result.failures if not failure.is_unfilled)
            return (
                f"{one.task}, {part}: {wrong.case} is wrong. `python -m common.course hint {one.task}`, "
                f"`python -m {one.task}.test --{part}`"
            )
        if one.unfilled:
            gap = one.unfilled[0]
            begun = any(each.filled for each in one.gaps) or one.parts
            read = "" if begun else f"read {one.task}/README.md, then "
            return (
                f"{read}gap {gap.number}, {gap.place}. `python -m common.course watch {one.task}` tests on every save"
            )
        stale = [name for name, part in one.parts.items() if not one.holds(part)]
        if stale or not one.parts:
            return f"{one.task} is filled: `python -m {one.task}.test` says what it is worth"
    left = [one.task for one in standings if points_of(one) < read_manifest(one.task).points]
    if left:
        commands = ", ".join(f"`python -m {task}.test`" for task in left)
        return f"nothing fails; points are left in {', '.join(left)} (some are given on a GPU only): {commands}"
    return "nothing is left here: write what you measured into Results.md"


def _table(standings: list[Standing]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("task", "gaps filled", "points"):
        table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
    table.add_column("last test")
    for one in standings:
        filled = sum(gap.filled for gap in one.needed)
        most = read_manifest(one.task).points
        table.add_row(one.task, f"{filled} of {len(one.needed)}", f"{points_of(one):g} of {most:g}", state_of(one))
    return table


def _print_gaps(console: Console, standing: Standing) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("gap", "name", "where", ""):
        table.add_column(name)
    for gap in standing.gaps:
        state = "filled" if gap.filled else "[yellow]open[/]"
        where = gap.place.split(" in ")[0]
        table.add_row(gap.number, gap.name, where, state + (", optional" if gap.name in standing.optional else ""))
    console.print(table)
    console.print()


def _print_parts(console: Console, standing: Standing) -> None:
    if not standing.parts:
        say(console, f"not tested yet: python -m {standing.task}.test\n")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("part", "points", "cases", "last test"):
        table.add_column(name, justify="right" if name in ("points", "cases") else "left")
    for name, part in standing.parts.items():
        earned = "?" if part.earned is None else f"{part.earned:g}"
        cases = f"{part.passed} of {part.cases}" if part.cases else ""
        table.add_row(name, f"{earned} of {part.possible:g}", cases, _words(standing, part))
    console.print(table)
    console.print()


def _words(standing: Standing, part: KeptPart) -> str:
    when = f"{part.date}, {part.backend}"
    if not standing.holds(part):
        return f"{when}; your files have changed since"
    wrong = [one.case for one in part.failures if not one.is_unfilled]
    if wrong:
        return f"{when}; wrong: {wrong[0]}"
    return f"{when}; {part.why}" if part.why else when
