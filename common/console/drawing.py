"""Plots without a display.

pyplot()              matplotlib.pyplot, set up to draw into files
save(figure, file)    writes a figure and closes it
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from matplotlib.figure import Figure

DPI = 130
INK = "#7d8590"  # color of text and axes on a transparent background: legible on white and dark pages
INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
GROUNDS = ("figure.facecolor", "axes.facecolor", "legend.facecolor")


def pyplot() -> ModuleType:
    """Imports matplotlib.pyplot; deferred, since the import takes half a second."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(dict.fromkeys(INKED, INK) | dict.fromkeys(GROUNDS, "none"))
    return pyplot


def save(figure: Figure, file: Path) -> Path:
    """Writes a figure, creating its folder if needed, and closes it. Returns the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=DPI)
    pyplot().close(figure)
    return file
