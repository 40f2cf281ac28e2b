"""What failures are: those of one cause together, the cause that explains most of them first.

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
from common.diagnosis.diagnose import ALSO, UNKNOWN
from common.diagnosis.locating import OR_UNWRITTEN
from common.diagnosis.row_factors import BARRIER
from common.diagnosis.stages import without_table
from common.testing.case import ERROR, FAIL, NOT_RUN, PASS, SKIPPED, Verdict
from common.testing.case_choice import full_name
from common.testing.only_these import only_these
from common.testing.python_values import IN_PYTHON

MOST_BRIEF = 3  # causes within a part that are told in a line, beside the one that is told in full
MOST_NAMES = 6  # of cases that share a cause
OF_ZEROS = ("all zeros", "no key counts")  # what a small output shows of a mistake of which a larger one tells more
LARGER = 2  # outputs that contradict what is known of a smaller one
TELLING = 100  # elements of a case's inputs: in smaller ones a wrong answer is easily another one's as well


def failed(one: Verdict) -> bool:
    """Whether a case counts as a failure."""
    return one.status not in (PASS, SKIPPED)


@dataclass(frozen=True)
class Cause:
    """Failures that belong together.

    Attributes:
        verdicts: of them, the one to tell first.
        says: the sentence of the known mistake that all of them equal; "" if there is none.
    """

    verdicts: list[Verdict]
    says: str = ""

    @property
    def is_telling(self) -> bool:
        """Whether it is a known mistake, and hardly by chance."""
        return bool(self.says) and (len(self.verdicts) > 1 or self.verdicts[0].elements >= TELLING)

    @property
    def sentences(self) -> list[str]:
        """What to tell of the first."""
        first = self.verdicts[0]
        others = [one for one in first.diagnosis if one not in first.exact and not one.startswith(ALSO)]
        return [self.says, *others] if self.says else others


def causes_of(failures: Sequence[Verdict]) -> list[Cause]:
    """Failures of one part by cause: what is known before what is not, then that of most cases first.

    A wrong output may equal several known wrong answers, above all where sizes are small or equal: the one that equals
    the most outputs is taken, then the one that equals the most of the rest.
    """
    causes, rest = [], [one for one in failures if one.possible]
    while rest:
        counts = Counter(name for one in rest for name in one.possible)
        first_named = Counter(one.mistakes[0] for one in rest if one.mistakes)
        name = max(counts, key=lambda name: (counts[name], first_named[name]))
        alike = [one for one in rest if name in one.possible]
        alike.sort(key=lambda one: one.mistakes[:1] != [name])
        causes.append(Cause(alike, "" if _is_chance(name, alike, failures) else alike[0].possible[name]))
        rest = [one for one in rest if name not in one.possible]
    others: dict[tuple, list[Verdict]] = {}
    for one in failures:
        if not one.possible:
            others.setdefault(_kind(one), []).append(one)
    causes += [Cause(alike) for alike in others.values()]
    return sorted(
        causes,
        key=lambda one: (
            one.verdicts[0].status == NOT_RUN,
            not one.is_telling,
            one.verdicts[0].mistakes[:1] in ([of_zeros] for of_zeros in OF_ZEROS),
            -len(one.verdicts),
        ),
    )


def _is_chance(name: str, alike: Sequence[Verdict], failures: Sequence[Verdict]) -> bool:
    """Whether outputs equal a known wrong answer by chance: fewer than those in which it would show and that do not; or
    one alone, while larger ones do not, or are made of numbers and equal none."""
    failed = [one for one in failures if one.status == FAIL]
    refuting = [one for one in failed if name in one.refuted]
    if len(refuting) > len(alike):
        return True
    size = alike[0].elements
    larger = [one for one in refuting if one.elements >= size]
    larger += [
        one
        for one in failed
        if not one.possible and one not in refuting and one.elements > size and math.isfinite(one.max_error or math.nan)
    ]
    return len(alike) == 1 and len(larger) >= LARGER


def _kind(one: Verdict) -> tuple:
    if one.mistakes:
        return one.status, one.mistakes[0]
    if one.ended:
        return one.status, "ended"
    if one.status == ERROR and one.file_line:  # the sizes in the message are the case's
        return one.status, one.file_line, *(re.sub(r"\d+", "0", line) for line in one.diagnosis)
    return (one.status, UNKNOWN) if one.status == FAIL and one.where else (one.status, *one.diagnosis)


def of_first_step(failures: Sequence[Verdict]) -> list[Verdict]:
    """Without those whose output is made of what others of them look at, see Case.step."""
    first = min((one.case.step for one in failures), default=0)
    return [one for one in failures if one.case.step == first]


def failed_stages(part: str, parts: Collection[str], built_of: Mapping[str, Sequence[str]]) -> list[str]:
    """Those of a part's stages that are among the failed parts."""
    return [stage for stage in built_of.get(part, ()) if stage in parts]


def print_failures(
    console: Console,
    verdicts: Sequence[Verdict],
    inside: Mapping[str, Collection] | None = None,
    everything: bool = False,
    built_of: Mapping[str, Sequence[str]] | None = None,
    with_table: bool = True,
) -> None:
    """Of each part the cause that most cases share in full, of the others a line; beside a finding a line of each.

    Args:
        console: where to print.
        verdicts: all of them.
        inside: part -> what the checked build found in it, which is told already: of these parts what is certain. Where
            it looked and found nothing, nothing is said of memory that nobody wrote, and no barrier asked for.
        everything: tell every failure in full.
        built_of: part -> the parts that test its stages one by one: where one of these fails, the part follows from it.
        with_table: show the numbers of each stage, of the first part; not where it is told what a number is made of,
            which says where they go wrong.
    """
    console = wide(console)
    inside = inside or {}
    parts: dict[str, list[Verdict]] = {}
    for one in verdicts:
        if failed(one):
            parts.setdefault(one.case.part, []).append(one)
    follow: dict[tuple[str, ...], list[str]] = {}
    for part, every in parts.items():
        failures = of_first_step(every)
        if everything:
            for one in every:
                _print_whole(console, Cause([one]))
            continue
        if stages := failed_stages(part, parts, built_of or {}):
            follow.setdefault(tuple(stages), []).append(part)
            continue
        causes = causes_of(failures)
        if told := only_these(failures, verdicts):
            say(console, f"\n{part}: {told[1]}")
        with_finding = bool(inside.get(part))
        if not any(inside.values()):
            _print_whole(console, causes.pop(0), part in inside, with_table)
            with_table = False  # a screen holds no more than one
        for cause in causes[:MOST_BRIEF]:
            _print_brief(console, cause, with_finding)
        if left := sum(len(cause.verdicts) for cause in causes[MOST_BRIEF:]):
            say(console, f"{part}: {counted(left, 'more case')} failed in other ways; --all tells of every one")
        if len(every) > len(failures):
            names = "; ".join(one.case.name for one in every if one not in failures)
            say(
                console,
                f"{part}: {names}: failed as well. They are made of what these cases look at: correct that first",
            )
    for stages, several in follow.items():
        count = counted(sum(len(parts[part]) for part in several), "case")
        built = " and ".join(", ".join(stages).rsplit(", ", 1))
        they = "They are" if len(several) > 1 else "It is"
        said = f"{', '.join(several)}: {count} failed as well. {they} built of {built}: correct that first"
        say(console, f"\n{said}", indent=0)


def _print_whole(console: Console, cause: Cause, is_clean: bool = False, with_table: bool = True) -> None:
    first = cause.verdicts[0]
    sentences = cause.sentences if with_table else without_table(cause.sentences)
    console.print(f"\n[bold]{escape(full_name(first.case))}[/]  {first.status}", highlight=False)
    for sentence in sentences:
        for answered in (OR_UNWRITTEN, f" {BARRIER}") if is_clean else ():
            sentence = sentence.replace(answered, "")
        say(console, sentence, indent=2)
    if len(sentences) < len(cause.sentences):
        say(console, "--all shows the numbers of each stage.", indent=2)
    _print_same(console, cause)


def _print_brief(console: Console, cause: Cause, with_finding: bool) -> None:
    """The first line of a failure; beside a finding of the checked build what is measured or equal, and no guess."""
    first = cause.verdicts[0]
    lines = cause.sentences[:1]
    is_long = lines == [UNKNOWN] or lines[0].startswith(IN_PYTHON)
    if first.where and (with_finding or is_long):
        lines = ["" if with_finding and first.concluded else cause.says, first.where]
    said = f"{full_name(first.case)}  {first.status}: " + " ".join(line for line in lines if line)
    say(console, said, indent=0)
    _print_same(console, cause)


def _print_same(console: Console, cause: Cause) -> None:
    first, *others = cause.verdicts
    if others:
        is_error_of_sizes = first.status == ERROR and any(other.diagnosis != first.diagnosis for other in others)
        same = "The same, with other numbers," if is_error_of_sizes else "The same"
        names = "; ".join(other.case.name for other in others[:MOST_NAMES])
        more = f"; and {len(others) - MOST_NAMES} more" if len(others) > MOST_NAMES else ""
        say(console, f"{same} holds for: {names}{more}", indent=2)
