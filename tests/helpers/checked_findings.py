"""What the checked build finds in a case: findings_of(ops, case)."""

from dataclasses import replace

from common.compiling.operators import Operators
from common.inspect.checked_library import CHECK, CheckedOperators
from common.inspect.findings.model import Finding
from common.testing.judging import judge


def findings_of(ops: Operators, case) -> list[Finding]:
    """What the checked build finds in one draw of the case."""
    checked = CheckedOperators(ops)
    checked.begin(CHECK)
    try:
        judge(replace(case, draws=1), ops)
        return checked.findings()
    finally:
        checked.begin(0)
