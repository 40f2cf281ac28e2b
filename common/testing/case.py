"""Case, what a test tries, and Verdict, what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from common.diagnosis.diagnose import Diagnosis
from common.diagnosis.mistakes.known import Mistake

PASS, FAIL, NOT_IMPLEMENTED = "pass", "FAIL", "not implemented"
ERROR, NOT_RUN, SKIPPED = "error", "not run", "skipped"


@dataclass(frozen=True)
class Scores:
    """The attention within a call whose output is something else, such as the parts of split decoding.

    Attributes:
        of: of(**inputs) -> its masked scores [batch, heads, S_q, S_k].
        keys, values: the names of the inputs that hold its keys and values.
    """

    of: Callable[..., Tensor]
    keys: str
    values: str


@dataclass(frozen=True)
class Call:
    """A call of a function of a student's Python file.

    Attributes:
        function: its name.
        number: which of its calls it is, from 1 on.
        arguments: what it was given, by name: float64 tensors, numbers, {name: part} of a tuple; else None.
        inputs: of the case, in float64.
        returned: what it returned, as the arguments.
    """

    function: str
    number: int
    arguments: dict[str, Any]
    inputs: Mapping[str, Tensor]
    returned: Any = None


@dataclass(frozen=True, eq=False)
class Python:
    """What functions of a student's Python file must return for what they are given.

    Attributes:
        module: the name of the file, without .py.
        right: for each function right(call) -> {"returned": the tensor or number, or {name: tensor} of a tuple, and by
            any name what else is right on the way}; None where it is not known.
        but_for: but_for(call) -> what to add where a call goes wrong: kernels that it calls and that are not looked at.
    """

    module: str
    right: Mapping[str, Callable[[Call], Mapping[str, Any] | None]]
    but_for: Callable[[Call], str] = lambda call: ""


@dataclass(frozen=True)
class Case:
    """One test case. The functions take the inputs by name, as `inputs` made them.

    Attributes:
        name: unique within the task; it also seeds the inputs.
        part: "softmax", "gemm", ...: what the command line chooses by.
        inputs: makes {"x": tensor, ...} on the CPU, float32 or integers, from a generator.
        call: call(ops, **inputs) -> the output; the inputs are on ops.device.
        reference: the same mathematics in plain PyTorch, in the precision of its inputs.
        floor: the stated floor of the bound.
        axes: the names of the output's axes, such as ("batch", "row", "col").
        points: what passing earns.
        required: the part earns no points unless this case passes.
        mistakes: mistakes(**inputs) -> known wrong answers; see common.diagnosis.mistakes.known.
        stages: stages(**inputs) -> the right S, P, O, to show next to a wrong output.
        steps: steps(**inputs) -> what --show prints between inputs and output; the stages if there is none.
        values: the input, [batch, heads, S_k, head_dim], whose rows each row of the output is a sum of; "" if none is.
            With it the weights of a wrong output can be read off (probing.py).
        keys: the input, of the same shape but for head_dim, that holds their keys; "" if none does.
        scores: of a call whose output is no attention, and that computes one on its way.
        python: what the student's Python functions that it runs must return; None: it runs none, only kernels.
        step: 1 where the output is made of what other cases of the part, of step 0, look at.
        is_softmax: the output's rows are a softmax; wrong denominators are looked for.
        hint: what to look at when the output is wrong and no known mistake explains it.
        nan_hint: the same, where the output holds NaN.
        in_place: names of inputs that the operator writes to.
        draws: how many different inputs it runs with.
        gpu_only: too large for the simulator; skipped there, so it cannot carry points.
    """

    name: str
    part: str
    inputs: Callable[[torch.Generator], dict[str, Tensor]]
    call: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    floor: float
    axes: tuple[str, ...]
    points: float = 0.0
    required: bool = False
    mistakes: Callable[..., list[Mistake]] | None = None
    stages: Callable[..., dict[str, Tensor]] | None = None
    steps: Callable[..., dict[str, Tensor]] | None = None
    values: str = ""
    keys: str = ""
    scores: Scores | None = None
    python: Python | None = None
    step: int = 0
    is_softmax: bool = False
    hint: str = ""
    nan_hint: str = ""
    in_place: tuple[str, ...] = ()
    draws: int = 2
    gpu_only: bool = False

    def __post_init__(self) -> None:
        if self.gpu_only and self.points:
            raise ValueError(
                f"case {self.name!r} runs on a GPU only and carries {self.points} points; it must carry none"
            )


@dataclass
class Verdict:
    """What became of one case.

    Attributes:
        status: PASS, FAIL, NOT_IMPLEMENTED, ERROR (it raised), NOT_RUN (the GPU is lost) or SKIPPED (needs a GPU).
        max_error, bound: of the worst draw; max_error is NaN if the output holds NaN or Inf that it should not.
        shapes: of the inputs, "2x3x40x16, 2x3x47x16"; equal shapes are listed once.
        elements: of all inputs together.
        matrices: the largest first dimension of an input.
        sizes: the dimensions of all inputs, one after the other.
        said: what the call itself reports: an error, a wrong shape, memory that was written to.
        found: what its output is, where that is wrong.
        file_line: "file.cu:57" where the message names one.
        findings: what --check found in this case: races, bad accesses, ...
        in_python: a call in the student's Python is known to be wrong; python_lines: (file, number) of what its
            number is made of.
        ended: the process that ran it is gone: it crashed, or did not end in time.
        is_endless: it did not end in time, or did not get on.
    """

    case: Case
    status: str
    shapes: str = ""
    max_error: float | None = None
    bound: float | None = None
    said: list[str] = field(default_factory=list)
    found: Diagnosis = field(default_factory=Diagnosis)
    file_line: str | None = None
    findings: int = 0
    in_python: bool = False
    python_lines: list[tuple[str, int]] = field(default_factory=list)
    ended: bool = False
    is_endless: bool = False
    elements: int = 0
    matrices: int = 0
    sizes: tuple[int, ...] = ()

    @property
    def diagnosis(self) -> list[str]:
        """What the report says, a sentence or a line of a small table each."""
        return [*self.said, *self.found.sentences]

    @property
    def mistakes(self) -> list[str]:
        """Names of the known mistakes that the output equals, or of what it shows."""
        return self.found.names

    @property
    def ok(self) -> bool:
        return self.status == PASS
