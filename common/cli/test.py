"""python -m taskN.test: tests a task's kernels and counts the points.

    TEST = TaskTest("task2", PARTS, cases)
    raise SystemExit(test_main(TEST))

A test has parts, each with its own flag. Some consist of cases (common/testing/case.py), others are measurements
(common/testing/measurement.py).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console

from common.cli import known_clean
from common.cli.keeping import keep_lines, keep_verdicts
from common.cli.only_first import only_first
from common.cli.options import EXPECTED_ERRORS, INTERRUPTED, add_build_arguments, command_of, request_of, say_backend
from common.cli.workers import Workers, is_edited, workers_of
from common.compiling.gaps import find_gaps, python_gaps
from common.compiling.load import load
from common.compiling.manifest import read_manifest
from common.compiling.places import places_of
from common.compiling.variant import Variant
from common.console.terminal import say, working
from common.testing import report
from common.testing.calling import CallFailed
from common.testing.case import ERROR, FAIL, NOT_IMPLEMENTED, PASS, SKIPPED, Case, Verdict
from common.testing.case_choice import choose, for_operators, full_name, print_list
from common.testing.failures import built_on, failed, failed_stages, print_failures
from common.testing.judging import judge
from common.testing.measurement import Measurement
from common.testing.next_steps import print_next
from common.testing.points import PartPoints, print_points
from common.testing.run import chosen_parts, run_cases
from common.testing.showing import show_case
from common.testing.worker.worker import NotLoaded, Worker

PASSED, FAILED, NOTHING_RUN = 0, 1, 2  # exit statuses; and INTERRUPTED
ENDLESS = "3"  # seconds that a block may run without a barrier, see the simulator's README
MOST_WARNINGS = 3  # compiler warnings shown with a failure


@dataclass(frozen=True)
class TaskTest:
    """The definition of `python -m taskN.test`.

    Attributes:
        task: "task2".
        parts: the parts that consist of cases, name -> help of its flag.
        cases: cases(variant) -> all cases; their `part` is one of parts.
        measurements: the parts that are measured.
        groups: flag -> (help, the parts that it selects together).
        modes: value of --mode -> the parts that it selects; a part's own flag narrows the selection.
        stages: parts that test pieces of what other parts test as a whole. They run if their flag is given, by default
            while there are gaps, and when a part built of them fails.
        optional: part -> the functions with its gaps. Until one of these gaps is filled, it runs only by its flag.
        built_of: part -> the parts that test its stages separately.
        in_python: the parts that call no kernels; if only these run, nothing is compiled.
        program: the text after `python -m`.
    """

    task: str
    parts: Mapping[str, str]
    cases: Callable[[Variant], list[Case]]
    measurements: Sequence[Measurement] = ()
    groups: Mapping[str, tuple[str, Sequence[str]]] = field(default_factory=dict)
    modes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stages: Sequence[str] = ()
    optional: Mapping[str, Sequence[str]] = field(default_factory=dict)
    in_python: Sequence[str] = ()
    built_of: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def program(self) -> str:
        return f"{self.task}.test"

    @property
    def measured(self) -> dict[str, str]:
        """Part -> help, of all measurements."""
        return {name: text for one in self.measurements for name, text in one.parts.items()}


def test_main(test: TaskTest, argv: Sequence[str] | None = None) -> int:
    """`python -m taskN.test`; returns the exit status.

    0: every selected case passed, the checked build found nothing, and no measurement lost points. 1: otherwise.
    2: nothing ran. 130: Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = parser_of(test)
    options = parser.parse_args(arguments)
    if test.modes and options.mode:
        of_mode = test.modes[options.mode]
        if others := [part for part in options.parts or () if part not in of_mode]:
            parser.error(f"--{others[0]} is not part of --mode {options.mode}: leave one of them out")
        options.parts = options.parts or list(of_mode)
    if refused := _refused(test, options):
        parser.error(refused)
    if options.variant != Variant.TUNED:  # tuned kernels have blocks that run for long
        os.environ.setdefault("SIMULATOR_TIMEOUT", ENDLESS)
    if options.list or options.under_tool:  # nothing runs, or a tool instruments this process
        options.in_process = True
    try:
        with _one_thread(), workers_of(test, options, arguments) as workers:
            return _main(Console(), test, options, arguments, workers)
    except KeyboardInterrupt:
        say(Console(), f"\n{test.task}: interrupted", "red")
        return INTERRUPTED


test_main.__test__ = False  # keeps pytest from collecting it as a test


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limits PyTorch to one thread: inputs and references are small, and more threads would mostly spin.

    Does not affect the simulator's threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _main(
    console: Console, test: TaskTest, options: argparse.Namespace, arguments: Sequence[str], workers: Workers
) -> int:
    """The rest of test_main, after option parsing."""
    try:
        cases = chosen_cases(console, test, options)
        if options.list:
            print_list(console, test.task, cases)
            return PASSED
        if options.check or options.profile:
            from common.cli import look_inside  # slow to import and rarely needed

            return look_inside.run(console, test.task, cases, options, workers, command_of(test.program, arguments))
        if options.replay:
            from common.cli import replay

            every = test.cases(options.variant)
            return replay.run(console, test.program, cases, every, options, arguments, workers)
        if not options.first:
            say_backend(console, options.backend)
        if options.under_tool:
            from common.inspect.gpu_tools import run_under_tool

            return run_under_tool(cases, load(request_of(test.task, options)), options.seed)
        compiling = working(console, f"compiling {test.task} ({options.variant.words}) ...")
        with compiling if workers.compiles else nullcontext():
            with suppress(*EXPECTED_ERRORS):  # loading reports these
                if workers.compiles and not options.first and not options.in_process and is_edited(test.task, options):
                    workers.load_checked()  # it will be needed, and a core is idle
            workers.plain.load()
    except (NotLoaded, *EXPECTED_ERRORS) as error:
        say(console, error)
        say(console, f"{test.task}: nothing was run", "red")
        return NOTHING_RUN
    if options.show:
        every = test.cases(options.variant)
        right = [show_case(console, case, workers.plain, options.seed, every) for case in cases]
        return PASSED if all(right) else FAILED
    return _run(console, test, cases, workers, options)


def _run(console: Console, test: TaskTest, cases: Sequence[Case], workers: Workers, options: argparse.Namespace) -> int:
    """Runs the cases, then the measurements, and prints the points of both."""
    plain = workers.plain
    is_new = plain.about["rebuilt"] and plain.backend == "simulator" and not options.in_process

    def judged(case: Case) -> Verdict:
        verdict = judge(case, plain, options.seed, explain_later=True)
        if is_new and case.part not in test.in_python and verdict.status != NOT_IMPLEMENTED:
            workers.load_checked()  # new kernels, not only gaps: the checked build will run in any case
        return verdict

    verdicts = run_cases(cases, plain, console, judged, options.first, test.built_of)
    found_inside, sound = False, []
    if not options.first:
        alone = run_cases(_stages_of(test, cases, verdicts, options.variant), plain, console, judged)
        wrong = {one.case.part for one in alone if one.status in (FAIL, ERROR)}
        verdicts = [*(one for one in alone if one.case.part in wrong), *verdicts]
        sound = list(dict.fromkeys(one.case.part for one in alone)) if all(one.ok for one in alone) else []
    if verdicts and options.first:
        only_first(console, verdicts, cases, workers, options.seed, test.in_python)
    elif verdicts:
        draws = [one.case.draws for one in verdicts]
        twice = f", {'each case' if min(draws) > 1 else 'most cases'} on 2 inputs" if max(draws) > 1 else ""
        title = f"{test.task}, {options.variant.words}, {plain.backend}{twice}"
        found_inside = _report(console, test, title, verdicts, workers, options, sound)
    passed, lines, measured = all(one.status in (PASS, SKIPPED) for one in verdicts) and not found_inside, [], False
    keep_verdicts(console, test.task, cases, verdicts, plain.backend, options)
    failures = {one.case.part for one in verdicts if failed(one)}
    for number, parts in _chosen_measurements(test, options):
        measurement = test.measurements[number]
        found, fine = _measured(console, measurement, workers, {"do": "measure", "number": number, "parts": parts})
        for part in () if fine else parts:
            if stages := failed_stages(part, failures, test.built_of):
                say(console, f"{part}: {built_on(stages)}")
        measured |= plain.backend == "cuda" or not measurement.needs_gpu
        lines += found
        passed &= fine
        if plain.backend == "cuda" or not measurement.needs_gpu:
            keep_lines(console, test.task, found, plain.backend, options)
    if not options.cases and not options.first and (verdicts or lines):
        print_points(console, verdicts, lines)
    if not verdicts and not measured:
        return NOTHING_RUN
    return PASSED if passed else FAILED


def _stages_of(test: TaskTest, cases: Sequence[Case], verdicts: Sequence[Verdict], variant: Variant) -> list[Case]:
    """The cases of the failed parts' stages, unless they already ran."""
    if variant == Variant.TUNED:  # the stages test other kernels
        return []
    wrong = {one.case.part for one in verdicts if one.status in (FAIL, ERROR)}
    wanted = {stage for part in wrong for stage in test.built_of.get(part, ()) if stage in test.stages}
    wanted -= {case.part for case in cases}
    return [case for case in test.cases(variant) if case.part in wanted] if wanted else []


def _report(
    console: Console,
    test: TaskTest,
    title: str,
    verdicts: Sequence[Verdict],
    workers: Workers,
    options: argparse.Namespace,
    sound: Sequence[str] = (),
) -> bool:
    """Prints the table, compiler warnings, the checked build's findings, and the diagnosis of each failure.

    The table is printed at once, since the checked build doubles the time. `sound` are stages that were tested
    separately because a part built of them fails, and that pass. Returns whether the checked build found something
    although every case passes.
    """
    report.print_table(console, title, verdicts, not options.cases, options.all)
    for warning in workers.plain.about["warnings"][:MOST_WARNINGS]:
        say(console, warning, "yellow")
    inside, told, wrong = {}, {}, [one for one in verdicts if one.status in (FAIL, ERROR)]
    in_kernels = [one for one in wrong if one.case.part not in test.in_python]
    if wrong:
        from common.cli import failing_cases, tried_edits, tried_python  # slow to import and rarely needed

        if in_kernels:
            inside = failing_cases.at_failures(console, in_kernels, workers.checked, options.seed, test.built_of)
            ops = getattr(workers.checked, "ops", None)
            alone = [case for case in test.cases(options.variant) if case.part in sound]
            inside = tried_edits.with_edits(console, verdicts, inside, ops, options.seed, test.built_of, alone)
        if isinstance(workers.plain, Worker):
            tried_python.add_edits(
                console, verdicts, workers.plain, test.task, options.variant, options.seed, test.built_of
            )
        failing_cases.print_diagnosis(console, verdicts, inside, options.all, test.built_of, sound)
        told = failing_cases.told_of(verdicts, inside, test.built_of)
    else:
        print_failures(console, verdicts, everything=options.all, built_of=test.built_of)
    found = all(one.status in (PASS, SKIPPED) for one in verdicts) and not options.cases
    found = found and _found_in_passing(console, test, verdicts, workers, options.seed)
    program = test.program if options.variant == Variant.STUDENT else f"{test.program} --{options.variant}"
    if in_kernels or workers.compiles:
        print_next(console, program, verdicts, in_kernels, told, bool(options.cases))
    return found


def _found_in_passing(
    console: Console, test: TaskTest, verdicts: Sequence[Verdict], workers: Workers, seed: int
) -> bool:
    """Whether the checked build finds a mistake in kernels with correct outputs; simulator only."""
    in_kernels = [one for one in verdicts if one.ok and one.case.part not in test.in_python]
    if workers.plain.backend == "cuda" or not in_kernels:
        return False
    names = [full_name(one.case) for one in in_kernels]
    mark = known_clean.mark_of(workers.plain.libraries, names, seed)
    if known_clean.is_known(mark):
        return False
    from common.cli import failing_cases

    found = failing_cases.at_passes(console, in_kernels, workers.checked, seed)
    failing_cases.print_passes(console, found)
    if found and not any(found.values()):
        known_clean.remember(mark)
    return any(found.values())


def _measured(
    console: Console, measurement: Measurement, workers: Workers, request: dict
) -> tuple[list[PartPoints], bool]:
    """A measurement's lines in the points table, and whether all went well; runs in the process of the kernels."""
    try:
        answer = workers.plain.answer(request)
        return [PartPoints(**line) for line in answer["lines"]], answer["fine"]
    except (CallFailed, NotLoaded) as error:
        say(console, f"{', '.join(request['parts'])}: not measured: {error}", "red")
        most = measurement.points
        return [PartPoints(part, 0.0, most[part], "see above") for part in request["parts"] if part in most], False


def chosen_cases(console: Console, test: TaskTest, options: argparse.Namespace) -> list[Case]:
    """The cases of the selected parts that these kernels can run, filtered by --case.

    Raises:
        ValueError: no case has this name.
    """
    cases = test.cases(options.variant)
    if options.variant == Variant.TUNED:
        names = {name for place in places_of(test.task, options.variant) for name in place.operators}
        cases = for_operators(cases, names)
    parts = [part for part in options.parts or [] if part in test.parts]
    if options.parts and not parts:
        return []
    named = [options.replay] if options.replay else options.show or options.cases
    chosen = choose(chosen_parts(cases, parts), named)
    if options.parts or named or options.list:
        return chosen
    if options.variant != Variant.STUDENT or not find_gaps(_student_kernels(test)):
        chosen = [case for case in chosen if case.part not in test.stages]
    return _without_optional(console, test, chosen) if options.variant == Variant.STUDENT else chosen


def _student_kernels(test: TaskTest) -> list[Path]:
    return [kernel for place in places_of(test.task, Variant.STUDENT) for kernel in place.kernels]


def _without_optional(console: Console, test: TaskTest, cases: list[Case]) -> list[Case]:
    """Removes the cases of optional parts that have not been started, and prints that."""
    if not test.optional:
        return cases
    manifest = read_manifest(test.task)
    in_python = [manifest.folder / name for name in manifest.files if name.endswith(".py")]
    unfilled = [*find_gaps(_student_kernels(test)), *(gap for file in in_python for gap in python_gaps(file))]
    for part, functions in test.optional.items():
        gaps = [str(gap) for gap in unfilled if gap.function in functions]
        if gaps:
            said = f"{part} (optional): not filled yet, so not tested: {'; '.join(gaps)}. --{part} tests it"
            say(console, said)
            cases = [case for case in cases if case.part != part]
    return cases


def _chosen_measurements(test: TaskTest, options: argparse.Namespace) -> list[tuple[int, list[str]]]:
    """(index of a measurement to run, its selected parts) for each; [] if the options are about cases."""
    about_cases = ("cases", "show", "first", "check", "profile", "replay", "list")
    if any(getattr(options, name) for name in about_cases):
        return []
    chosen = []
    for number, one in enumerate(test.measurements):
        parts = [name for name in one.parts if name in (options.parts or ())]
        parts = parts or (list(one.parts) if one.by_default and not options.parts else [])
        if parts:
            chosen.append((number, parts))
    return chosen


def _refused(test: TaskTest, options: argparse.Namespace) -> str:
    """Why the options contradict each other; "" if they do not."""
    about_cases = [name for name in ("check", "profile", "replay", "list") if getattr(options, name)]
    about_cases += ["case"] * bool(options.cases) + ["show"] * bool(options.show)
    if options.show and (options.cases or options.check or options.profile or options.list):
        others = [name for name in ("check", "profile", "list") if getattr(options, name)] + ["case"]
        return f"--show prints numbers and no verdict: leave --{others[0]} out"
    if options.html is not None and not (options.check or options.profile or options.replay):
        return "--html is for --check, --profile and --replay: add one of them"
    if options.html is not None and Path(options.html).is_dir():
        return f"--html is {options.html!r}, a folder; name a file in it"
    if options.replay and (options.cases or options.show or options.list):
        return "--replay names its case itself: leave --case, --show and --list out"
    without_cases = [part for part in options.parts or () if part not in test.parts]
    if about_cases and without_cases:
        return f"--{about_cases[0]} is about test cases, and --{without_cases[0]} has none: leave one of the two out"
    running = [test.measurements[number] for number, _ in _chosen_measurements(test, options)]
    reporting = [one for one in test.measurements if one.reports]
    if reporting and options.report and not any(one in running for one in reporting):
        flags = " or ".join(f"--{name}" for one in reporting for name in one.parts)
        return f"--report writes what is measured, and nothing here is: add {flags}, or name no part"
    for one in test.measurements:
        for name in one.arguments:
            if one not in running and getattr(options, name.lstrip("-").replace("-", "_")) is not None:
                flags = " or ".join(f"--{part}" for part in one.parts)
                return f"{name} belongs to {flags}: add that"
    return ""


class _GroupFlag(argparse.Action):
    """A flag that selects several parts."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        namespace.parts = [*(namespace.parts or []), *self.const]


def parser_of(test: TaskTest) -> argparse.ArgumentParser:
    """The parser of a test's command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {test.program}", description=f"Test {test.task}'s kernels against a float64 reference."
    )
    add = parser.add_argument
    add_build_arguments(parser)
    for part, text in (test.measured | dict(test.parts)).items():
        add(f"--{part}", action="append_const", dest="parts", const=part, help=text)
    for group, (text, parts) in test.groups.items():
        add(f"--{group}", action=_GroupFlag, dest="parts", const=parts, nargs=0, help=text)
    if test.modes:
        add("--mode", choices=tuple(test.modes), help="only the cases, or only the measurements")
    add("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    add(
        "--case",
        action="append",
        dest="cases",
        metavar="NAME",
        help="only this case (or all whose name contains NAME); can be repeated",
    )
    add("--list", action="store_true", help="list the cases and run nothing")
    add("--show", action="append", metavar="NAME", help="print this case's numbers: inputs, steps, output")
    inside = parser.add_mutually_exclusive_group()
    inside.add_argument(
        "--check",
        action="store_true",
        help="report races, out-of-bounds accesses, uninitialized reads (simulator; compute-sanitizer on a GPU)",
    )
    inside.add_argument(
        "--profile",
        action="store_true",
        help="count memory transactions, bank conflicts, arithmetic (simulator; Nsight Compute on a GPU)",
    )
    inside.add_argument(
        "--replay",
        metavar="CASE",
        help="record this case (a small one) and write a page that plays it back (simulator)",
    )
    add(
        "--html", metavar="FILE", help="with --check, --profile, --replay: write the page there (replay: build/replay/)"
    )
    add("--gpu", metavar="NAME", help="with --profile: the GPU to compare with (default H200)")
    add("--picture", metavar="FOLDER", help="with --profile: where the pictures go (default build/profile/<task>)")
    if any(one.reports for one in test.measurements):
        add("--report", action="store_true", help="write the measurements to Results.md")
    for one in test.measurements:
        for name, given in one.arguments.items():
            add(name, **given)
    add("--all", action="store_true", help="report every case and every failure in full")
    add("--first", action="store_true", help="stop at the first wrong case and report only that one")
    add("--in-process", action="store_true", help="run the kernels in this process, for a debugger")
    add("--under-tool", action="store_true", help=argparse.SUPPRESS)  # see common/inspect/gpu_tools.py
    return parser
