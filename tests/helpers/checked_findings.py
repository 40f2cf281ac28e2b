"""What the checked build finds in a case, and what it counts: findings_of(ops, case), kernels_in_case(ops, case)."""

from common.compiling.operators import Operators
from common.inspect.checked_library import CHECK, PROFILE, CheckedCaller, Collected
from common.inspect.checked_run import checked
from common.inspect.findings.model import Finding
from common.inspect.profile.model import KernelProfile
from common.testing.judging import make_inputs


def findings_of(ops: Operators, case) -> list[Finding]:
    """What the checked build finds in one draw of the case."""
    caller = CheckedCaller(ops, CHECK)
    return checked(case, caller, Collected(caller), 0)[1]


def kernels_in_case(ops: Operators, case) -> list[KernelProfile]:
    """What the kernels of one call did."""
    caller = CheckedCaller(ops, PROFILE)
    caller.call(case, make_inputs(case, 0))
    return Collected(caller).kernels()
