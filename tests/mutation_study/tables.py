"""The study's tables: verdicts by task, and how often each rule decides a report."""

from __future__ import annotations

import os
import platform
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from judge import CAUGHT, EQUIVALENT, MISLED, MISSED, NAMED, NEAR, VERDICTS, Decision, mark
from mutants import Mutant
from observing import Observation
from rules_told import rules

from common.compiling.skeletons import solution_files

Decided = Sequence[tuple[Mutant, Decision]]
Hits = dict[str, Counter]  # rule -> column of a table -> reports
COLUMNS = ("holds", "told", "leads", NAMED, NEAR, MISLED, "alone right")
# prefix of a rule -> its family
_FAMILIES = {
    "the checked build": "the checked build",
    "a call that fails": "a call that fails or doesn't return",
    "common/diagnosis/locating": "only where it is wrong",
    "common/diagnosis/mistakes/formulas": "formulas with one thing wrong",
    "common/diagnosis/mistakes": "known mistakes in `mistakes/`",
    "task7/cases/mistakes.py  wrong ": "conclusions from the numbers",
    "task": "known mistakes in `taskN/cases/`",
    "common/testing/cases": "known mistakes in `taskN/cases/`",
    "": "conclusions from the numbers",
}


def machine() -> str:
    return f"{os.cpu_count()} cores of {platform.machine()}, the simulator"


def summary(every: Decided) -> str:
    """The command's last line. Percentages are of the non-equivalent mutants."""
    counts = Counter(decision.verdict for _, decision in every)
    total = max(1, len(every) - counts[EQUIVALENT])
    shares = " ".join(f"{name} {100 * counts[name] / total:.0f}%" for name in (NAMED, NEAR, CAUGHT))
    return f"mutants: {len(every)} {shares} misled {counts[MISLED]} missed {counts[MISSED]}"


def of_verdicts(every: Decided) -> list[str]:
    """The number of each verdict, by task and in total, as Markdown."""
    groups = {task: Counter() for task in sorted({one.task for one, _ in every})} | {"all": Counter()}
    for one, decision in every:
        groups[one.task][decision.verdict] += 1
        groups["all"][decision.verdict] += 1
    rows = [(name, *(counts[one] for one in VERDICTS), counts.total()) for name, counts in groups.items()]
    return [*_table(("", *VERDICTS, "in all"), rows), "", f"`{summary(every)}`"]


def of_edits(seen: Iterable[tuple[Mutant, Observation]]) -> list[str]:
    """By task: where single edits were tried, how often one was found, in the mutant's line or elsewhere."""
    texts = {(one.parent.parent.name, one.name): one.read_text() for one in solution_files()}
    counts: dict[str, Counter] = defaultdict(Counter)
    for mutant, report in seen:
        true = set()
        for file, start, end, _ in mutant.edits:
            text = texts[mutant.task, file]
            first, last = (1 + text.count("\n", 0, at) for at in (start, end))
            true |= {(file, line) for line in range(first, last + 1)}
        found = "not tried"
        if report.tried is not None:
            lines, seconds = report.tried
            found = "its line first" if {*lines[:1]} & true else "its line second" if {*lines} & true else "others"
            found = found if lines else "none"
        for task in (mutant.task, "all"):
            counts[task].update(["mistakes", found])
            counts[task]["seconds"] += seconds if report.tried is not None else 0
    heads = ("mistakes", "not tried", "its line first", "its line second", "others", "none")
    rows = []
    for task, its in sorted(counts.items(), key=lambda one: (one[0] == "all", one[0])):
        tried = its["mistakes"] - its["not tried"]
        rows.append((task, *(its[one] for one in heads), f"{its['seconds'] / tried:.1f}" if tried else ""))
    return _table(("", *heads, "CPU s each"), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence]) -> list[str]:
    """As Markdown; empty for 0."""
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    return lines + [f"| {' | '.join(str(one or '').replace('|', '/') for one in row)} |" for row in rows]


def hits_of(seen: Iterable[tuple[Mutant, Observation]]) -> Hits:
    """For each known rule: the reports in which it holds, those that mention it, those it leads (and their verdict),
    and those in which only it is right."""
    found: Hits = defaultdict(Counter) | {str(one): Counter() for one in rules()}
    lines = {(one.parent.parent.name, one.name): one.read_text().split("\n") for one in solution_files()}
    for mutant, report in seen:
        marks = [(one.rule, mark(mutant, one, lines[mutant.task, mutant.file])) for one in report.claims]
        told = {rule for rule, _ in marks}
        for rule in told | report.matched:
            found[rule].update(["holds", "told"] if rule in told else ["holds"])
        for rule, its in marks[:1]:
            found[rule].update(["leads", its])
        if len(right := {rule for rule, its in marks if its == NAMED}) == 1:
            found[right.pop()]["alone right"] += 1
    return found


def by_family(found: Hits) -> list[str]:
    """How many rules of each family exist, ever hold, ever decide; and what they lead, as Markdown."""
    families: dict[str, list[Counter]] = defaultdict(list)
    for rule, one in found.items():
        families[next(name for begin, name in _FAMILIES.items() if rule.startswith(begin))].append(one)
    heads = ("rules", "how many", "ever hold", "ever decide", "lead", "correctly", "near the mistake", "wrongly")
    rows = []
    for name, every in families.items():
        sums = sum(every, Counter())
        decide = sum(bool(one["leads"] or one["alone right"]) for one in every)
        counts = (len(every), sum(bool(one["holds"]) for one in every), decide)
        rows.append((name, *counts, *(sums[what] for what in ("leads", NAMED, NEAR, MISLED))))
    return _table(heads, sorted(rows, key=lambda row: -row[4]))


def of_hits(found: Hits) -> list[str]:
    """The rules that lead reports, most frequent first, as Markdown."""
    rows = [(rule, *(one[what] for what in COLUMNS)) for rule, one in found.items()]
    rows.sort(key=lambda row: (-row[3], -row[2], row[0]))
    return _table(("rule", *COLUMNS), [row for row in rows if row[3] or row[7]])


def never_decide(found: Hits) -> list[str]:
    """The rules that lead no report and are never the only right one, and how often they hold."""
    idle = sorted((rule, one) for rule, one in found.items() if not one["leads"] and not one["alone right"])
    return [f"{rule} (holds in {one['holds']}, told in {one['told']})" if one["holds"] else rule for rule, one in idle]
