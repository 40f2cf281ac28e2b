"""Run every known attack on the grader: cheats, hostile submissions, and honest ones that must not lose a point.

Each is graded like any submission, on its own task. A cheat must earn nothing for the part it targets. A hostile
submission may lose only its own part; it must leave nothing behind and not harm the grader. An honest one must earn
full points.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from common.console.terminal import say, wide
from common.course.grading.attacking import Attack, attacks_in
from common.course.grading.one import grade
from common.course.grading.outcome import Outcome
from common.course.grading.results import write_outcome
from common.course.grading.running import end_with_parent, workshop
from common.course.grading.sandbox import KINDS, Limits, NoSandbox, choose_kind
from common.course.grading.submissions import NoSubmission, read_submission
from common.course.grading.workshop import Workshop, course_hash

FOLDERS = {"cheats": "cheats", "hostile": "hostile", "honest": "variants"}
LIMITS = Limits(
    memory=2 << 30, build=256 << 20, temporary=64 << 20, seconds=600, cpu=120, file=64 << 20, call=30, load=100
)
FINE, FOUND, NOTHING = 0, 1, 2  # exit statuses


@dataclass(frozen=True)
class Result:
    """The outcome of an attack. wrong: violated expectations, [] if none. share: the busiest thread's work as a
    percentage of what one thread is allowed, see at_work.py."""

    kind: str
    name: str
    earned: dict[str, tuple[float, float]]
    wrong: list[str]
    seconds: float
    why: str
    cpu_seconds: float
    share: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    add = parser.add_argument
    add("--kind", action="append", choices=tuple(FOLDERS), help="only these; can be repeated")
    add("--name", action="append", metavar="WORDS", help="only those whose name contains WORDS; can be repeated")
    add("--jobs", type=int, default=1, metavar="N", help="how many at a time (default 1)")
    add("--list", action="store_true", help="list them and run nothing")
    add("--sandbox", choices=KINDS[:2], help="require this kind of sandbox")


def run(options: argparse.Namespace) -> int:
    """0: all had the expected outcome. 1: some did not. 2: nothing ran."""
    console = Console()
    try:
        kinds = options.kind or list(FOLDERS)
        chosen = [one for kind in kinds for one in chosen_attacks(kind, options.name)]
        if not chosen:
            raise ValueError(f"no attack has that name: {', '.join(options.name)}")
        if options.list:
            for kind, attack in chosen:
                say(console, f"{kind:<8} {attack.name}")
            return FINE
        kind = choose_kind(wanted=options.sandbox)
    except (NoSandbox, ValueError, FileNotFoundError) as error:
        say(console, error, "red")
        return NOTHING
    results = []
    tasks = {task for _, attack in chosen for task in graded_for(attack)}
    with workshop(kind, b"the salt of attacks: 0123456789abcdef", sorted(tasks), LIMITS) as shop:
        context = multiprocessing.get_context("spawn")
        with (
            concurrent.futures.ProcessPoolExecutor(options.jobs, context, end_with_parent) as pool,
            Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
        ):
            bar = progress.add_task("attacking", total=len(chosen))
            futures = [pool.submit(run_named, kind, attack.name, shop) for kind, attack in chosen]
            for future in concurrent.futures.as_completed(futures):
                results.append(future.result())
                progress.update(bar, description=results[-1].name[:40])
                progress.advance(bar)
                if not console.is_terminal:
                    one = results[-1]
                    what = f"{'; '.join(one.wrong) or 'as expected'} ({one.cpu_seconds:.0f} CPU s, {one.share}%)"
                    say(console, f"{len(results)}/{len(chosen)} {one.name}: {what}")
    print_results(console, results)
    return FOUND if any(one.wrong for one in results) else FINE


def chosen_attacks(kind: str, names: Sequence[str] | None) -> list[tuple[str, Attack]]:
    """(kind, attack) pairs of this kind whose name contains one of `names`; None: all."""
    found = [(kind, attack) for _, attack in attacks_in(FOLDERS[kind])]
    return [one for one in found if not names or any(words.lower() in one[1].name.lower() for words in names)]


def graded_for(attack: Attack) -> tuple[str, ...]:
    """The attack's task and the tasks whose kernels its parts use."""
    return {"task7": ("task4", "task6", "task7"), "task6": ("task4", "task6")}.get(attack.task, (attack.task,))


def run_named(kind: str, name: str, shop: Workshop) -> Result:
    """Runs one attack, looked up by name because functions cannot be sent between processes."""
    (attack,) = [attack for _, attack in attacks_in(FOLDERS[kind]) if attack.name == name]
    return run_attack(kind, attack, shop)


def run_attack(kind: str, attack: Attack, shop: Workshop) -> Result:
    """Writes the submission, grades it, and checks the outcome."""
    begun = time.monotonic()
    tasks = graded_for(attack)
    shop = replace(shop, tasks=tasks, parts=None if len(tasks) > 1 else attack.parts)
    with tempfile.TemporaryDirectory() as folder:
        source = attack.write(Path(folder) / "submission") or Path(folder) / "submission"
        submission = None
        try:
            submission = read_submission(str(source))
            outcome = grade(submission, str(source), shop)
        except NoSubmission as error:
            outcome = Outcome("none", str(source), problem=str(error))
        write_outcome(Path(folder) / "results", outcome, submission)
    earned = {
        part.part: (part.earned, part.possible) for t in outcome.tasks if t.task == attack.task for part in t.parts
    }
    wrong = [f"{part} earned {earned[part][0]:g}" for part in attack.nothing_for if earned.get(part, (0, 0))[0]]
    if not attack.kinds or shop.kind in attack.kinds:
        for part in attack.all_for:
            got, most = earned.get(part, (0.0, 1.0))
            if got < most:
                wrong.append(f"{part} earned {got:g} of {most:g}: {_why(outcome, part)}")
    if outcome.left_behind:
        wrong.append(f"processes are left: {', '.join(outcome.left_behind)}")
    if course_hash(shop.base) != shop.course:
        wrong.append("the grader's tree was changed")
    if Path("/tmp/climbed").exists():
        wrong.append("a file was written outside of the submission")
    why = outcome.problem or next((_why(outcome, part) for part in attack.nothing_for if part in earned), "")
    share = max((p.kernel.get("share", 0) for t in outcome.tasks if t.task == attack.task for p in t.parts), default=0)
    return Result(kind, attack.name, earned, wrong, time.monotonic() - begun, why, outcome.cpu_seconds, share)


def _why(outcome: Outcome, part: str) -> str:
    """Why this part earned nothing: the first sentence of the report on it."""
    for one in (one for task in outcome.tasks for one in task.parts if one.part == part):
        bad = [case for case in one.cases if case.status != "pass"]
        for words in (one.why, *(line for case in bad for line in case.diagnosis), *(case.status for case in bad)):
            if words:
                return words.strip().splitlines()[0]
    return ""


def print_results(console: Console, results: Sequence[Result]) -> None:
    """Prints the table and a summary line for each kind."""
    table = Table(title="Attacks on the grader", title_justify="left")
    table.add_column("kind", no_wrap=True)
    table.add_column("submission", overflow="fold", ratio=3)
    table.add_column("points", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=4)
    for name in ("work", "CPU s", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in sorted(results, key=lambda result: (list(FOLDERS).index(result.kind), result.name)):
        points = " ".join(f"{got:g}/{most:g}" for got, most in one.earned.values())
        mark = "NO" if one.wrong else "ok"
        why = "; ".join(one.wrong) or one.why
        numbers = f"{one.share}%", f"{one.cpu_seconds:.0f}", f"{one.seconds:.0f}"
        table.add_row(one.kind, one.name, points, mark, why[:160].replace("[", "\\["), *numbers)
    wide(console).print(table)
    words = {
        "cheats": ("earn nothing for what they are about", "cheat"),
        "hostile": ("are contained", "hostile submission"),
        "honest": ("keep all their points", "honest submission"),
    }
    for kind, (verb, noun) in words.items():
        of_kind = [one for one in results if one.kind == kind]
        if of_kind:
            good = sum(not one.wrong for one in of_kind)
            say(console, f"{good} of {len(of_kind)} {noun}s {verb}", "" if good == len(of_kind) else "red")
