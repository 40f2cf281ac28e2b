"""python -m task7.inference: GPT-2 generates text with the kernels of tasks 4, 6, and 7.

`main(reference=True)` is python -m task7.inference_ref: the same command line and loop with transformers' own
attention and cache. --help lists the options (options.py); --compare shows both side by side (compare.py).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common.cli import options as cli
from common.compiling.variant import Variant
from common.console.terminal import say
from common.measure.timing import middle
from task7.tools.compare import compare
from task7.tools.options import parse
from task7.tools.session import explain_gap, load_writer, write_texts

YOUR_TURN = (
    "These were the reference solution's kernels. Your turn: open task1/README.md; "
    "`python -m common.course progress` says where you stand."
)
EXPECTED_ERRORS = (*cli.EXPECTED_ERRORS, ConnectionError)


def summary(result, writer) -> Table:
    """The table at the end. result: Generations."""
    table = Table(show_header=False)
    table.add_row("new tokens", new_tokens(result))
    table.add_row("TTFT, time to first token", f"{result.ttft_ms:.1f} ms")
    if result.tbt_ms:
        table.add_row("TBT, time between tokens", tbt(result))
    table.add_row("tokens/s", f"{result.tokens_per_s:.1f}")
    for row in writer.rows():
        table.add_row(*row)
    return table


def new_tokens(result) -> str:
    """ "100 (stopped by max_new_tokens)", for every sequence."""
    each = zip(result.tokens, result.stopped_by, strict=True)
    words = Counter(f"{len(tokens)} (stopped by {stopped_by})" for tokens, stopped_by in each)
    return "; ".join(f"{times} x " * (times > 1) + one for one, times in words.items())


def tbt(result) -> str:
    """The times between tokens: median and spread. Needs one or more."""
    low, high = middle(result.tbt_ms)
    digits = 1 if min(result.tbt_ms) >= 1 else 3
    return (
        f"median {statistics.median(result.tbt_ms):.{digits}f} ms; "
        f"80% lie between {low:.{digits}f} and {high:.{digits}f} ms"
    )


def run(options: argparse.Namespace, console: Console, reference: bool) -> None:
    """Loads everything, generates, prints. Raises EXPECTED_ERRORS and what the kernels raise."""
    if options.compare:
        compare(options, console)
        return
    tokenizer, prompts, writer = load_writer(options, console, reference)
    result = write_texts(tokenizer, prompts, writer, options, console)
    console.print(summary(result, writer))
    if options.variant == Variant.SOLUTION and not reference:
        say(console, YOUR_TURN)


def main(argv=None, reference=False):
    """Returns the exit status: 0 done, 1 a gap or a kernel that failed, 2 a wrong argument or build."""
    options = parse(argv, reference)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a story may hold characters that the terminal's encoding lacks
    console = Console()
    try:
        run(options, console, reference)
    except NotImplementedError as gap:
        explain_gap(console, gap)
        return 1
    except EXPECTED_ERRORS as error:
        say(console, error, "red")
        return 2
    except RuntimeError as error:
        console.print(f"[red]generation stopped:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        say(console, "interrupted")
        return 130
    return 0
