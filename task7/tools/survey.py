"""`python -m task7.benchmark --sizes ... --batches ...`: model sizes and batch sizes in one table.

For each, it times the engine and those of --versions listed here, and shows how close each comes to the limit. A step
reads all weights and all keys and values so far; their size over the bandwidth of a copy is its lower bound.

    graph       the engine, with a CUDA graph for every step instead of one persistent kernel
    drawn       the engine with sampling: its cost is the difference of the times between tokens
    static      transformers with a StaticCache and torch.compile; compiling takes a while, so only for STATIC_SIZE
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table

from common.cli.benchmark import FAILED, MEASURED
from common.cli.options import EXPECTED_ERRORS
from common.console.terminal import say
from common.console.words import error_words
from common.measure import report
from common.measure.limits import measure_limits
from task7.tools.options import DTYPES
from task7.tools.peers import (
    DRAWN,
    SIZES,
    EnginePeer,
    Measured,
    compiled_peer,
    measure,
    random_model,
    weight_bytes,
)

ENGINE = "engine"
STATIC_SIZE = "gpt2"


@dataclass(frozen=True)
class Row:
    """size, batch, version; how: how our steps run. limit_ms: lower bound of the time between tokens."""

    size: str
    batch: int
    version: str
    how: str
    measured: Measured
    limit_ms: float

    @property
    def tokens_per_s(self) -> float:
        return self.batch * 1e3 / self.measured.tbt_median


def step_bytes(weights: int, size: str, batch: int, tokens: float, element: int) -> float:
    """The bytes a step reads: the weights, and the keys and values of `tokens` tokens of every sequence."""
    width, layers, _ = SIZES[size]
    return weights + batch * tokens * layers * 2 * width * element


def table(rows: list[Row], title: str) -> Table:
    """A table row per Row."""
    result = Table(title=title, title_justify="left")
    for column in ("size", "batch", ""):
        result.add_column(column, justify="right" if column == "batch" else "left", no_wrap=True)
    for column in ("TTFT\nms", "TBT\nms", "tokens/s", "limit\nms", "of the\nlimit"):
        result.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        result.add_row(
            row.size,
            str(row.batch),
            row.version,
            f"{statistics.median(row.measured.ttft):.2f}",
            f"{row.measured.tbt_median:.3f}",
            f"{row.tokens_per_s:,.0f}",
            f"{row.limit_ms:.3f}",
            f"{row.limit_ms / row.measured.tbt_median:.0%}",
        )
    return result


def run(options: argparse.Namespace, console: Console, command: str) -> int:
    """Times all of it and prints; the exit status."""
    dtype, total = DTYPES[options.dtype], options.prompt + options.new_tokens
    copy = measure_limits(matmul=()).copy
    rows, status, start = [], MEASURED, time.perf_counter()
    for size in options.sizes or [options.model]:
        model = random_model(size, getattr(torch, dtype))
        weights, element = weight_bytes(model), next(model.parameters()).element_size()
        for batch in options.batches or [options.batch]:
            prompts = torch.randint(model.config.vocab_size, (batch, options.prompt)).tolist()
            read = step_bytes(weights, size, batch, options.prompt + options.new_tokens / 2, element)
            for version in versions_of(options, size):
                say(console, f"{time.perf_counter() - start:.0f} s: {size}, batch {batch}, {version} ...")
                try:
                    if version == "static":
                        torch._dynamo.reset()  # otherwise it would compile for dynamic batch sizes
                        peer = compiled_peer(model, total)
                    else:
                        drawn = DRAWN if version == "drawn" else None
                        parts = {"persistent": False} if version == "graph" else {}
                        peer = EnginePeer(model, dtype, options.variant, batch, total, drawn=drawn, **parts)
                    measured = measure(peer, prompts, options.new_tokens, options.rounds)
                    how = getattr(peer, "how", "")
                    rows.append(Row(size, batch, version, how, measured, 1e3 * read / copy))
                except (*EXPECTED_ERRORS, RuntimeError) as error:
                    say(console, f"{size}, batch {batch}, {version}: {error_words(error)}", "red")
                    status = FAILED
                peer = None
                gc.collect()
                torch.cuda.empty_cache()
        del model
    console.print(", ".join(f"{name} {value}" for name, value in report.machine().items()), highlight=False)
    for how, batches in steps_of(rows).items():
        say(console, f"a step is {how}: batches of {', '.join(map(str, batches))}")
    title = f"{dtype}, prompts of {options.prompt}, {options.new_tokens} new tokens; copy {copy / 1e12:.2f} TB/s"
    console.print(table(rows, title))
    if options.json:
        content = {"machine": report.machine(), "command": command, "rows": [asdict(row) for row in rows]}
        options.json.write(json.dumps(content, indent=1) + "\n")
    return status


def versions_of(options: argparse.Namespace, size: str) -> list[str]:
    """The engine, and the versions requested in addition."""
    known = ("graph", "drawn", "static") if size == STATIC_SIZE else ("graph", "drawn")
    return [ENGINE, *(name for name in options.versions if name in known)]


def steps_of(rows: list[Row]) -> dict[str, list[int]]:
    """How our steps run -> for which batch sizes."""
    found: dict[str, list[int]] = {}
    for row in rows:
        if row.how and row.batch not in found.setdefault(row.how, []):
            found[row.how].append(row.batch)
    return found
