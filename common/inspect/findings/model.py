"""Findings of a checker: one object per mistake and pair of source lines, and groups of similar ones.

    findings = read_findings(report, SourceLines(library))          the JSON of the simulator's checked build
    groups = grouped([(case name, findings), ...])                  similar findings of all cases grouped

compute_sanitizer.py makes the same objects from compute-sanitizer's output; words.py describes them in
words, report.py prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.inspect.source_lines import Place, SourceLines, instance_of, place_of

# Kinds that do not change a result by themselves: writes of equal values, a plain read verified by an atomicCAS, a
# volatile flag between fences. A vote that exited lanes miss may be harmless too, but may explain a wrong result.
VOTE = "absent_vote"
HARMLESS = ("same_value", "stale_read", "volatile_flag", VOTE)
EDIT = "single_edit"  # an edit of the student's code with which failing cases pass
ENDS_THE_KERNEL = ("out_of_bounds", "misaligned", "use_after_free")  # the case then also reports an error


@dataclass(frozen=True)
class Access:
    """One side of a finding; `thread` is None for host code or if a tool does not report it."""

    action: str
    bytes: int
    place: Place | None
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None

    @property
    def line(self) -> str:
        """ "line 71", or "an unknown line"."""
        return f"line {self.place.line}" if self.place else "an unknown line"


@dataclass(frozen=True)
class Finding:
    """One mistake at one pair of source lines.

    Attributes:
        kind: "race", "out_of_bounds", ...: a key of TITLES in words.py.
        kernel: its name with template arguments; "" for host code.
        launch: the launch site; for a leak or a double cudaFree, its own location.
        space: "shared", "global" or "host".
        variable: the array's or tensor's name; "" if unknown.
        shape, element_bytes: the variable's; shape () if unknown.
        byte_offset: start of the access within the variable; None if unknown.
        count: number of occurrences.
        accesses: the reported access, then the earlier one that it conflicts with.
        detail: additional text from the tool.
        lines: of an EDIT: its line, and those of other edits that help.
    """

    kind: str
    kernel: str = ""
    launch: Place | None = None
    space: str = "global"
    variable: str = ""
    shape: tuple[int, ...] = ()
    element_bytes: int = 1
    byte_offset: int | None = None
    count: int = 1
    accesses: tuple[Access, ...] = ()
    detail: str = ""
    lines: tuple[Place, ...] = ()

    @property
    def kernel_name(self) -> str:
        """The kernel's name without template arguments."""
        return self.kernel.split("<")[0]

    @property
    def in_order(self) -> tuple[Access, ...]:
        """The accesses in chronological order."""
        return tuple(reversed(self.accesses))


def read_findings(report: dict, lines: SourceLines) -> list[Finding]:
    """The findings of simulator_check_report(), see common/simulator/README.md, with their source lines."""
    every_pc = [access["pc"] for one in report["findings"] for access in one["accesses"]]
    places = lines.places(every_pc)

    def access(one: dict) -> Access:
        place = place_of(one["at"]) if "at" in one else places[one["pc"]]
        block, thread = (tuple(one[of]) if one[of] else None for of in ("block", "thread"))
        return Access(one["action"], one["bytes"], place, block, thread)

    return [
        Finding(
            one["kind"],
            instance_of(one["kernel"], (places[access["pc"]] for access in one["accesses"])),
            place_of(one["launch"]),
            one["space"],
            one["variable"],
            tuple(one["shape"]),
            one["element_bytes"],
            one["byte_offset"],
            one["count"],
            tuple(access(each) for each in one["accesses"]),
            one["detail"],
        )
        for one in report["findings"]
    ]


# ---- grouping similar findings


@dataclass
class Group:
    """Findings with the same cause: same kind, same kernel (ignoring template arguments), shared lines.

    Attributes:
        findings: one per pair of source lines and variable; the first is reported in full.
        cases: names of the cases that showed it.
        count: total number of occurrences.
        unwritten: a race's reader also ran before the first write: another symptom of the same mistake.
    """

    findings: list[Finding]
    cases: list[str]
    count: int
    unwritten: bool = False

    @property
    def first(self) -> Finding:
        """The finding to report: a pair within one function says more than one across functions.

        If threads read and write an element in one line, and several write it there, the two writes are reported: a
        barrier would order loop iterations, but the element has too many owners.
        """
        nearest = min(self.findings, key=_distance)
        places = {access.place for access in nearest.accesses}
        if len(places) > 1:
            return nearest
        alike = [one for one in self.findings if {access.place for access in one.accesses} == places]
        return next((one for one in alike if _only_writes(one) and one.variable == nearest.variable), nearest)

    @property
    def kind(self) -> str:
        return self.findings[0].kind

    @property
    def is_harmless(self) -> bool:
        """Whether it is worth knowing but does not change a result."""
        return self.kind in HARMLESS

    @property
    def within_a_warp(self) -> bool:
        """Whether both threads of every example are in one warp, as far as can be told without the block's shape."""
        return all(map(_same_warp, self.findings))

    @property
    def only_writes(self) -> bool:
        """Whether neither side reads."""
        return all(map(_only_writes, self.findings))


def _only_writes(finding: Finding) -> bool:
    return all(access.action == "write" for access in finding.accesses)


def _distance(finding: Finding) -> int:
    """0 if both sides are in the same function, called from the same place; otherwise 1."""
    sides = {(access.place.function, access.place.callers) for access in finding.accesses if access.place}
    return len(sides) > 1


def _same_warp(finding: Finding) -> bool:
    threads = [access.thread for access in finding.accesses]
    if len(threads) < 2 or not all(threads) or len({access.block for access in finding.accesses}) > 1:
        return False
    return all(thread[1:] == (0, 0) for thread in threads) and len({thread[0] // 32 for thread in threads}) == 1


def _sides(finding: Finding) -> tuple:
    return tuple((access.action, access.place) for access in finding.accesses) or (finding.launch,)


def _marks(finding: Finding) -> set:
    """What findings with the same cause share: the variable, or a line of the kernel."""
    if finding.space == "host":
        return {finding.launch}
    outermost = {(access.place.callers or (access.place,))[-1] for access in finding.accesses if access.place}
    lines = {(place.file, place.line) for place in outermost}
    return lines | ({finding.variable} if finding.variable else set())


def grouped(found: Iterable[tuple[str, Sequence[Finding]]]) -> list[Group]:
    """Groups similar findings of all cases, in order of first occurrence.

    A read of uninitialized memory at a line that also races is merged into the race: without the barrier, some threads
    read too early, and the first ones before anything was written. If some threads never reach a barrier of the kernel,
    it orders nothing, and races there are its consequence: only the barrier is reported.
    """
    groups: list[Group] = []
    for case, findings in found:
        for one in findings:
            groups = _with(groups, one, case)
    avoided = {_function(group) for group in groups if group.kind == "barrier"}
    groups = [group for group in groups if group.kind != "race" or _function(group) not in avoided]
    races = [group for group in groups if group.kind == "race"]
    return [group for group in groups if not _belongs_to_a_race(group, races)]


def without_strays(found: Mapping[str, list[Group]]) -> dict[str, list[Group]]:
    """By part, without races at lines that go out of bounds, too: what such a line meets there belongs to others."""
    every = [one for groups in found.values() for one in groups]
    outside = _lines_of(finding for one in every if one.kind == "out_of_bounds" for finding in one.findings)
    for one in every:
        one.findings = [each for each in one.findings if one.kind != "race" or outside.isdisjoint(_lines_of([each]))]
    return {part: [one for one in groups if one.findings] for part, groups in found.items()}


def _lines_of(findings: Iterable[Finding]) -> set[tuple[str, int]]:
    return {access.place.at for one in findings for access in one.accesses if access.place}


def _with(groups: list[Group], one: Finding, case: str) -> list[Group]:
    """The groups with one finding added, which may merge two of them."""
    new, result = Group([one], [case], one.count), []
    place = len(groups)
    for group in groups:
        alike = group.kind == one.kind and group.findings[0].kernel_name == one.kernel_name
        if not alike or not any(_marks(one) & _marks(other) for other in group.findings):
            result.append(group)
            continue
        known = {(_sides(other), other.variable) for other in group.findings}
        more = [other for other in new.findings if (_sides(other), other.variable) not in known]
        cases = group.cases + [other for other in new.cases if other not in group.cases]
        new = Group(group.findings + more, cases, group.count + new.count)
        place = min(place, len(result))
    result.insert(place, new)
    return result


def _function(group: Group) -> str:
    return group.findings[0].kernel_name.split("<")[0]


def _reads(group: Group) -> set[Place]:
    accesses = [access for finding in group.findings for access in finding.accesses]
    return {access.place for access in accesses if access.action == "read" and access.place}


def _belongs_to_a_race(group: Group, races: Sequence[Group]) -> bool:
    if group.kind != "uninitialized":
        return False
    for race in races:
        same_kernel = race.findings[0].kernel_name == group.findings[0].kernel_name
        if same_kernel and _reads(group) <= _reads(race):
            race.unwritten = True
            race.cases += [case for case in group.cases if case not in race.cases]
            return True
    return False
