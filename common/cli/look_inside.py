"""`python -m taskN.test --check` and `--profile`: which tool looks at the kernels, and at which cases.

In the simulator its checked build does (common/inspect/checked_run.py), on a GPU NVIDIA's compute-sanitizer and Nsight
Compute (findings/compute_sanitizer.py and profile/ncu.py there). Both ways end in the same reports.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TimeElapsedColumn

from common.cli.options import say_backend
from common.cli.workers import Workers
from common.compiling import toolchain
from common.compiling.gaps import find_gaps
from common.compiling.nvcc import compile_only
from common.compiling.places import places_of
from common.compiling.report import KernelResources
from common.compiling.result import BuildError
from common.console.files import write_whole
from common.console.paths import ROOT, build_root, shown_path
from common.console.terminal import say, wide, working
from common.console.words import counted
from common.inspect import checked_run, gpu_tools
from common.inspect.checked_library import Collected
from common.inspect.findings import compute_sanitizer
from common.inspect.findings.model import Finding, Group, grouped
from common.inspect.findings.report import print_findings
from common.inspect.flow.looked import followed
from common.inspect.origins import deciding, origins
from common.inspect.own_lines import owned
from common.inspect.profile import ncu, pictures
from common.inspect.profile.model import KernelProfile, with_registers
from common.inspect.profile.report import print_kernel, print_legend
from common.inspect.profile.roofline import bounds
from common.inspect.source_lines import Place
from common.inspect.worth_it import apart, kernels_of, worth_it
from common.measure import gpus
from common.measure.gpus import GpuSpec
from common.testing import report
from common.testing.case import ERROR, FAIL, SKIPPED, Case, Verdict
from common.testing.case_choice import full_name
from common.testing.failures import OF_ZEROS, causes_of, failed, failed_stages
from common.testing.judging import judge
from common.testing.run import run_cases
from common.testing.worker.here import Here
from common.testing.worker.worker import NotLoaded, Worker

MOST_LOOKED_AT = 3  # failing cases
MOST_FINDINGS = 2  # told of them
USUAL, LARGE = 2_000, 50_000  # elements of a passing case's inputs: enough for several tiles; more takes too long
OF_NUMBERS = "wrong_value"  # findings that explain nothing, and so contradict nothing
MOST_LOOPS = 8  # lines that may make a loop endless
OUTSIDE = "is outside its array"  # what the simulator says of an index into an array of a known size
_AT = re.compile(r"^\s*at (\S+\.cuh?):(\d+)")
MOST_FOLLOWED = 3  # failing cases of a part of which every access is followed
EXPLAINED_BY_FLOW = ("uninitialized",)  # findings that say what was read, and not who should have written it
LEADS = (
    "out_of_bounds",
    "misaligned",
    "use_after_free",
    "host_access",
    "race",
    "async_race",
    "barrier",
)  # before what follows from them


def run(
    console: Console,
    task: str,
    cases: Sequence[Case],
    options: argparse.Namespace,
    workers: Workers,
    command: str,
) -> int:
    """The exit status, see common.cli.test.test_main. `command` is what was typed."""
    gpu = gpus.chosen(options.gpu)
    say_backend(console, options.backend)
    if toolchain.choose_backend(options.backend).name == "cuda":
        return _on_gpu(console, task, cases, options, gpu, workers.plain, command)
    checked = workers.checked
    with working(console, f"compiling {task} ({options.variant.words}), checked ..."):
        checked.load()
    if "clang" in toolchain.host_compiler().name:
        say(console, "made by clang++: lines may be missing, and counts a little too high; g++ is exact", "yellow")
    title = f"{task}, {options.variant.words}, checked simulator"
    if options.check:
        cases = cases if options.cases else checked_run.small_cases(console, cases, options.seed)
        page = partial(_write_check, console, options.html, title, command) if options.html else None
        return checked_run.check_cases(console, title, cases, checked, options.seed, page)
    if not options.cases:
        cases = _representatives(console, cases, options.seed)
    found = checked_run.profile_cases(console, cases, checked, options.seed)
    if any(kernels for _, _, kernels in found):
        registers = _registers(console, sources_of(task, options), gpu)
        found = [
            (case, verdict, [with_registers(kernel, registers) for kernel in kernels])
            for case, verdict, kernels in found
        ]
    if options.html:
        _write_profile(console, options.html, title, command, found, gpu)
    return report_profiles(console, task, title, found, gpu, options.picture)


def _representatives(console: Console, cases: Sequence[Case], seed: int) -> list[Case]:
    chosen = checked_run.representatives(cases, seed)
    say(
        console,
        "one case per part and operator, the largest that is quick (--case NAME chooses others): "
        f"{'; '.join(map(full_name, chosen))}",
    )
    return chosen


def _registers(console: Console, sources: Sequence[Path], gpu: GpuSpec) -> list[KernelResources]:
    """What ptxas says of the kernels for this GPU; nothing without nvcc."""
    kernels = [source for source in sources if source.suffix == ".cu"]
    if toolchain.find_nvcc() is None or find_gaps(kernels):
        return []
    try:
        with working(console, f"asking nvcc for the registers on {gpu.name} ..."):
            return compile_only(kernels, gpu.arch).kernels
    except BuildError:  # the simulator's compiler took it: the profile is worth showing all the same
        return []


def report_profiles(
    console: Console,
    task: str,
    title: str,
    found: Sequence[tuple[Case, Verdict, list[KernelProfile]]],
    gpu: GpuSpec,
    picture_folder: str | None,
    measured: bool = False,
) -> int:
    """Prints all kernels of all cases, costliest first, and draws the pictures. 0 if every case passed."""
    console = wide(console)
    say(console, f"\n{title}: profile")
    for case, verdict, kernels in found:
        console.print(f"\n[bold underline]{escape(full_name(case))}[/]  {escape(verdict.shapes)}", highlight=False)
        if not verdict.ok:
            first = verdict.diagnosis[0] if verdict.diagnosis else ""
            console.print(f"[red]{verdict.status}[/] {escape(first)}", highlight=False)
        elif not kernels:
            say(console, "no kernel ran")
        for kernel in sorted(kernels, key=lambda one: _least_time(one, gpu), reverse=True):
            print_kernel(console, kernel, gpu)
    every = [kernel for _, _, kernels in found for kernel in kernels]
    if every:
        print_legend(console, gpu, measured)
        folder = Path(picture_folder) if picture_folder else build_root() / "profile" / task
        for file in pictures.draw(every, gpu, folder):
            say(console, f"picture: {shown_path(file)}")
    return 0 if all(verdict.ok or verdict.status == SKIPPED for _, verdict, _ in found) else 1


def _write_check(
    console: Console,
    file: str,
    title: str,
    command: str,
    verdicts: Sequence[Verdict],
    found: Sequence[tuple[str, Sequence[Finding]]],
) -> None:
    from common.inspect.page.look_page import check_page

    named = [(full_name(one.case), one) for one in verdicts]
    write_page(console, Path(file), check_page(f"{title}: check", command, named, found))


def _write_profile(
    console: Console,
    file: str,
    title: str,
    command: str,
    found: Sequence[tuple[Case, Verdict, list[KernelProfile]]],
    gpu: GpuSpec,
    measured: bool = False,
) -> None:
    from common.inspect.page.look_page import profile_page

    named = [(full_name(case), verdict, kernels) for case, verdict, kernels in found]
    write_page(console, Path(file), profile_page(f"{title}: profile", command, named, gpu, measured))


def write_page(console: Console, file: Path, text: str) -> None:
    """Writes a page, and says where it is and how large."""
    write_whole(file, text)
    say(console, f"page: {shown_path(file)}, {len(text.encode()):,} bytes")


def _least_time(kernel: KernelProfile, gpu: GpuSpec) -> float:
    found = bounds(kernel, gpu)
    return found[0].seconds if found else 0.0


def sources_of(task: str, options: argparse.Namespace) -> list[Path]:
    """The .cu files that the options choose."""
    return [kernel for place in places_of(task, options.variant) for kernel in place.kernels]


def at_failures(
    console: Console,
    verdicts: Sequence[Verdict],
    checked: Worker | Here,
    seed: int,
    built_of: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, list[Group]]:
    """What the checked build finds in failing cases: part -> findings. The smallest case of a part is looked at, and if
    nothing is found in that, another one in which threads share work.

    Where it finds nothing that explains a wrong output, and no known mistake does, what flowed into that output is
    looked at (common/inspect/flow). A part without findings was looked at, and nothing was found. If the build cannot
    be made there are no parts: the verdicts stand without it. Nothing is followed of a part that is `built_of` another
    one that fails.
    """
    chosen, usual = _failing(verdicts)
    found = _inside(console, chosen, checked, seed)
    more = [case for case in usual if case not in chosen and found.get(case.part) == []]
    found = found | _inside(console, more, checked, seed) if more else found
    for part in [part for part, groups in found.items() if all(one.kind in EXPLAINED_BY_FLOW for one in groups)]:
        failures = [one for one in verdicts if one.case.part == part and failed(one)]
        if failed_stages(part, {one.case.part for one in verdicts if failed(one)}, built_of or {}):
            continue
        told = [] if _is_explained(failures) else _followed(console, failures, checked, seed)
        if told and not (found[part] and told[0].kind == OF_NUMBERS):  # what is unwritten explains the number
            found[part] = told + found[part]
            break  # other parts are built of this one, or follow from the same
    return found


def _is_explained(failures: Sequence[Verdict]) -> bool:
    """Whether all of them equal one known wrong answer that tells more than that nothing came."""
    causes = causes_of(failures)
    first = causes[0].verdicts[0]
    of_nothing = first.mistakes[:1] in ([name] for name in OF_ZEROS)
    return len(causes) == 1 and causes[0].is_telling and not first.concluded and not of_nothing


def _followed(console: Console, failures: Sequence[Verdict], checked: Worker | Here, seed: int) -> list[Group]:
    """What flowed wrong in the first of these in which that can be told, see common/inspect/flow. Where no access is
    wrong in any, the lines that a wrong number is made of."""
    sized = {
        one.case: size
        for one in failures
        if one.status == FAIL and not one.is_endless and (size := checked_run.small_size_of(one) or LARGE) < LARGE
    }
    collected, of_value = Collected(checked), []
    for case in sorted(sized, key=lambda case: abs(sized[case] - USUAL))[:MOST_FOLLOWED]:
        with working(console, f"following every access of {full_name(case)} ..."):
            try:
                findings = followed(case, checked, collected, seed)
            except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
                # the report is worth more than what could be added to it
                say(console, f"{full_name(case)} could not be followed: {type(error).__name__}: {error}", "dim")
                return []
        if findings:
            found = grouped([(full_name(case), findings)])
            if findings[0].kind != OF_NUMBERS:
                return found
            of_value = of_value or found
    return of_value


def at_passes(
    console: Console, verdicts: Sequence[Verdict], checked: Worker | Here, seed: int
) -> dict[str, list[Group]]:
    """What the checked build finds where every case passes: as at_failures, in small cases of each part.

    A value that is read outside an array and not used, or a write to what nobody reads, changes no output.
    """
    return _inside(console, _small(verdicts), checked, seed)


def print_passes(console: Console, found: Mapping[str, Sequence[Group]]) -> None:
    """The findings of at_passes."""
    if any(found.values()):
        console = wide(console)
        console.print()
        say(console, "Every case passes, and yet the checked build, which watches every access, found:", "bold red")
        _print_most(console, [group for groups in found.values() for group in groups])


def _inside(console: Console, chosen: Sequence[Case], checked: Worker | Here, seed: int) -> dict[str, list[Group]]:
    """What is found in these cases, by part."""
    if not chosen:
        return {}
    first, more = full_name(chosen[0]), f" and {counted(len(chosen) - 1, 'more case')}" if len(chosen) > 1 else ""
    with working(console, f"looking inside, in the checked build: {first}{more} ..."):
        try:
            checked.load()
        except NotLoaded:
            return {}
        collected = Collected(checked)
        found: dict[str, list[Group]] = {}
        for case in chosen:
            verdict, findings = checked_run.checked(case, checked, collected, seed)
            groups = grouped([(full_name(case), [one for one in findings if one.kind != "leak"])])
            groups = [group for group in groups if not group.is_harmless]
            if groups or not verdict.ended:  # a process that is gone could not tell
                found[case.part] = found.get(case.part, []) + groups
    return found


def _small(verdicts: Sequence[Verdict]) -> list[Case]:
    """Of each part the smallest case, in which one thread too many is outside, and one in which threads share work."""
    sized = {one.case: size for one in verdicts if one.ok and (size := checked_run.small_size_of(one) or LARGE) < LARGE}
    chosen = []
    for part in dict.fromkeys(case.part for case in sized):
        cases = sorted((case for case in sized if case.part == part), key=sized.get)
        chosen += dict.fromkeys((cases[0], min(cases, key=lambda case: abs(sized[case] - USUAL))))
    return chosen


def _failing(verdicts: Sequence[Verdict]) -> tuple[list[Case], list[Case]]:
    """Of the failing cases the smallest of each part, of three parts at most, and one of each in which threads share
    work; none that did not end."""
    sized: dict[Case, int] = {}
    for one in verdicts:
        size = checked_run.small_size_of(one)
        if one.status in (FAIL, ERROR) and not one.is_endless and size is not None:
            sized[one.case] = size
    parts = list(dict.fromkeys(case.part for case in sized))[:MOST_LOOKED_AT]
    of_part = [[case for case in sized if case.part == part] for part in parts]
    smallest = [min(cases, key=sized.get) for cases in of_part]
    usual = [min(cases, key=lambda case: abs(sized[case] - USUAL)) for cases in of_part]
    return smallest, [case for case in usual if sized[case] < LARGE]


def leading(found: Mapping[str, Sequence[Group]]) -> dict[str, list[Group]]:
    """The findings of at_failures that come before the verdicts: all but those that say what a number is made of."""
    return {part: [one for one in groups if one.kind != OF_NUMBERS] for part, groups in found.items()}


def print_inside(console: Console, found: Mapping[str, Sequence[Group]]) -> None:
    """The findings of at_failures, those that matter most first; nothing if there are none."""
    console = wide(console)
    every = [group for groups in leading(found).values() for group in groups]
    if not every:
        return
    console.print("\n[bold]The checked build, which watches every access, found in failing cases:[/]", highlight=False)
    _print_most(console, every)


def tells_a_number(found: Mapping[str, Sequence[Group]]) -> bool:
    """Whether print_numbers prints something."""
    return any(group.kind == OF_NUMBERS for groups in found.values() for group in groups)


def print_numbers(console: Console, found: Mapping[str, Sequence[Group]]) -> None:
    """Where a wrong number is made, if at_failures found it."""
    if numbers := [group for groups in found.values() for group in groups if group.kind == OF_NUMBERS]:
        print_findings(wide(console), numbers[:1])


def loops_of(failures: Sequence[Verdict]) -> list[Place]:
    """Of the first case that did not end the student's lines that decide how often the loops around its place run."""
    first = next((one for one in failures if one.is_endless), None)
    chain = [_AT.search(line) for line in first.diagnosis] if first else []
    places = [Place(str(ROOT / match[1]), int(match[2])) for match in chain if match]
    return owned(dict.fromkeys(line for place in places for line in deciding(place)))[:MOST_LOOPS]


def index_of(failures: Sequence[Verdict]) -> list[Place]:
    """Of the first case that ended at an index outside of an array on the stack the student's lines that this index is
    made of, and those that decide how often its line runs."""
    first = next((one for one in failures if _is_outside(one)), None)
    chain = [_AT.search(line) for line in first.diagnosis] if first else []
    places = [Place(str(ROOT / match[1]), int(match[2])) for match in chain if match]
    lines = [Place(one.file, one.line) for place in places for one in (*origins(place), *deciding(place))]
    return [one for one in owned(dict.fromkeys(lines)) if one != places[0]][:MOST_LOOPS]


def _is_outside(one: Verdict) -> bool:
    return one.status == ERROR and any(OUTSIDE in line for line in one.diagnosis)


def print_loops(console: Console, failures: Sequence[Verdict]) -> None:
    """What loops_of and index_of tell, if anything."""
    for lines, what in (
        (loops_of(failures), "What decides how often the loops run that did not end:"),
        (index_of(failures), "What that index is made of, and what decides how often its line runs:"),
    ):
        if lines:
            say(console, f"\n{what}")
        for place in lines:
            say(console, f"{place.line:>5}  {place.text}", "bold", indent=4)


def print_nothing_found(
    console: Console, found: Mapping[str, Sequence[Group]], failures: Sequence[Verdict] = ()
) -> None:
    """What a report says last: where a wrong number is made, and the parts in whose failing cases nothing was found."""
    print_numbers(console, found)
    outside = {one.case.part for one in failures if _is_outside(one)}
    if nothing := [part for part, groups in leading(found).items() if not groups and part not in outside]:
        what = "no race, nothing out of bounds, nothing read before it was written"
        console = wide(console)
        console.print()
        say(console, f"The checked build, which watches every access, found {what}: {', '.join(nothing)}", "dim")


def lead_of(group: Group) -> int:
    """Its place among findings: the smallest is told first."""
    return LEADS.index(group.kind) if group.kind in LEADS else len(LEADS)


def _print_most(console: Console, every: Sequence[Group]) -> None:
    every = _each_once(sorted(every, key=lead_of))
    print_findings(console, every[:MOST_FINDINGS])
    if len(every) > MOST_FINDINGS:
        say(console, f"... and {counted(len(every) - MOST_FINDINGS, 'more finding')}: --check tells all")


def _each_once(every: Sequence[Group]) -> list[Group]:
    """Without findings at lines that another one of the same kind is told of already: several parts run a kernel."""
    told: dict[tuple, Group] = {}
    for group in every:
        first = group.first
        places = frozenset((access.place.file, access.place.line) for access in first.accesses if access.place)
        told.setdefault((group.kind, first.kernel_name, places or id(group)), group)
    return list(told.values())


def _on_gpu(
    console: Console,
    task: str,
    cases: Sequence[Case],
    options: argparse.Namespace,
    gpu: GpuSpec,
    plain: Worker | Here,
    command: str,
) -> int:
    """The verdicts first, then the tool, which runs what is worth it once more in processes of its own."""
    name = "compute-sanitizer" if options.check else "Nsight Compute"
    tool = gpu_tools.find("compute-sanitizer" if options.check else "ncu")
    with working(console, f"compiling {task} ({options.variant.words}) ..."):
        plain.load()
    sources = sources_of(task, options)
    title = f"{task}, {options.variant.words}, {name}"
    if not options.cases and options.check:
        cases = checked_run.small_cases(console, cases, options.seed)
    elif not options.cases and options.all:
        cases = _representatives(console, cases, options.seed)
    verdicts = run_cases(cases, plain, console, lambda case: judge(case, plain, options.seed))
    looked_at, reach = list(cases), kernels_of(places_of(task, options.variant))
    if not (options.cases or options.all):
        looked_at = worth_it(cases, verdicts, reach, options.seed)
        why = "the smallest that fail" if any(failed(one) for one in verdicts) else "the smallest for each kernel"
        say(console, f"{name} looks at {why} (--all: at more): {'; '.join(map(full_name, looked_at)) or 'none'}")
    if options.check:
        report.print_report(console, title, verdicts, points=False)
        found = _sanitized(console, tool, gpu_tools.child(task, options, looked_at), sources) if looked_at else []
        checked_run.report_findings(wide(console), found, len(looked_at))
        if options.html:
            _write_check(console, options.html, title, command, verdicts, found)
        return 0 if all(verdict.ok for verdict in verdicts) and not any(findings for _, findings in found) else 1
    of_case = {full_name(one.case): one for one in verdicts}
    profiles = []
    groups = apart(looked_at, reach, options.seed)
    with _progress(console) as progress:
        bar = progress.add_task(name, total=len(groups))
        for group in groups:
            together = [case for case, _ in group]
            progress.update(bar, description=f"{name}: {'; '.join(map(full_name, together))}")
            found = ncu.profile(tool, gpu_tools.child(task, options, together), sources)
            for case, names in group:
                own = [one for one in found if len(group) == 1 or one.kernel.split("<")[0] in names]
                profiles.append((case, of_case[full_name(case)], own))
            progress.advance(bar)
    if options.html:
        _write_profile(console, options.html, title, command, profiles, gpu, measured=True)
    return report_profiles(console, task, title, profiles, gpu, options.picture, measured=True)


def _sanitized(
    console: Console, tool: Path, command: Sequence[str], sources: Sequence[Path]
) -> list[tuple[str, list[Finding]]]:
    """What compute-sanitizer's tools find, with a bar that tells which of them still run."""
    running = list(compute_sanitizer.TOOLS)
    with _progress(console) as progress:
        bar = progress.add_task(f"compute-sanitizer: {', '.join(running)}", total=len(running))

        def done(name: str) -> None:
            running.remove(name)
            progress.update(bar, advance=1, description=f"compute-sanitizer: {', '.join(running)}")

        return compute_sanitizer.findings_of(tool, command, sources, done)


def _progress(console: Console) -> Progress:
    return Progress(
        *Progress.get_default_columns()[:-1],
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
