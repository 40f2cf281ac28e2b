"""What a part's failing cases have in common that its passing cases lack: only_these(failures, verdicts).

It goes by the cases' names, which say what is special about each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from common.diagnosis.mistakes.known import Words
from common.testing.case import FAIL, Verdict

known = Words(__file__)
LEAST = 2  # passing cases
LITTLE = 16  # bounds: the error of rounding intermediate results to 16 bits
ABOUT = {
    "only 16 bits": re.compile(r"float16"),
    "only large scores": re.compile(r"beyond 88|large offsets|far below|10,000|rise and fall"),
    "only empty rows": re.compile(r"masked|empty|see nothing|no key"),
    "only the logsumexp": re.compile(r"lse of|lse, |logsumexp"),
    "only causal": re.compile(r"causal"),
}


def only_these(failures: Sequence[Verdict], verdicts: Sequence[Verdict]) -> tuple[str, str] | None:
    """(a name, what to report about the part), or None. None also if an output matches a known wrong answer or a call
    in the student's Python is known to be wrong: these say more.

    Args:
        failures: the part's failures.
        verdicts: the verdicts of all parts.
    """
    if not failures or any(one.status != FAIL or one.found.possible or one.in_python for one in failures):
        return None
    passed = [one.case.name for one in verdicts if one.ok and one.case.part == failures[0].case.part]
    for name, pattern in ABOUT.items():
        without = sum(not pattern.search(one) for one in passed)
        mine = [one for one in failures if pattern.search(one.case.name) and (name != "only 16 bits" or _is_near(one))]
        if without >= LEAST and len(mine) == len(failures):
            return known.says(name)
    return None


def _is_near(one: Verdict) -> bool:
    """Whether an output is near the right one, without NaN."""
    return one.max_error is not None and one.max_error <= LITTLE * (one.bound or 0.0)
