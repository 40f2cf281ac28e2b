"""Prints predictions, a line per launch, and their basis: print_predictions(...)"""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common.inspect.profile.report import amount, duration, size_of
from common.predict.machine import Machine
from common.predict.model import Prediction

CAVEATS = [
    "Predicted, not measured: a few blocks' counters from the simulator, scaled to the grid. How near that comes",
    "to a GPU's times: common/predict/README.md.",
    "bound by: the resource that takes longest; next: the second longest, in percent of the longest.",
]


def bound_words(one: Prediction) -> str:
    """ "DRAM, next L2 (71%)": the bound, and the next one relative to it."""
    if one.not_modeled:
        return one.not_modeled
    share = min(1.0, one.bounds[1].seconds / one.bound.seconds)
    return f"{one.bound.resource}, next {one.bounds[1].resource} ({share:.0%})"


def predictions_table(called: Sequence[tuple[str, str, Sequence[Prediction]]]) -> Table:
    """A row for each launch of each (version, size, launches)."""
    table = Table(box=SIMPLE, pad_edge=False)
    for heading in ("version", "size", "kernel", "predicted", "bound by", "DRAM", "registers"):
        table.add_column(heading, justify="right" if heading in ("predicted", "DRAM", "registers") else "left")
    for version, size, launches in called:
        for number, one in enumerate(launches):
            kernel, first = one.launch.kernel, number == 0
            name = f"{kernel.kernel.split('<')[0]} {size_of(kernel.grid)} x {size_of(kernel.block)}"
            times = "" if kernel.launches == 1 else f", {kernel.launches} launches"
            registers = f"{kernel.registers}{' est.' * (one.launch.registers_from != 'nvcc')}"
            cells = (
                version * first, size * first, name + times, duration(one.seconds) if one.seconds else "not modeled",
                bound_words(one), amount(one.traffic.total), registers,
            )  # fmt: skip
            table.add_row(*map(escape, cells))
    return table


def total_seconds(launches: Sequence[Prediction]) -> float | None:
    """The total time of a call's launches; None if one of them is not modeled."""
    times = [one.seconds for one in launches]
    if not times or any(time is None for time in times):
        return None
    return sum(time * one.launch.kernel.launches for time, one in zip(times, launches, strict=True))


def print_predictions(
    console: Console, called: Sequence[tuple[str, str, Sequence[Prediction]]], machine: Machine
) -> None:
    """Prints the table and, below it, the basis of the predictions."""
    console.print(predictions_table(called))
    for line in [*CAVEATS, f"L2 bandwidth, latencies and clock of {machine.gpu.name}: {machine.origin}"]:
        console.print(line, style="dim", markup=False, highlight=False)
