"""The stages of attention: expected and actual values side by side.

show_stages({"S": ..., "P": ..., "O": ...}, out, ref, bound, axes, weights)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from common.diagnosis.locating import place, wrong_mask

SHOWN = 5  # entries per row that fit into 80 columns
WEIGHTS_DIFFER = 1e-4  # exceeds the rounding of float32 and of the smallest weights in 16-bit types


@dataclass(frozen=True)
class Table:
    """The stages' numbers as lines of text, and sentences about them."""

    lines: list[str] = field(default_factory=list)
    says: list[str] = field(default_factory=list)


def show_stages(
    stages: dict[str, Tensor],
    out: Tensor,
    ref: Tensor,
    bound: float,
    axes: tuple[str, ...],
    weights: Tensor | None = None,
) -> Table:
    """The correct S, P and O of the first wrong row next to the actual O, where they differ.

    Args:
        stages: the correct S and P [..., row, key] and O, if known.
        out, ref: the actual and the correct output.
        bound: the largest error that passes.
        axes: the names of out's axes.
        weights: the actual P, [..., row, key], NaN where unknown.
    """
    wrong = wrong_mask(out, ref, bound)
    rows = wrong.any(-1)
    p = stages.get("P")
    known = p is not None and weights is not None and weights.shape == p.shape
    if known:
        differ = (weights - p).abs() > max(WEIGHTS_DIFFER, bound)
        told = rows & ~weights.isnan().any(-1) & differ.any(-1)
        known = bool(told.any())
        rows = told if known else rows
    row = tuple(rows.nonzero()[0].tolist())
    key = int(differ[row].nonzero()[0]) if known else 0
    col = int(wrong[row].nonzero()[0])
    lines: list[str] = []
    for name, stage in stages.items():
        if name != "O" and stage.shape[:-1] == out.shape[:-1]:
            got = weights[row] if known and name == "P" else None
            lines += _beside(name, "key", key, stage[row], got)[bool(lines) :]  # print the keys only once
    head = f"What should come out of each stage in {place(row, axes[:-1])}, and what came:"
    lines = [head, *lines, *_beside("O", "column", col, ref[row], out[row])]
    says = []
    if known:
        most = int((weights[row] - p[row]).abs().argmax())
        got, right = float(weights[row][most]), float(p[row][most])
        sums, right_sums = float(weights[row].sum()), float(p[row].sum())
        added = f" The row's weights sum to {sums:.4g}, not {right_sums:.4g}." if abs(sums - right_sums) > 2e-3 else ""
        says.append(
            "P was read off the output, with a V of ones and zeros: it is what each key's row of V is multiplied by. "
            f"Key {most} differs most: {got:.4g}, not {right:.4g}.{added}"
        )
    return Table(lines, says)


def _beside(name: str, axis: str, first: int, right: Tensor, got: Tensor | None) -> list[str]:
    """Lines of a small table, starting one entry before `first`."""
    start = max(0, min(first - 1, right.numel() - SHOWN))
    shown = slice(start, start + SHOWN)
    more = "  ..." if right.numel() > start + SHOWN else ""
    numbers = "".join(f"{number:>11}" for number in range(*shown.indices(right.numel())))
    says = [f"    {axis:<11}{numbers}", f"    {name} expected {_entries(right[shown])}{more}"]
    return says if got is None else [*says, f"    {name} got      {_entries(got[shown])}{more}"]


def _entries(row: Tensor) -> str:
    return "".join(f"{value:>11.4g}" for value in row.to(torch.float64).tolist())
