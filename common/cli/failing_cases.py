"""Findings of the checked build in failing cases, and the whole report on them.

    inside = at_failures(...)               part -> findings
    print_diagnosis(console, verdicts, inside)

The report leads with the most certain diagnosis alone: a known wrong answer that the outputs match, with the line of an
edit that fixes them; otherwise the checked build's findings; otherwise where the errors are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console

from common.console.paths import ROOT
from common.console.terminal import say, wide, working
from common.console.words import counted
from common.inspect import checked_run
from common.inspect.checked_library import Collected
from common.inspect.findings.model import EDIT, VOTE, Group, grouped, without_strays
from common.inspect.findings.report import brief, may_be_the_index, print_findings
from common.inspect.findings.words import happened
from common.inspect.origins import deciding, loops_with_barrier, origins
from common.inspect.own_lines import owned
from common.inspect.source_lines import Place
from common.testing.case import ERROR, FAIL, Case, Verdict
from common.testing.case_choice import full_name
from common.testing.failures import causes_of, failed, failed_stages, of_first_step, print_failures
from common.testing.worker.here import Here
from common.testing.worker.worker import NotLoaded, Worker

MOST_LOOKED_AT = 3  # failing cases
MOST_FINDINGS = 2  # reported in them
USUAL, LARGE = 2_000, 50_000  # input elements of a passing case: enough for several tiles; larger cases take too long
MOST_LOOPS = 8  # lines that may cause an endless loop
MOST_LINES = 4  # of these that are printed
DIVERGENCE = "barrier divergence"  # threads wait at two different barriers; their accesses are then not races
OUTSIDE = "is outside its array"  # the simulator's message about an index into an array of known size
_LAUNCH = re.compile(r"in kernel (?P<kernel>\w+).*\n(?:.*\n)*\s*launched at (?P<file>\S+\.cuh?):\d+")
_AT = re.compile(r"^\s*at (\S+\.cuh?):(\d+)")
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
)  # causes, reported before their consequences
OF_BARRIERS = ("race", "async_race", "barrier")  # if no index is at fault, more certain than a known wrong answer


def at_failures(
    console: Console,
    verdicts: Sequence[Verdict],
    checked: Worker | Here,
    seed: int,
    built_of: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, list[Group]]:
    """Runs failing cases in the checked build: part -> findings. It runs the smallest case of a part and, if that has
    no findings, another one in which threads share work, unless a known mistake explains the output or the part is
    `built_of` another failing one.

    An empty list means that the part was checked and nothing was found. If the build fails, the result is empty.
    """
    chosen, usual = _failing(verdicts)
    found = _inside(console, chosen, checked, seed, "  FAIL")
    wrong = {one.case.part for one in verdicts if failed(one)}
    later = {part for part in found if failed_stages(part, wrong, built_of or {})}
    explained = known_parts(found, verdicts, built_of) | later
    more = [case for case in usual if case not in chosen and found.get(case.part) == [] and case.part not in explained]
    return without_strays(found | _inside(console, more, checked, seed, "  FAIL") if more else found)


def at_passes(
    console: Console, verdicts: Sequence[Verdict], checked: Worker | Here, seed: int
) -> dict[str, list[Group]]:
    """Like at_failures, for when every case passes: runs small cases of each part.

    An out-of-bounds read whose value is unused, or a write that is never read, does not change the output.
    """
    return _inside(console, _small(verdicts), checked, seed)


def print_passes(console: Console, found: Mapping[str, Sequence[Group]]) -> None:
    """Prints the findings of at_passes."""
    if any(found.values()):
        console = wide(console)
        console.print()
        say(console, "Every case passes, but the checked build, which watches every access, found:", "bold red")
        _print_most(console, [group for groups in found.values() for group in groups])


def _inside(
    console: Console, chosen: Sequence[Case], checked: Worker | Here, seed: int, verdict: str = ""
) -> dict[str, list[Group]]:
    """Findings in these cases by part. While it runs, the cases are shown with `verdict`."""
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
            if groups or not verdict.ended:  # a dead process could not report findings
                found[case.part] = found.get(case.part, []) + groups
    return found


def _small(verdicts: Sequence[Verdict]) -> list[Case]:
    """For each part: the smallest case, where a single excess thread is out of bounds; one in which threads share work;
    and, for each dimension, the longest that is not much larger, where some threads skip a loop's last iteration."""
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
    """For up to MOST_LOOKED_AT parts: (the smallest failing cases, failing cases in which threads share work). Endless
    ones are excluded."""
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
    """For the first endless case: the student's lines that determine how often the loops around its location run."""
    first = next((one for one in failures if one.is_endless), None)
    places = _places_of(first)
    lines = [line for place in places for line in deciding(place)]
    launch = _LAUNCH.search("\n".join(first.said)) if first else None
    if launch and not places:  # it was stopped while its threads waited for each other
        lines = loops_with_barrier(str(ROOT / launch["file"]), launch["kernel"])
    return owned(dict.fromkeys(lines))[:MOST_LOOPS]


def index_of(failures: Sequence[Verdict]) -> list[Place]:
    """For the first case that ended at an out-of-range index into an array on the stack: the student's lines that
    compute this index, and those that determine how often its line runs."""
    places = _places_of(next((one for one in failures if _is_outside(one)), None))
    lines = [Place(one.file, one.line) for place in places for one in (*origins(place), *deciding(place))]
    return [one for one in owned(dict.fromkeys(lines)) if one != places[0]][:MOST_LOOPS]


def diverging(failures: Sequence[Verdict]) -> list[Place]:
    """For the first case that ended with threads of a block waiting at two different barriers: the student's lines that
    determine which threads reach them."""
    said = next((line for one in failures for line in one.said if DIVERGENCE in line), "")
    places = [Place(str(ROOT / file), int(line)) for file, line in re.findall(r"at (\S+\.cuh?):(\d+)", said)]
    return owned(dict.fromkeys(line for place in places for line in deciding(place)))[:MOST_LOOPS]


def _places_of(one: Verdict | None) -> list[Place]:
    """The lines that the simulator's message names for the end of a call."""
    matches = [_AT.search(line) for line in one.said] if one else []
    return [Place(str(ROOT / match[1]), int(match[2])) for match in matches if match]


def _is_outside(one: Verdict) -> bool:
    return one.status == ERROR and any(OUTSIDE in line for line in one.said)


def _ended_early(one: Verdict) -> bool:
    return _is_outside(one) or any(DIVERGENCE in line for line in one.said)


def lead_of(group: Group) -> int:
    """Sort key of a finding; the smallest is reported first."""
    return LEADS.index(group.kind) if group.kind in LEADS else len(LEADS)


def _print_most(console: Console, every: Sequence[Group]) -> None:
    every = _each_once(sorted(every, key=lead_of))
    print_findings(console, every[:MOST_FINDINGS])
    if len(every) > MOST_FINDINGS:
        say(console, f"... and {counted(len(every) - MOST_FINDINGS, 'more finding')}: --check lists them all")


def _each_once(every: Sequence[Group]) -> list[Group]:
    """Removes findings at the same lines as another of the same kind, since several parts may run the same kernel."""
    told: dict[tuple, Group] = {}
    for group in every:
        first = group.first
        places = frozenset((access.place.file, access.place.line) for access in first.accesses if access.place)
        told.setdefault((group.kind, first.kernel_name, places or id(group)), group)
    return list(told.values())


def recognized(failures: Sequence[Verdict]) -> bool:
    """Whether the first cause of these failures, all of one part, is a known wrong answer and certain."""
    causes = causes_of(of_first_step([one for one in failures if failed(one)]))
    return bool(causes) and causes[0].is_recognized


def known_parts(
    parts: Iterable[str], verdicts: Sequence[Verdict], built_of: Mapping[str, Sequence[str]] | None = None
) -> set[str]:
    """Those of these parts whose mistake is recognized, and of which no stage fails: others' outputs say no more, and
    need not be diagnosed."""
    wrong = {one.case.part for one in verdicts if failed(one)}
    own = [one for one in parts if not failed_stages(one, wrong, built_of or {})]
    return {part for part in own if recognized([one for one in verdicts if one.case.part == part])}


def told_of(
    verdicts: Sequence[Verdict],
    inside: Mapping[str, Sequence[Group]],
    built_of: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, list[Group]]:
    """The findings to report in full. If the mistake of a part, or of a stage that it is built of, is recognized: only
    findings that are more certain. If an edit makes the failing cases pass: that edit, and races."""
    parts = {one.case.part for one in verdicts if failed(one)}
    known = known_parts(parts, verdicts, built_of)
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
    """Whether a barrier is missing for certain, that is, no index can be at fault."""
    return group.kind in OF_BARRIERS and not may_be_the_index(group.first)


def print_diagnosis(
    console: Console,
    verdicts: Sequence[Verdict],
    inside: Mapping[str, Sequence[Group]],
    everything: bool = False,
    built_of: Mapping[str, Sequence[str]] | None = None,
    sound: Sequence[str] = (),
) -> None:
    """Prints the diagnosis of the failing cases.

    Args:
        console: where to print.
        verdicts: the verdicts of all cases.
        inside: the result of at_failures; empty if nothing was checked.
        everything: report every failure in full.
        built_of: part -> the parts that test its stages separately.
        sound: stages that were tested separately because a part built of them fails, and that pass.
    """
    console = wide(console)
    told = told_of(verdicts, inside, built_of)
    every = [group for groups in told.values() for group in groups]
    _print_most(console, every)
    print_failures(console, verdicts, told, everything, built_of)
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
    """Prints the lines found by loops_of, index_of and diverging, if any."""
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
    """Prints the parts whose failing cases have no findings, nor do their stages, if that is informative: not where a
    case ended before its end."""
    of_part = {part: [one for one in verdicts if one.case.part == part] for part in inside}
    known = known_parts(inside, verdicts, built_of)
    known |= {part for part, every in of_part.items() if any(one.ended or _ended_early(one) for one in every)}
    wrong = {one.case.part for one in verdicts if failed(one)}
    empty = [part for part, groups in inside.items() if not groups and wrong.isdisjoint(built_of.get(part, ()))]
    if nothing := [part for part in empty if part not in known]:
        what = "no race, nothing out of bounds, nothing read before it was written"
        console.print()
        say(console, f"The checked build, which watches every access, found {what}: {', '.join(nothing)}", "dim")
