"""The handout's worked example: one row, four keys in two tiles, through add_tile of attention.py."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor

from common.cli.options import add_variant_arguments
from common.compiling.variant import Variant
from common.console.terminal import say
from common.testing.python_side import python_module

SCORES = ([1.0, 3.0], [2.0, 5.0])  # per tile; the maximum rises in the second
VALUES = ([10.0, 20.0], [30.0, 40.0])


def _row(numbers: Sequence[float]) -> Tensor:
    """[1, 1, 1, n]: batch, heads, one row."""
    return torch.tensor(numbers, dtype=torch.float64).view(1, 1, 1, -1)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m task3.worked_example", description=__doc__.split("\n")[0])
    add_variant_arguments(parser, (Variant.STUDENT, Variant.SOLUTION))
    options = parser.parse_args(argv)
    module = python_module("task3", options.variant)
    console = Console()
    table = Table(box=SIMPLE)
    for column in ("scores", "values", "m", "exp(m_old - m)", "l", "O"):
        table.add_column(column, justify="right")
    state = module.nothing_seen(_row([0.0]))
    misprinted = 0.0  # the result of line 10 as printed in the paper, from the second tile on
    for scores, values in zip(SCORES, VALUES, strict=True):
        before = state
        try:
            state = module.add_tile(before, _row(scores), _row(values).transpose(-2, -1))
        except NotImplementedError:
            say(console, "add_tile has an unfilled gap")
            return 1
        m, l, o = (float(x) for x in state)  # noqa: E741
        factor = math.exp(float(before.m) - m)
        added = sum(math.exp(score - m) * value for score, value in zip(scores, values, strict=True))
        misprinted = misprinted / factor + added if factor else added
        cells = (f"{m:g}", f"{factor:.4f}", f"{l:.4f}", f"{o:.4f}")
        table.add_row(*(", ".join(f"{x:g}" for x in numbers) for numbers in (scores, values)), *cells)
    console.print(table)
    at_once = torch.softmax(torch.tensor([*SCORES[0], *SCORES[1]], dtype=torch.float64), 0)
    right = float(at_once @ torch.tensor([*VALUES[0], *VALUES[1]], dtype=torch.float64))
    say(console, f"O / l = {o / l:.4f}; softmax over all four scores at once: {right:.4f}")
    say(console, f"with line 10 as it is printed: O = {misprinted:.4f}, O / l = {misprinted / l:.4f}")
    return 0
