"""Does GPT-2 write the same text through the kernels of tasks 4, 6 and 7? The parts of task 7's test that run a model.

    text         prefill and decode in transformers' modules: greedy text of three prompts equals the reference's
    engine       the lean engine: the same texts, generated as a batch, a sampled one, and perplexity
    perplexity   long prefill in transformers' modules: held-out perplexity within 0.1% of the reference's

The reference is the same model (the storyteller, float32) with transformers' own attention and cache.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from common.console.terminal import working
from common.kernels.gpt2.engine_kernels import EngineKernels
from common.testing.measurement import Earned, Measurement, TestRun
from task7.given.operators import load_engine_kernels
from task7.tools import models
from task7.tools.compare import difference
from task7.tools.perplexity import held_out_sequences, perplexity
from task7.tools.session import explain_gap
from task7.tools.writers import attached_writer, lean_writer, reference_writer

# The reference's top two logits never come closer than 0.02 in these texts, so rounding cannot decide.
PROMPTS = ("Once upon a time", "Lily and Tom went to the park. They saw a", "Ben and his dog")
NEW_TOKENS = 40
# The reference samples with the same random numbers. The temperature is high enough that a wrong temperature, top_k or
# top_p shows within a few tokens
DRAWN = {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "seed": 3}
SEQUENCES = {"cuda": 16, "simulator": 2}  # of LENGTH tokens, by backend
LENGTH = 512
ENGINE_SEQUENCES = 2
Result = TypeVar("Result")
TOLERANCE = 1e-3  # relative, on the perplexity


@dataclass
class Comparison:
    """One row of the table."""

    part: str
    name: str
    ours: str
    reference: str
    passed: bool


class Bench:
    """The storyteller model with the reference's attention, with our attention, and in the lean engine.

    kernels: EngineKernels; all three are on their device.
    """

    def __init__(self, kernels: EngineKernels) -> None:
        self.tokenizer, model = models.load(str(models.STORYTELLER), local=True)
        self.prompts = [models.prompt_tokens(self.tokenizer, prompt) for prompt in PROMPTS]
        self.reference = reference_writer(copy.deepcopy(model), kernels.backend)
        self.ours = attached_writer(model, (kernels.flash, kernels.decode), kernels.variant)
        self.kernels = kernels
        self._expected: dict[Hashable, object] = {}

    @functools.cached_property
    def lean(self):
        """The lean engine's writer."""
        return lean_writer(self.reference.model, self.kernels, "float32", self.prompts, NEW_TOKENS)

    def text(self, number: int, new_tokens: int, on_text=None) -> Comparison:
        """Greedy text after a prompt from both, and whether every layer of every step ran in the kernels."""
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

    def engine_texts(self, new_tokens: int) -> list[Comparison]:
        """Texts from the lean engine: greedy after all prompts in one batch, and a sampled one."""
        greedy, drawn = self._greedy(new_tokens), self._greedy(new_tokens) | DRAWN
        found = self.lean.generate(self.prompts, **greedy).tokens
        verdicts = [self._compared("engine", number, tokens, greedy) for number, tokens in enumerate(found)]
        return [*verdicts, self._compared("engine", 0, self.lean.generate(self.prompts[:1], **drawn).tokens[0], drawn)]

    def perplexity(self, part: str, count: int, length: int, on_sequence=None) -> Comparison:
        """Perplexity over the first count x length held-out tokens: the reference's, and ours or the engine's."""
        text = held_out_sequences(self.tokenizer, count, length)
        writer = self.lean if part == "engine" else self.ours
        found = perplexity(writer.logits, *text, on_sequence=on_sequence)
        expected = self._once(("perplexity", count, length), lambda: perplexity(self.reference.logits, *text))
        error = abs(found / expected - 1)
        return Comparison(
            part,
            f"perplexity of {count} x {length} held-out tokens",
            f"{found:.4f} ({error:.3%} off)",
            f"{expected:.4f}",
            error <= TOLERANCE,
        )  # NaN fails: it is not <= anything

    def _once(self, name: Hashable, make: Callable[[], Result]) -> Result:
        """The result of make(), the reference's, which several parts are compared with."""
        if name not in self._expected:
            self._expected[name] = make()
        return self._expected[name]

    def _greedy(self, new_tokens: int) -> dict:
        return {"max_new_tokens": new_tokens, "stop_token": self.tokenizer.eos_token_id}

    def _compared(self, part: str, number: int, tokens: list[int], how: dict) -> Comparison:
        """These new tokens after a prompt compared with the reference's. how: arguments of generate."""
        prompts = [self.prompts[number]]
        expected = self._once((number, *how.values()), lambda: self.reference.generate(prompts, **how).tokens[0])
        problem = difference(self.tokenizer, tokens, expected)
        return Comparison(
            part,
            f"{'drawn' if 'temperature' in how else 'greedy'} text after {PROMPTS[number]!r}",
            problem or f"the same {len(expected)} tokens",
            f"... {self.tokenizer.decode(expected[-6:])!r}",
            problem is None,
        )


def run(test_run: TestRun) -> list[Earned]:
    """Loads the model on the kernels of all three tasks, runs the chosen parts, and prints a table of comparisons."""
    console, options = test_run.console, test_run.options
    with working(console, "compiling tasks 4, 6 and 7, loading the storyteller ..."):
        bench = Bench(load_engine_kernels(options.variant, options.backend, options.arch))
    found: list[Comparison] = []
    earned = []
    for part in test_run.parts:
        why = ""
        try:
            of_part = run_part(bench, part, console)
        except NotImplementedError as gap:
            explain_gap(console, gap)
            why = "a gap is not filled yet"
        except (RuntimeError, ValueError) as error:
            why = f"a kernel stopped: {error}"
        else:
            found += of_part
            why = "" if all(one.passed for one in of_part) else "not the same as the reference"
        earned.append(Earned(part, 0.0, [f"{part}: {why}"], why) if why else Earned(part, POINTS[part]))
    if found:
        print_comparisons(console, found, f"task7, {options.variant.words}, {bench.kernels.backend}")
    return earned


def run_part(bench: Bench, part: str, console: Console) -> list[Comparison]:
    """Runs one part's comparisons, with a progress bar. Raises what the kernels raise."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        total = {"text": len(PROMPTS), "engine": ENGINE_SEQUENCES, "perplexity": SEQUENCES[bench.kernels.backend]}[part]
        task = progress.add_task(part, total=total)

        def done(number: int) -> None:
            progress.update(task, completed=number)

        if part == "text":
            return [bench.text(number, NEW_TOKENS, done) for number in range(len(PROMPTS))]
        if part == "engine":
            texts = bench.engine_texts(NEW_TOKENS)
            return [*texts, bench.perplexity("engine", ENGINE_SEQUENCES, LENGTH, done)]
        return [bench.perplexity("perplexity", SEQUENCES[bench.kernels.backend], LENGTH, done)]


def print_comparisons(console: Console, comparisons: Sequence[Comparison], title: str) -> None:
    """The table."""
    table = Table("part", "comparison", "verdict", "ours", "reference", title=title, title_justify="left")
    for one in comparisons:
        mark = "[green]pass[/]" if one.passed else "[red]FAIL[/]"
        table.add_row(one.part, escape(one.name), mark, escape(one.ours), escape(one.reference))
    console.print(table)


POINTS = {"text": 0.2, "engine": 0.3, "perplexity": 0.2}  # and 0.3 in kernels.py
MODEL = Measurement(
    {
        "text": "only greedy text in transformers' modules",
        "engine": "only the lean engine",
        "perplexity": "only held-out perplexity in transformers' modules",
    },
    run,
    POINTS,
)
