"""python -m task5.train: trains the Transformer of model.py on a toy task, with dense and with strided attention.

    train((1, 4), setting, ops, seed=0)                   one model from random weights -> Run
    main(["--steps", "200"])                              the command line

Both models have two blocks, start from the same weights, and see the same sequences (toy_task.py). The first block is
dense in both; the second is dense, or attends to every stride-th position. The forward pass runs your kernel, the
backward pass the fast kernels of common/kernels.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from common.cli.options import EXPECTED_ERRORS, add_build_arguments, request_of, say_backend
from common.compiling import toolchain
from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.variant import Variant
from common.console.drawing import pyplot, save
from common.console.paths import build_root, shown_path
from common.console.terminal import say, working
from common.kernels.loaded import loaded
from task5.given.model import StridedTransformer
from task5.tools.toy_task import SYMBOLS, Recall

WARM_UP_STEPS = 30  # steps in which the learning rate rises
UNTIMED_STEPS = 3
TEST_BATCHES = 4
TEST_SEED = 2**31  # added to the seed: sequences not seen in training
COLORS = ("#7f7f7f", "#d62728")  # of the models in the plot


@dataclass(frozen=True)
class Setting:
    """What to train, and how.

    Args:
        task: the sequences.
        hidden_dim, num_heads: of the model.
        batch: sequences per step.
        steps: the number of training steps.
        learning_rate: of AdamW, after the warm-up.
    """

    task: Recall
    hidden_dim: int
    num_heads: int
    batch: int
    steps: int
    learning_rate: float


SETTINGS = {
    "cuda": Setting(Recall(pairs=8, record=4), 64, 4, 128, 1000, 2e-3),
    # The simulator is slow: few pairs, so that the loss drops within few steps
    "simulator": Setting(Recall(pairs=2, record=8), 64, 1, 16, 120, 3e-3),
}


@dataclass(frozen=True)
class Run:
    """A training run: the loss of each step, and the trained model's results on new sequences.

    Args:
        losses: cross-entropy of the answers, in nats, one per step.
        loss, accuracy: on new sequences, after the last step; accuracy 0 .. 1.
        tokens_per_second: of the training steps, excluding the first few.
    """

    losses: list[float]
    loss: float
    accuracy: float
    tokens_per_second: float


def answers_of(model: StridedTransformer, task: Recall, tokens: Tensor) -> Tensor:
    """The model's output at the questions: logits [batch, pairs, vocab_size]."""
    return model(tokens)[:, task.questions]


def train(
    strides: Sequence[int],
    setting: Setting,
    ops: Operators,
    seed: int = 0,
    advance: Callable[[int, Tensor], None] = lambda step, loss: None,
) -> Run:
    """Trains a model from random weights.

    Args:
        strides: of its blocks.
        setting: the task and the sizes.
        ops: the operators of task 5.
        seed: of weights and sequences; runs with the same seed differ only in their strides.
        advance: called after every step with its number and its loss, a tensor.

    Raises:
        ValueError: a stride does not fit the sequences, or steps or batch is below 1.
        NotImplementedError: the kernel has an unfilled gap.
    """
    for name, number in (("steps", setting.steps), ("batch", setting.batch)):
        if number < 1:
            raise ValueError(f"{name} is {number}; it must be at least 1")
    task = setting.task
    torch.manual_seed(seed)
    model = StridedTransformer(ops, task.vocab_size, task.seq_len, setting.hidden_dim, setting.num_heads, strides)
    optimizer = torch.optim.AdamW(model.parameters(), setting.learning_rate, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP_STEPS))
    generator = torch.Generator(ops.device).manual_seed(seed)
    losses, started, timed = [], time.perf_counter(), setting.steps
    for step in range(setting.steps):
        if step == UNTIMED_STEPS:
            _wait(ops)
            started, timed = time.perf_counter(), setting.steps - step
        tokens, answers = task.batch(setting.batch, generator)
        loss = F.cross_entropy(answers_of(model, task, tokens).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        advance(step, loss.detach())
    _wait(ops)
    seconds = time.perf_counter() - started
    loss, accuracy = evaluate(model, setting, torch.Generator(ops.device).manual_seed(seed + TEST_SEED))
    tokens_per_second = timed * setting.batch * task.seq_len / seconds
    return Run(torch.stack(losses).tolist(), loss, accuracy, tokens_per_second)


@torch.no_grad()
def evaluate(model: StridedTransformer, setting: Setting, generator: torch.Generator) -> tuple[float, float]:
    """Loss and accuracy of TEST_BATCHES batches of new sequences."""
    loss = right = 0.0
    for _ in range(TEST_BATCHES):
        tokens, answers = setting.task.batch(setting.batch, generator)
        logits = answers_of(model, setting.task, tokens)
        loss += float(F.cross_entropy(logits.flatten(0, 1), answers.flatten())) / TEST_BATCHES
        right += float((logits.argmax(-1) == answers).float().mean()) / TEST_BATCHES
    return loss, right


def _wait(ops: Operators) -> None:
    if ops.device.type == "cuda":
        torch.cuda.synchronize()


def _with_progress(console: Console, name: str, steps: int, run: Callable[..., Run]) -> Run:
    """Calls run(advance=...) with a progress bar and the loss, which it reads rarely, since that waits for the GPU."""
    every = max(1, steps // 50)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("step {task.completed} of {task.total},"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(name, total=steps)

        def advance(step: int, loss: Tensor) -> None:
            if (step + 1) % every == 0 or step + 1 == steps:
                progress.update(bar, completed=step + 1, description=f"{name}: loss {float(loss):.3f}")

        return run(advance=advance)


def table(runs: dict[str, tuple[Sequence[int], Run]]) -> Table:
    """One row per model."""
    result = Table()
    for column in ("model", "strides", "loss at first", "loss", "accuracy", "tokens/s"):
        result.add_column(column, justify="left" if column == "model" else "right")
    for name, (strides, run) in runs.items():
        result.add_row(
            name,
            ", ".join(map(str, strides)),
            f"{run.losses[0]:.3f}",
            f"{run.loss:.3f}",
            f"{run.accuracy:.1%}",
            f"{run.tokens_per_second:,.0f}",
        )
    return result


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """Moving average over the last `window` losses, fewer at the beginning; window >= 1."""
    return [statistics.fmean(losses[max(0, end - window) : end]) for end in range(1, len(losses) + 1)]


def draw(losses: Mapping[str, Sequence[float]], title: str, levels: Mapping[str, float], file: Path) -> None:
    """Writes the plot: each model's losses, faint, and on top their moving average over a fiftieth of the steps.

    Args:
        losses: name of the model -> loss of every step, in nats; two models at most.
        title: of the picture.
        levels: losses to mark with a line, with their names.
        file: a PNG; its folder is created.
    """
    figure, axes = pyplot().subplots(figsize=(7.5, 4.2), layout="constrained")
    for (name, values), color in zip(losses.items(), COLORS, strict=False):
        steps = range(1, len(values) + 1)
        axes.plot(steps, values, color=color, linewidth=0.6, alpha=0.35)
        axes.plot(steps, smoothed(values, max(1, len(values) // 50)), color=color, linewidth=1.8, label=name)
    for name, loss in levels.items():
        axes.axhline(loss, color="0.5", linewidth=0.9, linestyle=":")
        axes.annotate(name, (1, loss), (0, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
                      horizontalalignment="right", fontsize=8, color="0.5")  # fmt: skip
    axes.set(xlabel="step", ylabel="loss, nats per answer", ylim=(0, None))
    axes.margins(x=0.01)
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    save(figure, file)


def parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    result = argparse.ArgumentParser(prog="python -m task5.train", description=__doc__.split("\n")[0])
    add_build_arguments(result, (Variant.STUDENT, Variant.SOLUTION))
    steps = f"{SETTINGS['cuda'].steps} on a GPU, {SETTINGS['simulator'].steps}"
    result.add_argument("--steps", type=int, help=f"default: {steps} in the simulator")
    result.add_argument("--stride", type=int, help="of the second block (default: the length of a record)")
    result.add_argument("--seed", type=int, default=0, help="of weights and sequences (default: 0)")
    result.add_argument("--picture", type=Path, metavar="FILE", help="default: build/training/loss.png")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; exit status 0: trained; 1: not."""
    options = parser().parse_args(argv)
    console = Console()
    try:
        return _train_both(console, options)
    except (*EXPECTED_ERRORS, NotImplementedError) as error:
        say(console, f"train: {error!s}")
        return 1


def _train_both(console: Console, options: argparse.Namespace) -> int:
    backend = toolchain.choose_backend(options.backend).name
    setting = SETTINGS[backend]
    if options.steps is not None:
        setting = replace(setting, steps=options.steps)
    task, stride = setting.task, setting.task.record if options.stride is None else options.stride
    if not 1 <= stride <= task.seq_len:
        raise ValueError(f"--stride is {stride}; it must be 1 .. {task.seq_len}, the length of the sequences")
    if setting.steps < 1:
        raise ValueError(f"--steps is {setting.steps}; it must be at least 1")
    if not 0 <= options.seed < TEST_SEED:
        raise ValueError(f"--seed is {options.seed}; it must be 0 .. {TEST_SEED - 1}")
    if options.picture is not None and options.picture.suffix != ".png":
        raise ValueError(f"--picture is {options.picture}; it must end in .png")
    say_backend(console, options.backend)
    with working(console, "compiling task5 and the gradients of task4 ..."):
        ops = load(request_of("task5", options))
        loaded("flash", ops.device)
    heads = "head" if setting.num_heads == 1 else "heads"
    small = " (a small task, since the simulator is slow)" if backend == "simulator" else ""
    say(
        console,
        f"{task.pairs} records of {task.record} tokens, sequences of {task.seq_len}; width {setting.hidden_dim}, "
        f"{setting.num_heads} {heads}, batch {setting.batch}, {setting.steps} steps{small}",
    )
    runs = {}
    for name, strides in (("dense", (1, 1)), ("strided", (1, stride))):
        run = _with_progress(
            console,
            name,
            setting.steps,
            lambda advance, strides=strides: train(strides, setting, ops, options.seed, advance),
        )
        runs[name] = strides, run
    console.print(table(runs))
    say(console, f"guessing: loss {math.log(SYMBOLS):.3f}, accuracy {1 / SYMBOLS:.1%}")
    file = options.picture or build_root() / "training" / "loss.png"
    title = f"recall of {task.pairs} records of {task.record} tokens, stride {stride}, {ops.backend}"
    losses = {f"{name}, strides {strides[0]} and {strides[1]}": run.losses for name, (strides, run) in runs.items()}
    draw(losses, title, {"guessing": math.log(SYMBOLS)}, file)
    say(console, f"picture: {shown_path(file)}")
    return 0
