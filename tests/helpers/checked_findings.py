"""What the checked build finds and counts in a case: findings_of(ops, case), kernels_in_case(ops, case);
its launches, access by access: recorded(ops, case).

with nothing_found(ops): ops.softmax(x)         # or any other calls
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from common.compiling.operators import Operators
from common.inspect.checked_library import CHECK, PROFILE, REPLAY, CheckedCaller, CheckedLibrary, Collected
from common.inspect.checked_run import checked
from common.inspect.findings.model import Finding
from common.inspect.profile.model import KernelProfile
from common.inspect.replay.recording import Launch
from common.testing.judging import make_inputs


def findings_of(ops: Operators, case) -> list[Finding]:
    """The checked build's findings for one random draw of the case."""
    caller = CheckedCaller(ops, CHECK)
    return checked(case, caller, Collected(caller), 0)[1]


def kernels_in_case(ops: Operators, case) -> list[KernelProfile]:
    """What the kernels of one call did."""
    caller = CheckedCaller(ops, PROFILE)
    caller.call(case, make_inputs(case, 0))
    return Collected(caller).kernels()


def recorded(ops: Operators, case) -> tuple[list[Launch], list[Finding], dict[str, Tensor], Tensor]:
    """One call: launches, findings, inputs, output."""
    caller, inputs = CheckedCaller(ops, REPLAY), make_inputs(case, 0)
    called = caller.call(case, inputs)
    collected = Collected(caller)
    launches, whole = collected.launches()
    assert whole
    return launches, collected.findings(), inputs, called.out


@contextmanager
def nothing_found(ops: Operators) -> Iterator[None]:
    """Raises AssertionError if the checked build finds a mistake in any call inside the block."""
    library = CheckedLibrary(ops.libraries[0].path)
    library.begin(CHECK)
    try:
        yield
        findings = library.report()["findings"]
        assert findings == [], findings
    finally:
        library.begin(0)
