"""Time to first token and time between tokens of the dummy model, compared with the model with PyTorch's attention.

    measure(ops, workload)               both models generate from the same prompts: Comparison
    PIPELINE                             the part, for common.cli.test.TaskTest

TTFT is measured from the prompt to the first new token on the host, TBT from each token to the next. Both models have
the same weights; PyTorch's has scaled_dot_product_attention over a plain cache. They take turns, prompt by prompt.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from common.compiling.operators import Operators
from common.console.terminal import say, working
from common.measure import report
from common.measure.limits import float32_precision
from common.measure.timing import middle
from common.testing import results
from common.testing.measurement import Earned, Measurement, TestRun
from common.testing.python_side import python_side
from task6.given.model import DummyLLM, Generation, Sizes, generate
from task6.given.operators import load_beside
from task6.given.torch_attention import TorchAttention

BLOCK = "task6 pipeline"  # in Results.md
NEW_TOKENS = 100
SEED = 3  # of the prompts. With these, the top two tokens are never so close that rounding could decide between them


@dataclass(frozen=True)
class Workload:
    """A model and its prompts.

    Attributes:
        sizes: of the model.
        prompt_tokens: of each prompt.
        prompts: the number of prompts. The first is continued by NEW_TOKENS tokens, the others by one, for TTFT only.
    """

    sizes: Sizes
    prompt_tokens: int
    prompts: int


WORKLOADS = {
    "small": Workload(Sizes(2, 64, 4, 2, 500), prompt_tokens=32, prompts=5),  # for the simulator
    "large": Workload(Sizes(12, 768, 12, 4, 32_000), prompt_tokens=512, prompts=11),  # GPT-2's, 124 M parameters
}


@dataclass(frozen=True)
class Times:
    """One model's times, in milliseconds.

    Attributes:
        ttft: one per prompt.
        tbt: for the first prompt, one per token after the first.
    """

    ttft: Sequence[float]
    tbt: Sequence[float]


@dataclass(frozen=True)
class Comparison:
    """Both models' times, and where their tokens differ ("" if they are equal)."""

    ours: Times
    torch: Times
    difference: str


def default_size(ops: Operators) -> str:
    """ "large" on a GPU, "small" in the simulator."""
    return "large" if ops.device.type == "cuda" else "small"


def models(ops: Operators, workload: Workload) -> tuple[DummyLLM, DummyLLM]:
    """(the model on customAttention and the kernels, the same with PyTorch's attention), with the same weights."""
    python, flash_ops = python_side(ops), load_beside(ops, "task4")
    room = workload.prompt_tokens + NEW_TOKENS
    ours = DummyLLM(
        workload.sizes, lambda *sizes: python.customAttention(*sizes, ops, flash_ops), 1, room, device=ops.device
    )
    theirs = DummyLLM(
        workload.sizes, lambda *sizes: TorchAttention(*sizes, device=ops.device), 1, room, device=ops.device
    )
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def measure(ops: Operators, workload: Workload) -> Comparison:
    """Both models generate from the same prompts, in turn.

    Args:
        ops: the operators of task 6; task 4's are loaded as well.
        workload: the model and the prompts.

    Raises:
        NotImplementedError: a kernel, or forward() of customAttention, has an unfilled gap.
        RuntimeError, ValueError: raised by the kernels or the layer.
    """
    both = models(ops, workload)
    generator = torch.Generator().manual_seed(SEED)
    found: list[list[Generation]] = [[], []]
    with float32_precision("highest"):
        for number in range(-1, workload.prompts):  # number -1 warms up: on a GPU first calls load libraries
            shape = (1, workload.prompt_tokens)
            prompt = torch.randint(workload.sizes.vocab_size, shape, generator=generator).to(ops.device)
            for which in (0, 1) if number % 2 else (1, 0):
                generation = generate(both[which], prompt, NEW_TOKENS if number == 0 else 1 if number > 0 else 3)
                if number >= 0:
                    found[which].append(generation)
    ours, theirs = (Times([one.ttft_ms for one in each], each[0].tbt_ms) for each in found)
    return Comparison(ours, theirs, _difference(*found))


def _difference(ours: Sequence[Generation], theirs: Sequence[Generation]) -> str:
    """The first token that differs, in words; "" if none does."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        wrong: Tensor = one.tokens != other.tokens
        if bool(wrong.any()):
            at = int(wrong[0].nonzero()[0])
            where = "the first new token, from prefill" if at == 0 else f"new token {at + 1}, a decode step"
            return (
                f"The tokens differ from those of PyTorch's attention: prompt {number}, {where}: "
                f"{int(one.tokens[0, at])}, PyTorch says {int(other.tokens[0, at])}"
            )
    return ""


def spread(times: Sequence[float]) -> str:
    """ "1.23 ms (1.20 .. 1.31)": the median; 80% lie between the other two."""
    low, high = middle(times)
    return f"{statistics.median(times):.2f} ms ({low:.2f} .. {high:.2f})"


COLUMNS = ("", "yours", "PyTorch's attention", "speedup")


def rows(found: Comparison) -> list[list[str]]:
    """TTFT and TBT of both; the speedup is that of the medians."""

    def row(name: str, ours: Sequence[float], theirs: Sequence[float]) -> list[str]:
        return [name, spread(ours), spread(theirs), f"{statistics.median(theirs) / statistics.median(ours):.2f} x"]

    return [
        row("TTFT, time to first token", found.ours.ttft, found.torch.ttft),
        row("TBT, time between tokens", found.ours.tbt, found.torch.tbt),
    ]


def notes(workload: Workload, tokens_agree: bool) -> str:
    """A sentence or two on what was measured."""
    agree = "all tokens equal" if tokens_agree else "the tokens differ"
    return (
        f"{workload.sizes}; float32, batch 1, prompts of {workload.prompt_tokens} tokens. Medians; 80% of the times "
        f"are between the numbers in brackets ({workload.prompts} prompts, {NEW_TOKENS - 1} times between tokens); "
        f"{agree}."
    )


def run(test_run: TestRun) -> list[Earned]:
    """Measures, prints, and writes into Results.md with --report; a differing token is reported as a problem."""
    console, ops, options = test_run.console, test_run.ops, test_run.options
    workload = WORKLOADS[options.size or default_size(ops)]
    with working(console, f"generating {NEW_TOKENS} tokens: {workload.sizes} ..."):
        found = measure(ops, workload)
    table = Table(title=f"pipeline, {ops.backend}: {NEW_TOKENS} tokens", title_justify="left")
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if number else "left")
    for row in rows(found):
        table.add_row(*map(escape, row))
    console.print(table)
    console.print(notes(workload, not found.difference), highlight=False)
    if ops.backend == "simulator":
        say(console, "The simulator's times say nothing about a GPU.")
    if found.difference:
        return [Earned("pipeline", problems=[found.difference])]
    if not options.report:
        return [Earned("pipeline")]
    block = results.Block(test_run.command, report.machine(), COLUMNS, rows(found), [notes(workload, True)])
    return [Earned("pipeline", problems=results.try_report(console, BLOCK, block))]


PIPELINE = Measurement(
    {"pipeline": "test customAttention only; then the model generates, and its times are shown"},
    run,
    by_default=False,
    reports=True,
    arguments={
        "--size": {"choices": tuple(WORKLOADS), "help": "of the model: default large on a GPU, small in the simulator"}
    },
)
