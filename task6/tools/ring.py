"""Ring attention with one process per rank: what each holds and sends at each step, and whether the result is right.

Under torchrun every process runs this, and only the first prints. If something is wrong, it prints that, and the exit
status is still 0: for any other status, torchrun prints a page-long report of its own below ours.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor

from common.cli.options import EXPECTED_ERRORS, add_variant_arguments
from common.compiling.variant import Variant
from common.console.terminal import say, wide, working
from common.console.words import error_words
from common.kernels.attention import attention
from common.kernels.distributed.shards import piece_size, tokens_of
from common.kernels.loaded import loaded
from common.reference import oracle as reference
from common.reference.bounds import max_error_of, running_sum_floor
from common.testing.calling import CallFailed
from common.testing.python_side import naming_the_line, python_module
from task6.given.ring_steps import Pieces, contiguous, merged, order_of, ring_attention, work

TOLD, NO_RANKS = 0, 2  # exit statuses
COMMAND = "torchrun --nproc-per-node 4 -m task6.ring"
MOST_TOKENS = 8192  # the reference computes all scores in float64
SHARPNESS = 1.5  # of queries and keys


class _Refused(Exception):
    """The command line is invalid; the text says why."""


class _OfOneRank(Exception):
    """An error while keys were being exchanged, possibly on this rank only."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing and exiting: all ranks parse the same command line, but only one prints."""

    def error(self, message: str):
        raise _Refused(f"{message}\n{self.format_usage().strip()}")

    def exit(self, status: int = 0, message: str | None = None):
        raise _Refused(message or "")

    def print_help(self, file=None) -> None:
        raise _Refused(self.format_help().strip())


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    rank = int(os.environ.get("RANK", "0"))
    console = wide(Console())
    console.quiet = rank > 0
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        say(console, f"A ring has several processes, and torchrun starts them: {COMMAND}")
        return NO_RANKS
    try:
        options = _options(argv, int(os.environ["WORLD_SIZE"]))
    except _Refused as refused:
        say(console, refused)
        return TOLD
    device = _device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        _run(console, options, device)
    except _OfOneRank as error:
        console.quiet = False
        say(console, f"rank {rank}: {error}", "red")
    except Exception as error:  # the same on all ranks; often from student code
        say(console, CallFailed.because(error), "red")
    finally:
        dist.destroy_process_group()
    return TOLD


def _options(argv: Sequence[str] | None, ranks: int) -> argparse.Namespace:
    parser = _Parser(prog=COMMAND, description=__doc__.split("\n")[0])
    add_variant_arguments(parser, (Variant.STUDENT, Variant.SOLUTION))
    add = parser.add_argument
    add("--order", choices=("yours", "contiguous"), default="yours", help="of the pieces; default: your pieces_of")
    add(
        "--tokens",
        type=int,
        default=32 * ranks,
        help="of all ranks, a multiple of 2 * ranks; default 32 * ranks",
    )
    add("--heads", type=int, default=2, help="default 2")
    add("--head-dim", type=int, default=32, help="1 .. 128; default 32")
    add("--full", action="store_true", help="without the causal mask: every query sees every key")
    add("--seed", type=int, default=0, help="of the random inputs; default 0")
    options = parser.parse_args(argv)
    for name, most in (("tokens", MOST_TOKENS), ("heads", 128), ("head_dim", 128)):
        if not 1 <= getattr(options, name) <= most:
            flag = f"--{name.replace('_', '-')}"
            raise _Refused(f"{flag} is {getattr(options, name)}; it must be 1 .. {most}")
    try:
        piece_size(options.tokens, ranks)
    except ValueError:
        said = f"--tokens is {options.tokens}; with {ranks} ranks it must be a multiple of 2 * ranks = {2 * ranks}"
        raise _Refused(said) from None
    return options


def _device() -> torch.device:
    """A separate GPU for each rank if there are enough, otherwise the CPU."""
    if torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _run(console: Console, options: argparse.Namespace, device: torch.device) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    module = python_module("task6", options.variant, "ring")
    causal, size = not options.full, piece_size(options.tokens, ranks)
    with naming_the_line(module):
        order = order_of(module.pieces_of if options.order == "yours" else contiguous, ranks)
        nothing = torch.zeros(1, 1, 1, 1, device=device)
        merged(module.merge, nothing, nothing[..., 0], nothing, nothing[..., 0])  # before any rank waits for another
    _say_shards(console, options, order, size)
    _say_steps(console, order, size, causal)
    ops = _operators(console, device)
    generator = torch.Generator().manual_seed(options.seed)
    shape = (3, 1, options.heads, options.tokens, options.head_dim)
    scale = torch.tensor([SHARPNESS, SHARPNESS, 1.0]).view(3, 1, 1, 1, 1)
    whole = (scale * torch.randn(shape, generator=generator)).to(device)  # query, key and value, the same on all ranks
    mine = whole[:, :, :, tokens_of(order[rank], size).to(device)]
    try:
        with working(console, f"{ranks} steps ...") if console.is_terminal else nullcontext(), naming_the_line(module):
            out = ring_attention(ops, *mine, order, module.merge, causal)
    except Exception as error:
        raise _OfOneRank(str(CallFailed.because(error))) from error
    outs = [torch.empty_like(out) for _ in range(ranks)]
    dist.all_gather(outs, out)
    if rank == 0:
        together = torch.empty_like(whole[0])
        for pieces, one in zip(order, outs, strict=True):
            together[:, :, tokens_of(pieces, size).to(device)] = one
        _say_error(console, whole, together, causal, options.variant)


def _operators(console: Console, device: torch.device):
    """The kernels: the first rank builds them, the others load its build."""
    problem = [None]
    if dist.get_rank() == 0:
        try:
            with working(console, "compiling common/kernels/flash ...") if console.is_terminal else nullcontext():
                loaded("flash", device)
        except EXPECTED_ERRORS as error:
            problem = [error_words(error)]
    dist.broadcast_object_list(problem, device=device if device.type == "cuda" else None)
    if problem[0]:
        raise ValueError(problem[0])
    return loaded("flash", device)


def _say_shards(console: Console, options: argparse.Namespace, order: Sequence[Pieces], size: int) -> None:
    where = "NCCL, a GPU each" if dist.get_backend() == "nccl" else "gloo, kernels in the simulator"
    whose = {"contiguous": "contiguous order"}.get(options.order, f"order and merge: {options.variant.words}")
    title = (
        f"{options.tokens} tokens in {2 * len(order)} pieces of {size}, {options.heads} heads of {options.head_dim}, "
        f"{'every query sees every key' if options.full else 'causal'}"
    )
    processes = "1 process" if len(order) == 1 else f"{len(order)} processes"
    say(console, f"{processes} ({where}); {whose}")
    say(console, title)
    table = Table(box=SIMPLE)
    for column in ("rank", "pieces", "tokens"):
        table.add_column(column)
    for rank, pieces in enumerate(order):
        tokens = ", ".join(f"{piece * size} .. {(piece + 1) * size - 1}" for piece in pieces)
        table.add_row(str(rank), ", ".join(map(str, pieces)), tokens)
    console.print(table)


def _say_steps(console: Console, order: Sequence[Pieces], size: int, causal: bool) -> None:
    """Prints what each rank sends in each step, and its share of the work."""
    ranks = len(order)
    done = [[work(order[r], order[(r - step) % ranks], size, causal) for r in range(ranks)] for step in range(ranks)]
    total = sum(map(sum, done))
    table = Table(box=SIMPLE, show_footer=True)
    table.add_column("step", "all")
    shares = [sum(step[rank] for step in done) / total for rank in range(ranks)]
    for rank, share in enumerate(shares):
        table.add_column(f"rank {rank}", f"{share:.1%}")
    for step, amounts in enumerate(done):
        cells = []
        for rank, amount in enumerate(amounts):
            owner = (rank - step) % ranks
            sends = f" to rank {(rank + 1) % ranks}" if step + 1 < ranks else ""
            cells.append(f"keys of rank {owner}\n{amount / total:.1%}{sends}")
        table.add_row(str(step), *cells)
    say(console, "In each step: whose keys a rank has, its share of the work, and where it sends these keys meanwhile")
    console.print(table)
    even = 1 / ranks
    if max(shares) - min(shares) < 0.0005:
        say(console, f"Every rank has {even:.1%} of the work.")
    else:
        say(
            console,
            f"The busiest rank has {max(shares):.1%} of the work, the idlest {min(shares):.1%}; an even share is "
            f"{even:.1%}. All wait for the busiest one.",
        )


def _say_error(console: Console, whole: Tensor, out: Tensor, causal: bool, variant: Variant) -> None:
    """The error relative to float64 in one process, compared with that of the same kernel in one process."""
    right = reference.attention(*whole.double(), causal)
    in_one = max_error_of(attention(*whole, is_causal=causal), right)
    noise = max_error_of(reference.attention(*whole, causal), right)
    bound = 2 * noise + 1e-5 * SHARPNESS**2 + running_sum_floor(out.size(2), 4)
    error = max_error_of(out, right)
    say(
        console,
        f"max error against one process in float64: {error:.1e}, allowed {bound:.1e}; the same kernel in one process: "
        f"{in_one:.1e}",
    )
    if error <= bound:
        say(console, "All ranks together match one process.", "green")
    else:
        flag = " --solution" if variant == Variant.SOLUTION else ""
        say(console, f"The result is wrong. python -m task6.test --ring{flag} says more.", "red")
