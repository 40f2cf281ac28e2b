"""How much memory flash_attention takes beside its inputs.

python -m task3.memory [--solution]      beside attention that stores S, for more and more tokens
complaint(made, query, key, B_r, B_c)    what is wrong with what one call allocated; `test.py` asks
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor

from common import attention_reference
from common.allocations import AllocationRecorder


def complaint(made: AllocationRecorder, query: Tensor, key: Tensor, B_r: int, B_c: int) -> str:
    """What is wrong with what flash_attention allocated; "" if nothing is.

    One tensor may be twice as large as the largest of query, key and value; all tensors that are alive at the same
    time twice as large as these and the output together, and 16 tiles of scores.

    Args:
        made: recorded during one call, and nothing else.
        query: [batch, heads, S_q, head_dim]; key: [batch, heads, S_k, head_dim].
        B_r, B_c: the tile sizes of the call.
    """
    seq_q, seq_k = query.size(-2), key.size(-2)
    heads, size = query.size(0) * query.size(1), query.element_size()
    for_one = 2 * max(query.numel(), key.numel()) * size
    for_all = 2 * (2 * query.numel() + 2 * key.numel()) * size + 16 * heads * B_r * B_c * size
    if fused := sorted(name for name in made.operators if "scaled_dot_product" in name):
        return f"flash_attention calls PyTorch's own attention ({fused[0]}); write the algorithm itself."
    largest = made.largest
    if largest and largest.bytes > for_one:
        what = {
            (True, True): f"the scores of all {seq_q} queries with all {seq_k} keys",
            (False, True): f"the scores of a tile of queries with all {seq_k} keys",
            (True, False): f"the scores of all {seq_q} queries with a tile of keys",
        }.get((seq_q in largest.shape, seq_k in largest.shape), "too large for a tile")
        return (
            f"A tensor of shape {list(largest.shape)} was made in line {largest.file_line} ({largest.operator}, "
            f"{largest.bytes // 1024} KiB): {what}. Scores are needed for a tile of {B_r} queries and {B_c} keys at a "
            f"time; no tensor here needs more than {for_one // 1024} KiB."
        )
    if made.peak_bytes > for_all:
        return (
            f"Beside its inputs flash_attention held up to {made.peak_bytes // 1024} KiB at once; with S_q = {seq_q} "
            f"and S_k = {seq_k} at most {for_all // 1024} KiB are allowed, and all scores together would take "
            f"{heads * seq_q * seq_k * size // 1024} KiB. Are tiles kept that are not needed any more?"
        )
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m task3.memory", description=__doc__.split("\n")[0])
    parser.add_argument("--solution", action="store_true", help="use the reference solution instead of your file")
    options = parser.parse_args(argv)
    module = importlib.import_module("task3.solution.attention" if options.solution else "task3.attention")
    torch.set_num_threads(1)  # the tiles are small: handing them to threads takes longer than working on them
    console = Console()
    console.print("KiB beside the inputs at most; 1 head, head_dim 64, tiles of 64 x 64, float32", highlight=False)
    table = Table(box=SIMPLE)
    for column in ("tokens", "flash_attention", "its largest tensor", "with S stored"):
        table.add_column(column, justify="right")
    for tokens in (256, 512, 1024, 2048):
        inputs = torch.randn(3, 1, 1, tokens, 64).unbind(0)
        try:
            with torch.no_grad(), AllocationRecorder() as tiled:
                module.flash_attention(*inputs)
        except NotImplementedError:
            console.print("flash_attention has unfilled gaps; python -m task3.test --algorithm names them")
            return 1
        with torch.no_grad(), AllocationRecorder() as stored:
            attention_reference.attention(*inputs)
        largest = "x".join(map(str, tiled.largest.shape))
        table.add_row(str(tokens), f"{tiled.peak_bytes / 1024:.0f}", largest, f"{stored.peak_bytes / 1024:.0f}")
    console.print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
