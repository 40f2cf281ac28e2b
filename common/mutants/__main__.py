"""python -m common.mutants: mistakes made by rule in every gap of every solution, and what the test says of each.

python -m common.mutants --task task2,task3 --sample 20 --seed 1
python -m common.mutants --set unseen --table common/diagnosis/README.md
python -m common.mutants --set fresh --sample 40
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from common.compiling.manifest import tasks
from common.compiling.skeletons import solution_files
from common.console.terminal import say
from common.mutants import reviewed, table
from common.mutants.building import TaskMutants
from common.mutants.collected import DEVELOPMENT, HELD_OUT, SETS, collected
from common.mutants.deciding import CAUGHT, EQUIVALENT, MISLED, MISSED, Decision, decided
from common.mutants.mutation import Mutant
from common.mutants.observing import Observation, observed
from common.mutants.remembered import Remembered
from common.testing.worker.worker import NotLoaded


def chosen(options: argparse.Namespace) -> list[Mutant]:
    """The mutants that the options ask for."""
    found = []
    for task in options.tasks:
        of_task = [one for one in collected(task, options.sets) if (options.key or "") in one.key]
        if options.sample is not None or options.leave_out:
            of_task = sorted(of_task, key=lambda one: one.share(options.seed))[options.leave_out : options.sample]
        found += of_task
    return sorted(found, key=lambda one: (one.task, one.file, one.mutation.start, one.key))


def run(mutants: Sequence[Mutant], console: Console) -> dict[str, Observation]:
    """What the tests say of each: key -> observation. What is remembered and has not changed does not run again."""
    found: dict[str, Observation] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("mutants", total=len(mutants))
        for task in dict.fromkeys(one.task for one in mutants):
            memory = Remembered(task)
            mine = [one for one in mutants if one.task == task]
            for one in mine:
                if known := memory.get(one):
                    found[one.key] = known
            todo = [one for one in mine if one.key not in found]
            progress.update(bar, advance=len(mine) - len(todo), description=task)
            if not todo:
                continue
            with TaskMutants(task, mine) as planted:
                planted.plain.load()
                for one in todo:
                    progress.update(bar, description=f"{task}: {one.function}, {one.mutation.kind}")
                    found[one.key] = observed(planted, one)
                    memory.keep(one, found[one.key])
                    planted.plain.end_process()  # what a mutant damaged in it must not reach the next
                    progress.advance(bar)
    return found


def decisions(mutants: Sequence[Mutant], found: dict[str, Observation]) -> list[tuple[Mutant, Decision]]:
    """The verdict on each; those that were reviewed as equivalent are that."""
    lines = {(file.parent.parent.name, file.name): file.read_text().split("\n") for file in solution_files()}
    reasons = reviewed.equivalent()
    result = []
    for one in mutants:
        decision = decided(one, found[one.key], lines[one.task, one.file])
        if decision.verdict == MISSED and one.key in reasons:
            decision = Decision(EQUIVALENT, reasons[one.key])
        result.append((one, decision))
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 0 if it ran, whatever came of it, 2 if nothing did."""
    options = parser_of().parse_args(argv)
    options.tasks = [task for task in tasks() if task in (options.tasks or tasks())]
    options.sets = [name for name in SETS if name in (options.sets or (DEVELOPMENT, HELD_OUT))]
    torch.set_num_threads(1)  # tensors are small: threads that wait for each other cost more than they gain
    console = Console()
    mutants = chosen(options)
    if not mutants:
        say(console, "no mutant is chosen", "red")
        return 2
    if options.list:
        for one in mutants:
            say(console, one.key)
        return 0
    try:
        every = decisions(mutants, run(mutants, console))
    except NotLoaded as error:
        say(console, error, "red")
        return 2
    for one, decision in every:
        if decision.verdict in (MISSED, MISLED, CAUGHT) or options.all:
            console.print(f"[bold]{decision.verdict}[/] {escape(one.key)}", highlight=False, soft_wrap=True)
            console.print(f"    {escape(decision.why)}", highlight=False, soft_wrap=True)
    table.show(console, every)
    if options.table:
        table.write(Path(options.table), every, options)
    say(console, table.summary(every))
    return 0


def tasks_named(words: str) -> list[str]:
    """The tasks of "task1,task2".

    Raises:
        argparse.ArgumentTypeError: one is unknown.
    """
    named = words.split(",")
    for one in named:
        if one not in tasks():
            raise argparse.ArgumentTypeError(f"no task is called {one!r}; there are {', '.join(tasks())}")
    return named


def parser_of() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m common.mutants",
        description="Mistakes made by rule in every gap of every solution, and what the test says of each.",
    )
    add = parser.add_argument
    add(
        "--task",
        dest="tasks",
        metavar="TASK[,TASK]",
        type=tasks_named,
        action="extend",
        help="only these tasks'; can be repeated",
    )
    add(
        "--set",
        dest="sets",
        choices=SETS,
        action="append",
        help="only this half of the first mutants of each rule in a gap (development, held-out) or of the others "
        "(second, unseen), or those of the rules that were written last, unknown to the diagnosis (fresh); can be "
        "repeated (default: the first, both halves)",
    )
    add("--sample", type=int, metavar="N", help="only N of each task's, chosen by --seed")
    add("--leave-out", type=int, default=0, metavar="N", help="not those that --sample N would choose")
    add("--seed", type=int, default=0, help="of the sample (default 0)")
    add("--key", metavar="TEXT", help="only mutants whose text holds this")
    add("--table", metavar="FILE", help="put the table into this Markdown file, between its marks")
    add("--all", action="store_true", help="a line for every mutant, not only for those that are missed or misled")
    add("--list", action="store_true", help="list the mutants and run nothing")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
