"""The pictures of `python -m task6.benchmark`: time over the context, and the share of the bandwidth over the cache.

draw(measured, "NVIDIA H200", folder)        -> [folder/time.png, folder/bandwidth.png]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from common.measure.report import Section
from task6.tools.benchmark_grid import Problem

STYLES = {  # colour, marker, line
    "tuned": ("#d62728", "o", "-"),
    "tuned, paged": ("#ff7f0e", "s", "-"),
    "taught": ("#2ca02c", "^", "-"),
    "SDPA flash": ("#9467bd", "x", "--"),
    "SDPA cuDNN": ("#8c564b", "+", "--"),
    "SDPA": ("#7f7f7f", "d", "--"),
}
DPI = 130


def draw(measured: Mapping[Problem, Section], gpu: str, folder: Path) -> list[Path]:
    """Writes both pictures; `measured` holds at least one section."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    return [_time(measured, gpu, folder / "time.png"), _bandwidth(measured, gpu, folder / "bandwidth.png")]


def _time(measured: Mapping[Problem, Section], gpu: str, file: Path) -> Path:
    """A panel for each setting: microseconds over tokens, and what reading the cache at the speed of a copy takes."""
    from matplotlib import pyplot

    settings = list(dict.fromkeys(problem.setting for problem in measured))
    cols = min(3, len(settings))
    rows = -(-len(settings) // cols)
    size = (3.6 * cols + 1.4, 3.0 * rows + 0.5)
    figure, panels = pyplot.subplots(rows, cols, figsize=size, layout="constrained", squeeze=False)
    for axes in panels.flat[len(settings) :]:
        axes.axis("off")
    for axes, setting in zip(panels.flat, settings, strict=False):
        problems = sorted((one for one in measured if one.setting == setting), key=lambda one: one.context)
        contexts = [one.context for one in problems]
        limit = [1e6 * one.cache_bytes / measured[one].limit.per_second for one in problems]
        axes.plot(contexts, limit, ":", color="0.3", linewidth=1.2, label="cache at copy bandwidth")
        for name, (colour, marker, line) in STYLES.items():
            timed = [one for one in problems if name in measured[one].timings]
            times = [1e6 * measured[one].timings[name].seconds for one in timed]
            if timed:
                axes.plot([one.context for one in timed], times, line, color=colour, marker=marker, label=name)
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(contexts, labels=[f"{context // 1024}k" for context in contexts])
        axes.minorticks_off()
        axes.set_title(setting, loc="left", fontsize=9)
        axes.grid(color="0.9", linewidth=0.6)
    for axes in panels[-1]:
        axes.set_xlabel("tokens per sequence")
    for row in panels:
        row[0].set_ylabel("microseconds")
    return _finish(figure, panels[0, 0], f"One decode step of attention, {gpu}", file)


def _bandwidth(measured: Mapping[Problem, Section], gpu: str, file: Path) -> Path:
    """One panel: TB/s over the size of the cache, all settings."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.0, 4.2), layout="constrained")
    problems = sorted(measured, key=lambda one: one.cache_bytes)
    for name, (colour, marker, _) in STYLES.items():
        timed = [one for one in problems if name in measured[one].timings]
        rates = [measured[one].rate(name) / 1e12 for one in timed]
        if timed:
            axes.plot([one.cache_bytes / 1e6 for one in timed], rates, marker, color=colour, label=name)
    copy = measured[problems[0]].limit.per_second / 1e12
    axes.axhline(copy, color="0.4", linewidth=1.0, linestyle=":", label=f"copy, {copy:.2f} TB/s")
    axes.set(xscale="log", xlabel="cache, MB", ylabel="TB/s", ylim=(0, None))
    axes.grid(color="0.9", linewidth=0.6)
    return _finish(figure, axes, f"Bytes of the cache per second, {gpu}", file)


def _finish(figure, axes, title: str, file: Path) -> Path:
    from matplotlib import pyplot

    figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=11)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)
    figure.savefig(file, dpi=DPI)
    pyplot.close(figure)
    return file
