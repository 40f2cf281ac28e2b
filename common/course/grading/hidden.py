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

Inputs = Callable[[torch.Generator], dict[str, Tensor]]


@dataclass(frozen=True)
class HiddenCase:
    """A case and its title in reports; `case` carries the public case's name.

    Attributes:
        case: draws=1, required, without points.
        title: "hidden: 3 x 211 x 97".
        bounded: whether the busiest thread's work is bounded, see at_work.py. Not if the case is about memory: there,
            one head has too few numbers.
    """

    case: Case
    title: str
    bounded: bool = True


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
    bounded: bool = True,
    **changes,
) -> HiddenCase:
    """A hidden case derived from a public one.

    Args:
        cases: the task's public cases by full name.
        name: "part: name" of the public case.
        title: the sizes, without the "hidden" prefix.
        inputs: makes the inputs; None: the public case's inputs with other values.
        floor: floor of the bound at this size; None: the public case's.
        bounded: see HiddenCase.
        changes: other fields of the case, such as its reference.
    """
    public = cases[name]
    kept = {"inputs": inputs or public.inputs, "floor": public.floor if floor is None else floor}
    if inputs is not None:  # known mistakes and stages may be valid for the public sizes only
        kept |= {"mistakes": None, "stages": None}
    case = replace(public, points=0.0, required=True, draws=1, hint="", nan_hint="", **{**kept, **changes})
    return HiddenCase(case, f"hidden: {title}", bounded)


def hidden_cases(task: str, cases: Sequence[Case], seed: int) -> list[HiddenCase]:
    """A task's hidden cases; [] if it has none (in a student's checkout)."""
    if importlib.util.find_spec(f"{task}.cases.hidden") is None:
        return []
    return importlib.import_module(f"{task}.cases.hidden").hidden(
        random.Random(seed), {full_name(one): one for one in cases}
    )


def _uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)


def _sign(generator: torch.Generator, *shape: int) -> Tensor:
    return _uniform(generator, -1, 1, *shape).sign()


def with_ladder(query: Tensor, key: Tensor, generator: torch.Generator, largest: float = 1e4) -> None:
    """Gives three in four rows of query [..., rows, head_dim] scores that exp() can't take, even in float64, unless the
    row's own maximum is subtracted.

    In such a row one number is not 0. A score is the row's height times the key's level, and the row's largest one is
    between 2500 and `largest`, or the same below 0, where the smallest level decides. Along the keys, levels climb in
    steps. Keys in random places, in every tile, decide the row: they have the largest or smallest level, or nearly so,
    after a key whose score is some hundreds from theirs. Levels that are equal are powers of two, or few units of a
    score from one: so equal scores stay equal to the last bit, whatever is multiplied by the scale and in any order of
    summation.
    """
    *batch, seq_k, head_dim = key.shape
    of_level, low = torch.randint(head_dim, (1,), generator=generator).item(), 2.0**-6
    level = 2.0 ** torch.arange(-5, 0)[torch.randint(5, (*batch, seq_k), generator=generator).sort().values]
    top = torch.tensor([15 / 16, low * 17 / 16] + [511 / 512, low * 513 / 512, 1.0, low] * max(1, seq_k // 32))
    at = _uniform(generator, 0, 1, *batch, seq_k).argsort()[..., : len(top)].sort().values
    key[..., of_level] = level.scatter(-1, at, top.expand(at.shape))
    rows = query.shape[:-1]
    changed = (torch.arange(rows.numel()).view(rows) % 4 != 1).nonzero(as_tuple=True)
    size = 2500 * (largest / 2500) ** _uniform(generator, 0, 1, *rows)
    height = torch.where(_sign(generator, *rows) > 0, size, -size / low)
    query[changed] = 0.0
    query[(*changed, of_level)] = head_dim**0.5 * height[changed]


# For rows whose scores fit neither into a block's shared memory nor into a thread's local memory (build.MOST_LOCAL)
MANY_KEYS = 60_000, 66_000


def attention_inputs(
    batch: int, heads: int, seq_q: int, seq_k: int, head_dim: int, largest: float = 1e4, sharpness: float = 1.5
) -> Inputs:
    """Inputs as in common.testing.cases.attention_cases, and with_ladder unless `largest` is 0."""

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        def normal(seq: int) -> Tensor:
            return torch.randn(batch, heads, seq, head_dim, generator=generator)

        made = {"query": sharpness * normal(seq_q), "key": sharpness * normal(seq_k), "value": 2 + normal(seq_k)}
        if largest:
            with_ladder(made["query"], made["key"], generator, largest)
        return made

    return inputs


def attention_floor(seq_k: int) -> float:
    """Its floor, see there."""
    return 1e-5 * 1.5**2 + running_sum_floor(seq_k, 4)


def with_peaks(x: Tensor, generator: torch.Generator) -> Tensor:
    """In three of four rows of x, two random columns are equal and the largest, most others 1500 lower. Before them (in
    every fourth row, after them) is a column 8 lower, and one 250 to 720 lower, another distance in each row. The
    largest are equal, so rounding of their exponents doesn't matter."""
    rows = torch.arange(len(x))
    columns = torch.rand(x.shape, generator=generator).argsort()[:, :4].sort().values
    columns = torch.where(rows[:, None] % 4 == 3, columns.flip(1), columns)
    height = _uniform(generator, 800, 4000, len(x), 1) * _sign(generator, len(x), 1)
    below = torch.stack((torch.linspace(250, 720, len(x)), *torch.tensor([8.0, 0.0, 0.0]).expand(len(x), 3).T), 1)
    return torch.where(rows[:, None] % 4 == 1, x, (x + height - 1500).scatter(1, columns, height - below))


def softmax_inputs(rows: int, cols: int) -> Inputs:
    """Inputs as in common.testing.cases.softmax, see with_peaks."""
    return lambda generator: {"x": with_peaks(4 * torch.randn(rows, cols, generator=generator), generator)}


def softmax_floor(cols: int) -> float:
    """Its floor, see there."""
    return 1e-6 + running_sum_floor(cols, 1)
