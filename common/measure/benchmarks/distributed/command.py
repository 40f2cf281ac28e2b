"""The command line: what is measured, in which order, and what rank 0 prints."""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from common.console.files import write_whole
from common.console.paths import shown_path
from common.console.terminal import say, wide
from common.kernels.loaded import loaded
from common.measure import report
from common.measure.benchmarks.distributed import __doc__ as description
from common.measure.benchmarks.distributed.longest import Longest, longest
from common.measure.benchmarks.distributed.records import (
    DEFAULT,
    LABELS,
    OURS,
    PASSES,
    Record,
    Setting,
    goals,
    table,
    to_json,
)
from common.measure.benchmarks.distributed.timing import WARM_UP, measure_setting
from common.measure.benchmarks.distributed.verify import Checked, verify
from common.measure.benchmarks.distributed.versions import all_versions

COMMAND = "torchrun --nproc-per-node 2 -m common.benchmark distributed"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
NOTHING_MEASURED, WRONG = 2, 1  # exit statuses
VERIFIED = 4096  # tokens


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = argparse.ArgumentParser(
        prog=COMMAND, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--tokens", type=int, nargs="+", metavar="N", help="in all; default: 16k, 32k, and 64k causal, 64k full")
    add("--mask", choices=("causal", "full", "both"), help="with --tokens; default both")
    add("--pass", dest="passes", nargs="+", choices=PASSES, default=list(PASSES), help="default: both")
    add("--versions", nargs="+", choices=LABELS, default=list(LABELS), metavar="NAME", help=", ".join(LABELS))
    add("--heads", type=int, default=16, help="default 16")
    add("--head-dim", type=int, default=128, help="1 .. 128; default 128")
    add("--dtype", choices=DTYPES, default="bf16", help="default bf16")
    add("--rounds", type=int, default=10, help="timed runs of each version; default 10")
    add(
        "--verify",
        action="store_true",
        help=f"first check the output and gradients against float64, with {VERIFIED:,} tokens",
    )
    add(
        "--longest",
        choices=OURS,
        nargs="?",
        const="ring",
        help="at the end, find the longest forward pass that fits; default ring",
    )
    add("--output", type=Path, metavar="FOLDER", help="write FOLDER/results.json")
    return made


def settings_of(options: argparse.Namespace, ranks: int) -> list[Setting]:
    """The settings to measure.

    Raises:
        ValueError: an invalid option; the message names the option, its value and the allowed range.
    """
    for name, most in (("heads", 1024), ("head_dim", 128), ("rounds", 1000)):
        if not 1 <= getattr(options, name) <= most:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be 1 .. {most}")
    if options.heads % ranks and any("ulysses" in name for name in options.versions):
        raise ValueError(f"--heads is {options.heads}; for ulysses it must be a multiple of the {ranks} ranks")
    if options.mask and not options.tokens:
        raise ValueError("--mask belongs to --tokens: add that")
    if not options.tokens:
        return [Setting(one.tokens, one.causal, options.heads, options.head_dim) for one in DEFAULT]
    for tokens in options.tokens:
        if tokens < 1 or tokens % (2 * ranks):
            raise ValueError(f"--tokens is {tokens}; it must be a multiple of 2 * ranks = {2 * ranks}")
    masks = {"causal": (True,), "full": (False,)}.get(options.mask, (True, False))
    return [Setting(tokens, causal, options.heads, options.head_dim) for causal in masks for tokens in options.tokens]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0: measured, 1: a result is wrong, 2: nothing was measured."""
    made = parser()
    options = made.parse_args(argv)
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    try:
        settings = settings_of(options, ranks)
    except ValueError as error:
        if rank:  # rank 0 prints it
            return NOTHING_MEASURED
        made.error(str(error))
    console = wide(Console())
    console.quiet = rank > 0
    if "RANK" not in os.environ or ranks < 2:
        say(console, f"It takes a process for each of two GPUs or more: {COMMAND}")
        return NOTHING_MEASURED
    if not report.gpu_is_there(console):
        return NOTHING_MEASURED
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    if torch.cuda.device_count() < local:
        say(
            console,
            f"There are {local} processes here and {torch.cuda.device_count()} GPUs; each needs one of its own.",
        )
        return NOTHING_MEASURED
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=datetime.timedelta(minutes=10), device_id=device)
    try:
        return _run(console, options, settings, ranks)
    finally:
        dist.destroy_process_group()


def _run(console: Console, options: argparse.Namespace, settings: Sequence[Setting], ranks: int) -> int:
    if dist.get_rank() == 0:  # one rank builds, the others load its build
        with console.status("compiling common/kernels/flash ..."):
            loaded("flash", "cuda")
    dist.barrier()
    every = all_versions()
    versions = {name: every[name] for name in options.versions}
    dtype, facts, status = DTYPES[options.dtype], {}, 0
    say(console, ", ".join(f"{name} {value}" for name, value in report.machine().items()) + f", {ranks} of them")
    if options.verify:
        device = torch.device("cuda", torch.cuda.current_device())
        sizes = (VERIFIED, options.heads, options.heads, options.head_dim, dtype)
        checked = verify(versions, device, *sizes)
        facts["verified"] = [one._asdict() for one in checked]
        status = _say_verified(console, checked)
    records: list[Record] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    work = [(setting, passes) for passes in options.passes for setting in settings]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(work) * (WARM_UP + options.rounds))
        for setting, passes in work:
            progress.update(bar, description=f"{setting.name}, {passes}")
            with torch.no_grad():
                records += measure_setting(
                    setting, passes, versions, options.rounds, dtype, lambda: progress.advance(bar)
                )
            torch.cuda.empty_cache()
            if (setting, passes) == work[-1] or work[work.index((setting, passes)) + 1][1] != passes:
                console.print(table(records, passes, ranks))
    for line in goals(records):
        say(console, line)
    for name, why in dict.fromkeys((one.version, one.left_out) for one in records if one.left_out):
        say(console, f"left out: {name}: {why}", "yellow")
    if options.output:
        facts |= {"goals": goals(records)}
        _write(console, options, records, ranks, facts)  # before the search, which may take minutes
    if options.longest:
        found = longest(options.longest, options.heads, options.head_dim, dtype, console)
        _say_longest(console, found, options, ranks)
        facts["longest"] = asdict(found)
        _write(console, options, records, ranks, facts)
    return status


def _write(console: Console, options: argparse.Namespace, records: Sequence[Record], ranks: int, facts: dict) -> None:
    if options.output and dist.get_rank() == 0:
        file = options.output / "results.json"
        write_whole(file, to_json(records, COMMAND, ranks, facts))
        say(console, f"written: {shown_path(file)}")


def _say_verified(console: Console, checked: Sequence[Checked]) -> int:
    """Prints a row for each; returns the exit status."""
    shown = Table(title=f"{VERIFIED:,} tokens against float64: max error (bound)")
    for column in ("", "out", "grad query", "grad key", "grad value", ""):
        shown.add_column(column)
    for one in checked:
        cells = [f"{error:.1e} ({bound:.1e})" for error, bound in one.errors] or [""] * 4
        verdict = "left out" if one.left_out else "right" if one.fine else "WRONG"
        shown.add_row(one.what, *cells, verdict, style=None if one.fine else "yellow" if one.left_out else "red")
    console.print(shown)
    for one in checked:
        if one.left_out:
            say(console, f"left out: {one.what}: {one.left_out}", "yellow")
    return 0 if all(one.fine or (one.left_out and one.what.split(",")[0] not in OURS) for one in checked) else WRONG


def _say_longest(console: Console, found: Longest, options: argparse.Namespace, ranks: int) -> None:
    rate = Setting(found.tokens, True, options.heads, options.head_dim).operations("forward") / found.seconds
    say(
        console,
        f"longest forward on {ranks} GPUs by {found.method}: {found.tokens:,} tokens, causal, in {found.seconds:.1f} s "
        f"({rate / 1e12:,.0f} TFLOP/s); peak {found.peak_bytes / 2**30:.1f} GiB "
        f"on each. One GPU: about {found.one_gpu:,} tokens, by the bytes per token of shorter runs.",
    )
