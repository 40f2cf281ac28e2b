"""Groups failures by cause and prints them, the cause that explains the most first.

print_failures(console, verdicts)
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape

from common.console.terminal import say, wide
from common.console.words import counted
from common.diagnosis.diagnose import UNSTEADY
from common.testing.case import ERROR, FAIL, NOT_RUN, PASS, SKIPPED, Verdict
from common.testing.case_choice import full_name

MOST_WHOLE = 2  # parts whose first cause is reported in full
MOST_BRIEF = 3  # causes within a part that get one line each, after the one that is reported in full
MOST_NAMES = 6  # listed cases per cause
ZEROS = "all zeros"  # a symptom in small outputs; larger outputs of the same mistake tell more
LARGER = 2  # larger outputs that refute a match of a single smaller one
UNEXPLAINED = 3  # unexplained outputs that make a conclusion from a single output count as chance
TELLING = 100  # input elements in a case; in smaller cases, different mistakes easily give the same answer


def failed(one: Verdict) -> bool:
    """Whether a case counts as a failure."""
    return one.status not in (PASS, SKIPPED)


@dataclass(frozen=True)
class Cause:
    """Failures with the same cause.

    Attributes:
        verdicts: their verdicts; the first is the one to report.
        says: the sentence of the known mistake that all of them match; "" if none.
    """

    verdicts: list[Verdict]
    says: str = ""

    @property
    def is_telling(self) -> bool:
        """Whether it is a known mistake that is unlikely to match by chance."""
        return bool(self.says) and (len(self.verdicts) > 1 or self.verdicts[0].elements >= TELLING)

    @property
    def is_recognized(self) -> bool:
        """Whether it is certain: it is then reported first, and no search hints are needed."""
        found = self.verdicts[0].found
        unsure = found.concluded or not {ZEROS, UNSTEADY}.isdisjoint(found.names)
        return self.is_telling and not unsure

    def sentences(self, is_clean: bool = False, with_table: bool = True) -> list[str]:
        """The report on the first verdict.

        Args:
            is_clean: the checked build ran it and found nothing.
            with_table: include the stages' numbers.
        """
        first = self.verdicts[0]
        found = first.found
        if self.is_recognized:
            told = [*found.tried, self.says] if found.tried_leads else [self.says, *found.tried]
            return [*told, *found.python, *found.where[:1], *first.said]
        told = [self.says] * bool(self.says) + [*found.tried, *found.python, *found.signs, *found.where]
        told += [] if is_clean or first.case.python else found.unless_clean
        told += [*(found.table.lines if with_table else ()), *found.table.says]
        return [*first.said, *told, *found.hints]


def causes_of(failures: Sequence[Verdict]) -> list[Cause]:
    """Groups the failures of one part by cause: known causes first, then by number of cases, descending.

    A wrong output may match several known wrong answers, especially if sizes are small or equal. The assignment is
    greedy: first the answer that matches the most outputs, then the one that matches the most of the rest.
    """
    causes, rest = [], [one for one in failures if one.found.possible]
    while rest:
        counts = Counter(name for one in rest for name in one.found.possible)
        first_named = Counter(one.mistakes[0] for one in rest if one.mistakes)
        name = max(counts, key=lambda name: (counts[name], first_named[name]))
        alike = [one for one in rest if name in one.found.possible]
        alike.sort(key=lambda one: (one.found.concluded, one.mistakes[:1] != [name]))
        causes.append(Cause(alike, "" if _is_chance(name, alike, failures) else alike[0].found.possible[name]))
        rest = [one for one in rest if name not in one.found.possible]
    others: dict[tuple, list[Verdict]] = {}
    for one in failures:
        if not one.found.possible:
            others.setdefault(_kind(one), []).append(one)
    causes += [Cause(alike) for alike in others.values()]
    return sorted(
        causes,
        key=lambda one: (
            one.verdicts[0].status == NOT_RUN,
            not one.is_telling,
            one.verdicts[0].mistakes[:1] == [ZEROS],
            -len(one.verdicts),
        ),
    )


def _is_chance(name: str, alike: Sequence[Verdict], failures: Sequence[Verdict]) -> bool:
    """Whether outputs match a known wrong answer by chance.

    They do if more outputs refute it than match it; if some refute it and all matches were only concluded; or if it
    matches a single output while LARGER larger ones refute it or are too large to check, or it was only concluded
    there and leaves UNEXPLAINED others unexplained.
    """
    failed = [one for one in failures if one.status == FAIL]
    refuting = [one for one in failed if name in one.found.refuted]
    if len(refuting) > len(alike) or (refuting and all(one.found.concluded for one in alike)):
        return True
    size = alike[0].elements
    larger = [one for one in refuting if one.elements >= size]
    of_numbers = [one for one in failed if math.isfinite(one.max_error or math.nan)]
    unexplained = sum(name not in one.found.possible for one in of_numbers)
    if len(alike) == 1 and alike[0].found.concluded and unexplained >= UNEXPLAINED:
        return True
    larger += [one for one in of_numbers if not one.found.possible and not one.found.refuted and one.elements > size]
    return len(alike) == 1 and len(larger) >= LARGER


def _kind(one: Verdict) -> tuple:
    if one.mistakes:
        return one.status, one.mistakes[0]
    if one.ended:
        return one.status, "ended"
    if one.status == ERROR and one.file_line:  # ignore numbers in the message: sizes differ from case to case
        return one.status, one.file_line, *(re.sub(r"\d+", "0", line) for line in one.said)
    return (one.status, one.in_python) if one.status == FAIL and one.found.where else (one.status, *one.said)


def of_first_step(failures: Sequence[Verdict]) -> list[Verdict]:
    """Leaves out failures whose output builds on what other failures check, see Case.step."""
    first = min((one.case.step for one in failures), default=0)
    return [one for one in failures if one.case.step == first]


def failed_stages(part: str, parts: Collection[str], built_of: Mapping[str, Sequence[str]]) -> list[str]:
    """The stages of a part that are among the failed parts."""
    return [stage for stage in built_of.get(part, ()) if stage in parts]


def built_on(stages: Sequence[str]) -> str:
    """ "built on update and decode: fix these first"."""
    listed = " and ".join(", ".join(stages).rsplit(", ", 1))
    return f"built on {listed}: fix {'these' if len(stages) > 1 else 'that'} first"


def print_failures(
    console: Console,
    verdicts: Sequence[Verdict],
    inside: Mapping[str, Collection] | None = None,
    everything: bool = False,
    built_of: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Prints, for each part, the most common cause in full and one line for each other; if --check found something, one
    line each.

    Args:
        console: where to print.
        verdicts: all verdicts.
        inside: part -> what the checked build found in it (already printed); for these parts only what is certain is
            reported. If it found nothing, unwritten memory and missing barriers are not suggested.
        everything: report every failure in full.
        built_of: part -> the parts that test its stages separately; if one of these fails, the part's failure follows
            from it.
    """
    console = wide(console)
    inside = inside or {}
    parts: dict[str, list[Verdict]] = {}
    for one in verdicts:
        if failed(one):
            parts.setdefault(one.case.part, []).append(one)
    if everything:
        for one in (one for every in parts.values() for one in every):
            _print_whole(console, Cause([one]), one.diagnosis)
        return
    follow: dict[tuple[str, ...], list[str]] = {}
    whole, with_table = MOST_WHOLE, True
    named: set[str] = set()  # recognized mistakes are reported first and once; after that no other known mistake is
    built = {part for part in parts if failed_stages(part, parts, built_of or {})}
    certain = [one for one in parts if one not in built and causes_of(of_first_step(parts[one]))[0].is_recognized]
    for part, every in sorted(parts.items(), key=lambda one: one[0] not in certain):
        failures = of_first_step(every)
        if stages := failed_stages(part, parts, built_of or {}):
            follow.setdefault(tuple(stages), []).append(part)
            continue
        causes = causes_of(failures)
        is_recognized = causes[0].is_recognized
        if is_recognized and named & {*causes[0].verdicts[0].found.possible}:
            names = "; ".join(one.case.name for one in causes.pop(0).verdicts[:MOST_NAMES])
            say(console, f"\n{part}: the same mistake shows in: {names}")
        elif is_recognized or (whole and not named and not any(inside.values())):
            cause = causes.pop(0)
            sentences = cause.sentences(part in inside, with_table)
            _print_whole(console, cause, sentences)
            named |= {*cause.verdicts[0].found.possible} if is_recognized else set()
            if cause.verdicts[0].found.table.lines and not with_table and not cause.is_recognized:
                say(console, "--all shows the numbers of each stage.", indent=2)
            with_table, whole = False, whole - 1  # one table per screen
        most = 1 if named or inside.get(part) else MOST_BRIEF
        for cause in causes[:most]:
            _print_brief(console, cause, bool(inside.get(part)), bool(named))
        if left := sum(len(cause.verdicts) for cause in causes[most:]):
            say(console, f"{part}: {counted(left, 'more case')} failed in other ways; --all reports every one")
        if len(every) > len(failures):
            names = "; ".join(one.case.name for one in every if one not in failures)
            they = "They are" if len(every) > len(failures) + 1 else "It is"
            say(console, f"{part}: {names}: also failed. {they} computed from these: fix these first")
    for stages, several in follow.items():
        count = counted(sum(len(parts[part]) for part in several), "case")
        they = "They are" if len(several) > 1 else "It is"
        said = f"{', '.join(several)}: {count} also failed. {they} {built_on(stages)}"
        say(console, f"\n{said}", indent=0)


def _print_whole(console: Console, cause: Cause, sentences: Sequence[str]) -> None:
    first = cause.verdicts[0]
    console.print(f"\n[bold]{escape(full_name(first.case))}[/]  {first.status}", highlight=False)
    for sentence in sentences:
        say(console, sentence.lstrip(), indent=2 + len(sentence) - len(sentence.lstrip()))
    _print_same(console, cause)


def _print_brief(console: Console, cause: Cause, with_finding: bool, is_explained: bool) -> None:
    """Prints one line per failure; next to a checked build's finding or a recognized mistake, measurements only."""
    first = cause.verdicts[0]
    lines = cause.sentences()[:1]
    if first.found.where and (with_finding or is_explained or not cause.says):
        is_guess = is_explained or (with_finding and first.found.concluded)
        lines = ["" if is_guess else cause.says, first.found.where[0]]
    said = f"{full_name(first.case)}  {first.status}: " + " ".join(line for line in lines if line)
    say(console, said, indent=0)
    _print_same(console, cause)


def _print_same(console: Console, cause: Cause) -> None:
    first, *others = cause.verdicts
    if others:
        is_error_of_sizes = first.status == ERROR and any(other.said != first.said for other in others)
        same = "The same, with other numbers," if is_error_of_sizes else "The same"
        names = "; ".join(other.case.name for other in others[:MOST_NAMES])
        more = f"; and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
        say(console, f"{same} holds for: {names}{more}", indent=2)
