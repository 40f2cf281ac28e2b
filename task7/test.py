"""python -m task7.test: are task 7's kernels right, and does GPT-2 write the same text through all of yours?

    --kernels      layernorm and bias_gelu alone, with the options of every task's test: --case, --list, --check, ...
    --text         prefill and decode in transformers' modules: greedy text of three prompts equals the reference's
    --engine       the lean engine: the same texts, written as a batch, a drawn one, and perplexity
    --perplexity   long prefill in transformers' modules: held-out perplexity within 0.1% of the reference's

The reference is the same model (the storyteller, float32) with transformers' own attention and cache.
"""

from __future__ import annotations

import argparse
import copy
import functools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from common import build, check_report, checking, cli
from common.check_report import PartPoints
from task7 import kernel_cases, models
from task7.compare import difference
from task7.inference import explain_gap

if TYPE_CHECKING:
    from task7.engine_kernels import EngineKernels

POINTS = {"text": 0.2, "engine": 0.3, "perplexity": 0.2}  # and 0.3 in kernel_cases.py
KERNELS = "--kernels"
HELP = {
    "text": "greedy text in transformers' modules only",
    "engine": "the lean engine only",
    "perplexity": "held-out perplexity in transformers' modules only",
}
# The reference's two likeliest tokens never come closer than 0.02 in these texts: rounding cannot decide.
PROMPTS = ("Once upon a time", "Lily and Tom went to the park. They saw a", "Ben and his dog")
NEW_TOKENS = 40
# The reference draws with the same numbers. So hot that a wrong temperature, top_k or top_p shows within a few tokens
DRAWN = {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "seed": 3}
SEQUENCES, LENGTH = 16, 512
ENGINE_SEQUENCES = 4
TOLERANCE = 1e-3  # relative, on the perplexity


@dataclass
class Verdict:
    """One row of the table."""

    part: str
    check: str
    ours: str
    reference: str
    passed: bool


class Bench:
    """The storyteller with the reference's attention, with our attention, and in the lean engine.

    kernels: EngineKernels; all three are on their device.
    """

    def __init__(self, kernels: EngineKernels) -> None:
        from task7.writers import attached_writer, reference_writer

        self.tokenizer, model = models.load(str(models.STORYTELLER), local=True)
        self.prompts = [models.prompt_tokens(self.tokenizer, prompt) for prompt in PROMPTS]
        self.reference = reference_writer(copy.deepcopy(model), kernels.backend)
        self.ours = attached_writer(model, (kernels.flash, kernels.decode), kernels.variant)
        self.kernels = kernels

    @functools.cached_property
    def lean(self):
        """The lean engine's writer."""
        from task7.writers import lean_writer

        return lean_writer(self.reference.model, self.kernels, "float32", self.prompts, NEW_TOKENS)

    def text(self, number: int, new_tokens: int, on_text=None) -> Verdict:
        """Greedy text after a prompt by both, and whether every layer of every step ran in the kernels."""
        self.ours.attention.reset_calls()
        result = self.ours.generate([self.prompts[number]], **self._greedy(new_tokens))
        layers, decodes = self.ours.model.config.num_hidden_layers, len(result.tbt_ms)
        calls = {
            "flash_attention": layers,
            "update_cache": layers * (1 + decodes),
            "decode_attention": layers * decodes,
        }
        found = dict(self.ours.attention.calls)
        verdict = self._compared("text", number, result.tokens[0], self._greedy(new_tokens))
        if on_text is not None:
            on_text(number + 1)
        if verdict.passed and found != {name: n for name, n in calls.items() if n}:
            verdict.ours, verdict.passed = f"kernel calls {found}, expected {calls}", False
        return verdict

    def engine_texts(self, new_tokens: int) -> list[Verdict]:
        """Texts of the lean engine: greedy after all prompts in one batch, and a drawn one."""
        greedy, drawn = self._greedy(new_tokens), self._greedy(new_tokens) | DRAWN
        found = self.lean.generate(self.prompts, **greedy).tokens
        verdicts = [self._compared("engine", number, tokens, greedy) for number, tokens in enumerate(found)]
        return [*verdicts, self._compared("engine", 0, self.lean.generate(self.prompts[:1], **drawn).tokens[0], drawn)]

    def perplexity(self, part: str, count: int, length: int, on_sequence=None) -> Verdict:
        """Perplexity over the first count x length held-out tokens by the reference and by ours, or by the engine."""
        from task7.perplexity import held_out_sequences, perplexity

        text = held_out_sequences(self.tokenizer, count, length)
        writer = self.lean if part == "engine" else self.ours
        found = perplexity(writer.logits, *text, on_sequence=on_sequence)
        expected = perplexity(self.reference.logits, *text)
        error = abs(found / expected - 1)
        return Verdict(
            part,
            f"perplexity of {count} x {length} held-out tokens",
            f"{found:.4f} ({error:.3%} off)",
            f"{expected:.4f}",
            error <= TOLERANCE,
        )  # NaN fails: it is not <= anything

    def _greedy(self, new_tokens: int) -> dict:
        return {"max_new_tokens": new_tokens, "stop_token": self.tokenizer.eos_token_id}

    def _compared(self, part: str, number: int, tokens: list[int], how: dict) -> Verdict:
        """These new tokens after a prompt beside the reference's. how: arguments of generate."""
        expected = self.reference.generate([self.prompts[number]], **how).tokens[0]
        problem = difference(self.tokenizer, tokens, expected)
        return Verdict(
            part,
            f"{'drawn' if 'temperature' in how else 'greedy'} text after {PROMPTS[number]!r}",
            problem or f"the same {len(expected)} tokens",
            f"... {self.tokenizer.decode(expected[-6:])!r}",
            problem is None,
        )


def kernel_verdicts(bench: Bench, console: Console) -> list[checking.Verdict]:
    """Task 7's own kernels, each alone."""
    ops = bench.kernels.gpt2
    return checking.run_cases(kernel_cases.cases(), ops, console, lambda case: checking.check(case, ops))


def run_part(bench: Bench, part: str, console: Console) -> list[Verdict]:
    """The checks of one part, with a progress bar. Raises what the kernels raise."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        total = {"text": len(PROMPTS), "engine": ENGINE_SEQUENCES, "perplexity": SEQUENCES}[part]
        task = progress.add_task(part, total=total)

        def done(number: int) -> None:
            progress.update(task, completed=number)

        if part == "text":
            return [bench.text(number, NEW_TOKENS, done) for number in range(len(PROMPTS))]
        if part == "engine":
            texts = bench.engine_texts(NEW_TOKENS)
            return [*texts, bench.perplexity("engine", ENGINE_SEQUENCES, LENGTH, done)]
        return [bench.perplexity("perplexity", SEQUENCES, LENGTH, done)]


def print_verdicts(console: Console, verdicts: list[Verdict], title: str) -> None:
    table = Table("part", "check", "verdict", "ours", "reference", title=title, title_justify="left")
    for verdict in verdicts:
        mark = "[green]pass[/]" if verdict.passed else "[red]FAIL[/]"
        check, ours, reference = map(escape, (verdict.check, verdict.ours, verdict.reference))
        table.add_row(verdict.part, check, mark, ours, reference)
    check_report.wide(console).print(table)


def main(argv=None) -> int:
    """Returns the exit status: 0 all passed, 1 one failed or a gap is unfilled, 2 nothing was tested."""
    argv = sys.argv[1:] if argv is None else argv
    if KERNELS in argv:
        others = [argument for argument in argv if argument != KERNELS]
        return cli.test_main("task7", kernel_cases.PARTS, kernel_cases.cases(), others)
    from task7.engine_kernels import load_engine_kernels

    parser = argparse.ArgumentParser(prog="python -m task7.test", description="Test GPT-2 on your kernels.")
    cli.add_build_arguments(parser)
    parser.add_argument(KERNELS, action="store_true", help="task 7's own kernels only; add --help for its options")
    for part in POINTS:
        parser.add_argument(f"--{part}", action="append_const", dest="parts", const=part, help=HELP[part])
    options = parser.parse_args(argv)
    parts = options.parts or list(POINTS)
    console = Console()
    try:
        cli.say_backend(console, options.backend)
        with cli.working(console, "compiling tasks 4, 6 and 7, loading the storyteller ..."):
            variant = "solution" if options.solution else "student"
            bench = Bench(load_engine_kernels(variant, options.backend, options.arch))
    except cli.EXPECTED_ERRORS as error:
        console.print(f"{escape(str(error))}\n[red]task7: nothing was tested[/]", highlight=False, soft_wrap=True)
        return 1 if isinstance(error, build.BuildError) else 2
    verdicts, earned = [], []
    whose = "reference solution" if options.solution else "your files"
    title = f"task7, {whose}, {bench.kernels.backend}"
    own = [] if options.parts else kernel_verdicts(bench, console)
    if own:
        check_report.print_cases(console, title, own)
    for part in parts:
        found, why = [], ""
        try:
            found = run_part(bench, part, console)
        except NotImplementedError as gap:
            explain_gap(console, gap)
            why = "a gap is not filled yet"
        except (RuntimeError, ValueError) as error:
            console.print(f"a kernel stopped: {escape(str(error))}", highlight=False, soft_wrap=True)
            why = "a kernel stopped"
        ok = not why and all(one.passed for one in found)
        earned.append(PartPoints(part, POINTS[part] * ok, POINTS[part], why))
        verdicts += found
    if verdicts:
        print_verdicts(console, verdicts, title)
    check_report.print_points(console, own, earned)
    passed = all(verdict.status in (checking.PASS, checking.SKIPPED) for verdict in own)
    return 0 if passed and all(one.earned == one.possible for one in earned) else 1


if __name__ == "__main__":
    raise SystemExit(main())
