"""Draws the patterns of `python -m task5.patterns`: a PNG for each.

draw({"window 64": Probe(...)}, folder)     -> the files written
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from common.console.drawing import pyplot, save
from task5.tools.probe import Probe

COLORS = ("white", "#f2c894", "#1f4e79")  # not computed; computed, and masked away; attended to


def draw(found: Mapping[str, Probe], folder: Path) -> list[Path]:
    """Writes stride_4_causal.png and so on: queries downwards, keys to the right, the shares in the title."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    files = []
    for name, probe in found.items():
        figure, axes = pyplot().subplots(figsize=(4.6, 5.1), layout="constrained")
        kinds = probe.computed.int() + probe.attended.int()
        axes.imshow(kinds.numpy(), cmap=ListedColormap(COLORS), vmin=0, vmax=2, interpolation="nearest")
        axes.set_title(
            f"{name}\n{probe.attended_share:.1%} attended to, {probe.computed_share:.1%} computed", fontsize=10
        )
        axes.set_xlabel("key")
        axes.set_ylabel("query")
        words = ("not computed", "computed, weight 0", "attended to")
        handles = [
            Patch(facecolor=color, edgecolor="0.6", label=word) for color, word in zip(COLORS, words, strict=True)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
        files.append(save(figure, folder / (re.sub(r"\W+", "_", name) + ".png")))
    return files
