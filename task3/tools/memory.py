"""How much memory flash_attention takes beyond its inputs, compared with attention that stores S."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from common.cli.options import add_variant_arguments
from common.compiling.variant import Variant
from common.console.terminal import say
from common.measure.allocations import AllocationRecorder
from common.reference import oracle as reference
from common.testing.python_side import python_module


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m task3.memory", description=__doc__.split("\n")[0])
    add_variant_arguments(parser, (Variant.STUDENT, Variant.SOLUTION))
    options = parser.parse_args(argv)
    module = python_module("task3", options.variant)
    torch.set_num_threads(1)  # the tiles are small: multithreading would cost more than it saves
    console = Console()
    say(console, "Peak KiB beyond the inputs; 1 head, head_dim 64, tiles of 64 x 64, float32")
    table = Table(box=SIMPLE)
    for column in ("tokens", "flash_attention", "its largest tensor", "with S stored"):
        table.add_column(column, justify="right")
    for tokens in (256, 512, 1024, 2048):
        inputs = torch.randn(3, 1, 1, tokens, 64).unbind(0)
        try:
            with torch.no_grad(), AllocationRecorder(inputs=inputs) as tiled:
                module.flash_attention(*inputs)
        except NotImplementedError:
            say(console, "flash_attention has unfilled gaps; python -m task3.test --algorithm names them")
            return 1
        with torch.no_grad(), AllocationRecorder(inputs=inputs) as stored:
            reference.attention(*inputs)
        largest = "x".join(map(str, tiled.largest.shape))
        table.add_row(str(tokens), f"{tiled.peak_bytes / 1024:.0f}", largest, f"{stored.peak_bytes / 1024:.0f}")
    console.print(table)
    return 0
