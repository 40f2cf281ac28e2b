"""Draw which part of the score matrix a kernel computes and which part counts, as seen from its output.

python -m task5.patterns [--solution | --tuned] [--seq-len 256] [--stride 4] [--window 64] [--block 32]
                         [--picture FOLDER]

A kernel works tile by tile, so at the edges of a pattern it computes scores that its mask discards. Both can be
determined from its output; see probe.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from common.cli.options import EXPECTED_ERRORS, add_build_arguments, request_of, say_backend
from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.variant import Variant
from common.console.drawing import pyplot, save
from common.console.paths import build_root, shown_path
from common.console.terminal import say, working
from task5.tools.probe import Attend, Probe, probe

COLORS = ("white", "#f2c894", "#1f4e79")  # not computed; computed, and masked away; attended to


def block_pattern(blocks: int) -> Tensor:
    """A block mask bool [1, blocks, blocks]: the diagonal with its left neighbor, the first column, and one row of
    blocks that sees nothing."""
    row, col = torch.arange(blocks)[:, None], torch.arange(blocks)
    mask = ((row - col >= 0) & (row - col <= 1)) | (col == 0)
    mask[blocks // 2] = False
    return mask[None]


def patterns(ops: Operators, stride: int, window: int, block: int, seq_len: int) -> dict[str, Attend]:
    """Name -> call of one operator of task 5.

    Raises:
        ValueError: seq_len is below 1, or block does not divide it. The operators check the other arguments.
    """
    if seq_len < 1:
        raise ValueError(f"seq_len is {seq_len}; it must be at least 1")
    if block < 1 or seq_len % block:
        raise ValueError(f"block is {block}; it must divide seq_len = {seq_len}")
    block_mask = block_pattern(seq_len // block).to(ops.device)

    def blocks(causal: bool) -> Attend:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            counts, columns = ops.compress_block_mask(block_mask)
            return ops.block_sparse_attention(query, key, value, counts, columns, block, causal)

        return attend

    return {
        f"stride {stride}": lambda q, k, v: ops.strided_attention(q, k, v, stride),
        f"stride {stride}, causal": lambda q, k, v: ops.strided_attention(q, k, v, stride, 0, True),
        f"window {window}, causal": lambda q, k, v: ops.sliding_window_attention(q, k, v, window),
        f"window {window}": lambda q, k, v: ops.sliding_window_attention(q, k, v, window, False),
        f"blocks of {block}": blocks(False),
        f"blocks of {block}, causal": blocks(True),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m task5.patterns", description=__doc__.split("\n")[0])
    add_build_arguments(parser)
    parser.add_argument("--seq-len", type=int, default=256, metavar="N", help="queries and keys (default 256)")
    parser.add_argument("--stride", type=int, default=4, metavar="N", help="default 4")
    parser.add_argument("--window", type=int, default=64, metavar="N", help="keys (default 64)")
    parser.add_argument("--block", type=int, default=32, metavar="N", help="queries and keys of a block (default 32)")
    parser.add_argument("--picture", type=Path, metavar="FOLDER", help="where the pictures go (build/patterns/task5)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; exit status 0, 1: a gap is not filled, 2: bad arguments or a kernel that does not compile."""
    options = _parser().parse_args(argv)
    console = Console()
    dtype = torch.float16 if options.variant == Variant.TUNED else torch.float32
    try:
        say_backend(console, options.backend)
        with working(console, "compiling ..."):
            ops = load(request_of("task5", options))
        with working(console, "looking at the kernels ..."):
            found = {
                name: probe(attend, options.seq_len, ops.device, dtype)
                for name, attend in patterns(
                    ops, options.stride, options.window, options.block, options.seq_len
                ).items()
            }
    except NotImplementedError as gap:
        say(console, gap, "red")
        return 1
    except EXPECTED_ERRORS as error:
        say(console, error, "red")
        return 2
    console.print(table(found, options.seq_len))
    folder = options.picture or build_root() / "patterns" / "task5"
    files = draw(found, folder)
    say(console, f"{shown_path(folder)}: {', '.join(file.name for file in files)}")
    return 0


def table(found: dict[str, Probe], seq_len: int) -> Table:
    """The computed and attended shares of the score matrix."""
    result = Table(title=f"shares of the {seq_len} x {seq_len} scores", title_justify="left")
    result.add_column("pattern")
    for column in ("attended to", "computed", "computed for nothing"):
        result.add_column(column, justify="right")
    for name, one in found.items():
        wasted = one.computed_share - one.attended_share
        result.add_row(escape(name), f"{one.attended_share:.1%}", f"{one.computed_share:.1%}", f"{wasted:.1%}")
    return result


def draw(found: Mapping[str, Probe], folder: Path) -> list[Path]:
    """Writes stride_4_causal.png and so on: queries downwards, keys to the right, the shares in the title."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    files = []
    for name, one in found.items():
        figure, axes = pyplot().subplots(figsize=(4.6, 5.1), layout="constrained")
        kinds = one.computed.int() + one.attended.int()
        axes.imshow(kinds.numpy(), cmap=ListedColormap(COLORS), vmin=0, vmax=2, interpolation="nearest")
        axes.set_title(f"{name}\n{one.attended_share:.1%} attended to, {one.computed_share:.1%} computed", fontsize=10)
        axes.set_xlabel("key")
        axes.set_ylabel("query")
        words = ("not computed", "computed, weight 0", "attended to")
        handles = [
            Patch(facecolor=color, edgecolor="0.6", label=word) for color, word in zip(COLORS, words, strict=True)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
        files.append(save(figure, folder / (re.sub(r"\W+", "_", name) + ".png")))
    return files
