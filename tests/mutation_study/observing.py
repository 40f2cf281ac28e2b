"""What the test says of a mutant: observed(planted, mutant) runs cases as `python -m taskN.test` does.

Two cases of each part run first, and some more of the parts in which one fails. Where all pass the rest runs too, up
to the first that fails: a mutant counts as missed only if every case of the task passes.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from building import TaskMutants
from mutants import Mutant
from rich.console import Console
from rules_told import rule_of

from common.cli import failing_cases
from common.console.files import write_whole
from common.console.paths import ROOT, build_root
from common.inspect.findings.report import OR_AN_INDEX, made_in, may_be_the_index
from common.inspect.findings.words import explained
from common.testing.case import ERROR, FAIL, PASS, SKIPPED, Case, Verdict
from common.testing.failures import causes_of, failed_stages, of_first_step
from common.testing.judging import judge
from common.testing.only_these import only_these
from common.testing.run import run_cases

USUAL = 4_000  # elements of a case's inputs: enough for several tiles, and run in a moment
SMALL = 30_000
SEED = 0  # of the inputs, as in the test
MORE = 4  # cases of a part in which one failed


@dataclass(frozen=True)
class Claim:
    """One thing that the report says.

    Attributes:
        kind: "cause": the output equals a known wrong answer; "sign": a known sign, such as unwritten outputs;
            "finding": of the checked build; "ended": a crash, an error or an endless loop; "where": only the place.
        name: of the mistake, or the kind of the finding.
        says: its sentence, or the text of the report about it.
        part: the part of the test.
        lines: (file, line) that it names.
        cases: how many cases it holds for.
    """

    kind: str
    name: str
    says: str
    part: str
    lines: tuple[tuple[str, int], ...] = ()
    cases: int = 1
    rule: str = ""


@dataclass
class Observation:
    """What came of a mutant.

    Attributes:
        failed: parts of which a case failed.
        passed: parts of which all cases passed that ran.
        claims: what the report says, in its order.
        report: its text, after the table.
        matched: the rules of every known answer that an output equals, told or not.
    """

    failed: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    report: str = ""
    matched: list[str] = field(default_factory=list)

    @classmethod
    def of_json(cls, one: dict) -> Observation:
        claims = [
            Claim(**{**each, "lines": tuple((file, line) for file, line in each["lines"])}) for each in one["claims"]
        ]
        return cls(**{**one, "claims": claims})


def observed(planted: TaskMutants, mutant: Mutant | None) -> Observation:
    """Runs the task's cases on the mutant, and keeps what the report says."""
    planted.choose(mutant)
    quiet = Console(file=io.StringIO(), width=120)
    cases, sizes = planted.cases, planted.sizes
    small = [case for case in cases if sizes[case] <= SMALL]
    verdicts: list[Verdict] = []
    for part in dict.fromkeys(case.part for case in cases):
        of_part = [case for case in cases if case.part == part]
        of_part.sort(key=lambda case: (not case.required, abs(sizes[case] - USUAL)))
        verdicts += _run(planted, of_part[:2], quiet)
        if any(not one.ok for one in verdicts[-2:] if one.case.part == part):
            verdicts += _run(planted, [case for case in of_part[2:] if case in small][:MORE], quiet)
    stages = planted.test.stages_of(one.case.part for one in verdicts if not one.ok)
    verdicts += _run(planted, [case for case in _left(cases, verdicts) if case.part in stages], quiet)
    failed = {one.case.part for one in verdicts if not one.ok}
    built = {stage for part in failed for stage in planted.test.built_of.get(part, ())}
    if not built & failed:  # the test would run them all
        verdicts += _run(planted, [case for case in _left(small, verdicts) if case.part in built], quiet)
    if all(one.status in (PASS, SKIPPED) for one in verdicts):
        for case in sorted(_left(cases, verdicts), key=sizes.get):
            verdicts += _run(planted, [case], quiet)
            if not verdicts[-1].ok:  # what passes beside it tells as well
                same = [one for one in _left(small, verdicts) if one.part == case.part]
                verdicts += _run(planted, same, quiet)
                break
    inside = {}
    if all(one.status in (PASS, SKIPPED) for one in verdicts):
        in_kernels = [one for one in verdicts if one.ok and one.case.part not in planted.test.in_python]
        inside = failing_cases.at_passes(quiet, in_kernels, planted.checked, SEED)
        inside = {part: groups for part, groups in inside.items() if groups}
    found = Observation(
        failed=list(dict.fromkeys(one.case.part for one in verdicts if one.status not in (PASS, SKIPPED)))
    )
    found.failed = found.failed or list(inside)
    found.passed = [part for part in dict.fromkeys(one.case.part for one in verdicts) if part not in found.failed]
    if found.failed:
        inside = inside or failing_cases.at_failures(quiet, verdicts, planted.checked, SEED, planted.test.built_of)
        _keep_report(found, verdicts, inside, planted.test.built_of)
    return found


def _left(cases: Sequence[Case], verdicts: Sequence[Verdict]) -> list[Case]:
    """Those that have not run."""
    ran = {one.case for one in verdicts}
    return [case for case in cases if case not in ran]


def _run(planted: TaskMutants, cases: Sequence[Case], console: Console) -> list[Verdict]:
    return run_cases(cases, planted.plain, console, lambda case: judge(case, planted.plain, SEED))


def _keep_report(found: Observation, verdicts: list[Verdict], inside: dict, built_of: dict) -> None:
    page = io.StringIO()
    console = Console(file=page, width=120)
    failing_cases.print_diagnosis(console, verdicts, inside, built_of=built_of)
    leading = failing_cases.told_of(verdicts, inside, built_of)
    found.report = page.getvalue()
    if loops := failing_cases.loops_of(verdicts):
        part = next(one.case.part for one in verdicts if one.is_endless)
        lines = tuple((Path(one.file).name, one.line) for one in loops)
        found.claims.append(Claim("ended", "endless", "What decides how often the loops run", part, lines))
    if lines := failing_cases.index_of(verdicts):
        part = next(one.case.part for one in verdicts if any(failing_cases.OUTSIDE in line for line in one.diagnosis))
        lines = tuple((Path(one.file).name, one.line) for one in lines)
        found.claims.append(Claim("ended", "outside", "What that index is made of", part, lines))
    groups = [(part, group) for part, every in inside.items() for group in every]
    groups.sort(key=lambda one: failing_cases.lead_of(one[1]))
    for number, (part, group) in enumerate(groups[: failing_cases.MOST_FINDINGS]):
        accesses = [access for finding in group.findings for access in finding.accesses if access.place]
        places = [one for access in accesses for one in (access.place, *access.place.callers)]
        lines = dict.fromkeys((Path(one.file).name, one.line) for one in places)
        if group.first.launch:
            lines |= {(Path(group.first.launch.file).name, group.first.launch.line): None} if not accesses else {}
        made = made_in(group.first) if number == 0 or group.kind == failing_cases.OF_NUMBERS else []
        lines |= {(Path(one.file).name, one.line): None for _, places in made for one, _ in places}
        says = explained(group.first)
        if may_be_the_index(group.first):
            says += f" {OR_AN_INDEX}"
        found.claims.append(Claim("finding", group.kind, says, part, tuple(lines), len(group.cases)))
    parts: dict[str, list[Verdict]] = {}
    for one in verdicts:
        if one.status not in (PASS, SKIPPED):
            parts.setdefault(one.case.part, []).append(one)
    for part, every in parts.items():
        if failed_stages(part, parts, built_of):
            continue
        failures = of_first_step(every)
        causes = causes_of(failures)
        if told := only_these(failures, verdicts):
            found.claims.append(
                Claim("cause", *told, part, cases=len(failures), rule=f"common/testing/only_these.py  {told[0]}")
            )
        for cause in causes[:4]:
            of_little = not cause.says or cause.verdicts[0].found.concluded
            found.claims.append(_claim_of(part, cause, hidden=bool(leading.get(part)) and of_little))
        first = causes[0].verdicts[0]
        if first.python_lines and not any(leading.values()):
            says = first.found.python[0]
            found.claims.append(Claim("finding", "python_value", says, part, tuple(first.python_lines)))
    found.claims = [one for one in found.claims if one.kind != "hidden"]
    told = [pair for one in verdicts for pair in one.found.possible.items()]
    found.matched = sorted({str(rule_of(*pair)) for pair in told})


def _claim_of(part: str, cause, hidden: bool) -> Claim:
    first = cause.verdicts[0]
    if cause.says and not hidden:
        name = next((name for name, says in first.found.possible.items() if says == cause.says), "")
        return Claim("cause", name, cause.says, part, (), len(cause.verdicts), str(rule_of(name, cause.says)))
    if first.status == ERROR or first.ended:
        words = " ".join(first.diagnosis)
        lines = tuple((match[1], int(match[2])) for match in re.finditer(r"([\w.]+\.(?:cuh?|py)):(\d+)", words))
        lines += tuple((lines[0][0], int(match[1])) for match in re.finditer(r"\bline (\d+) in\b", words) if lines)
        made = [re.match(r"\s{2,}(\d+)  \S", line) for line in first.diagnosis]
        lines += tuple((lines[0][0], int(match[1])) for match in made if match and lines)
        kind = "endless" if first.is_endless else "ended"
        return Claim("ended", kind, words[:600], part, lines, len(cause.verdicts))
    if first.status == FAIL and first.mistakes and not first.found.possible and not hidden:
        rule, says = str(rule_of(first.mistakes[0])), " ".join(first.diagnosis)[:900]
        return Claim("sign", first.mistakes[0], says, part, (), len(cause.verdicts), rule)
    return Claim(
        "where" if not hidden else "hidden", "", " ".join(first.diagnosis)[:600], part, cases=len(cause.verdicts)
    )


class Remembered:
    """What was seen of a task's mutants, kept in build/ by the content of all that decides what a report says."""

    _SOURCES = ("testing", "diagnosis", "inspect", "reference", "simulator", "cuda", "cli", "compiling")

    def __init__(self, task: str) -> None:
        self._file = build_root() / "mutants" / task / "observations.json"
        self._known: dict[str, dict] = json.loads(self._file.read_text()) if self._file.exists() else {}
        folders = [ROOT / "common" / name for name in self._SOURCES] + [ROOT / task]
        files = [file for folder in folders for file in folder.rglob("*")] + [*Path(__file__).parent.glob("*ing.py")]
        whole = hashlib.sha256()
        for file in sorted(
            one for one in files if one.name == "words.json" or one.suffix in (".py", ".cu", ".cuh", ".h", ".cpp")
        ):
            whole.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
        self._digest = whole.hexdigest()

    def get(self, mutant: Mutant) -> Observation | None:
        """What was seen of it, unless something has changed since."""
        known = self._known.get(mutant.key)
        return Observation.of_json(known["seen"]) if known and known["digest"] == self._digest else None

    def keep(self, mutant: Mutant, seen: Observation) -> None:
        """Keeps it, in the file as well."""
        self._known[mutant.key] = {"digest": self._digest, "seen": asdict(seen)}
        write_whole(self._file, json.dumps(self._known, indent=1))
