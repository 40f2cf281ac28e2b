"""The table of verdicts, by task and by kind of mistake: on the screen, and in a Markdown file between two marks."""

from __future__ import annotations

import argparse
import os
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from common.compiling.manifest import tasks
from common.console.files import write_whole
from common.mutants.deciding import CAUGHT, EQUIVALENT, MISLED, MISSED, NAMED, NEAR, VERDICTS, Decision
from common.mutants.mutation import KINDS, Mutant

BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"
Decided = Sequence[tuple[Mutant, Decision]]


def summary(every: Decided) -> str:
    """The last line of the command. Shares are of the mutants that are not equivalent."""
    counts = Counter(decision.verdict for _, decision in every)
    total = max(1, len(every) - counts[EQUIVALENT])
    shares = " ".join(f"{name} {100 * counts[name] / total:.0f}%" for name in (NAMED, NEAR, CAUGHT))
    return f"mutants: {len(every)} {shares} misled {counts[MISLED]} missed {counts[MISSED]}"


def rows_of(every: Decided) -> list[tuple[str, list[int]]]:
    """(what, how many of each verdict, in the order of VERDICTS, and in all): tasks, then kinds, then the sum."""
    found = []
    for task in sorted({one.task for one, _ in every}):
        found.append((task, [decision for one, decision in every if one.task == task]))
    for kind, words in KINDS.items():
        if mine := [decision for one, decision in every if one.mutation.kind == kind]:
            found.append((words, mine))
    found.append(("all", [decision for _, decision in every]))
    counted = []
    for what, decided in found:
        counts = Counter(decision.verdict for decision in decided)
        counted.append((what, [*(counts[name] for name in VERDICTS), len(decided)]))
    return counted


def show(console: Console, every: Decided) -> None:
    """Prints it."""
    table = Table()
    table.add_column("")
    for name in (*VERDICTS, "in all"):
        table.add_column(name, justify="right")
    for what, counts in rows_of(every):
        table.add_row(what, *(str(count or "") for count in counts))
    console.print(table)


def markdown(every: Decided, command: str) -> str:
    """The table as Markdown, with the command and the machine that made it."""
    heads = ("", *VERDICTS, "in all")
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    lines += [f"| {what} | {' | '.join(str(count or '') for count in counts)} |" for what, counts in rows_of(every)]
    machine = f"{os.cpu_count()} cores of {platform.machine()}, the simulator"
    return "\n".join([f"`{command}`, {machine}:", "", *lines, "", f"`{summary(every)}`"])


def write(file: Path, every: Decided, options: argparse.Namespace) -> None:
    """Puts the table between the marks of a Markdown file.

    Raises:
        ValueError: the file has no marks.
    """
    text = file.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"{file} holds no lines {BEGIN} and {END} to put the table between")
    words = ["python -m common.mutants"]
    words += [f"--set {name}" for name in options.sets]
    words += [f"--task {','.join(options.tasks)}"] if options.tasks != tasks() else []
    words += [f"--leave-out {options.leave_out}"] if options.leave_out else []
    words += [f"--sample {options.sample}"] if options.sample is not None else []
    words += [f"--seed {options.seed}"] if options.leave_out or options.sample is not None else []
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    write_whole(file, f"{before}{BEGIN}\n{markdown(every, ' '.join(words))}\n{END}{after}")
