"""What the test reports for a mutant: observed(planted, mutant) runs cases as `python -m taskN.test` does.

The small cases run first. If all pass, the rest run up to the first failure: a mutant counts as missed only if every
case of the task passes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

from building import TaskMutants
from mutants import Mutant
from rich.console import Console
from rules_told import rule_of

from common.cli import failing_cases
from common.cli.test import TaskTest
from common.cli.tried_edits import undecided, with_edits
from common.inspect.findings.model import EDIT, Group
from common.inspect.findings.report import OR_AN_INDEX, made_in, may_be_the_index
from common.inspect.findings.words import explained
from common.inspect.source_lines import Place
from common.testing.case import ERROR, FAIL, Verdict
from common.testing.failures import Cause, causes_of, failed, failed_stages, of_first_step
from common.testing.judging import judge
from common.testing.probing import OF_ANY_SCORES
from common.testing.run import run_cases

SMALL = 80_000  # input elements of a case that runs quickly
SEED = 0  # of the inputs, as in the test
Lines = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Claim:
    """One claim of the report.

    Attributes:
        kind: "cause": the output equals a known wrong answer; "sign": a known symptom, such as unwritten outputs;
            "finding": from the checked build; "ended": a crash, an error or an infinite loop; "where": only the place.
        name: of the mistake, or the kind of the finding.
        says: its sentence, or the report's text about it.
        lines: the (file, line) pairs that it names.
        rule: the rule behind it.
    """

    kind: str
    name: str
    says: str
    lines: Lines = ()
    rule: str = ""


@dataclass(frozen=True)
class Observation:
    """The outcome of a mutant.

    Attributes:
        failed: the parts with a failing case.
        claims: the report's claims, in order.
        matched: the rules of every known answer that an output equals, reported or not.
        tried: if single edits were tried, the lines of those that help, and the CPU seconds; else None.
    """

    failed: list[str]
    claims: list[Claim]
    matched: set[str] = field(default_factory=set)
    tried: tuple[Lines, float] | None = None


def observed(planted: TaskMutants, mutant: Mutant | None, edits: bool = False) -> Observation:
    """Runs the task's cases on the mutant and records the report's claims; single edits are tried only on request."""
    planted.choose(mutant)
    quiet = Console(file=io.StringIO(), width=120)
    verdicts = _verdicts(planted, quiet)
    test = planted.test
    parts = list(dict.fromkeys(one.case.part for one in verdicts if failed(one)))
    if parts:
        inside = failing_cases.at_failures(quiet, verdicts, planted.checked, SEED, test.built_of)
    else:
        in_kernels = [one for one in verdicts if one.ok and one.case.part not in test.in_python]
        inside = failing_cases.at_passes(quiet, in_kernels, planted.checked, SEED)
        parts = [part for part, groups in inside.items() if groups]
    claims = list(_claims(verdicts, inside, test)) if parts else []
    matched = {str(rule_of(*pair, test.task)) for one in verdicts for pair in one.found.possible.items()}
    part = edits and any(map(failed, verdicts)) and undecided(verdicts, inside, test.built_of)
    is_undecided = part and not failing_cases.recognized([one for one in verdicts if one.case.part == part])
    return Observation(parts, claims, matched, _tried(planted, verdicts, inside) if is_undecided else None)


def _tried(planted: TaskMutants, verdicts: Sequence[Verdict], inside: Mapping[str, list[Group]]) -> tuple[Lines, float]:
    before = _processor_seconds()
    groups = with_edits(Console(quiet=True), verdicts, inside, planted.operators, SEED, planted.test.built_of)
    lines = [_lines_of(one.first.lines) for every in groups.values() for one in every if one.kind == EDIT]
    return next(iter(lines), ()), _processor_seconds() - before


def _processor_seconds() -> float:
    return sum(sum(getrusage(one)[:2]) for one in (RUSAGE_SELF, RUSAGE_CHILDREN))


def _verdicts(planted: TaskMutants, console: Console) -> list[Verdict]:
    small = [case for case in planted.cases if planted.sizes[case] <= SMALL]
    verdicts = run_cases(small, planted.plain, console, lambda case: judge(case, planted.plain, SEED))
    for case in sorted(set(planted.cases) - {*small}, key=planted.sizes.get):
        if any(map(failed, verdicts)):
            break
        verdicts.append(judge(case, planted.plain, SEED))
    return verdicts


def _claims(verdicts: Sequence[Verdict], inside: Mapping[str, Sequence[Group]], test: TaskTest) -> Iterator[Claim]:
    """In the order of failing_cases.print_diagnosis."""
    parts: dict[str, list[Verdict]] = {}
    for one in filter(failed, verdicts):
        parts.setdefault(one.case.part, []).append(one)
    told = failing_cases.told_of(verdicts, inside, test.built_of)
    yield from _findings(one for every in told.values() for one in every)
    for part, every in parts.items():
        if failed_stages(part, parts, test.built_of):
            continue
        failures = of_first_step(every)
        causes = causes_of(failures)
        for cause in causes[:4]:
            yield from _of_cause(cause, test.task, of_finding=bool(told.get(part)))
        first = causes[0].verdicts[0]
        if first.found.python and first.python_lines and not any(told.values()):
            rule = "common/testing/python_values.py  python_value"
            yield Claim("finding", "python_value", first.found.python[0], tuple(first.python_lines), rule)
    hidden = (one for part, every in inside.items() for one in every if one not in told[part])
    yield from _findings(one for one in hidden if one.kind in failing_cases.LEADS)
    for name, says, places in (
        ("endless", "What decides how often the loops run", failing_cases.loops_of(verdicts)),
        ("outside", "What that index is made of", failing_cases.index_of(verdicts)),
    ):
        if places:
            yield _ended(name, says, _lines_of(places))


def _findings(groups: Iterable[Group]) -> Iterator[Claim]:
    for number, group in enumerate(sorted(groups, key=failing_cases.lead_of)[: failing_cases.MOST_FINDINGS]):
        accessed = [access.place for finding in group.findings for access in finding.accesses if access.place]
        places = [one for place in accessed for one in (place, *place.callers)]
        if group.first.launch and not places:
            places = [group.first.launch]
        if number == 0:
            places += [place for _, made in made_in(group.first) for place in made]
        says = explained(group.first) + f" {OR_AN_INDEX}" * may_be_the_index(group.first)
        yield Claim("finding", group.kind, says, _lines_of(places), str(rule_of(group.kind)))


def _lines_of(places: Iterable[Place]) -> Lines:
    return tuple(dict.fromkeys((Path(one.file).name, one.line) for one in places))


def _ended(name: str, says: str, lines: Lines) -> Claim:
    return Claim("ended", name, says, lines, f"a call that fails or does not end  {name}")


def _of_cause(cause: Cause, task: str, of_finding: bool) -> Iterator[Claim]:
    """What the report says of a cause; where a finding leads, neither conclusions nor places."""
    first = cause.verdicts[0]
    says, words = cause.says, " ".join(first.diagnosis)
    if says and not (of_finding and first.found.concluded):
        name = next((name for name, one in first.found.possible.items() if one == says), "")
        yield Claim("cause", name, says, rule=str(rule_of(name, says, task)))
    elif first.status == ERROR or first.ended:
        lines = tuple((match[1], int(match[2])) for match in re.finditer(r"([\w.]+\.(?:cuh?|py)):(\d+)", words))
        more = re.findall(r"\bline (\d+) in\b|^\s{2,}(\d+)  \S", "\n".join(first.diagnosis), re.MULTILINE)
        lines += tuple((lines[0][0], int(one or other)) for one, other in more if lines)
        yield _ended("endless" if first.is_endless else "ended", words[:600], lines)
    elif not of_finding and first.status == FAIL and first.mistakes and not first.found.possible:
        yield Claim("sign", first.mistakes[0], words[:900], rule=str(rule_of(first.mistakes[0], task=task)))
    elif not of_finding:
        rules = {
            OF_ANY_SCORES[:80]: "common/testing/probing.py  where NaN comes from",
            "holds what belongs": "common/diagnosis/slices.py  holds what belongs",
            "": "common/diagnosis/locating.py  where, and no cause",
        }
        yield Claim("where", "", words[:600], rule=next(rule for text, rule in rules.items() if text in words[:600]))
