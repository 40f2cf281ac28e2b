"""The tile planner: what a choice of tiles costs, before any code is written.

python -m task4.plan --br 64 --bc 64 --head-dim 128 --dtype fp16 [--warps 4] [--stages 2] [--gpu h100]

Exit status 0: the tiles are possible on that GPU. 1: they are not; the reasons are printed. 2: a bad argument.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from common.compiling import toolchain
from common.console.terminal import say, wide
from common.measure import gpus
from common.measure.gpus import MAX_REGISTERS_PER_THREAD, GpuSpec
from task4.given.tiles import TileSizes
from task4.tools.tuning.tile_plan import BYTES, KB, TilePlan


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    options = _parser().parse_args(argv)
    console = wide(Console())
    stages = options.stages or (1 if options.dtype == "fp32" else 2)
    try:
        gpu = gpus.chosen(options.gpu)
        one = TilePlan(TileSizes(options.br, options.bc, options.warps), options.head_dim, options.dtype, stages)
    except ValueError as error:
        say(console, error, "red")
        return 2
    print_plan(console, one, gpu, _why(options.gpu, gpu))
    return 1 if one.problems(gpu) else 0


def _why(asked_for: str | None, gpu: GpuSpec) -> str:
    if asked_for:
        return "chosen with --gpu"
    present = toolchain.find_gpu()
    if present is None:
        return "no GPU here: name one with --gpu"
    return (
        f"{present.name}, present"
        if gpu.capability == present.capability
        else f"the data sheet of {present.name} is not known"
    )


def print_plan(console: Console, one: TilePlan, gpu: GpuSpec, why: str) -> None:
    """Prints the planner's full report."""
    padded = f" (padded to {one.D})" if one.head_dim != one.D else ""
    kernel = "tensor cores, mma.m16n8k16" if one.on_tensor_cores else "as in flash_attention.cu"
    say(console, f"tiles {one.tiles}, head_dim {one.head_dim}{padded}, {one.dtype} ({kernel}), on {gpu.name} ({why})")
    console.print(_memory_table(one))
    limit = gpu.limits.shared_per_block
    facts = {
        "shared memory": f"{one.shared_bytes / KB:.1f} KB per block; {gpu.name} gives one at most {limit / KB:g} KB",
        "registers": _registers(one),
    }
    if not one.shape_problems():
        facts |= {
            "SM": _occupancy(one, gpu),
            "per tile of keys": _work(one),
            "intensity": _intensity(one, gpu),
            "cycles": _cycles(one, gpu),
        }
    table = Table.grid(padding=(0, 2))
    for name, text in facts.items():
        table.add_row(f"  {name}", text)
    console.print(table)
    problems = one.problems(gpu)
    for problem in problems:
        say(console, f"impossible: {problem}", "red")
    if not problems:
        say(console, "possible", "green")


def _memory_table(one: TilePlan) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("in shared memory", min_width=18)
    for column in ("shape", "KB"):
        table.add_column(column, justify="right")
    for name, (shape, count) in one.shared.items():
        table.add_row(name, shape, f"{count / KB:.1f}")
    return table


def _registers(one: TilePlan) -> str:
    parts = " + ".join(f"{name} {count}" for name, count in one.register_arrays.items() if count)
    return f"about {one.registers} per thread (at most {MAX_REGISTERS_PER_THREAD}): {parts}; an estimate"


def _occupancy(one: TilePlan, gpu: GpuSpec) -> str:
    found = one.occupancy(gpu)
    most = gpu.limits.threads // 32
    if not found.blocks:
        return f"no block fits, because of {found.limiter}"
    plural = "s" if found.blocks > 1 else ""
    return (
        f"{found.blocks} block{plural} of {one.threads} threads at a time, limited by {found.limiter}: "
        f"{found.warps} of {most} warps, occupancy {100 * found.fraction:.0f} %"
    )


def _work(one: TilePlan) -> str:
    return (
        f"{one.bytes_loaded / KB:.1f} KB of K and V, {one.flops / 1e6:.2f} million operations, "
        f"{one.exponentials:,} exponentials"
    )


def _intensity(one: TilePlan, gpu: GpuSpec) -> str:
    ridge = one.peak(gpu) / gpu.bandwidth
    what = "tensor cores" if one.on_tensor_cores else "float32"
    said = f"{one.intensity:.0f} operations per byte; {gpu.name}'s ridge point is {ridge:.0f} ({what})"
    if one.intensity < ridge:
        return f"{said}: blocks of one head must find K and V in the L2 cache"
    return f"{said}: K and V may come from DRAM every time"


def _cycles(one: TilePlan, gpu: GpuSpec) -> str:
    cycles = one.cycles(gpu)
    most = max(cycles, key=cycles.__getitem__)
    listed = ", ".join(f"{name} {count:,.0f}" for name, count in cycles.items())
    return f"on one SM, at least: {listed}; limited by {most}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m task4.plan", description="What a choice of tiles costs, before any code is written."
    )
    parser.add_argument("--br", type=int, required=True, metavar="B_r", help="rows of Q per block")
    parser.add_argument("--bc", type=int, required=True, metavar="B_c", help="keys per tile")
    parser.add_argument("--head-dim", type=int, required=True, metavar="D", help="1 .. 128")
    parser.add_argument("--dtype", choices=tuple(BYTES), default="fp32", help="default fp32: the kernel of this task")
    parser.add_argument("--warps", type=int, default=4, help="per block (default 4)")
    parser.add_argument(
        "--stages", type=int, help="tiles of K and V in shared memory at a time (default: fp32 1, fp16 and bf16 2)"
    )
    parser.add_argument("--gpu", metavar="NAME", help="whose limits: t4, a100, h200, ... (default: the one present)")
    return parser
