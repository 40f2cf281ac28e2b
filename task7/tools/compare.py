"""python -m task7.inference --compare: ours compared with the reference, on the same device and in the same dtype.

    text         greedy: equal token by token, or where the two diverge
    perplexity   over held-out stories
    TTFT, TBT, tokens/s

The reference is transformers with its sdpa attention and DynamicCache. --report writes it all into Results.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from common.console.terminal import say, wide, working
from common.measure import report
from common.testing import results
from task7.tools import models
from task7.tools.perplexity import held_out_sequences, perplexity
from task7.tools.session import load_writer, write_texts
from task7.tools.writers import reference_writer

BLOCK = "task7 compare"  # in Results.md
LENGTH = 512  # tokens of a held-out sequence
COLUMNS = ("", "ours", "reference", "speedup")


@dataclass(frozen=True)
class Measured:
    """One writer's results: its Generations, and its perplexity on the held-out text."""

    result: object
    perplexity: float


def compare(options, console: Console) -> None:
    """Runs both, prints the table and with options.report writes it. Raises what task7.inference.run raises."""
    if options.held_out < 1:
        raise ValueError(f"held_out is {options.held_out}; allowed: 1 or more sequences")
    tokenizer, prompts, ours = load_writer(options, console)
    with working(console, "loading the reference ..."):
        model = models.load(*models.find(options.model), options.dtype)[1]  # a copy of its own
        reference = reference_writer(model, options.backend)
    length = min(LENGTH, reference.model.config.max_position_embeddings)
    held_out = held_out_sequences(tokenizer, options.held_out, length)

    for writer in (ours, reference):
        writer.warm_up(prompts, options.max_new_tokens)  # full length: excludes one-time costs per length
    result = write_texts(tokenizer, prompts, ours, options, console)
    ran = [f"ours: {_what_ran(ours)}.", f"reference: {_what_ran(reference)}."]
    with working(console, "the reference writes, too ..."):
        expected = reference.generate(prompts, stop_token=tokenizer.eos_token_id, **options.sampling)
    measured = [
        Measured(one, _perplexity(console, name, writer, held_out))
        for name, writer, one in (("ours", ours, result), ("the reference", reference, expected))
    ]
    texts = [
        text_line(tokenizer, prompt, *tokens)
        for prompt, *tokens in zip(options.prompts, result.tokens, expected.tokens, strict=True)
    ]
    of = f"{options.held_out} x {length} held-out tokens"
    lines = rows(*measured, of)
    console = wide(console)
    console.print(_table(lines))
    for line in [*texts, *ran]:
        say(console, line)
    if options.report:
        notes = [*(f"- {line}" for line in (*texts, *ran)), *_stories(tokenizer, options, result)]
        block = results.Block(options.command, report.machine(), COLUMNS, lines, notes)
        results.report(console, BLOCK, block)  # raises ValueError if Results.md has no place for it


def _perplexity(console: Console, name: str, writer, held_out) -> float:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"perplexity, {name}", total=len(held_out[0]))
        return perplexity(writer.logits, *held_out, lambda done: progress.update(bar, completed=done))


def rows(ours: Measured, reference: Measured, of: str) -> list[tuple[str, str, str, str]]:
    """The table's cells. of: what the perplexity was measured on."""

    def line(name: str, figure: Callable[[object], float], less_is_better: bool) -> tuple[str, str, str, str]:
        mine, theirs = figure(ours.result), figure(reference.result)
        speedup = theirs / mine if less_is_better else mine / theirs
        return name, f"{mine:.3f}", f"{theirs:.3f}", f"{speedup:.2f} x"

    made = [line("TTFT, ms", lambda one: one.ttft_ms, True)]
    if ours.result.tbt_ms and reference.result.tbt_ms:
        made.append(line("TBT, ms (median)", lambda one: statistics.median(one.tbt_ms), True))
    made.append(line("tokens/s", lambda one: one.tokens_per_s, False))
    off = abs(ours.perplexity / reference.perplexity - 1)
    exact = (f"{one.perplexity:.4f}" for one in (ours, reference))
    return [*made, (f"perplexity of {of}", *exact, f"{off:.3%} off")]


def text_line(tokenizer, prompt: str, tokens: list[int], expected: list[int]) -> str:
    """One sentence about the text after a prompt."""
    where = difference(tokenizer, tokens, expected)
    return f"text after {prompt!r}: {where or f'the same {len(expected)} tokens'}"


def difference(tokenizer, tokens: list[int], expected: list[int]) -> str | None:
    """Where new tokens first differ from the reference's, in words; None if they do not."""
    if tokens == expected:
        return None
    shorter = min(len(tokens), len(expected))
    at = next((i for i in range(shorter) if tokens[i] != expected[i]), shorter)
    found, wanted = (repr(tokenizer.decode(x[at : at + 1])) if at < len(x) else "the end" for x in (tokens, expected))
    where = "the prefill's token" if at == 0 else f"new token {at + 1}, a decode step"
    return f"differs at {where}: {found}, the reference says {wanted}"


def _table(lines) -> Table:
    table = Table(title="ours and transformers", title_justify="left")
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if number else "left")
    for line in lines:
        table.add_row(*line)
    return table


def _what_ran(writer) -> str:
    return f"{writer.name}; " + "; ".join(f"{name}: {words}" for name, words in writer.rows())


def _stories(tokenizer, options, result) -> list[str]:
    """Each text, quoted in Markdown."""
    told = []
    for prompt, tokens in zip(options.prompts, result.tokens, strict=True):
        story = (prompt + tokenizer.decode(tokens)).replace("\n", "\n>\n> ")
        told += ["", f"> {story}", ""]
    return told
