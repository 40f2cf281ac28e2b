"""Cases that are in no handout: a public case's call, with inputs of other shapes and numbers.

    like(cases, "softmax: 7 x 31", "rows and columns of other sizes", inputs, floor=...)

A task's are made by hidden(random, cases) in taskN/cases/hidden.py, from the class's salt. The process in which the
student's code runs knows the public case alone: it is asked for that case's call, and gets these inputs. A part earns
nothing unless its hidden cases pass, so they are larger ones of the ordinary kind, no further corners.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from common.reference.bounds import running_sum_floor
from common.testing.case import Case
from common.testing.case_choice import full_name
from common.testing.cases.attention_cases import PEAK

Inputs = Callable[[torch.Generator], dict[str, Tensor]]


@dataclass(frozen=True)
class HiddenCase:
    """A case and what it is called in reports; `case` has the name of the public one.

    Attributes:
        case: draws=1, required, without points.
        title: "hidden: 3 x 211 x 97".
        closed: it runs once more with inputs that only kernels can see.
    """

    case: Case
    title: str
    closed: bool = True


def tasks_below(task: str) -> set[str]:
    """The tasks whose kernels parts of this one run; none in a student's checkout."""
    if importlib.util.find_spec(f"{task}.cases.hidden") is None:
        return set()
    rests_on = getattr(importlib.import_module(f"{task}.cases.hidden"), "RESTS_ON", {})
    return {part.split()[0] for parts in rests_on.values() for part in parts}


def like(
    cases: Mapping[str, Case],
    name: str,
    title: str,
    inputs: Inputs | None = None,
    floor: float | None = None,
    closed: bool = True,
    **changes,
) -> HiddenCase:
    """A hidden case like a public one.

    Args:
        cases: the task's public ones by their full names.
        name: "part: name" of the public one.
        title: which sizes; without what it is like.
        inputs: makes the inputs; None: as the public case does, with other numbers.
        floor: of the bound at this size; None: the public case's.
        closed: see HiddenCase.
        changes: other fields of the case, such as its reference.
    """
    public = cases[name]
    kept = {"inputs": inputs or public.inputs, "floor": public.floor if floor is None else floor}
    if inputs is not None:  # what is known of mistakes and stages may hold for the public sizes only
        kept |= {"mistakes": None, "stages": None}
    case = replace(public, points=0.0, required=True, draws=1, hint="", nan_hint="", **{**kept, **changes})
    return HiddenCase(case, f"hidden: {title}", closed)


def hidden_cases(task: str, cases: Sequence[Case], seed: int) -> list[HiddenCase]:
    """A task's hidden cases; [] where it has none (a student's checkout)."""
    if importlib.util.find_spec(f"{task}.cases.hidden") is None:
        return []
    return importlib.import_module(f"{task}.cases.hidden").hidden(
        random.Random(seed), {full_name(one): one for one in cases}
    )


def with_peaks(query: Tensor, key: Tensor) -> None:
    """Gives every seventh row of query [..., rows, head_dim], from the first on, the score PEAK with the key of its
    number, in place: without the row's maximum exp() overflows there, in float64, too."""
    keys = key[..., torch.arange(0, query.size(-2), 7) % key.size(-2), :]
    query[..., ::7, :] = PEAK * query.size(-1) ** 0.5 * keys / (keys * keys).sum(-1, keepdim=True)


def attention_inputs(batch: int, heads: int, seq_q: int, seq_k: int, head_dim: int, peaks: bool = True) -> Inputs:
    """As common.testing.cases.attention_cases makes them, with the default sharpness; peaks: see with_peaks."""

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        def normal(seq: int) -> Tensor:
            return torch.randn(batch, heads, seq, head_dim, generator=generator)

        made = {"query": 1.5 * normal(seq_q), "key": 1.5 * normal(seq_k), "value": 2 + normal(seq_k)}
        if peaks:
            with_peaks(made["query"], made["key"])
        return made

    return inputs


def attention_floor(seq_k: int) -> float:
    """Its floor, see there."""
    return 1e-5 * 1.5**2 + running_sum_floor(seq_k, 4)


def softmax_inputs(rows: int, cols: int) -> Inputs:
    """As common.testing.cases.softmax makes them, but for a number in every seventh row whose exp() overflows."""

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        x = 4 * torch.randn(rows, cols, generator=generator)
        x[::7, -1] = PEAK
        return {"x": x}

    return inputs


def softmax_floor(cols: int) -> float:
    """Its floor, see there."""
    return 1e-6 + running_sum_floor(cols, 1)
