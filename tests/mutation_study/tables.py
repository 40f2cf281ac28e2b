"""The tables of the study: verdicts by task and kind of mistake, and how often each rule decides a report."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from judge import CAUGHT, EQUIVALENT, MISLED, MISSED, NAMED, NEAR, VERDICTS, Decision, mark
from mutants import KINDS, Mutant
from observing import Claim, Observation
from planted_mistakes import PlantedMutant
from rules_told import rules

from common.compiling.skeletons import solution_files
from common.testing.nan_origin import OF_ANY_SCORES

Decided = Sequence[tuple[Mutant, Decision]]


def summary(every: Decided) -> str:
    """The last line of the command. Shares are of the mutants that are not equivalent."""
    counts = Counter(decision.verdict for _, decision in every)
    total = max(1, len(every) - counts[EQUIVALENT])
    shares = " ".join(f"{name} {100 * counts[name] / total:.0f}%" for name in (NAMED, NEAR, CAUGHT))
    return f"mutants: {len(every)} {shares} misled {counts[MISLED]} missed {counts[MISSED]}"


def of_verdicts(every: Decided) -> list[str]:
    """How many of each verdict, by task, then by kind, then in all, as Markdown."""
    groups = [
        (task, [two for one, two in every if one.task == task]) for task in sorted({one.task for one, _ in every})
    ]
    groups += [(words, [two for one, two in every if one.mutation.kind == kind]) for kind, words in KINDS.items()]
    groups.append(("all", [decision for _, decision in every]))
    lines = [f"| | {' | '.join(VERDICTS)} | in all |", "|---" + "|---:" * (len(VERDICTS) + 1) + "|"]
    for what, decided in groups:
        counts = Counter(decision.verdict for decision in decided)
        if decided:
            lines.append(f"| {what} | {' | '.join(str(counts[one] or '') for one in VERDICTS)} | {len(decided)} |")
    return [*lines, "", f"`{summary(every)}`"]


def machine() -> str:
    return f"{os.cpu_count()} cores of {platform.machine()}, the simulator"


@dataclass
class Hits:
    """Of a rule, counts of reports: in which it holds, which tell of it, which it leads (rightly, near the place, or
    falsely), and in which it alone is right."""

    holds: int = 0
    told: int = 0
    leads: int = 0
    right: int = 0
    near: int = 0
    false: int = 0
    alone: int = 0


_MARKS = {NAMED: "right", NEAR: "near", MISLED: "false"}


def printed_order(claims: Sequence[Claim]) -> list[Claim]:
    """What the checked build found comes first, the lines of a loop or of an index last."""

    def rank(one: Claim) -> int:
        if one.kind == "finding" and one.name != "python_value":
            return 0
        return 2 if one.kind == "ended" and one.says.startswith("What ") else 1

    return sorted(claims, key=rank)


def rule_of(claim: Claim) -> str:
    """The rule that a claim rests on, as rules_told names it."""
    if claim.rule:
        return claim.rule
    if claim.kind == "finding":
        known = (str(one) for one in rules() if one.name == claim.name)
        return next(known, f"common/testing/python_values.py  {claim.name}")
    if claim.kind == "ended":
        return f"a call that fails or does not end  {claim.name}"
    if OF_ANY_SCORES[:80] in claim.says:
        return "common/testing/nan_origin.py  where NaN comes from"
    if "holds what belongs" in claim.says:
        return "common/diagnosis/slices.py  holds what belongs"
    return "common/diagnosis/locating.py  where, and no cause"


def mark_of(mutant: Mutant, claim: Claim, lines: list[str]) -> str:
    """NAMED, NEAR or MISLED; "" where it claims nothing."""
    for name, words in mutant.told if isinstance(mutant, PlantedMutant) else ():
        if (name and re.fullmatch(name, claim.name)) or (len(words) > 3 and re.search(words, claim.says)):
            return NAMED
    return mark(mutant, claim, lines)


def hits_of(seen: Iterable[tuple[Mutant, Observation]]) -> dict[str, Hits]:
    """Rule -> its hits; every rule that is known has a row."""
    found: dict[str, Hits] = defaultdict(Hits) | {str(one): Hits() for one in rules()}
    lines = {(one.parent.parent.name, one.name): one.read_text().split("\n") for one in solution_files()}
    for mutant, report in seen:
        claims = printed_order(report.claims)
        marks = [mark_of(mutant, one, lines[mutant.task, mutant.file]) for one in claims]
        names = [rule_of(one) for one in claims]
        for name in {*report.matched, *names}:
            found[name].holds += 1
            found[name].told += name in names
        if claims:
            lead = found[names[0]]
            lead.leads += 1
            if which := _MARKS.get(marks[0]):
                setattr(lead, which, getattr(lead, which) + 1)
        right = {name for name, one in zip(names, marks, strict=True) if one == NAMED}
        if len(right) == 1:
            found[right.pop()].alone += 1
    return found


def family_of(rule: str) -> str:
    """Which of the tables of rules it is in."""
    place = rule.split("  ")[0]
    names = (
        (r"common/inspect/flow", "what flowed wrong (`common/inspect/flow`)"),
        (r"the checked build", "the checked build"),
        (r"a call that fails", "a call that fails or does not end"),
        (r"common/diagnosis/locating", "only where it is wrong"),
        (r"common/diagnosis/mistakes/formulas", "formulas with one thing wrong"),
        (r".*(?:inferring|weights|read_scores|row_factors|slices)\.py", "conclusions from the numbers"),
        (r"common/diagnosis/mistakes", "known mistakes in `mistakes/`"),
        (r"task\d|common/testing/cases", "known mistakes in `taskN/cases/`"),
    )
    found = (name for pattern, name in names if re.match(pattern, place))
    return next(found, "conclusions from the numbers")


def by_family(found: dict[str, Hits]) -> list[str]:
    """How many rules of each family there are, ever hold, ever decide; and what they lead, as Markdown."""
    families: dict[str, list[Hits]] = defaultdict(list)
    for rule, one in found.items():
        families[family_of(rule)].append(one)
    heads = ("rules", "how many", "ever hold", "ever decide", "lead", "rightly", "near the place", "falsely")
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for name, every in sorted(families.items(), key=lambda row: -sum(one.leads for one in row[1])):
        sums = [sum(getattr(one, what) for one in every) for what in ("leads", "right", "near", "false")]
        decide = sum(bool(one.leads or one.alone) for one in every)
        counts = (len(every), sum(bool(one.holds) for one in every), decide, *sums)
        lines.append(f"| {name} | {' | '.join(str(count or '') for count in counts)} |")
    return lines


def of_hits(found: dict[str, Hits]) -> list[str]:
    """The rules that lead reports, those that lead most first, as Markdown."""
    lines = ["| rule | holds | told | leads | right | near | false | alone right |", "|---" + "|---:" * 7 + "|"]
    for name, one in sorted(found.items(), key=lambda row: (-row[1].leads, -row[1].told, row[0])):
        counts = (one.holds, one.told, one.leads, one.right, one.near, one.false, one.alone)
        if one.leads or one.alone:
            lines.append(f"| {name.replace('|', '/')} | {' | '.join(str(count or '') for count in counts)} |")
    return lines


def never_decide(found: dict[str, Hits]) -> list[str]:
    """The rules that lead no report and are never the only right one, and how often they hold."""
    idle = sorted((name, one) for name, one in found.items() if not one.leads and not one.alone)
    return [f"{name} (holds in {one.holds}, told in {one.told})" if one.holds else name for name, one in idle]
