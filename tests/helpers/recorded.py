"""A case's launches, recorded access by access: recorded(ops, case) -> (launches, findings, the operator's output)."""

from torch import Tensor

from common.compiling.operators import Operators
from common.inspect.checked_library import REPLAY, CheckedCaller, Collected
from common.inspect.findings.model import Finding
from common.inspect.replay.recording import Launch
from common.testing.judging import make_inputs


def recorded(ops: Operators, case) -> tuple[list[Launch], list[Finding], dict[str, Tensor], Tensor]:
    """One call: launches, findings, inputs, output."""
    caller, inputs = CheckedCaller(ops, REPLAY), make_inputs(case, 0)
    called = caller.call(case, inputs)
    collected = Collected(caller)
    launches, whole = collected.launches()
    assert whole
    return launches, collected.findings(), inputs, called.out
