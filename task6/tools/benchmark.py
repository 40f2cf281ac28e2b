"""How fast one decode step of attention is on a GPU, beside PyTorch's backends and beside copying memory.

python -m task6.benchmark [--taught] [--batch N ...] [--context N ...] [--rounds N] [--eager] [--json FILE]
                          [--pictures FOLDER]

bfloat16, one query per sequence over caches of 1,024 to 65,536 tokens, contiguous and in pages of 16: the tuned kernels
and SDPA's flash and cuDNN backends. Every output is compared with float64 first. A call takes a few microseconds, less
than Python needs to issue it, so each version is captured in a CUDA graph, whose replays are timed (in turn, with other
data in the L2 cache and new inputs every round); --eager times the calls themselves.

--taught: float32, with the taught kernel and SDPA as PyTorch chooses it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest
from common.compiling.result import BuildError
from common.compiling.toolchain import ToolchainError
from common.inspect.profile.pictures import INSTALL
from common.measure import report
from common.measure.limits import measure_limits
from common.measure.timing import Stopwatch, measure
from task6.tools import benchmark_grid, benchmark_pictures
from task6.tools.benchmark_grid import Inputs, Problem

LARGE = 256 * 10**6  # bytes of a cache, from which on the share of the copy bandwidth counts
GOALS = "goals: geometric mean 1.0, nowhere below 0.85; 90% of copy where the cache is over 256 MB"


def graph_of(call: Callable[[], object]) -> Callable[[], None]:
    """The call, captured: replaying it takes no Python."""
    call()  # what is set up once must not be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def run(
    problem: Problem,
    tuned: Operators,
    taught: Operators | None,
    copy: float,
    rounds: int,
    prepare: Callable[[Callable], Callable] = graph_of,
    device: torch.device | str = "cuda",
    stopwatch: Stopwatch | None = None,
) -> report.Section:
    """Checks and times all versions of one problem. The section's peer is the fastest of PyTorch's.

    Args:
        problem: what is computed.
        tuned, taught: our operators; see benchmark_grid.versions.
        copy: bytes per second of a copy, read and written.
        rounds: timed runs of each version.
        prepare: what is done with a call before it is timed.
        device, stopwatch: see common.measure.timing.

    Raises:
        RuntimeError: a version is wrong, or PyTorch has none.
    """
    with torch.no_grad():
        inputs = Inputs.of(problem, device)
        calls = benchmark_grid.versions(inputs, tuned, taught)
        for name in [name for name in calls if name.startswith("SDPA")]:
            try:
                calls[name]()
            except RuntimeError:  # this backend does not support the GPU or the sizes
                del calls[name]
        peers = [name for name in calls if name.startswith("SDPA")]
        if not peers:
            raise RuntimeError(f"none of PyTorch's backends takes {problem.title}")
        for name, call in calls.items():
            benchmark_grid.check(problem, inputs, name, call)
        prepared = {name: prepare(call) for name, call in calls.items()}
        timings = measure(prepared, lambda: inputs.refill() or (), rounds, stopwatch=stopwatch)
    best = min(peers, key=lambda name: timings[name].seconds)
    return report.Section(problem.title, problem.work, "TB/s", timings, report.Limit("copy", copy), best)


def speedup(section: report.Section, name: str) -> float:
    """Over the fastest of PyTorch's versions."""
    return section.timings[section.peer].seconds / section.timings[name].seconds


def table(title: str, measured: Mapping[Problem, report.Section]) -> Table:
    """A line for each problem: microseconds; of our versions also TB/s, the share of a copy and the speedup."""
    result = Table(title=escape(title), title_justify="left")
    for column in ("batch", "heads", "tokens", "cache"):
        result.add_column(column, justify="right", no_wrap=True)
    names = list(dict.fromkeys(name for section in measured.values() for name in section.timings))
    for name in names:
        heading = escape(name.replace("SDPA ", "").replace("tuned, ", ""))
        result.add_column(f"{heading}\nus", justify="right", no_wrap=True)
        if not name.startswith("SDPA"):
            for column in ("TB/s", "copy", "times"):
                result.add_column(column, justify="right", no_wrap=True)
    for problem, section in measured.items():
        cells = [str(problem.batch), f"{problem.heads}/{problem.kv_heads}", f"{problem.context:,}"]
        cells.append(f"{problem.cache_bytes / 1e6:,.0f} MB")
        for name in names:
            ours = not name.startswith("SDPA")
            if name not in section.timings:
                cells += ["-"] * (4 if ours else 1)
                continue
            cells.append(f"{1e6 * section.timings[name].seconds:,.1f}")
            if ours:
                rate = section.rate(name)
                cells += [f"{rate / 1e12:.2f}", f"{rate / section.limit.per_second:.0%}"]
                cells.append(f"{speedup(section, name):.2f}")
        result.add_row(*cells)
    return result


def summary(measured: Mapping[Problem, report.Section], name: str) -> str:
    """One version over the fastest of PyTorch's: geometric mean, minimum, and the share of a copy for large caches."""
    speedups = [speedup(section, name) for section in measured.values()]
    text = (
        f"{name} over the better of PyTorch's: geometric mean {geometric_mean(speedups):.3f}, least {min(speedups):.2f}"
    )
    shares = [
        section.rate(name) / section.limit.per_second
        for problem, section in measured.items()
        if problem.cache_bytes > LARGE
    ]
    return text + (f"; at least {min(shares):.0%} of copy where the cache is over 256 MB" if shares else "")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; exit status 0, 1: a kernel does not compile or is wrong, 2: no GPU."""
    parser = argparse.ArgumentParser(prog="python -m task6.benchmark", description=__doc__.split("\n")[0])
    parser.add_argument("--taught", action="store_true", help="the taught kernel as well, in float32")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=benchmark_grid.BATCHES, metavar="N", help="sequences (default 1 and 16)"
    )
    parser.add_argument("--context", type=int, nargs="+", default=benchmark_grid.CONTEXTS, metavar="N", help="tokens")
    parser.add_argument("--rounds", type=int, default=20, help="timed runs of each version (default 20)")
    parser.add_argument("--eager", action="store_true", help="time the calls themselves, not the replays of a graph")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE as well")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw time.png and bandwidth.png there")
    options = parser.parse_args(argv)
    if options.rounds < 1 or min(options.batch) < 1:
        parser.error(f"--rounds is {options.rounds} and --batch {options.batch}; they must be at least 1")
    try:
        problems = benchmark_grid.grid(
            options.batch, options.context, torch.float32 if options.taught else torch.bfloat16
        )
    except ValueError as error:
        parser.error(str(error))
    console = Console()
    if not report.gpu_is_there(console):
        return report.NEEDS_GPU
    measured: dict[Problem, report.Section] = {}
    prepare = (lambda call: call) if options.eager else graph_of
    try:
        with console.status("compiling ..."):
            tuned = load(BuildRequest("task6", "tuned"))
            taught = load(BuildRequest("task6", "solution")) if options.taught else None
        with console.status("measuring ..."):
            copy = measure_limits(matmul=()).copy
            for problem in problems:
                try:
                    measured[problem] = run(problem, tuned, taught, copy, options.rounds, prepare)
                except torch.OutOfMemoryError:
                    console.print(f"{problem.title}: left out, not enough memory", highlight=False)
                torch.cuda.empty_cache()
    except (BuildError, ToolchainError, RuntimeError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    machine = report.machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    console.print(f"copy {copy / 1e12:.2f} TB/s read + written; {GOALS}", highlight=False)
    if not measured:
        return 0
    console.width = max(console.width, 150)
    console.print(table("float32" if options.taught else "bfloat16", measured))
    for name in ("taught", "tuned", "tuned, paged"):
        if all(name in section.timings for section in measured.values()):
            console.print(summary(measured, name), highlight=False)
    if options.json:
        command = "python -m task6.benchmark " + " ".join(sys.argv[1:] if argv is None else argv)
        report.write_json(options.json, command.strip(), list(measured.values()), machine)
    if options.pictures:
        try:
            files = benchmark_pictures.draw(measured, machine["gpu"], options.pictures)
        except ImportError:
            console.print(f"no pictures: matplotlib is missing; install it: {INSTALL}", highlight=False, markup=False)
            return 0
        for file in files:
            console.print(f"wrote {file}", highlight=False)
    return 0
