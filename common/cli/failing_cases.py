"""What the checked build finds in failing cases, and the whole of what a report says of them.

    inside = at_failures(...)               part -> findings
    print_diagnosis(console, verdicts, inside)

What is surest leads, alone: a known wrong answer that the outputs equal, with the line of an edit that mends them;
else what the checked build found; else what flowed wrong (common/inspect/flow); else where the errors are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich.console import Console

from common.console.paths import ROOT
from common.console.terminal import say, wide, working
from common.console.words import counted
from common.inspect import checked_run
from common.inspect.checked_library import Collected
from common.inspect.findings.model import EDIT, VOTE, Group, grouped, without_strays
from common.inspect.findings.report import brief, may_be_the_index, print_findings
from common.inspect.findings.words import happened
from common.inspect.flow.concluded import followed
from common.inspect.origins import deciding, loops_with_barrier, origins
from common.inspect.own_lines import owned
from common.inspect.source_lines import Place
from common.testing.case import ERROR, FAIL, Case, Verdict
from common.testing.case_choice import full_name
from common.testing.failures import OF_ZEROS, causes_of, failed, failed_stages, of_first_step, print_failures
from common.testing.worker.here import Here
from common.testing.worker.worker import NotLoaded, Worker

MOST_LOOKED_AT = 3  # failing cases
MOST_FINDINGS = 2  # told of them
USUAL, LARGE = 2_000, 50_000  # elements of a passing case's inputs: enough for several tiles; more takes too long
OF_NUMBERS = "wrong_value"  # findings that explain nothing, and so contradict nothing
MOST_LOOPS = 8  # lines that may make a loop endless
MOST_LINES = 4  # of them told
DIVERGENCE = "barrier divergence"  # of threads that wait at two barriers: what they read and write is no race then
OUTSIDE = "is outside its array"  # what the simulator says of an index into an array of a known size
_LAUNCH = re.compile(r"in kernel (?P<kernel>\w+).*\n(?:.*\n)*\s*launched at (?P<file>\S+\.cuh?):\d+")
_AT = re.compile(r"^\s*at (\S+\.cuh?):(\d+)")
MOST_FOLLOWED = 3  # failing cases of a part of which every access is followed
EXPLAINED_BY_FLOW = ("uninitialized",)  # findings that say what was read, and not who should have written it
LEADS = (
    EDIT,
    "out_of_bounds",
    "misaligned",
    "use_after_free",
    "host_access",
    "race",
    "async_race",
    "barrier",
    VOTE,
)  # before what follows from them
OF_BARRIERS = ("race", "async_race", "barrier")  # where no index can be at fault, surer than a known wrong answer


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
    found = _inside(console, chosen, checked, seed, "  FAIL")
    known = {part for part in found if recognized([one for one in verdicts if one.case.part == part])}
    more = [case for case in usual if case not in chosen and found.get(case.part) == [] and case.part not in known]
    found = without_strays(found | _inside(console, more, checked, seed, "  FAIL") if more else found)
    for part in [part for part, groups in found.items() if all(one.kind in EXPLAINED_BY_FLOW for one in groups)]:
        failures = [one for one in verdicts if one.case.part == part and failed(one)]
        if part in known or failed_stages(part, {one.case.part for one in verdicts if failed(one)}, built_of or {}):
            continue
        told = _followed(console, failures, checked, seed)
        if told and not (found[part] and told[0].kind == OF_NUMBERS):  # what is unwritten explains the number
            found[part] = told + found[part]
            break  # other parts are built of this one, or follow from the same
    return found


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

    A value that is read outside an array and not used, or a write that is never read, changes no output.
    """
    return _inside(console, _small(verdicts), checked, seed)


def print_passes(console: Console, found: Mapping[str, Sequence[Group]]) -> None:
    """The findings of at_passes."""
    if any(found.values()):
        console = wide(console)
        console.print()
        say(console, "Every case passes, but the checked build, which watches every access, found:", "bold red")
        _print_most(console, [group for groups in found.values() for group in groups])


def _inside(
    console: Console, chosen: Sequence[Case], checked: Worker | Here, seed: int, verdict: str = ""
) -> dict[str, list[Group]]:
    """What is found in these cases, by part. Until then their verdict is shown."""
    if not chosen:
        return {}
    first, more = full_name(chosen[0]), f" and {counted(len(chosen) - 1, 'more case')}" if len(chosen) > 1 else ""
    with working(console, f"looking inside, in the checked build: {first}{verdict}{more} ..."):
        try:
            checked.load()
        except NotLoaded:
            return {}
        collected = Collected(checked)
        found: dict[str, list[Group]] = {}
        for case in chosen:
            verdict, findings = checked_run.checked(case, checked, collected, seed)
            groups = grouped([(full_name(case), [one for one in findings if one.kind != "leak"])])
            groups = [one for one in groups if not one.is_harmless or (one.kind == VOTE and not verdict.ok)]
            if any(DIVERGENCE in line for line in verdict.said):
                groups = [one for one in groups if one.kind not in OF_BARRIERS]
            if groups or not verdict.ended:  # a process that is gone could not tell
                found[case.part] = found.get(case.part, []) + groups
    return found


def _small(verdicts: Sequence[Verdict]) -> list[Case]:
    """Of each part the smallest case, in which one thread too many is outside, one in which threads share work, and
    for each dimension the longest that is not much larger: not all threads run a loop's last iteration there."""
    sized = {one.case: size for one in verdicts if one.ok and (size := checked_run.small_size_of(one) or LARGE) < LARGE}
    sizes = {one.case: one.sizes for one in verdicts}
    chosen = []
    for part in dict.fromkeys(case.part for case in sized):
        cases = sorted((case for case in sized if case.part == part), key=sized.get)
        usual = min(cases, key=lambda case: abs(sized[case] - USUAL))
        quick = [case for case in cases if sized[case] <= 2 * USUAL]
        alike = [case for case in quick if len(sizes[case]) == len(sizes[usual])]
        longest = [max(alike, key=lambda case: sizes[case][at]) for at in range(len(sizes[usual])) if alike]
        chosen += dict.fromkeys((cases[0], usual, *longest))
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


def loops_of(failures: Sequence[Verdict]) -> list[Place]:
    """Of the first case that did not end the student's lines that decide how often the loops around its place run."""
    first = next((one for one in failures if one.is_endless), None)
    places = _places_of(first)
    lines = [line for place in places for line in deciding(place)]
    launch = _LAUNCH.search("\n".join(first.said)) if first else None
    if launch and not places:  # it was stopped while its threads waited for each other
        lines = loops_with_barrier(str(ROOT / launch["file"]), launch["kernel"])
    return owned(dict.fromkeys(lines))[:MOST_LOOPS]


def index_of(failures: Sequence[Verdict]) -> list[Place]:
    """Of the first case that ended at an index outside of an array on the stack the student's lines that this index is
    made of, and those that decide how often its line runs."""
    places = _places_of(next((one for one in failures if _is_outside(one)), None))
    lines = [Place(one.file, one.line) for place in places for one in (*origins(place), *deciding(place))]
    return [one for one in owned(dict.fromkeys(lines)) if one != places[0]][:MOST_LOOPS]


def diverging(failures: Sequence[Verdict]) -> list[Place]:
    """Of the first case that ended while threads of a block waited at two barriers the student's lines that decide
    which threads come to these."""
    said = next((line for one in failures for line in one.said if DIVERGENCE in line), "")
    places = [Place(str(ROOT / file), int(line)) for file, line in re.findall(r"at (\S+\.cuh?):(\d+)", said)]
    return owned(dict.fromkeys(line for place in places for line in deciding(place)))[:MOST_LOOPS]


def _places_of(one: Verdict | None) -> list[Place]:
    """The lines that the simulator names where a call ended."""
    matches = [_AT.search(line) for line in one.said] if one else []
    return [Place(str(ROOT / match[1]), int(match[2])) for match in matches if match]


def _is_outside(one: Verdict) -> bool:
    return one.status == ERROR and any(OUTSIDE in line for line in one.said)


def lead_of(group: Group) -> int:
    """Its place among findings: the smallest is reported first."""
    return LEADS.index(group.kind) if group.kind in LEADS else len(LEADS)


def _print_most(console: Console, every: Sequence[Group]) -> None:
    every = _each_once(sorted(every, key=lead_of))
    print_findings(console, every[:MOST_FINDINGS])
    if len(every) > MOST_FINDINGS:
        say(console, f"... and {counted(len(every) - MOST_FINDINGS, 'more finding')}: --check lists them all")


def _each_once(every: Sequence[Group]) -> list[Group]:
    """Without findings at lines that another one of the same kind is reported already: several parts run a kernel."""
    told: dict[tuple, Group] = {}
    for group in every:
        first = group.first
        places = frozenset((access.place.file, access.place.line) for access in first.accesses if access.place)
        told.setdefault((group.kind, first.kernel_name, places or id(group)), group)
    return list(told.values())


def recognized(failures: Sequence[Verdict]) -> bool:
    """Whether the first cause of these, of one part, is a known wrong answer and certain."""
    causes = causes_of(of_first_step([one for one in failures if failed(one)]))
    return bool(causes) and causes[0].is_recognized


def told_of(
    verdicts: Sequence[Verdict],
    inside: Mapping[str, Sequence[Group]],
    built_of: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, list[Group]]:
    """The findings that are reported in full: those of a part whose mistake is recognized, in itself or in a stage that
    it is built of, only if they are surer; where an edit makes the failing cases pass, that, and races."""
    parts = {one.case.part for one in verdicts if failed(one)}
    known = {part for part in parts if recognized([one for one in verdicts if one.case.part == part])}
    edits = {part: [one for one in groups if one.kind == EDIT] for part, groups in inside.items()}
    return {
        part: [*edits[part], *(one for one in groups if one.kind in OF_BARRIERS)]
        if edits[part]
        else [one for one in groups if _is_surer(one)]
        if known & {part, *failed_stages(part, parts, built_of or {})}
        else [*groups]
        for part, groups in inside.items()
    }


def _is_surer(group: Group) -> bool:
    """Whether a barrier is missing, whatever index there may be."""
    return group.kind in OF_BARRIERS and not may_be_the_index(group.first)


def print_diagnosis(
    console: Console,
    verdicts: Sequence[Verdict],
    inside: Mapping[str, Sequence[Group]],
    everything: bool = False,
    built_of: Mapping[str, Sequence[str]] | None = None,
    sound: Sequence[str] = (),
) -> None:
    """What is wrong with the cases that fail.

    Args:
        console: where to print.
        verdicts: of all cases.
        inside: of at_failures; empty where nothing was looked at.
        everything: tell every failure in full.
        built_of: part -> the parts that test its stages one by one.
        sound: stages that were tested alone because what is built of them fails, and pass.
    """
    console = wide(console)
    told = told_of(verdicts, inside, built_of)
    every = [group for groups in told.values() for group in groups]
    numbers = [group for group in every if group.kind == OF_NUMBERS][:1]
    of_numbers = next((part for part, groups in told.items() if numbers and numbers[0] in groups), "")
    cause = of_numbers and causes_of([one for one in verdicts if one.case.part == of_numbers and failed(one)])[0]
    is_second = cause and cause.says and {*OF_ZEROS}.isdisjoint(cause.verdicts[0].found.names)
    is_second = is_second or any(recognized([one for one in verdicts if one.case.part == part]) for part in told)
    leading = {part: [one for one in groups if one.kind != OF_NUMBERS] for part, groups in told.items()}
    if len(every) > len(numbers):
        _print_most(console, [one for groups in leading.values() for one in groups])
    print_findings(console, [] if is_second else numbers)
    print_failures(console, verdicts, leading, everything, built_of, not numbers)
    print_findings(console, numbers if is_second else [])  # what is known, or was concluded, tells more
    part_of = {id(one): part for part, groups in inside.items() for one in groups}
    hidden = [one for part, groups in inside.items() for one in groups if one not in told[part] and one.kind in LEADS]
    for one in _each_once(hidden)[:MOST_FINDINGS]:
        say(console, f"{part_of[id(one)]}: the checked build also finds: {happened(one.first)}: {brief(one.first)}")
    _print_loops(console, verdicts)
    if any(one.kind == EDIT for one in every):
        return
    if sound:
        look = "" if any(one.kind in OF_BARRIERS for one in every) else " Look first at the calls and their arguments"
        say(console, f"\n{', '.join(sound)}: these pass when tested alone.{look}")
    _print_nothing_found(console, inside, verdicts, built_of or {})


def _print_loops(console: Console, failures: Sequence[Verdict]) -> None:
    """What loops_of and index_of tell, if anything."""
    for lines, what in (
        (loops_of(failures), "How often the loops run that did not end is decided in:"),
        (index_of(failures), "That index, and how often its line runs, is computed in:"),
        (diverging(failures), "All threads of a block must come to a barrier. Which ones do is decided in:"),
    ):
        if lines:
            say(console, f"\n{what}")
        for place in lines[:MOST_LINES]:
            say(console, f"{place.line:>5}  {place.text}", "bold", indent=4)


def _print_nothing_found(
    console: Console,
    inside: Mapping[str, Sequence[Group]],
    verdicts: Sequence[Verdict],
    built_of: Mapping[str, Sequence[str]],
) -> None:
    """The parts in whose failing cases nothing was found, in no stage of theirs either: where that is news."""
    of_part = {part: [one for one in verdicts if one.case.part == part] for part in inside}
    known = {part for part, every in of_part.items() if recognized(every) or any(map(_is_outside, every))}
    wrong = {one.case.part for one in verdicts if failed(one)}
    empty = [part for part, groups in inside.items() if not groups and wrong.isdisjoint(built_of.get(part, ()))]
    if nothing := [part for part in empty if part not in known]:
        what = "no race, nothing out of bounds, nothing read before it was written"
        console.print()
        say(console, f"The checked build, which watches every access, found {what}: {', '.join(nothing)}", "dim")
