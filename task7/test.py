"""python -m task7.test: does GPT-2 write the same text, and predict it as well, through the course's kernels?

    --text         prefill and decode: greedy text of three prompts equals the reference's, token by token
    --perplexity   long prefill: held-out perplexity within 0.1% of the reference's

The reference is the same model (the storyteller, float32) with transformers' own attention and cache.
"""

import argparse
import copy
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from common import build, cli
from task7 import models
from task7.inference import attach_kernels, attach_reference, explain_gap
from task7.kernels import load_kernels

POINTS = 1
# The reference's two likeliest tokens never come closer than 0.02 in these texts: rounding cannot decide.
PROMPTS = ("Once upon a time", "Lily and Tom went to the park. They saw a", "Ben and his dog")
NEW_TOKENS = 40
SEQUENCES, LENGTH = 16, 512
TOLERANCE = 1e-3  # relative, on the perplexity


@dataclass
class Verdict:
    """One row of the table."""

    check: str
    ours: str
    reference: str
    passed: bool


class Bench:
    """The storyteller twice, with our attention and with the reference's, on the kernels' device.

    kernels: (task 4's operators, task 6's).
    """

    def __init__(self, kernels):
        self.tokenizer, self.ours = models.load(str(models.STORYTELLER), local=True)
        self.reference = copy.deepcopy(self.ours)
        self.attention, self.new_cache = attach_kernels(self.ours, kernels)
        self.new_reference_cache = attach_reference(self.reference, self.attention.backend)
        self.reference.to(self.attention.device)

    def text(self, prompt, new_tokens):
        """Greedy text by both, and whether every layer of every step ran in the kernels: a Verdict."""
        from task7.generation import generate

        ids = models.prompt_tokens(self.tokenizer, prompt)
        wanted = {"max_new_tokens": new_tokens, "stop_token": self.tokenizer.eos_token_id}
        expected = generate(self.reference, ids, self.new_reference_cache(None), **wanted).tokens
        self.attention.reset_calls()
        generation = generate(self.ours, ids, self.new_cache(len(ids) + new_tokens), **wanted)
        layers, decodes = self.ours.config.num_hidden_layers, len(generation.tbt_ms)
        calls = {
            "flash_attention": layers,
            "update_cache": layers * (1 + decodes),
            "decode_attention": layers * decodes,
        }
        problem = None
        if generation.tokens != expected:
            problem = self._first_difference(generation.tokens, expected)
        elif dict(self.attention.calls) != {name: n for name, n in calls.items() if n}:
            problem = f"kernel calls {dict(self.attention.calls)}, expected {calls}"
        tail = self.tokenizer.decode(expected[-6:])
        return Verdict(
            f"greedy text after {prompt!r}",
            problem or f"the same {len(expected)} tokens",
            f"... {tail!r}",
            problem is None,
        )

    def perplexity(self, count, length, on_sequence=None):
        """Perplexity over the first count x length held-out tokens by both: a Verdict."""
        from task7.perplexity import held_out_sequences, perplexity

        text = held_out_sequences(self.tokenizer, count, length)
        expected = perplexity(self.reference, *text)
        found = perplexity(self.ours, *text, on_sequence=on_sequence)
        error = abs(found / expected - 1)
        return Verdict(
            f"perplexity of {count} x {length} held-out tokens",
            f"{found:.4f} ({error:.3%} off)",
            f"{expected:.4f}",
            error <= TOLERANCE,
        )  # NaN fails: it is not <= anything

    def _first_difference(self, tokens, expected):
        shorter = min(len(tokens), len(expected))
        at = next((i for i in range(shorter) if tokens[i] != expected[i]), shorter)
        found, wanted = (
            repr(self.tokenizer.decode(x[at : at + 1])) if at < len(x) else "the end" for x in (tokens, expected)
        )
        where = "the prefill's token" if at == 0 else f"new token {at + 1}, a decode step"
        return f"differs at {where}: {found}, the reference says {wanted}"


def run_checks(bench, text, perplexity, console):
    """All chosen checks with a progress bar. Returns a list of Verdicts."""
    verdicts = []
    with Progress(console=console, transient=True) as progress:
        if text:
            task = progress.add_task("greedy text", total=len(PROMPTS))
            for prompt in PROMPTS:
                verdicts.append(bench.text(prompt, NEW_TOKENS))
                progress.advance(task)
        if perplexity:
            task = progress.add_task("perplexity", total=SEQUENCES)

            def show(done):
                progress.update(task, completed=done)

            verdicts.append(bench.perplexity(SEQUENCES, LENGTH, on_sequence=show))
    return verdicts


def print_verdicts(console, verdicts, title):
    table = Table("", "check", "ours", "reference", title=title, title_justify="left")
    for verdict in verdicts:
        mark = "[green]pass[/]" if verdict.passed else "[red]FAIL[/]"
        table.add_row(mark, *map(escape, (verdict.check, verdict.ours, verdict.reference)))
    console.print(table)


def main(argv=None):
    """Returns the exit status: 0 all passed, 1 one failed or a gap is unfilled, 2 nothing was tested."""
    parser = argparse.ArgumentParser(prog="python -m task7.test", description="Test GPT-2 on tasks 4 and 6.")
    cli.add_build_arguments(parser)
    parser.add_argument("--text", action="store_true", help="greedy text only")
    parser.add_argument("--perplexity", action="store_true", help="held-out perplexity only")
    options = parser.parse_args(argv)
    everything = options.text == options.perplexity
    console = Console()
    try:
        cli.say_backend(console, options.backend)
        with cli.working(console, "compiling tasks 4 and 6, loading the storyteller twice ..."):
            bench = Bench(load_kernels(options.solution, options.backend, options.arch))
    except cli.EXPECTED_ERRORS as error:
        console.print(f"{escape(str(error))}\n[red]task7: nothing was tested[/]", highlight=False, soft_wrap=True)
        return 1 if isinstance(error, build.BuildError) else 2
    try:
        verdicts = run_checks(bench, everything or options.text, everything or options.perplexity, console)
    except NotImplementedError as gap:
        explain_gap(console, gap)
        console.print(f"[red]task7: 0 of {POINTS} points[/]")
        return 1
    except (RuntimeError, ValueError) as error:
        console.print(
            f"a kernel stopped: {escape(str(error))}\n[red]task7: 0 of {POINTS} points[/]",
            highlight=False,
            soft_wrap=True,
        )
        return 1
    whose = "reference solution" if options.solution else "your kernels"
    print_verdicts(console, verdicts, f"task7, {whose}, {bench.attention.backend}")
    passed = all(verdict.passed for verdict in verdicts)
    if everything:
        console.print(f"task7: {POINTS if passed else 0} of {POINTS} points")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
