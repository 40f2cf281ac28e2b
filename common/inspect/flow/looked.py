"""Runs a failing case with every access recorded, and concludes what flowed wrong: followed(case, caller, ...)."""

from __future__ import annotations

from dataclasses import replace

from common.inspect.checked_library import Collected
from common.inspect.findings.model import Finding
from common.inspect.flow.concluded import concluded
from common.reference.bounds import max_error_of
from common.testing.calling import POISONED, Caller, CallFailed
from common.testing.case import Case
from common.testing.judging import make_inputs, oracle


def followed(case: Case, caller: Caller, collected: Collected, seed: int) -> list[Finding]:
    """One finding at most, of the first draw of the inputs that fails.

    None where the case passes, gives no output, or is too large to be recorded.

    Args:
        case: that failed.
        caller: a CheckedCaller, or a Worker around one.
        collected: reads what that one collects.
        seed: of the inputs.
    """
    for draw in range(case.draws):
        inputs = make_inputs(case, seed, draw)
        try:
            out = caller.call(case, inputs, replace(POISONED, recorded=True)).out
        except CallFailed:
            return []
        ref, bound = oracle(case, inputs)
        if out is None or out.shape != ref.shape:
            return []
        if not max_error_of(out, ref) <= bound:
            launches, whole = collected.launches()
            return concluded(case, inputs, out, ref, bound, launches) if whole else []
    return []
