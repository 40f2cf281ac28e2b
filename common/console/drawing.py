"""Pictures without a screen.

pyplot()              matplotlib.pyplot, which then draws into files
save(figure, file)    writes one and forgets it
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from matplotlib.figure import Figure

DPI = 130
INK = "#7d8590"  # of text and axes, on no ground: legible on a white page and on a dark one
INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
GROUNDS = ("figure.facecolor", "axes.facecolor", "legend.facecolor")


def pyplot() -> ModuleType:
    """matplotlib.pyplot; its import takes half a second, so it is left to those who draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(dict.fromkeys(INKED, INK) | dict.fromkeys(GROUNDS, "none"))
    return pyplot


def save(figure: Figure, file: Path) -> Path:
    """Writes a figure, makes its folder if need be, and closes it. Returns the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=DPI)
    pyplot().close(figure)
    return file
