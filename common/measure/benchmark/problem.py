"""Problem: something to compute, of one size. Version: an implementation of it. Benchmark: both, and what is asked."""

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
    """Something to compute, of one size. Problems are frozen dataclasses: their fields are what a JSON file keeps.

    Attributes:
        setting: all but the size that varies along a table: "forward, bf16, head_dim 64, causal".
        column: that size, as a table's column says it: "16384".
        x: that size as a number, for pictures.
        picture: the picture that the setting is a panel of: "forward, bf16".
        work: floating-point operations, or bytes to move, at least; the same whatever a version really does.
        unit: "TFLOP/s" or "TB/s", what `work` counts.
        limit: what a rate is compared with: "copy", or a kind of matrix product, see common.measure.limits.
        least_bytes, scores_bytes, tensor_bytes: for the pictures of memory and the roofline; 0 where they mean nothing.
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
        """What every version gets, fresh random numbers."""
        ...

    def sample(self, inputs: Sequence[Any]) -> Sample:
        """The right answer for a part of the output, in float64."""
        ...


@dataclass(frozen=True)
class Version:
    """An implementation of a problem.

    Attributes:
        label: in tables and pictures.
        prepare: prepare(*inputs) -> the call that is timed, without arguments.
        ours: made by this project; if one of these is wrong or unfinished the command says so by its exit status.
        stored_bytes: what it will need beyond its inputs, if that is known; it is not tried where there is less.
        compared: whether its output is the answer; what only shows how long something else takes is not.
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
        program: what follows python -m: "task4.benchmark".
        description: of the command line.
        labels: the names of all versions that may take part, with their labels; --versions chooses among them.
        problems: problems(options) -> what is measured, settings together. ValueError for an argument that cannot be.
        versions: versions(options) -> a function from a problem to the versions that can compute it, by name; it
            compiles what they need. options.versions: the names that were requested, None for all.
        problem_of: problem_of(**fields) -> a problem, to read JSON files again.
        add_arguments: adds options of its own.
        goals: what is concluded, and what is asked of it.
        notes: notes(records) -> further sentences.
        ladder: the versions are steps of one development; each is compared with the one before.
        block: the place in Results.md that --report writes to; "" for none.
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
