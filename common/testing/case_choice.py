"""Selects test cases: `--case NAME` and `--list`."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch.overrides import TorchFunctionMode

from common.console.terminal import wide
from common.testing.case import Case
from common.testing.first_operator import first_operator


def choose(cases: Sequence[Case], wanted: Sequence[str] | None) -> list[Case]:
    """The cases with these names; all if `wanted` is empty.

    A name is the case's name or "part: name", case-insensitive; failing that, any substring of it.

    Raises:
        ValueError: no case matches; the message lists the nearest names, or all.
    """
    if not wanted:
        return list(cases)
    chosen: list[Case] = []
    for name in wanted:
        key = name.lower()
        found = [case for case in cases if key in (case.name.lower(), full_name(case).lower())]
        found = found or [case for case in cases if key in full_name(case).lower()]
        if not found:
            raise ValueError(f"no case is called {name!r}; {_others(name, cases)}")
        chosen += [case for case in found if case not in chosen]
    return [case for case in cases if case in chosen]


def for_operators(cases: Sequence[Case], operators: Collection[str]) -> list[Case]:
    """The cases that call one of these operators."""
    return [case for case in cases if first_operator(case) in operators]


def full_name(case: Case) -> str:
    """ "softmax: 7 x 31"."""
    return f"{case.part}: {case.name}"


def _others(name: str, cases: Sequence[Case]) -> str:
    names = [full_name(case) for case in cases]
    near = difflib.get_close_matches(name, names + [case.name for case in cases], n=3, cutoff=0.5)
    perhaps = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"{perhaps}there are:\n  " + "\n  ".join(names)


class _ShapesOnly(TorchFunctionMode):
    """For use with device "meta": tensors without data, including random ones, since "meta" has no generators."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **{name: value for name, value in (kwargs or {}).items() if name != "generator"})


def shapes_of(case: Case) -> str:
    """The shapes of a case's inputs, "2x3x40x16, 2x3x47x16"; "" if they depend on the data."""
    try:
        with torch.device("meta"), _ShapesOnly():
            inputs = case.inputs(torch.Generator())
    except (RuntimeError, NotImplementedError):
        return ""
    return ", ".join(dict.fromkeys("x".join(map(str, x.shape)) for x in inputs.values()))


def print_list(console: Console, task: str, cases: Sequence[Case]) -> None:
    """Prints a table of the cases: part, name, points, shapes."""
    table = Table(title=f"{task}: {len(cases)} cases", title_justify="left")
    for column in ("part", "case", "shapes"):
        table.add_column(column)
    table.add_column("points", justify="right")
    table.add_column("")
    for case in cases:
        points = f"{case.points:g}" if case.points else ""
        note = "GPU only" if case.gpu_only else "required" if case.required else ""
        table.add_row(case.part, escape(case.name), shapes_of(case), points, note)
    wide(console).print(table)
