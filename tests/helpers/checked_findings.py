"""What the checked build finds in a case: findings_of(ops, case)."""

from common.compiling.operators import Operators
from common.inspect.checked_library import CHECK, CheckedCaller, Collected
from common.inspect.checked_run import checked
from common.inspect.findings.model import Finding


def findings_of(ops: Operators, case) -> list[Finding]:
    """What the checked build finds in one draw of the case."""
    caller = CheckedCaller(ops, CHECK)
    return checked(case, caller, Collected(caller), 0)[1]
