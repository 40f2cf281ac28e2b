"""Problem: a computation of one size. Version: an implementation of it. Benchmark: both, and the goals."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from common.measure.benchmark.sample import Sample

if TYPE_CHECKING:
    import torch

    from common.measure.benchmark.goals import Goal
    from common.measure.benchmark.runner import Record

Call = Callable[[], "Tensor | Sequence[Tensor]"]


class Problem(Protocol):
    """A computation of one size. Problems are frozen dataclasses; their fields are stored in JSON files.

    Attributes:
        setting: everything but the size that varies along a table: "forward, bf16, head_dim 64, causal".
        column: that size as a column heading: "16384".
        x: that size as a number, for plots.
        picture: the figure that contains the setting's panel: "forward, bf16".
        work: minimum floating-point operations, or bytes to move, regardless of what a version actually does.
        unit: "TFLOP/s" or "TB/s", depending on what `work` counts.
        limit: what rates are compared with: "copy" or a kind of matmul, see common.measure.limits.
        least_bytes, scores_bytes, tensor_bytes: for the memory and roofline plots; 0 if not applicable.
    """

    setting: str
    column: str
    x: float
    picture: str
    work: float
    unit: str
    limit: str
    least_bytes: float
    scores_bytes: float
    tensor_bytes: float

    def make_inputs(self, device: torch.device | str) -> Sequence[Any]:
        """New random inputs for all versions."""
        ...

    def sample(self, inputs: Sequence[Any]) -> Sample:
        """The correct answer for a part of the output, in float64."""
        ...


@dataclass(frozen=True)
class Version:
    """An implementation of a problem.

    Attributes:
        label: label in tables and plots.
        prepare: prepare(*inputs) -> the call to time, without arguments.
        ours: whether it is part of this project; if one of these is wrong or unfinished, the exit status reports it.
        stored_bytes: memory needed beyond the inputs, if known; skipped if less is available.
        compared: whether its output is checked; False for a version that only times something else.
    """

    label: str
    prepare: Callable[..., Call]
    ours: bool = False
    stored_bytes: float = 0.0
    compared: bool = True


@dataclass(frozen=True)
class Benchmark:
    """A command that times versions on problems; common.cli.benchmark runs it.

    Attributes:
        program: the text after python -m: "task4.benchmark".
        description: description of the command line.
        labels: names of all available versions, with their labels; --versions selects among them.
        problems: problems(options) -> the problems, grouped by setting. ValueError for an invalid argument.
        versions: versions(options) -> a function from a problem to the versions that can compute it, by name; compiles
            what they need. options.versions: the requested names, None for all.
        problem_of: problem_of(**fields) -> a problem, for reading JSON files.
        add_arguments: adds benchmark-specific options.
        goals: the conclusions to draw, with their targets.
        notes: notes(records) -> additional sentences.
        ladder: the versions are successive steps of one development; each is compared with the previous one.
        block: the block in Results.md that --report writes; "" for none.
    """

    program: str
    description: str
    labels: Mapping[str, str]
    problems: Callable[[argparse.Namespace], list]
    versions: Callable[[argparse.Namespace], Callable[[Any], dict[str, Version]]]
    problem_of: Callable[..., Any]
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    goals: Sequence[Goal] = ()
    notes: Callable[[Sequence[Record]], Iterable[str]] = lambda records: ()
    ladder: Callable[[argparse.Namespace], bool] = lambda options: False
    block: str = ""
