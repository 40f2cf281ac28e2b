"""Which part of the score matrix a kernel computes, and which part counts: seen from outside, drawn.

python -m task5.patterns [--solution | --tuned] [--seq-len 256] [--stride 4] [--window 64] [--block 32]
                         [--picture FOLDER]

A kernel works tile by tile, so at the edges of a pattern it computes scores that its mask throws away again. Both can
be read off its output. With `value` = a unit matrix the output is the matrix of weights. With NaN in place of the ones
a weight of 0 does not keep a NaN out, since 0 * NaN is NaN: the output is NaN wherever the kernel multiplied a query's
weight with that key's value. No kernel has to tell what it does.

    probe(attend, seq_len, ops.device)      -> Probe(attended, computed), bool [seq_len, seq_len] both
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from common import build
from common.cli import EXPECTED_ERRORS, add_build_arguments, say_backend, working
from common.profile_pictures import INSTALL

if TYPE_CHECKING:
    from common.build import Operators

WIDTH = 128  # head_dim: so many keys are told apart in one head
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Probe:
    """What was seen of a kernel.

    Attributes:
        attended: bool [seq_len, seq_len], True where a query gave a key a weight above 0.
        computed: bool [seq_len, seq_len], True where a weight was multiplied with a value, be it 0.
    """

    attended: Tensor
    computed: Tensor

    @property
    def attended_share(self) -> float:
        """Of the score matrix, 0 .. 1."""
        return float(self.attended.double().mean())

    @property
    def computed_share(self) -> float:
        """Of the score matrix, 0 .. 1."""
        return float(self.computed.double().mean())


def probe(attend: Attend, seq_len: int, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Probe:
    """Calls a kernel twice and looks at its outputs.

    Args:
        attend: query, key, value [batch, 1, seq_len, 128] -> out of the same shape; one head per batch entry.
        seq_len: how many queries and keys, at least 1.
        device, dtype: what the kernel takes.
    """
    parts = math.ceil(seq_len / WIDTH)  # entry p of the batch tells the keys 128 p ... 128 p + 127 apart
    generator = torch.Generator().manual_seed(0)
    query, key = (
        torch.randn(1, 1, seq_len, WIDTH, generator=generator).to(device, dtype).repeat(parts, 1, 1, 1)
        for _ in range(2)
    )
    keys = torch.arange(seq_len, device=device)

    def output(mark: float) -> Tensor:
        value = torch.zeros(parts, 1, seq_len, WIDTH, dtype=dtype, device=device)
        value[keys // WIDTH, 0, keys, keys % WIDTH] = mark
        out = attend(query, key, value)[:, 0]  # [parts, seq_len, 128]
        return out.permute(1, 0, 2).reshape(seq_len, parts * WIDTH)[:, :seq_len].cpu()

    return Probe(output(1.0) > 0, output(math.nan).isnan())


def block_pattern(blocks: int) -> Tensor:
    """A block mask bool [1, blocks, blocks]: the diagonal with its left neighbour, the first column, and one row of
    blocks that sees nothing."""
    row, col = torch.arange(blocks)[:, None], torch.arange(blocks)
    mask = ((row - col >= 0) & (row - col <= 1)) | (col == 0)
    mask[blocks // 2] = False
    return mask[None]


def patterns(ops: Operators, stride: int, window: int, block: int, seq_len: int) -> dict[str, Attend]:
    """Name -> call of one operator of task 5.

    Raises:
        ValueError: seq_len is below 1, or block does not divide it; what else is out of range the operators refuse.
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
    parser.add_argument("--tuned", action="store_true", help="the tuned kernels, in float16")
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
    dtype = torch.float16 if options.tuned else torch.float32
    try:
        say_backend(console, options.backend)
        with working(console, "compiling ..."):
            ops = build.load("task5", options.solution, options.backend, options.arch, tuned=options.tuned)
        with working(console, "looking at the kernels ..."):
            found = {
                name: probe(attend, options.seq_len, ops.device, dtype)
                for name, attend in patterns(
                    ops, options.stride, options.window, options.block, options.seq_len
                ).items()
            }
    except NotImplementedError as gap:
        console.print(escape(str(gap)), style="red", highlight=False, soft_wrap=True)
        return 1
    except EXPECTED_ERRORS as error:
        console.print(escape(str(error)), style="red", highlight=False, soft_wrap=True)
        return 2
    console.print(table(found, options.seq_len))
    folder = options.picture or build.build_root() / "patterns" / "task5"
    try:
        from task5.pattern_pictures import draw

        files = draw(found, folder)
    except ImportError:
        console.print(f"no pictures: matplotlib is missing; install it: {INSTALL}", highlight=False, markup=False)
    else:
        console.print(f"{folder}: {', '.join(file.name for file in files)}", highlight=False, soft_wrap=True)
    return 0


def table(found: dict[str, Probe], seq_len: int) -> Table:
    """The shares of the score matrix."""
    result = Table(title=f"shares of the {seq_len} x {seq_len} scores", title_justify="left")
    result.add_column("pattern")
    for column in ("attended to", "computed", "computed for nothing"):
        result.add_column(column, justify="right")
    for name, one in found.items():
        wasted = one.computed_share - one.attended_share
        result.add_row(escape(name), f"{one.attended_share:.1%}", f"{one.computed_share:.1%}", f"{wasted:.1%}")
    return result


if __name__ == "__main__":
    raise SystemExit(main())
