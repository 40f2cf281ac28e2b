"""python -m task7.tools.training: the storyteller's GPT-2 trained from scratch, through the kernels and through SDPA.

Both runs start from the same weights and see the same tokens of held_out.txt, so their losses can be compared at every
step. On a GPU, it also reports tokens per second and peak memory.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from common.cli.benchmark import positive
from common.compiling.toolchain import BACKENDS
from common.console.drawing import pyplot, save
from common.console.paths import build_root, shown_path
from common.console.terminal import say
from task7.tools.models import STORYTELLER
from task7.tools.perplexity import held_out_sequences

ATTENTIONS = ("course", "sdpa")
DTYPES = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}
MOST_TOKENS = 1024
WARMUP = 20  # steps until the full learning rate; at most half of all steps


@dataclass
class Run:
    """The results with one attention: the loss and seconds of every step, and peak memory in bytes (0: unknown)."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bytes: int = 0

    def rate(self, tokens: int) -> float:
        """Tokens per second in the median step, excluding the first two, which build and warm up."""
        return tokens / statistics.median(self.seconds[2:] or self.seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    options = _parser().parse_args(argv)
    if options.length > MOST_TOKENS:
        _parser().error(f"--length is {options.length}; it must be 1 .. {MOST_TOKENS}, the positions of the model")
    console = Console()
    device = torch.device("cuda" if torch.cuda.is_available() and options.backend != "simulator" else "cpu")
    if device.type == "cpu" and options.backend == "cuda":
        say(console, "--backend is 'cuda', and there is no GPU")
        return 2
    tokens = batches(options.steps, options.batch, options.length)
    runs = {}
    with Progress(console=console, transient=True) as progress:
        for name in ATTENTIONS:
            bar = progress.add_task(f"{name}, loss", total=options.steps)

            def shown(loss: float, bar=bar, name=name) -> None:
                progress.update(bar, advance=1, description=f"{name}, loss {loss:.3f}")

            runs[name] = train(name, tokens, device, options, shown)
    report(console, runs, options, device)
    say(console, f"picture: {shown_path(draw(runs, options))}")
    return 0


def batches(steps: int, batch: int, length: int) -> Tensor:
    """int64 [steps, batch, length + 1]: random pieces of held_out.txt (fixed seed), one token longer than the input."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(STORYTELLER, local_files_only=True)
    text = held_out_sequences(tokenizer, 1, 30_000)[0][0]
    first = torch.randint(len(text) - length, (steps, batch), generator=torch.Generator().manual_seed(0))
    return text[first[..., None] + torch.arange(length + 1)]


def train(attention: str, tokens: Tensor, device: torch.device, options: argparse.Namespace, shown) -> Run:
    """Trains a new model on tokens [steps, batch, length + 1]; calls shown(loss) after each step."""
    from transformers import GPT2Config, GPT2LMHeadModel

    if attention == "course":
        from task7.front_door import register

        register(variant="tuned", backend="cuda" if device.type == "cuda" else "simulator")
    torch.manual_seed(0)
    config = GPT2Config.from_pretrained(STORYTELLER, local_files_only=True)
    config.n_layer = options.layers or config.n_layer
    config.attn_pdrop = config.resid_pdrop = config.embd_pdrop = 0.0
    model = GPT2LMHeadModel(config).to(device).train()
    model.set_attn_implementation(attention)  # the one line
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.95))
    warmup = min(WARMUP, math.ceil(len(tokens) / 2))
    run, dtype = Run(), DTYPES[options.dtype]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for step, batch in enumerate(tokens.to(device)):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = options.rate * min(1, (step + 1) / warmup)
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = model(batch[:, :-1], use_cache=False).logits.float()
        loss = torch.nn.functional.cross_entropy(loss.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.losses.append(loss.item())  # synchronizes with the GPU
        run.seconds.append(time.perf_counter() - start)
        shown(run.losses[-1])
    if device.type == "cuda":
        run.bytes = torch.cuda.max_memory_allocated(device)
    return run


def report(console: Console, runs: dict[str, Run], options: argparse.Namespace, device: torch.device) -> None:
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "simulator"
    table = Table(title=f"{options.steps} steps of {options.batch} x {options.length} tokens, {options.dtype}, {where}")
    table.add_column("")
    for name in runs:
        table.add_column(name, justify="right")
    marks = sorted({1, options.steps} | {max(1, options.steps * i // 6) for i in range(1, 6)})
    for step in marks:
        table.add_row(f"loss at step {step}", *(f"{run.losses[step - 1]:.4f}" for run in runs.values()))
    tokens = options.batch * options.length
    table.add_row("tokens/s, median step", *(f"{run.rate(tokens):,.0f}" for run in runs.values()))
    memory = (f"{run.bytes / 2**20:,.0f}" if run.bytes else "not known" for run in runs.values())
    table.add_row("memory at its highest, MiB", *memory)
    console.print(table)
    ours, theirs = (torch.tensor(runs[name].losses) for name in ATTENTIONS)
    apart = float((ours - theirs).abs().max())
    say(console, f"The losses are at most {apart:.2g} apart")


def draw(runs: dict[str, Run], options: argparse.Namespace) -> Path:
    """Plots both curves, and their difference below."""
    figure, (top, bottom) = pyplot().subplots(
        2, 1, figsize=(7, 5), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    steps = range(1, options.steps + 1)
    for (name, run), style in zip(runs.items(), ("-", "--"), strict=True):
        top.plot(steps, run.losses, style, label=name)
    ours, theirs = (runs[name].losses for name in ATTENTIONS)
    bottom.plot(steps, [x - y for x, y in zip(ours, theirs, strict=True)], color="gray")
    top.set_ylabel("loss")
    top.legend()
    bottom.set_ylabel("course - sdpa")
    bottom.set_xlabel("step")
    return save(figure, options.picture)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m task7.tools.training", description=__doc__.split(": ")[1].split("\n")[0]
    )
    parser.add_argument("--steps", type=positive(int), default=30, metavar="N", help="optimizer steps (default: 30)")
    parser.add_argument("--batch", type=positive(int), default=2, metavar="N", help="sequences in a step (default: 2)")
    parser.add_argument(
        "--length",
        type=positive(int),
        default=64,
        metavar="N",
        help=f"tokens of each, at most {MOST_TOKENS} (default: 64)",
    )
    parser.add_argument(
        "--layers", type=positive(int), metavar="N", help="layers of the model (default: the storyteller's 6)"
    )
    parser.add_argument("--rate", type=float, default=5e-4, metavar="R", help="learning rate (default: 0.0005)")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="16 bits: under autocast (default: fp32)")
    parser.add_argument("--backend", choices=("auto", *BACKENDS), default="auto")
    picture = build_root() / "training.png"
    parser.add_argument("--picture", type=Path, default=picture, metavar="FILE", help=f"default: {shown_path(picture)}")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
