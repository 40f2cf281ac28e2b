"""The output of `python -m task4.tune`: a heat map per head_dim, in the terminal and as a picture, and the reasons.

print_heat_maps(console, outcomes)      measured: TFLOP/s; impossible: why
print_possible(console, candidates)     without a GPU: what would be tried, and why the others are impossible
draw(outcomes, title, file)             the same heat maps as a PNG
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from common.console.drawing import pyplot, save
from common.console.terminal import say
from common.measure.gpus import GpuSpec
from task4.tools.tuning.grid import Candidate
from task4.tools.tuning.run import Outcome, best
from task4.tools.tuning.tile_plan import TilePlan

COLD, HOT = (48, 18, 59), (122, 209, 81)  # colors of the slowest and the fastest
LEGEND = {
    "KB": "shared memory: the tiles need this much, more than a block may use",
    "reg": "registers: about this many per thread, more than there are (255 per thread, 65,536 per SM)",
    "÷": "does not divide: B_r must be a multiple of the warps, B_c of 32",
    "thr": "threads: a block has at most 1024",
    "wrong": "its output is wrong",
    "*": "fits, but ptxas put some registers into memory (spills)",
}


def short_reason(candidate: Candidate) -> str:
    """The first problem in a few characters: "66 KB", "290 reg", "÷", "thr"."""
    kind = candidate.problems[0].split(":")[0]
    plan = TilePlan(candidate.tiles, candidate.head_dim)
    return {
        "shared memory": f"{math.ceil(plan.shared_bytes / 1024)} KB",
        "registers": f"{plan.registers} reg",
        "does not divide": "÷",
        "threads": "thr",
    }[kind]


def cell_text(outcome: Outcome) -> str:
    """The heat map's text for one candidate."""
    if outcome.candidate.problems:
        return short_reason(outcome.candidate)
    if outcome.wrong:
        return "wrong"
    return f"{outcome.tflops:.1f}" + ("*" if outcome.spills else "")


def print_heat_maps(console: Console, outcomes: Sequence[Outcome]) -> None:
    """One table per head_dim, rows B_r and warps, columns B_c; then a legend."""
    fastest = best(outcomes)
    for D in dict.fromkeys(one.candidate.head_dim for one in outcomes):
        mine = {one.candidate: one for one in outcomes if one.candidate.head_dim == D}
        rates = [one.tflops for one in mine.values() if one.tflops]
        winner = fastest.get(D)

        def cell(candidate: Candidate, mine=mine, rates=rates, winner=winner) -> Text:
            outcome = mine[candidate]
            if not outcome.tflops:
                return Text(cell_text(outcome), style="red" if outcome.wrong else "dim")
            style = f"white on rgb({','.join(map(str, _color(outcome.tflops, rates)))})"
            return Text(f" {cell_text(outcome)} ", style=style + (" bold underline" if outcome is winner else ""))

        title = f"head_dim {D}: TFLOP/s"
        if winner:
            title += f"; fastest: {winner.candidate.tiles}, {winner.tflops:.1f}"
        _print_grid(console, title, list(mine), cell)
    print_legend(console, {word for one in outcomes for word in LEGEND if word in cell_text(one)})
    for one in outcomes:
        if one.wrong:
            say(console, f"wrong: head_dim {one.candidate.head_dim}, {one.candidate.tiles}: {one.wrong}")


def print_possible(console: Console, candidates: Sequence[Candidate], gpu: GpuSpec) -> None:
    """The same tables without times: shared memory and occupancy of the possible candidates."""

    def cell(candidate: Candidate) -> Text:
        if candidate.problems:
            return Text(short_reason(candidate), style="dim")
        plan = TilePlan(candidate.tiles, candidate.head_dim)
        return Text(f"{100 * plan.occupancy(gpu).fraction:.0f} %", style="green")

    for D in dict.fromkeys(one.head_dim for one in candidates):
        mine = [one for one in candidates if one.head_dim == D]
        count = sum(not one.problems for one in mine)
        _print_grid(console, f"head_dim {D}: occupancy on {gpu.name}; {count} of {len(mine)} are possible", mine, cell)
    print_legend(console, {word for one in candidates if one.problems for word in LEGEND if word in short_reason(one)})


def _print_grid(
    console: Console, title: str, candidates: Sequence[Candidate], cell: Callable[[Candidate], Text]
) -> None:
    rows, columns, places = axes_of(candidates)
    console.print(f"\n[italic]{escape(title)}[/]", highlight=False)
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("B_r, warps", justify="right")
    for B_c in columns:
        table.add_column(f"B_c {B_c}", justify="right")
    for row in rows:
        cells = (cell(places[row, B_c]) if (row, B_c) in places else "" for B_c in columns)
        table.add_row(f"{row[0]}, {row[1]}", *cells)
    console.print(table)


def axes_of(candidates: Sequence[Candidate]) -> tuple[list[tuple[int, int]], list[int], dict]:
    """((B_r, warps) of the rows, B_c of the columns, {(row, column): candidate}) for one head_dim."""
    places = {((one.tiles.B_r, one.tiles.warps), one.tiles.B_c): one for one in candidates}
    return sorted({row for row, _ in places}), sorted({column for _, column in places}), places


def print_legend(console: Console, words: set[str]) -> None:
    """The meaning of each word that occurs in the cells."""
    for word, meaning in LEGEND.items():
        if word in words:
            say(console, f"  {word:<6} {meaning}")


def _color(value: float, values: Sequence[float]) -> tuple[int, ...]:
    low, high = min(values), max(values)
    share = (value - low) / (high - low) if high > low else 1.0
    return tuple(round(cold + share * (hot - cold)) for cold, hot in zip(COLD, HOT, strict=True))


def draw(outcomes: Sequence[Outcome], title: str, file: Path) -> None:
    """A PNG with one heat map per head_dim."""
    import numpy

    head_dims = list(dict.fromkeys(one.candidate.head_dim for one in outcomes))
    figure, axes = pyplot().subplots(
        1, len(head_dims), figsize=(3.6 * len(head_dims), 6.4), layout="constrained", squeeze=False
    )
    fastest = best(outcomes)
    for D, axis in zip(head_dims, axes[0], strict=True):
        mine = {one.candidate: one for one in outcomes if one.candidate.head_dim == D}
        rows, columns, places = axes_of(list(mine))
        rates = numpy.full((len(rows), len(columns)), numpy.nan)
        cells = [(rows.index(row), columns.index(B_c), mine[one]) for (row, B_c), one in places.items()]
        for y, x, outcome in cells:
            rates[y, x] = outcome.tflops or numpy.nan
        axis.set_facecolor("0.92")
        axis.imshow(rates, cmap="viridis", aspect="auto")
        timed = [outcome.tflops for _, _, outcome in cells if outcome.tflops]
        for y, x, outcome in cells:
            dark = outcome.tflops and outcome.tflops < (min(timed) + max(timed)) / 2
            color = "0.45" if not outcome.tflops else "white" if dark else "black"
            weight = "bold" if outcome is fastest.get(D) else "normal"
            axis.text(x, y, cell_text(outcome), ha="center", va="center", color=color, weight=weight, fontsize=8)
        axis.set_xticks(range(len(columns)), columns)
        axis.set_yticks(range(len(rows)), [f"{B_r}, {warps}" for B_r, warps in rows])
        axis.set_xlabel("B_c: keys per tile")
        axis.set_title(f"head_dim {D}")
    axes[0][0].set_ylabel("B_r: rows per block, warps")
    figure.suptitle(title)
    save(figure, file)
