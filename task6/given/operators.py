"""The operators of earlier tasks that task 6 uses: task 3's merge_states, task 4's flash_attention."""

from __future__ import annotations

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest


def load_beside(ops: Operators, task: str) -> Operators:
    """The matching operators of another task: the student's for the student's, otherwise the solution's.

    Args:
        ops: the operators of task 6.
        task: "task3" or "task4".

    Raises:
        What common.compiling.load.load raises.
    """
    return load(BuildRequest(task, "student" if ops.variant == "student" else "solution", ops.backend))
