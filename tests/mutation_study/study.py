"""The command line: which mutants run, and what is printed."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence

import tables
import torch
from building import TaskMutants
from judge import CAUGHT, EQUIVALENT, MISLED, MISSED, Decision, decided
from mutants import Mutant, equivalent, mutants_of, planted_of
from observing import Observation, observed
from rich.console import Console

from common.compiling.manifest import tasks
from common.compiling.skeletons import solution_files
from common.console.terminal import say
from common.testing.worker.worker import NotLoaded


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0 if mutants ran, whatever the verdicts, 2 if none did."""
    options = parser_of().parse_args(argv)
    torch.set_num_threads(1)  # tensors are small: thread synchronization costs more than it gains
    console = Console()
    groups = list(chosen(options))
    if options.list or not groups:
        for one in (one for group in groups for one in group):
            say(console, one.key)
        return 0 if groups else 2
    seen: list[tuple[Mutant, Observation]] = []
    try:
        for group in groups:
            seen += run(group, console, options.edits)
    except NotLoaded as error:
        say(console, error, "red")
        return 2
    every = decisions(seen)
    for one, decision in every:
        if decision.verdict in (MISSED, MISLED, CAUGHT) or options.all:
            say(console, f"{decision.verdict} {one.key}\n    {decision.why}")
    lines = [f"{tables.machine()}:", "", *tables.of_verdicts(every)]
    if options.hits:
        hits = tables.hits_of(seen)
        lines = [*tables.of_hits(hits), "", "Never decide:", "", *(f"- {one}" for one in tables.never_decide(hits)), ""]
        lines += [f"{len(seen)} mistakes, {tables.machine()}:", "", *tables.by_family(hits), ""]
        lines += tables.of_verdicts(every)
    if options.edits:
        lines += ["", *tables.of_edits(seen)]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    return 0


def chosen(options: argparse.Namespace) -> Iterator[list[Mutant]]:
    """The mutants selected by the options; those in one list share a library."""
    for task in sorted(options.tasks or tasks()):
        for every in (mutants_of(task), planted_of(task) if options.planted else []):
            asked = [one for one in every if (options.key or "") in one.key]
            asked = sorted(asked, key=lambda one: one.share(options.seed))[: options.sample]
            if asked:
                yield asked


def run(mutants: Sequence[Mutant], console: Console, edits: bool = False) -> Iterator[tuple[Mutant, Observation]]:
    """The test's report for each of these mutants of one task."""
    with TaskMutants(mutants[0].task, mutants) as planted:
        planted.plain.load()
        for number, one in enumerate(mutants, 1):
            yield one, observed(planted, one, edits)
            planted.plain.end_process()  # memory that a mutant corrupted must not affect the next
            if console.is_terminal or number == len(mutants):
                say(console, f"{one.task}: {number} of {len(mutants)}", "dim")


def decisions(seen: Iterable[tuple[Mutant, Observation]]) -> list[tuple[Mutant, Decision]]:
    """The verdict on each; EQUIVALENT for those reviewed as equivalent."""
    lines = {(file.parent.parent.name, file.name): file.read_text().split("\n") for file in solution_files()}
    reasons, result = equivalent(), []
    for one, report in seen:
        decision = decided(one, report, lines[one.task, one.file])
        if decision.verdict == MISSED and one.key in reasons:
            decision = Decision(EQUIVALENT, reasons[one.key])
        result.append((one, decision))
    return result


def tasks_named(words: str) -> list[str]:
    """The tasks of "task1,task2".

    Raises:
        argparse.ArgumentTypeError: one is unknown.
    """
    for one in words.split(","):
        if one not in tasks():
            raise argparse.ArgumentTypeError(f"no task is called {one!r}; there are {', '.join(tasks())}")
    return words.split(",")


def parser_of() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python tests/mutation_study", description="Is the diagnosis any good?")
    add = parser.add_argument
    add("--task", dest="tasks", metavar="TASK[,TASK]", type=tasks_named, help="only these tasks'")
    add("--sample", type=int, metavar="N", help="only N of each task's, chosen by --seed")
    add("--seed", type=int, default=0, help="of the sample (default 0)")
    add("--planted", action="store_true", help="also those that tests/taskN plants by hand")
    add("--key", metavar="TEXT", help="only mutants whose text holds this")
    add("--hits", action="store_true", help="print how often each rule and each known mistake decides a report, too")
    add("--edits", action="store_true", help="try single edits, too, where the test does; print how often one is found")
    add("--all", action="store_true", help="a line for every mutant, not only for those that are missed or misled")
    add("--list", action="store_true", help="list the mutants and run nothing")
    return parser
