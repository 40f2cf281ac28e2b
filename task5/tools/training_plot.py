"""The plot of `python -m task5.train`: the loss of every model over the steps.

draw({"dense": [2.8, 2.7, ...], ...}, "title", levels, file)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from common.console.drawing import pyplot, save

COLORS = ("#7f7f7f", "#d62728")


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """Moving average over the last `window` losses, fewer at the beginning; window >= 1."""
    result = []
    for end in range(1, len(losses) + 1):
        part = losses[max(0, end - window) : end]
        result.append(sum(part) / len(part))
    return result


def draw(losses: Mapping[str, Sequence[float]], title: str, levels: Mapping[str, float], file: Path) -> None:
    """Writes the plot: each model's losses, faint, and on top their moving average over a fiftieth of the steps.

    Args:
        losses: name of the model -> loss of every step, in nats; two models at most.
        title: of the picture.
        levels: losses to mark with a line, with their names.
        file: a PNG; its folder is created.
    """
    figure, axes = pyplot().subplots(figsize=(7.5, 4.2), layout="constrained")
    for (name, values), color in zip(losses.items(), COLORS, strict=False):
        steps = range(1, len(values) + 1)
        axes.plot(steps, values, color=color, linewidth=0.6, alpha=0.35)
        axes.plot(steps, smoothed(values, max(1, len(values) // 50)), color=color, linewidth=1.8, label=name)
    for name, loss in levels.items():
        axes.axhline(loss, color="0.5", linewidth=0.9, linestyle=":")
        axes.annotate(name, (1, loss), (0, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
                      horizontalalignment="right", fontsize=8, color="0.5")  # fmt: skip
    axes.set(xlabel="step", ylabel="loss, nats per answer", ylim=(0, None))
    axes.margins(x=0.01)
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    save(figure, file)
