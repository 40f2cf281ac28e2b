"""Prints findings: what happened, both source lines with their text, the explanation, the cases.

print_findings(console, grouped(...))
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from common.console.terminal import say
from common.console.words import counted
from common.inspect.findings.model import EDIT, VOTE, Access, Finding, Group
from common.inspect.findings.words import NO_GUARD, explained, happened, is_named, pieces_of, within_a_turn
from common.inspect.made_of import is_head, made_of
from common.inspect.origins import MOST_DECIDING, calls, deciding, handed_to_before, leaving, origins, writers
from common.inspect.own_lines import owned
from common.inspect.source_lines import Place
from common.source.reader import read

PASSED = "Calls that pass its arguments:"
MOST_QUOTED = 2  # screen lines for a quoted access or call
MOST_LINES, MOST_SHOWN = 4, 8  # lines quoted below one sentence, and below all sentences about a finding
MOST_GROUPS = 12  # printed in full
MOST_OTHER_PAIRS = 2  # of source lines within a group
MOST_CASES = 3  # named in addition to the first
MOST_ORIGINS = 4  # lines that compute an index
MOST_GUARDS = 3  # conditions that fail to exclude an out-of-bounds access
MOST_OWN = 8  # student lines that determine an access in provided code
OR_AN_INDEX = "If these threads should not share it, the index is wrong."
_OF_AN_INDEX = ("out_of_bounds", "misaligned", "uninitialized")
_DECIDES = "Whether that line runs, and how often, is decided in:"
_COMES = "Which threads come to it, and how often, is decided in:"
Told = list[tuple[str, Sequence[Place]]]  # a sentence and the lines it refers to
_VERBS = {
    "read": "reads",
    "write": "writes",
    "atomic": "updates atomically",
    "async copy": "starts a copy to",
    "wait": "is here",
}


def print_findings(console: Console, groups: Sequence[Group]) -> None:
    """Prints each group: what happened, both source lines with their text, the explanation, the cases."""
    quoted: set[Place] = set()
    for number, group in enumerate(groups[:MOST_GROUPS], 1):
        _print_group(console, number, group, quoted)
    if len(groups) > MOST_GROUPS:
        say(console, f"\n... and {len(groups) - MOST_GROUPS} more; fix these first")


def _print_group(console: Console, number: int, group: Group, quoted: set[Place]) -> None:
    finding = group.first
    others = [other for other in group.findings if other is not finding]

    def tell(text: str) -> None:
        say(console, text, indent=3)

    times = f", {group.count:,} times" if group.count > 1 else ""
    console.print(f"\n[bold red]{number}. {escape(happened(finding))}[/]{times}", highlight=False)
    lead = leading_line(finding)
    if lead:
        say(console, f"-> {lead.shown}", indent=3)
        _quote(console, lead.text, 9, MOST_QUOTED)
        quoted.add(Place(lead.file, lead.line))
    mark = "   " if lead else "-> "
    for access in finding.in_order:
        _print_access(console, access, mark, who_did(finding, access), quoted)
    if finding.launch and not finding.accesses:
        tell(f"{finding.launch.shown}  {finding.launch.text}")
    tell(explained(finding, others))
    left = MOST_SHOWN
    made = made_in(finding) if number == 1 else []  # only for the first: more would not fit on a screen
    name = len({place.file for _, every in made for place in every}) > 1
    here = {one.at for one in (lead, *(access.place for access in finding.accesses)) if one}
    for what, every in made:
        places = [one for one in every if one.at not in here]
        if not places:
            continue
        shown = places[: min(MOST_LINES, left)]
        left -= len(shown)
        tell(what if shown else f"{what} {_numbers(places, name)}")
        for place in shown:
            _quote(console, f"{_label(place, name):>5}  {place.text}", 4, MOST_QUOTED if what == PASSED else 1)
        if shown and len(places) > len(shown):
            tell(f"  and {_numbers(places[len(shown) :], name)}")
    if number > 1 and may_be_the_index(finding) and "index" not in explained(finding):
        tell(OR_AN_INDEX)
    if group.kind == "race" and group.within_a_warp and not group.only_writes:
        tell(
            "The threads seen here are in one warp, whose lanes need not run in lockstep. If that holds for every "
            "pair, __syncwarp() is enough."
        )
    if group.unwritten:
        tell("Some threads even read it before any thread had written it.")
    told = brief(finding)
    pairs = [pair for pair in dict.fromkeys(map(brief, others)) if pair != told]
    for pair in pairs[:MOST_OTHER_PAIRS]:
        tell(f"the same: {pair}")
    if len(pairs) > MOST_OTHER_PAIRS:
        tell(f"the same in {counted(len(pairs) - MOST_OTHER_PAIRS, 'more place')}")
    where = [_blocks(finding), f"launched at {finding.launch.shown}" if finding.launch and finding.accesses else ""]
    where.append(_cases(group.cases))
    tell("; ".join(part for part in where if part))


def leading_line(finding: Finding) -> Place | None:
    """The line of an edit; of an access out of bounds, the call to blame."""
    places = [one.place for one in finding.accesses if one.place]
    if finding.kind == "out_of_bounds":
        return _only_call(places[0]) if places else None
    return finding.lines[0] if finding.kind == EDIT else None


def _only_call(place: Place) -> Place | None:
    """The call of the function that goes out of bounds, if earlier calls of the same function stayed in bounds."""
    called = next(iter(owned(place.callers[:1])), None)
    source = read(place.file) if called else None
    inner, outer = (source.function_at(one.line) for one in (place, called)) if source else (None, None)
    calls = [one.line for one in outer.calls if one.name == inner.name] if inner and outer else []
    return called if calls and min(calls) < called.line else None


def is_of_an_index(finding: Finding) -> bool:
    """Whether a wrong index is among its usual causes."""
    return finding.kind in _OF_AN_INDEX or may_be_the_index(finding)


def may_be_the_index(finding: Finding) -> bool:
    """Whether a race may be due to an index: two writes, two blocks, or two warps if the code syncs within a warp.

    Also in global memory, through which threads of a block rarely communicate.
    """
    if finding.kind != "race" or len(finding.accesses) < 2:
        return False
    first, second = finding.in_order
    if first.block != second.block or {first.action, second.action} == {"write"} or finding.space == "global":
        return True
    if pieces_of(finding) or within_a_turn(finding):
        return True
    if not first.place or not second.place or first.place.file != second.place.file:
        return False
    ends = [(place.callers or (place,))[-1].line for place in (first.place, second.place)]
    between = range(min(ends) + 1, max(ends))
    return any("__syncwarp" in Place(first.place.file, line).text.split("//")[0] for line in between)


def made_in(finding: Finding) -> Told:
    """Source lines other than the accesses' that may contain the mistake: sentences with their lines."""
    places = [access.place for access in finding.accesses if access.place]
    if finding.kind in ("barrier", "absent_lane", VOTE) and places:
        return _who_comes(places[0])
    if not places or not is_of_an_index(finding):
        return []
    told = []
    if finding.kind == "uninitialized":
        of_launch = finding.launch and finding.space == "global"
        before = handed_to_before(finding.variable, finding.launch) if of_launch else []
        told += _told("Called with this array before, and should have written it:", before)
        told += _told("It is written in:", writers(places[0], finding.variable))
    has_guard = NO_GUARD not in explained(finding)
    if finding.kind == "out_of_bounds" and leading_line(finding):
        return _passed(finding, places)
    if finding.kind == "out_of_bounds" and has_guard:
        told += _told(_DECIDES, _deciding(places[-1])[:MOST_GUARDS])
    every = [one for place in dict.fromkeys(places) for one in origins(place, finding.variable)]
    told_before = {one.at for _, several in told for one in several}
    lines = [one for at, one in {one.at: one for one in every}.items() if at not in told_before][:MOST_ORIGINS]
    race = f"{OR_AN_INDEX} " if finding.kind == "race" and "index" not in explained(finding) else ""
    told += _told(f"{race}Its address is computed in:", sorted(lines, key=is_head))
    if not owned(places):
        told = _handed_to_given(finding, places, told)
    return told + (_passed(finding, places) if has_guard else [])


def _told(what: str, places: Sequence[Place]) -> Told:
    return [(what, places)] if places else []


def _handed_to_given(finding: Finding, places: Sequence[Place], told: Told) -> Told:
    """For provided code that fails because of its arguments: the student lines that compute these, instead of `told`,
    the lines of the provided code itself."""
    files = [one.file for place in places for one in (*place.callers, *place.outer)]
    files += [finding.launch.file] if finding.launch else []
    lines = owned(made_of(places[0], files))[:MOST_OWN]
    if not lines:
        return told
    own = [one for what, several in told for one in _told(what, owned(several))]
    before = {place.at for _, several in own for place in several}
    return [*own, ("What it is given is computed in your lines:", [one for one in lines if one.at not in before])]


def _who_comes(place: Place) -> Told:
    """The loops and conditions around a barrier, and the lines by which a thread leaves early."""
    leaves = list(dict.fromkeys(one for frame in (place, *place.callers) for one in leaving(frame)))
    lines = [one for one in _deciding(place) if one not in leaves]
    told = _told("Lines by which threads may leave:", leaves) + _told(_COMES, lines)
    is_nearer = leaves and lines and leaves[0].line < lines[0].line < place.line
    return told[::-1] if is_nearer else told


def _passed(finding: Finding, places: Sequence[Place]) -> Told:
    """The calls that passed the code its arguments."""
    return _told(PASSED, calls(places[0], finding.launch))


def _deciding(place: Place) -> list[Place]:
    """The loops and conditions around a line, those in the student's own file first."""
    chain = [*reversed(place.outer), *reversed(place.callers), place]
    callers = [None, *chain]
    found = (one for frame, caller in zip(chain, callers, strict=False) for one in deciding(frame, caller))
    return list(dict.fromkeys(found))[:MOST_DECIDING]


def _cases(cases: Sequence[str]) -> str:
    """ "case softmax: 7 x 31 (also in 4 others: ...)"."""
    if len(cases) < 2:
        return f"case {cases[0]}" if any(cases) else ""  # a program has no cases
    named = "; ".join(cases[1 : MOST_CASES + 1])
    more = f"; and {len(cases) - MOST_CASES - 1} more" if len(cases) > MOST_CASES + 1 else ""
    return f"case {cases[0]} (also in: {named}{more})"


def _label(place: Place, name: bool) -> str:
    """ "94", or with the file name if several files are listed: "stages.cuh:94"."""
    return f"{Path(place.file).name}:{place.line}" if name else str(place.line)


def _numbers(places: Sequence[Place], name: bool) -> str:
    """ "line 94", "lines 94 and 97"."""
    numbers = list(dict.fromkeys(_label(one, name) for one in sorted(places, key=lambda one: one.at)))
    return f"line {numbers[0]}" if len(numbers) == 1 else f"lines {', '.join(numbers[:-1])} and {numbers[-1]}"


def _blocks(finding: Finding) -> str:
    blocks = list(dict.fromkeys(access.block for access in finding.in_order if access.block))
    return f"block {_coordinates(blocks[0])}" if len(blocks) == 1 else ""


def _who(finding: Finding, access: Access) -> str:
    """ "thread (0,0,0)", with its block if several are involved."""
    if finding.kind == "host_access":
        return "the host"
    who = f"thread {_coordinates(access.thread)}" if access.thread else "a thread"
    return f"block {_coordinates(access.block)} {who}" if access.block and not _blocks(finding) else who


def who_did(finding: Finding, access: Access) -> str:
    """ "thread (0,0,0) reads", "block (1,0,0) thread (3,0,0) updates atomically"."""
    return f"{_who(finding, access)} {_VERBS.get(access.action, access.action)}"


def _print_access(console: Console, access: Access, mark: str, who: str, quoted: set[Place]) -> None:
    """ "-> task2/kernel.cu:94: thread (0,0,0) reads"; below it the source line, unless it is among those `quoted`."""
    where = access.place.shown if access.place else "source line unknown"
    inlined = f" {access.place.inlined_at}" if access.place and access.place.inlined_at else ""
    say(console, f"{mark}{where}: {who}{inlined}", indent=3)
    line = Place(access.place.file, access.place.line) if access.place else None
    if line and line.text and line not in quoted:
        quoted.add(line)
        _quote(console, access.place.text, 9, MOST_QUOTED)


def _quote(console: Console, text: str, indent: int, most: int) -> None:
    """Prints a source line, truncated to `most` screen lines."""
    margins = {"initial_indent": " " * indent, "subsequent_indent": " " * max(indent, 9)}
    width = {"width": console.width, "max_lines": most, "placeholder": " ..."}
    lines = textwrap.fill(text, **width, **margins, break_long_words=False, break_on_hyphens=False)
    console.print(lines, style="bold", markup=False, highlight=False, soft_wrap=True)


def brief(finding: Finding) -> str:
    """ "b_tile: writes task2/kernel.cu:158, reads task2/kernel.cu:198", in line order."""
    sides = {
        (access.place.shown if access.place else "source line unknown", _VERBS.get(access.action, access.action))
        for access in finding.accesses
    }
    text = ", ".join(f"{verb} {where}" for where, verb in sorted(sides)) or happened(finding)
    return f"{finding.variable}: {text}" if is_named(finding) else text


def _coordinates(values: tuple[int, int, int]) -> str:
    return f"({','.join(map(str, values))})"
