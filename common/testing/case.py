"""Case, a test case, and Verdict, its result."""

from __future__ import annotations

import functools
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
class Call:
    """A call of a function of a student's Python file.

    Attributes:
        function: its name.
        number: index of the call, counting from 1.
        arguments: by name: float64 tensors, numbers, {name: part} for a tuple; None for anything else.
        inputs: the case's inputs, in float64.
        returned: the result, in the same form as the arguments.
    """

    function: str
    number: int
    arguments: dict[str, Any]
    inputs: Mapping[str, Tensor]
    returned: Any = None


@dataclass(frozen=True, eq=False)
class Python:
    """Correct results of functions in a student's Python file, as functions of their arguments.

    Attributes:
        module: the name of the file, without .py.
        right: for each function right(call) -> {"returned": the tensor or number, or {name: tensor} for a tuple; under
            other names, correct intermediate values}; None if unknown.
        but_for: but_for(call) -> what to add to a failure: kernels that the call runs and this test does not check.
    """

    module: str
    right: Mapping[str, Callable[[Call], Mapping[str, Any] | None]]
    but_for: Callable[[Call], str] = lambda call: ""


@dataclass(frozen=True)
class Case:
    """One test case. The functions take the inputs by name, as made by `inputs`.

    Attributes:
        name: unique within the task; it also seeds the inputs.
        part: "softmax", "gemm", ...: the unit selected on the command line.
        inputs: makes {"x": tensor, ...} on the CPU, float32 or integers, from a generator.
        call: call(ops, **inputs) -> the output; the inputs are on ops.device.
        reference: the same mathematics in plain PyTorch, in the precision of its inputs.
        floor: the documented floor of the error bound.
        axes: the names of the output's axes, such as ("batch", "row", "col").
        points: points for passing.
        required: the part earns no points unless this case passes.
        mistakes: mistakes(**inputs) -> known wrong answers; see common.diagnosis.mistakes.known.
        stages: stages(**inputs) -> the correct S, P, O, shown next to a wrong output.
        steps: steps(**inputs) -> what --show prints between inputs and output; None: the stages.
        values: name of the input [batch, heads, S_k, head_dim] of whose rows each output row is a weighted sum; "" if
            none. It lets probing.py read off the weights of a wrong output.
        python: correct results of the student's Python functions that it runs; None: it runs only kernels.
        step: 1 if the output builds on what other cases of the part, of step 0, check.
        is_softmax: the output's rows are a softmax; wrong denominators are diagnosed.
        hint: what to look at when the output is wrong and no known mistake matches.
        nan_hint: the same when the output contains NaN.
        in_place: names of inputs that the operator writes to.
        draws: number of random inputs it runs with.
        gpu_only: too large for the simulator; skipped there, so it cannot be worth points.
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
    """The result of one case.

    Attributes:
        status: PASS, FAIL, NOT_IMPLEMENTED, ERROR (it raised), NOT_RUN (the GPU is lost) or SKIPPED (needs a GPU).
        max_error, bound: of the worst draw; max_error is NaN if the output has unexpected NaN or Inf.
        shapes: shapes of the inputs, "2x3x40x16, 2x3x47x16"; equal shapes are listed once.
        elements: total number of input elements.
        matrices: the largest first dimension of an input.
        sizes: the dimensions of all inputs, concatenated.
        said: problems with the call itself: an error, a wrong shape, illegal writes.
        explain: diagnoses a wrong output; called once, when `found` is first read.
        file_line: "file.cu:57" if the message names one.
        findings: findings of --check in this case: races, bad accesses, ...
        in_python: whether a call in the student's Python is known to be wrong; python_lines: (file, line number) of the
            lines that compute its result.
        ended: the process that ran it is gone: it crashed or timed out.
        is_endless: it timed out or made no progress.
    """

    case: Case
    status: str
    shapes: str = ""
    max_error: float | None = None
    bound: float | None = None
    said: list[str] = field(default_factory=list)
    explain: Callable[[], Diagnosis] = Diagnosis
    file_line: str | None = None
    findings: int = 0
    in_python: bool = False
    python_lines: list[tuple[str, int]] = field(default_factory=list)
    ended: bool = False
    is_endless: bool = False
    elements: int = 0
    matrices: int = 0
    sizes: tuple[int, ...] = ()

    @functools.cached_property
    def found(self) -> Diagnosis:
        """The diagnosis of a wrong output."""
        return self.explain()

    def change_found(self, change: Callable[[Diagnosis], Diagnosis]) -> None:
        """Replaces `found` by change(found); if it has not been computed, when it is."""
        found, explain = self.__dict__.pop("found", None), self.explain
        self.explain = lambda: change(found or explain())

    @property
    def diagnosis(self) -> list[str]:
        """The report's text: each item is a sentence or a line of a small table."""
        return [*self.said, *self.found.sentences]

    @property
    def mistakes(self) -> list[str]:
        """Names of the known mistakes that the output matches, or of the symptoms it shows."""
        return self.found.names

    @property
    def ok(self) -> bool:
        return self.status == PASS
