"""Unpublished cases: a public case's call, with inputs of other shapes and values.

    like(cases, "softmax: 7 x 31", "rows and columns of other sizes", inputs, floor=...)

A task's hidden cases are made by hidden(random, cases) in taskN/cases/hidden.py, from the class's salt. The process
that runs student code knows only the public case: it receives that case's call with these inputs. A part earns nothing
unless its hidden cases pass, so they are larger ordinary cases, not additional corner cases.
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
    """A case and its title in reports; `case` carries the public case's name.

    Attributes:
        case: draws=1, required, without points.
        title: "hidden: 3 x 211 x 97".
        closed: it runs a second time with inputs that only kernels can see.
    """

    case: Case
    title: str
    closed: bool = True


def tasks_below(task: str) -> set[str]:
    """The tasks whose kernels this task's parts use; none in a student's checkout."""
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
    """A hidden case derived from a public one.

    Args:
        cases: the task's public cases by full name.
        name: "part: name" of the public case.
        title: the sizes, without the "hidden" prefix.
        inputs: makes the inputs; None: the public case's inputs with other values.
        floor: floor of the bound at this size; None: the public case's.
        closed: see HiddenCase.
        changes: other fields of the case, such as its reference.
    """
    public = cases[name]
    kept = {"inputs": inputs or public.inputs, "floor": public.floor if floor is None else floor}
    if inputs is not None:  # known mistakes and stages may be valid for the public sizes only
        kept |= {"mistakes": None, "stages": None}
    case = replace(public, points=0.0, required=True, draws=1, hint="", nan_hint="", **{**kept, **changes})
    return HiddenCase(case, f"hidden: {title}", closed)


def hidden_cases(task: str, cases: Sequence[Case], seed: int) -> list[HiddenCase]:
    """A task's hidden cases; [] if it has none (in a student's checkout)."""
    if importlib.util.find_spec(f"{task}.cases.hidden") is None:
        return []
    return importlib.import_module(f"{task}.cases.hidden").hidden(
        random.Random(seed), {full_name(one): one for one in cases}
    )


def with_peaks(query: Tensor, key: Tensor) -> None:
    """Gives every seventh row i of query [..., rows, head_dim], from row 0 on, the score PEAK with key i mod S_k.
    Unless the row's maximum is subtracted, exp() overflows there, even in float64."""
    keys = key[..., torch.arange(0, query.size(-2), 7) % key.size(-2), :]
    query[..., ::7, :] = PEAK * query.size(-1) ** 0.5 * keys / (keys * keys).sum(-1, keepdim=True)


def attention_inputs(batch: int, heads: int, seq_q: int, seq_k: int, head_dim: int, peaks: bool = True) -> Inputs:
    """Inputs as in common.testing.cases.attention_cases, with the default sharpness; peaks: see with_peaks."""

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
    """Inputs as in common.testing.cases.softmax, except that every seventh row has an element whose exp() overflows."""

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        x = 4 * torch.randn(rows, cols, generator=generator)
        x[::7, -1] = PEAK
        return {"x": x}

    return inputs


def softmax_floor(cols: int) -> float:
    """Its floor, see there."""
    return 1e-6 + running_sum_floor(cols, 1)
