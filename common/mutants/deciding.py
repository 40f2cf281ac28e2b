"""From what a report says to a verdict on it: decided(mutant, observation, lines)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from common.inspect.findings.model import OF_FLOW
from common.inspect.findings.words import OR_THE_ORDER
from common.mutants.expected import (
    MEASURED,
    OF_BARRIERS,
    OF_FINDING,
    STAGES,
    targets,
    topics_of,
    topics_of_claim,
    topics_of_function,
)
from common.mutants.mutation import Mutant
from common.mutants.observing import Claim, Observation
from common.testing.nan_origin import OF_ANY_SCORES

NAMED, NEAR, CAUGHT, MISLED, MISSED, EQUIVALENT = "named", "near", "caught", "misled", "missed", "equivalent"
VERDICTS = (NAMED, NEAR, CAUGHT, MISLED, MISSED, EQUIVALENT)
_OFFERS_AN_INDEX = re.compile(r"[Cc]heck (?:the index|how blockIdx)|index is wrong")


@dataclass(frozen=True)
class Decision:
    """A verdict, and what it rests on."""

    verdict: str
    why: str


def decided(mutant: Mutant, seen: Observation, lines: list[str]) -> Decision:
    """The verdict on a mutant.

    Args:
        mutant: the mutant.
        seen: what the report said.
        lines: of the solution's file.
    """
    if not seen.failed:
        return Decision(MISSED, "every case passes")
    marks = [(claim, _mark(mutant, claim, lines)) for claim in seen.claims]
    if wrong := [claim for claim, mark in marks if mark == MISLED]:
        return Decision(MISLED, f"{wrong[0].kind}: {wrong[0].name}: {wrong[0].says[:200]} {wrong[0].lines}")
    for wanted in (NAMED, NEAR):
        if right := [claim for claim, mark in marks if mark == wanted]:
            return Decision(wanted, f"{right[0].kind}: {right[0].name}: {right[0].says[:120]} {right[0].lines}")
    stages = [part for part in seen.failed if part in STAGES.get(mutant.task, ())]
    if stages:
        return Decision(NEAR, f"the part {stages[0]} fails, which tests this stage alone")
    return Decision(CAUGHT, f"{seen.failed}: {seen.claims[0].says[:120] if seen.claims else ''}")


def _mark(mutant: Mutant, claim: Claim, lines: list[str]) -> str:
    """What one claim is about this mutant: NAMED, NEAR, MISLED, or "" where it claims nothing."""
    right = targets(mutant, lines)
    own = {line for file, line in claim.lines if file.split("/")[-1] == mutant.file}
    in_gap = any(mutant.first_line - 25 <= line <= mutant.last_line + 25 for line in own)
    if claim.kind in ("finding", "ended"):
        if claim.name == "race" and _asks_for_a_barrier(claim) and "barrier" not in topics_of(mutant):
            offers_the_order = mutant.mutation.kind == "order" and OR_THE_ORDER in claim.says
            return NAMED if offers_the_order and own & right else MISLED  # whatever its lines are
        if own & right or _names_the_call(mutant, claim):
            return NAMED
        if claim.kind == "ended":
            topics = {"loop", "bound"} if claim.name == "endless" else set()
            return NEAR if in_gap or topics & topics_of(mutant) else ""
        if mutant.mutation.kind in OF_BARRIERS and claim.name in ("race", "uninitialized", "barrier"):
            return NAMED
        if in_gap or OF_FINDING.get(claim.name, set()) & topics_of(mutant):
            return NEAR
        if _OFFERS_AN_INDEX.search(claim.says):
            return NEAR if {"index", "offset", "grid", "head"} & topics_of(mutant) else ""
        return MISLED if claim.name in ("race", "python_value", *OF_FLOW) else ""
    if claim.kind == "where" and "holds what belongs" in claim.says:  # a row that another one's index was used for
        return NAMED if {"index", "offset", "head"} & topics_of(mutant) else ""
    if claim.kind == "where" and OF_ANY_SCORES[:80] in claim.says:  # NaN, and where they may come from
        return NEAR if {"maximum", "rescale", "empty row"} & topics_of(mutant) else ""
    if claim.kind == "where":  # which rows or columns: those that one turn of a loop, or one tile, is about
        pattern = re.search(r"Only \w+ (?:%|even|odd|>=|<) ?", claim.says)
        return NEAR if pattern and {"loop", "bound", "tile", "offset"} & topics_of(mutant) else ""
    if claim.name == "no key counts":
        return NEAR if {"loop", "store", "adding", "mask", "sum"} & topics_of(mutant) else ""
    if claim.kind in ("cause", "sign"):
        if claim.name != "all zeros" and topics_of_claim(claim) & topics_of(mutant):
            return NAMED
        if topics_of_claim(claim) & topics_of_function(mutant):
            return NEAR
        return "" if claim.name in MEASURED or claim.name.startswith(("other elements", "elements of")) else MISLED
    return ""


def _names_the_call(mutant: Mutant, claim: Claim) -> bool:
    """Whether a claim says of the very function whose call is left out that nobody calls it."""
    name = re.match(r"\w+", mutant.mutation.old)
    return mutant.mutation.kind == "call" and bool(name and re.search(rf"\b{name[0]}\b[^.]* nowhere", claim.says))


def _asks_for_a_barrier(claim: Claim) -> bool:
    """Whether a race is said to need a barrier, and no index is offered."""
    return "__sync" in claim.says and not _OFFERS_AN_INDEX.search(claim.says)
