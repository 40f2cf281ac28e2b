"""What the cases of a part that fail have in common, where those that pass do not: only_these(failures, verdicts).

A case is named after what is awkward about it, so its name tells.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from common.testing.case import FAIL, Verdict

LEAST = 2  # cases that pass
ABOUT = (
    (
        re.compile(r"beyond 88|large offsets|far below|10,000|rise and fall"),
        "only large scores",
        "Only cases with numbers far from 0 fail; those with ordinary ones pass. Does an exponential overflow, or do "
        "all underflow? Which one is not relative to the largest maximum? (exp(x) in place of exp(x - m); a maximum "
        "that leaves something out, that starts at 0, or that is a minimum; sums relative to different maxima.)",
    ),
    (
        re.compile(r"masked|empty|see nothing|no key"),
        "only empty rows",
        "Only cases in which a row, a tile, a warp or a part sees no key fail. Its maximum is -infinity, and "
        "-infinity - (-infinity) is NaN, as is 0 / 0: what is subtracted there, and what is divided by?",
    ),
    (
        re.compile(r"lse of|lse, |logsumexp"),
        "only the logsumexp",
        "Only the cases of the logsumexp fail, those of the outputs pass. A number that is added to all scores changes "
        "every logsumexp, and no output.",
    ),
    (
        re.compile(r"causal"),
        "only causal",
        "Only causal cases fail. Look first at the comparison that hides keys, at what it compares, and at where the "
        "loop over the keys ends for a query.",
    ),
)  # fmt: skip


def only_these(failures: Sequence[Verdict], verdicts: Sequence[Verdict]) -> tuple[str, str] | None:
    """(a name, what to tell of a part), or None, also where an output equals a known wrong answer, or where a call in
    the student's Python is known to be wrong: these tell more.

    Args:
        failures: those of the part.
        verdicts: of all parts.
    """
    if not failures or any(one.status != FAIL or one.found.possible or one.in_python for one in failures):
        return None
    passed = [one.case.name for one in verdicts if one.ok and one.case.part == failures[0].case.part]
    for pattern, name, says in ABOUT:
        without = sum(not pattern.search(one) for one in passed)
        if without >= LEAST and all(pattern.search(one.case.name) for one in failures):
            return name, says
    return None
