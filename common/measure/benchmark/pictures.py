"""Plots a benchmark's results: latency, throughput, speedup, and, if sizes are known, memory and a roofline.

draw(records, limits, machine, folder)     -> the files written

There is one set of plots for each `picture` of the problems, with one panel per setting. A version has the same color
everywhere; our versions have solid lines, the others dashed ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common.console.drawing import pyplot, save
from common.measure.benchmark.runner import Record
from common.measure.limits import Limits

TERA = 1e12
MARKERS = "osDv^xd+P*"
# Additional passes over memory of a version that stores the scores: scores written, read by the softmax, weights
# written, read by the last matmul
PASSES_OVER_SCORES = 4


def draw(records: Sequence[Record], limits: Limits, machine: Mapping[str, str], folder: Path) -> list[Path]:
    """Writes <picture>_<kind>.png for every picture among the problems."""
    files = []
    for picture in dict.fromkeys(one.problem.picture for one in records):
        chosen = [one for one in records if one.problem.picture == picture]
        if any(one.timing for one in chosen):
            name = re.sub(r"\W+", "_", picture)
            canvas = _Canvas(chosen, limits, f"{picture}, {machine.get('gpu', 'unknown GPU')}")
            files += [save(kind(canvas), folder / f"{name}_{kind.__name__.strip('_')}.png") for kind in _kinds(chosen)]
    return files


def moved_bytes(one: Record) -> float:
    """The minimum number of bytes moved: each tensor once, and stored scores PASSES_OVER_SCORES times."""
    return one.problem.least_bytes + (PASSES_OVER_SCORES * one.problem.scores_bytes if one.stored_bytes else 0)


class _Canvas:
    """The records of one picture and the style of their lines.

    Args:
        records: the records.
        limits: the machine's limits.
        what: description for the titles.
    """

    def __init__(self, records: Sequence[Record], limits: Limits, what: str) -> None:
        self.records, self.limits, self.what = records, limits, what
        self.names = list(dict.fromkeys(one.version for one in records))
        self.labels = {one.version: one.label for one in records}
        self.ours = {one.version for one in records if one.ours}
        self.problem = records[0].problem

    def by_version(self, records: Sequence[Record]) -> dict[str, list[Record]]:
        """The records of each version, sorted by size."""
        ordered = sorted(records, key=lambda one: one.problem.x)
        found = {name: [one for one in ordered if one.version == name] for name in self.names}
        return {name: alike for name, alike in found.items() if alike}

    def lines(self, axes, records: Sequence[Record], value: Callable[[Record], float | None]) -> None:
        """Plots a line per version through its values, with gaps for missing ones."""
        for name, alike in self.by_version(records).items():
            values = [value(one) for one in alike]
            if any(values):
                xs = [one.problem.x for one in alike]
                self.plot(axes, name, xs, [float("nan") if one is None else one for one in values])

    def plot(self, axes, name: str, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Plots one version's line."""
        number = self.names.index(name)
        style = "-" if name in self.ours else "--"
        marks = {"marker": MARKERS[number % len(MARKERS)], "markersize": 6, "markerfacecolor": "none"}
        axes.plot(xs, ys, style, color=f"C{number % 10}", label=self.labels[name], linewidth=1.5, **marks)

    def picture(self, title: str, ylabel: str, panel: Callable[..., None], xlabel: str = ""):
        """Draws a figure with a panel per setting and a common legend. xlabel "": the problems' columns."""
        settings = list(dict.fromkeys(one.problem.setting for one in self.records))
        across = 2 if len(settings) in (2, 4) else min(3, len(settings))
        down = -(-len(settings) // across)
        size = (4.2 * across + 1.9, 3.2 * down + 0.5)
        figure, grid = pyplot().subplots(down, across, figsize=size, layout="constrained", sharey=True, squeeze=False)
        handles: dict[str, object] = {}
        for axes in grid.flat[len(settings) :]:
            axes.axis("off")
        for axes, setting in zip(grid.flat, settings, strict=False):
            of_panel = [one for one in self.records if one.problem.setting == setting]
            panel(axes, of_panel)
            if not xlabel:
                ticks = {one.problem.x: one.problem.column for one in of_panel}
                axes.set_xscale("log", base=2)
                axes.set_xticks(list(ticks), labels=list(ticks.values()), fontsize=8)
                axes.minorticks_off()
            axes.set_title(setting, loc="left", fontsize=10)
            axes.grid(which="major", alpha=0.3, linewidth=0.6)
            axes.set_axisbelow(True)
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        for axes in grid[-1]:
            axes.set_xlabel(xlabel)
        for row in grid:
            row[0].set_ylabel(ylabel)
        figure.suptitle(f"{title}: {self.what}", x=0.01, horizontalalignment="left", fontsize=11)
        figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize=9, frameon=False)
        return figure


def _kinds(records: Sequence[Record]) -> list[Callable[[_Canvas], object]]:
    """The plots that can be drawn from these records."""
    kinds = [_latency, _throughput]
    if _baseline(records):
        kinds.append(_speedup)
    if any(one.memory for one in records) and records[0].problem.tensor_bytes:
        kinds.append(_memory)
    if records[0].problem.least_bytes:
        kinds.append(_roofline)
    return kinds


def _baseline(records: Sequence[Record]) -> str:
    """The baseline for speedups: the slowest of the versions timed on the most problems."""
    times: dict[str, list[float]] = {}
    for one in records:
        if one.timing and one.errors:
            times.setdefault(one.version, []).append(one.timing.seconds)
    return max(times, key=lambda name: (len(times[name]), sum(times[name]))) if len(times) > 1 else ""


def _latency(canvas: _Canvas):
    def panel(axes, of_panel: Sequence[Record]) -> None:
        canvas.lines(axes, of_panel, lambda one: one.timing and 1e3 * one.timing.seconds)
        axes.set_yscale("log")

    return canvas.picture("Latency", "ms", panel)


def _throughput(canvas: _Canvas):
    best = max(one.rate or 0.0 for one in canvas.records)
    limit, rate = canvas.problem.limit, canvas.limits.of(canvas.problem.limit)
    near = rate < 1.6 * best  # a limit farther away would compress the lines
    top = 1.08 * max(best, rate if near else 0.0) / TERA

    def panel(axes, of_panel: Sequence[Record]) -> None:
        canvas.lines(axes, of_panel, lambda one: one.rate and one.rate / TERA)
        if near:
            axes.axhline(rate / TERA, color="0.5", linewidth=1.0, linestyle=":")
            words = f"{limit}: {rate / TERA:.3g}"
            axes.text(0.01, rate / TERA, words, transform=axes.get_yaxis_transform(), fontsize=8, va="bottom")
        axes.set_ylim(0, top)

    return canvas.picture("Throughput", canvas.problem.unit, panel)


def _speedup(canvas: _Canvas):
    base = _baseline(canvas.records)
    seconds = {one.problem: one.timing.seconds for one in canvas.records if one.version == base and one.timing}

    def speedup(one: Record) -> float | None:
        there = one.timing and one.problem in seconds
        return seconds[one.problem] / one.timing.seconds if there else None

    def panel(axes, of_panel: Sequence[Record]) -> None:
        canvas.lines(axes, of_panel, speedup)
        axes.set_yscale("log")

    return canvas.picture(f"Speedup over {canvas.labels[base]}", "times faster", panel)


def _memory(canvas: _Canvas):
    def panel(axes, of_panel: Sequence[Record]) -> None:
        canvas.lines(axes, of_panel, lambda one: one.memory and one.memory / 2**20)
        problems = sorted({one.problem for one in of_panel}, key=lambda problem: problem.x)
        for sizes, style, label in (
            ([problem.scores_bytes for problem in problems], ":", "scores, S x S in float32: O(S²)"),
            ([problem.tensor_bytes for problem in problems], "-.", "one tensor, S x head_dim: O(S)"),
        ):
            mebibytes = [size / 2**20 for size in sizes]
            axes.plot([one.x for one in problems], mebibytes, style, color="0.5", linewidth=1.2, label=label)
        axes.set_yscale("log")

    return canvas.picture("Peak memory beyond the inputs", "MiB", panel)


def _roofline(canvas: _Canvas):
    limit = canvas.problem.limit
    roof, copy = canvas.limits.of(limit) / TERA, canvas.limits.copy / TERA

    def panel(axes, of_panel: Sequence[Record]) -> None:
        for name, alike in canvas.by_version(of_panel).items():
            timed = [one for one in alike if one.rate]
            at = [one.problem.work / moved_bytes(one) for one in timed]
            canvas.plot(axes, name, at, [one.rate / TERA for one in timed])
        axes.set(xscale="log", yscale="log")
        left, right = axes.get_xlim()
        left, right = min(left, 0.3 * roof / copy), max(right, 3 * roof / copy)
        axes.plot([left, roof / copy, right], [left * copy, roof, roof], color="0.5", linewidth=1.3)
        axes.text(left, 1.06 * roof, f" {limit}: {roof:.0f}", ha="left", va="bottom", fontsize=8)
        axes.set_xlim(left, right)
        axes.set_ylim(top=2 * roof)
        slope = f"slope: copy, {copy:.1f} TB/s"
        axes.text(0.98, 0.03, slope, transform=axes.transAxes, fontsize=8, ha="right", va="bottom")

    return canvas.picture("Roofline, bytes counted as if each were moved once", "TFLOP/s", panel, "operations per byte")
