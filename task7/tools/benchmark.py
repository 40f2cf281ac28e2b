"""A GPT-2's time to first token and time between tokens, on a GPU.

Random weights; greedy, unless it says otherwise; by default GPT-2 124M in float16, one sequence, a prompt of 512
tokens. Compared with the engine on the tuned kernels, whose steps are one persistent kernel on Hopper:

    graph           ours, a CUDA graph of fused kernels for every step
    drawn           ours, with sampling: temperature 0.8, top-k 40, top-p 0.9
    fp32            ours in float32
    unfused         ours in float32, a graph of unfused kernels and PyTorch's GEMMs
    launched        the same kernels, launched one by one
    eager, sdpa     transformers with these attention implementations and a DynamicCache
    static          transformers with a StaticCache and torch.compile(mode="reduce-overhead"); compiling takes a while

Everything runs in one process, every peer after a warm-up. Times are measured on the host, from one token's arrival to
the next; every peer copies every token to the host. A step reads all weights once and computes very little with them,
so its lower bound is their size divided by the bandwidth of a copy, which is measured here too.

With --sizes or --batches, a single table covers all of those, and the limit includes the KV cache: survey.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common.cli.benchmark import FAILED, MEASURED, positive
from common.cli.options import EXPECTED_ERRORS, add_variant_arguments, command_of
from common.compiling.variant import Variant
from common.console.terminal import say, wide
from common.console.words import counted, error_words
from common.measure import report
from common.measure.limits import measure_limits
from common.measure.timing import middle
from task7.tools import survey
from task7.tools.options import DTYPES
from task7.tools.peers import (
    DRAWN,
    SIZES,
    EnginePeer,
    Measured,
    compiled_peer,
    measure,
    random_model,
    transformers_peer,
    weight_bytes,
)

ENGINE, PEERS = "engine", ("graph", "drawn", "fp32", "unfused", "launched", "eager", "sdpa", "static")
FLOAT32 = ("fp32", "unfused", "launched")  # whose weights have 4 bytes


def table(measured: Mapping[str, Measured], limits: Mapping[str, float], title: str, batch: int = 1) -> Table:
    """A row per version: both times in ms, and the share of its limit."""
    result = Table(title=escape(title), title_justify="left")
    result.add_column("")
    for column in ("TTFT\nms", "TBT\nms", "80% between\nms", "tokens/s", "weights /\nbandwidth", "times\nours"):
        result.add_column(column, justify="right", no_wrap=True)
    ours = next(iter(measured.values()))
    for name, one in measured.items():
        low, high = middle(one.tbt)
        result.add_row(
            escape(name),
            f"{statistics.median(one.ttft):.2f}",
            f"{one.tbt_median:.3f}",
            f"{low:.3f} .. {high:.3f}",
            f"{batch * 1e3 / one.tbt_median:,.0f}",
            f"{limits[name] / one.tbt_median:.0%}",
            f"{one.tbt_median / ours.tbt_median:.2f}",
        )
    return result


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m task7.benchmark", description=__doc__.split("\n")[0])
    add_variant_arguments(made, default=Variant.TUNED)
    add = made.add_argument
    add("--versions", nargs="+", choices=PEERS, default=PEERS, metavar="NAME", help=f"peers: {', '.join(PEERS)}")
    add("--model", choices=SIZES, default="gpt2", metavar="NAME", help=f"sizes of {', '.join(SIZES)} (default gpt2)")
    add("--batch", type=positive(int), default=1, metavar="N", help="sequences at once (default 1)")
    add("--sizes", type=_sizes, metavar="NAMES", help=f"one table for several, by commas: {','.join(SIZES)}")
    add("--batches", type=_batches, metavar="NUMBERS", help="the same for several batches, such as 1,8,32,128")
    add("--prompt", type=positive(int), default=512, metavar="N", help="tokens (default 512)")
    add("--new-tokens", type=positive(int), default=128, metavar="N", help="tokens (default 128)")
    add("--dtype", choices=DTYPES, default="fp16", help="default: %(default)s")
    add("--rounds", type=positive(int), default=5, metavar="N", help="prefills of each version (default 5)")
    add("--json", type=argparse.FileType("w"), metavar="FILE", help="write the numbers to FILE")
    return made


def _sizes(words: str) -> list[str]:
    names = words.split(",")
    if wrong := [name for name in names if name not in SIZES]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is no size; allowed: {', '.join(SIZES)}")
    return names


def _batches(words: str) -> list[int]:
    return [positive(int)(word) for word in words.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; exit status 0, 1: a kernel does not compile or a peer failed, 2: no GPU."""
    made = parser()
    options = made.parse_args(argv)
    total = options.prompt + options.new_tokens
    if options.new_tokens < 51 or total > 1024:
        made.error(f"--new-tokens is {options.new_tokens}; it must be 51 or more, and with --prompt at most 1024")
    console = wide(Console())
    if not report.gpu_is_there(console):
        return report.NEEDS_GPU
    command = command_of("task7.benchmark", argv)
    if options.sizes or options.batches:
        return survey.run(options, console, command)
    return run(options, total, console, command)


def run(options: argparse.Namespace, total: int, console: Console, command: str) -> int:
    """Times all versions and prints; the exit status."""
    dtype = DTYPES[options.dtype]
    model = random_model(options.model, getattr(torch, dtype))
    prompts = torch.randint(model.config.vocab_size, (options.batch, options.prompt)).tolist()
    read = weight_bytes(model)
    copy = measure_limits(matmul=()).copy
    ours = f"{ENGINE}, {options.variant}"

    def with_parts(of: str, **parts):
        return lambda: EnginePeer(model, of, options.variant, options.batch, total, **parts)

    makers = {
        ours: with_parts(dtype),
        "graph": with_parts(dtype, persistent=False),
        "drawn": with_parts(dtype, drawn=DRAWN),
        "fp32": with_parts("float32"),
        "unfused": with_parts("float32", fused=False),
        "launched": with_parts("float32", fused=False, graphs=False),
        "eager": lambda: transformers_peer(model, "eager"),
        "sdpa": lambda: transformers_peer(model, "sdpa"),
        "static": lambda: compiled_peer(model, total),
    }
    measured, status = {}, MEASURED
    for name in (ours, *options.versions):
        try:
            peer = makers[name]()
            measured[name] = measure(peer, prompts, options.new_tokens, options.rounds)
            if isinstance(peer, EnginePeer):
                say(console, f"{name}: a step is {peer.how}; the prefill is {peer.how_prefill(options.prompt)}")
        except (*EXPECTED_ERRORS, RuntimeError) as error:
            say(console, f"{name}: {error_words(error)}", "red")
            status = FAILED
            if name == ours:
                return status
    machine = report.machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    limit_ms = 1e3 * read / copy
    say(console, f"weights {read / 1e6:.0f} MB, copy {copy / 1e12:.2f} TB/s: at least {limit_ms:.3f} ms between tokens")
    title = f"{options.model}, {dtype}, {counted(options.batch, 'sequence')} of {options.prompt}, "
    title += f"{options.new_tokens} new tokens"
    element = next(model.parameters()).element_size()
    limits = {name: limit_ms * (4 / element if name in FLOAT32 else 1) for name in measured}
    console.print(table(measured, limits, title, options.batch))
    if options.json:
        found = {name: asdict(one) for name, one in measured.items()}
        content = {"machine": machine, "command": command, "limits_ms": limits, "milliseconds": found}
        options.json.write(json.dumps(content, indent=1) + "\n")
    return status
