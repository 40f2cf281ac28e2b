"""Draws what `python -m task5.benchmark` measured: a picture per pattern and length, the versions as bars.

draw(measured, machine, folder)     -> the files written; needs matplotlib (ImportError without it)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from common.measure.report import duration
from task5.tools.benchmark.runs import Measured
from task5.tools.benchmark.versions import OURS

DPI = 130


def draw(measured: Sequence[Measured], machine: Mapping[str, str], folder: Path) -> list[Path]:
    """Writes <dtype>_<pattern>_<seq_len>.png: time on a logarithmic axis, the ideal as a line across each group."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for pattern, length in dict.fromkeys((one.problem.pattern, one.problem.seq_len) for one in measured):
        chosen = [one for one in measured if (one.problem.pattern, one.problem.seq_len) == (pattern, length)]
        file = folder / f"{chosen[0].problem.dtype}_{pattern}_{length}.png"
        _bars(chosen, machine.get("gpu", "unknown GPU"), file)
        files.append(file)
    return files


def _bars(measured: Sequence[Measured], gpu: str, file: Path) -> None:
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for one in measured for name in one.timings))
    colours = pyplot.get_cmap("tab10")
    figure, axes = pyplot.subplots(figsize=(2.5 + 0.62 * len(names) * len(measured), 4.6), layout="constrained")
    width = 0.86 / len(names)
    for place, one in enumerate(measured):
        for number, name in enumerate(names):
            if name not in one.timings:
                continue
            x, seconds = place - 0.43 + (number + 0.5) * width, one.timings[name].seconds
            colour = "#d62728" if name == OURS else colours(number % 10) if number != 3 else "0.5"
            axes.bar(x, 1e3 * seconds, 0.92 * width, color=colour, label=name if place == 0 else None)
            axes.annotate(duration(seconds), (x, 1e3 * seconds), ha="center", va="bottom", fontsize=7, rotation=90,
                          xytext=(0, 2), textcoords="offset points")  # fmt: skip
        if one.ideal:
            axes.hlines(1e3 * one.ideal, place - 0.45, place + 0.45, colors="black", linestyles="dashed",
                        label="dense x density" if place == 0 else None)  # fmt: skip
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 4)  # room for the numbers
    axes.set_xticks(range(len(measured)), [f"{one.problem.name}\n{one.problem.density:.1%} seen" for one in measured])
    axes.set_ylabel("ms (logarithmic)")
    problem = measured[0].problem
    axes.set_title(f"{problem.pattern}, {problem.sizes}, {problem.dtype}\n{gpu}", fontsize=10)
    axes.legend(fontsize=7, ncols=4, loc="upper center")
    figure.savefig(file, dpi=DPI)
    pyplot.close(figure)
